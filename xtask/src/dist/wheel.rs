//! The wheel, by maturin: the program as a script, the rest of the tree as data, and the Python package.
//!
//! The metadata is that of `clients/python`, with the extra `model`. maturin would compile the program by itself, alone and with
//! other features than the workspace's: it is handed the one that was built, by a cargo that says what cargo says of it.

use super::{Release, create, metadata, tree, write};
use crate::place;
use crate::setup::{SERVER, venv};
use crate::shell::quietly;
use serde_json::json;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use toml::{Table, Value};

const MATURIN: &str = "maturin==1.16.0";
/// The crate of the program.
const CRATE: &str = "espalier-daemon";

/// The environment of maturin.
pub(super) fn tools() -> Result<PathBuf, String> {
    venv("dist-env", "maturin", &[MATURIN])
}

pub(super) fn make(release: &Release) -> Result<PathBuf, String> {
    let tools = tools()?;
    let folder = release.scratch.join("wheel");
    // Scripts go to `bin` of an environment, data to the environment itself.
    tree::copy_all(&release.tree.join("lib"), &folder.join("data/data/lib"))?;
    tree::copy(&release.tree.join("bin/espalier-keeper"), &folder.join("data/scripts/espalier-keeper"))?;
    tree::copy_all(&place::root().join("clients/python/src"), &folder.join("python"))?;
    for file in ["LICENSE", "README.md"] {
        tree::copy(&place::root().join(file), &folder.join(file))?;
    }
    tree::copy(&release.notices, &folder.join("THIRD-PARTY.txt"))?;
    let client = std::fs::read_to_string(place::root().join("clients/python/pyproject.toml"));
    let client = client.map_err(|error| format!("clients/python/pyproject.toml: {error}"))?;
    let project = project(&client, &release.version, &place::root().join("engine/daemon/Cargo.toml"))?;
    write(&folder.join("pyproject.toml"), project)?;

    let program = folder.join("program/espalier");
    tree::copy(&release.tree.join("bin/espalier"), &program)?;
    let cargo = stand_in(&folder, &program)?;
    let wheels = release.scratch.join("wheels");
    let mut maturin = Command::new(tools.join("bin/maturin"));
    maturin.current_dir(&folder).args(["build", "--locked", "--out"]).arg(&wheels);
    maturin.args(["--compatibility", &format!("manylinux_2_{}", release.glibc), "--auditwheel", "check"]);
    maturin.env("CARGO", cargo).env("CARGO_TARGET_DIR", folder.join("target"));
    quietly(&mut maturin)?;
    let made = std::fs::read_dir(&wheels).map_err(|error| format!("{}: {error}", wheels.display()))?;
    let made = made.flatten().next().ok_or("maturin did not produce a wheel")?;
    let file = release.out.join(made.file_name());
    std::fs::rename(made.path(), &file).map_err(|error| format!("{}: {error}", file.display()))?;
    Ok(file)
}

/// The project file of the wheel, from that of the Python package.
fn project(client: &str, version: &str, manifest: &Path) -> Result<String, String> {
    let mut file: Table =
        toml::from_str(client).map_err(|error| format!("clients/python/pyproject.toml: {error}"))?;
    let parse = |text: &str| toml::from_str::<Table>(text).expect("it is written here");
    let project =
        file.get_mut("project").and_then(Value::as_table_mut).ok_or("clients/python: no [project]")?;
    if project.get("version").and_then(Value::as_str) != Some(version) {
        return Err(format!(
            "clients/python/pyproject.toml has another version than the workspace's {version}"
        ));
    }
    project.extend(parse(
        r#"
        description = "Rollout engine for training and evaluating LLM agents: the program, its plugins, and the client of its service"
        readme = "README.md"
        license = "Apache-2.0"
        license-files = ["LICENSE", "THIRD-PARTY.txt"]
        classifiers = [
            "Environment :: Console",
            "Operating System :: POSIX :: Linux",
            "Programming Language :: Python :: 3",
            "Programming Language :: Rust",
            "Topic :: Scientific/Engineering :: Artificial Intelligence",
            "Typing :: Typed",
        ]
        "#,
    ));
    let extras = project.get_mut("optional-dependencies").and_then(Value::as_table_mut);
    let extras = extras.ok_or("clients/python: no [project.optional-dependencies]")?;
    // Those of the package's own tests are nobody else's.
    extras.retain(|name, _| name == "websocket");
    extras.insert("model".to_owned(), Value::Array(vec![Value::String(SERVER.to_owned())]));
    let maturin = Table::from_iter([
        ("bindings".to_owned(), Value::String("bin".to_owned())),
        ("module-name".to_owned(), Value::String("espalier".to_owned())),
        ("python-source".to_owned(), Value::String("python".to_owned())),
        ("data".to_owned(), Value::String("data".to_owned())),
        // It would name folders of this machine; THIRD-PARTY.txt lists what is linked.
        ("sbom".to_owned(), Value::Table(parse("rust = false"))),
        ("manifest-path".to_owned(), Value::String(manifest.display().to_string())),
    ]);
    file.insert(
        "tool".to_owned(),
        Value::Table(Table::from_iter([("maturin".to_owned(), Value::Table(maturin))])),
    );
    file.extend(parse("[build-system]\nrequires = [\"maturin>=1.16,<2\"]\nbuild-backend = \"maturin\""));
    toml::to_string(&file).map_err(|error| error.to_string())
}

/// A `cargo` that has built this program: it prints the message of the artifact.
fn stand_in(folder: &Path, program: &Path) -> Result<PathBuf, String> {
    let metadata = metadata(&place::root(), &["--no-deps"])?;
    let of = |list: &serde_json::Value, name: &str| {
        list.as_array().and_then(|list| list.iter().find(|entry| entry["name"] == name)).cloned()
    };
    let package = of(&metadata["packages"], CRATE).ok_or(format!("no package {CRATE}"))?;
    let target = package["targets"].as_array().and_then(|targets| {
        targets.iter().find(|target| target["name"] == "espalier" && target["kind"][0] == "bin")
    });
    let message = json!({
        "reason": "compiler-artifact",
        "package_id": package["id"],
        "manifest_path": package["manifest_path"],
        "target": target.ok_or(format!("{CRATE} has no program espalier"))?,
        "profile": {
            "opt_level": "3", "debuginfo": 0, "debug_assertions": false, "overflow_checks": true, "test": false,
        },
        "features": [],
        "filenames": [program],
        "executable": program,
        "fresh": true,
    });
    create(folder)?;
    let said = folder.join("artifact.json");
    write(&said, format!("{message}\n"))?;
    let cargo = folder.join("cargo");
    write(&cargo, format!("#!/bin/sh\nexec cat '{}'\n", said.display()))?;
    std::fs::set_permissions(&cargo, std::fs::Permissions::from_mode(0o755))
        .map_err(|error| format!("{}: {error}", cargo.display()))?;
    Ok(cargo)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_project_is_the_clients_with_the_model_as_an_extra() {
        let client = include_str!("../../../clients/python/pyproject.toml");
        let text = project(client, env!("CARGO_PKG_VERSION"), Path::new("/r/Cargo.toml")).unwrap();
        let made: Table = toml::from_str(&text).unwrap();
        let extras = made["project"]["optional-dependencies"].as_table().unwrap();
        let names: Vec<&str> = extras.keys().map(String::as_str).collect();
        assert_eq!(names, ["model", "websocket"]);
        assert_eq!(extras["model"][0].as_str(), Some(SERVER));
        assert_eq!(made["project"]["name"].as_str(), Some("espalier"));
        assert!(made["project"]["dependencies"].as_array().is_some_and(|list| !list.is_empty()));
        assert_eq!(made["tool"]["maturin"]["bindings"].as_str(), Some("bin"));
        assert_eq!(made["build-system"]["build-backend"].as_str(), Some("maturin"));
        assert!(project(client, "9.9.9", Path::new("/r/Cargo.toml")).unwrap_err().contains("9.9.9"));
    }
}

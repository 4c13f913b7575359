//! The SDKs of plugins: in the tree beside the templates, and as archives of each language's own form. An SDK has the interfaces in `wit`.
//!
//! ```text
//! espalier-sdk-VERSION.crate                  Rust: unpacked, a dependency by path
//! espalier-sdk-VERSION.tgz                    JavaScript and TypeScript: npm install FILE
//! espalier_sdk-VERSION-py3-none-any.whl       Python: pip install FILE; and the same as source, .tar.gz
//! espalier-sdk-go-VERSION.tar.gz              Go: unpacked, a `replace` of go.mod
//! espalier-sdk-c-VERSION.tar.gz               C: unpacked, headers and sources
//! ```

use super::{Release, create, tree, write};
use crate::setup::venv;
use crate::shell::quietly;
use crate::{place, plugins};
use std::path::{Path, PathBuf};
use std::process::Command;
use walkdir::WalkDir;

/// What tools leave in an SDK's folder.
const LEFT_OUT: [&str; 5] = ["node_modules", "__pycache__", "target", ".mypy_cache", ".pytest_cache"];
/// What of an SDK's own folder is for the repository alone.
const LEFT_OUT_AT_TOP: [&str; 3] = ["tests", "wit", ".gitignore"];
/// What makes a Python package.
const BUILD: [&str; 2] = ["build==1.6.1", "setuptools==84.2.1"];

/// Puts the templates and the SDKs into a library folder that has the interfaces in `wit`.
pub(super) fn lay_out(library: &Path) -> Result<(), String> {
    tree::copy_all(&place::root().join("plugins/templates"), &library.join("templates"))?;
    for (language, folder) in plugins::sdks() {
        let to = library.join("sdk").join(language);
        copy(&folder, &to)?;
        tree::copy_all(&library.join("wit"), &to.join("wit"))?;
    }
    Ok(())
}

fn copy(from: &Path, to: &Path) -> Result<(), String> {
    if !from.is_dir() {
        return Err(format!("{} is missing", from.display()));
    }
    let walk = WalkDir::new(from).sort_by_file_name().into_iter().filter_entry(|entry| {
        let name = entry.file_name().to_string_lossy();
        let is_left_out = LEFT_OUT.contains(&&*name) || name.ends_with(".egg-info");
        let is_at_top = entry.depth() == 1 && LEFT_OUT_AT_TOP.contains(&&*name);
        !is_left_out && !is_at_top
    });
    for entry in walk {
        let entry = entry.map_err(|error| error.to_string())?;
        let inside = entry.path().strip_prefix(from).unwrap_or(entry.path());
        if entry.file_type().is_file() {
            tree::copy(entry.path(), &to.join(inside))?;
        }
    }
    Ok(())
}

/// Makes the archives; returns them.
pub(super) fn make(release: &Release) -> Result<Vec<PathBuf>, String> {
    let version = &release.version;
    let packed = [
        ("rust", format!("espalier-sdk-{version}"), format!("espalier-sdk-{version}.crate")),
        ("javascript", "package".to_owned(), format!("espalier-sdk-{version}.tgz")),
        ("go", format!("espalier-sdk-go-{version}"), format!("espalier-sdk-go-{version}.tar.gz")),
        ("c", format!("espalier-sdk-c-{version}"), format!("espalier-sdk-c-{version}.tar.gz")),
    ];
    let license = place::root().join("LICENSE");
    let mut files = Vec::new();
    for (language, folder, file) in packed {
        let around = release.scratch.join("sdks").join(language);
        let folder = around.join(folder);
        tree::copy_all(&release.tree.join("lib/espalier/sdk").join(language), &folder)?;
        tree::copy(&license, &folder.join("LICENSE"))?;
        let file = release.out.join(file);
        tree::pack(&around, &file, true)?;
        files.push(file);
    }
    files.extend(python(release)?);
    Ok(files)
}

/// The environment that makes the Python package.
pub(super) fn tools() -> Result<PathBuf, String> {
    venv("sdk-env", "what makes Python packages", &BUILD)
}

fn python(release: &Release) -> Result<Vec<PathBuf>, String> {
    let folder = release.scratch.join("sdks/python");
    tree::copy_all(&release.tree.join("lib/espalier/sdk/python"), &folder)?;
    tree::copy(&place::root().join("LICENSE"), &folder.join("LICENSE"))?;
    write(&folder.join("MANIFEST.in"), "graft wit\n")?;
    let made = release.scratch.join("sdks/python-made");
    create(&made)?;
    let mut build = Command::new(tools()?.join("bin/python"));
    build.args(["-m", "build", "--no-isolation", "--outdir"]).arg(&made).arg(&folder);
    // The same files give the same archive.
    quietly(build.env("SOURCE_DATE_EPOCH", "315532800"))?;
    let made = std::fs::read_dir(&made).map_err(|error| format!("{}: {error}", made.display()))?;
    let mut files = Vec::new();
    for entry in made.flatten() {
        let file = release.out.join(entry.file_name());
        std::fs::rename(entry.path(), &file).map_err(|error| format!("{}: {error}", file.display()))?;
        files.push(file);
    }
    files.sort();
    Ok(files)
}

//! Makes the Go bindings of the SDK anew from `wit/`: `cargo run --manifest-path plugins/go/generate/Cargo.toml`.
//!
//! What wit-bindgen makes is changed in four ways. It uses the SDK's own small packages `types` and `memory`. What the host writes is
//! copied, since its memory is used again. A handle is dropped when the author says so, never by the garbage collector, which may run while no
//! import can be called. Imports have a body outside of WebAssembly, so that `go vet` and `go test` work on the author's machine.

use anyhow::{Context, Result};
use std::path::Path;
use std::process::Command;
use wit_bindgen_core::Files;
use wit_bindgen_core::wit_parser::Resolve;

/// All that plugins import and export. A component has what its own world has of it.
const WORLD: &str = "
    package espalier:sdk;
    world sdk {
        import espalier:base/log@0.1.0;
        import espalier:base/blobs@0.1.0;
        import espalier:base/settings@0.1.0;
        import espalier:base/clock@0.1.0;
        import espalier:base/random@0.1.0;
        import espalier:model/conversations@0.1.0;
        import espalier:environment/environments@0.1.0;
        import espalier:sandbox/sandboxes@0.1.1;
        import espalier:browser/browsers@0.1.0;
        import espalier:service/services@0.1.0;
        import espalier:sandbox/scoring@0.1.1;
        import espalier:sandbox/creation@0.1.1;
        import espalier:plugin/diagnostics@0.1.2;
        export espalier:base/configurable@0.1.0;
        export espalier:plugin/harness@0.1.2;
        export espalier:environment/provider@0.1.0;
        export espalier:plugin/reward@0.1.2;
        export espalier:plugin/group-reward@0.1.2;
        export espalier:plugin/judge@0.1.2;
        export espalier:plugin/task-generator@0.1.2;
    }
";

/// Packages with nothing but other names of types.
const EMPTY: [&str; 4] = [
    "espalier_environment_provider",
    "espalier_plugin_group_reward",
    "espalier_plugin_harness",
    "espalier_plugin_reward",
];

fn main() -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
    let bindings = root.join("plugins/go/sdk/bindings");
    let mut resolve = Resolve::default();
    resolve.push_dir(root.join("wit"))?;
    let package = resolve.push_str("sdk.wit", WORLD)?;
    let world = resolve.select_world(&[package], Some("sdk"))?;
    let pkg_name = Some("espalier/sdk/bindings".to_owned());
    let options = wit_bindgen_go::Opts { pkg_name, quiet: true, ..Default::default() };
    let mut files = Files::default();
    options.build().generate(&mut resolve, world, &mut files)?;
    let imports = bindings.join("imports");
    if imports.exists() {
        std::fs::remove_dir_all(&imports)?;
    }
    for (name, text) in files.iter() {
        let text = with_own_packages(std::str::from_utf8(text)?);
        let folder = Path::new(name).parent().context("a file has a folder")?;
        if name.ends_with("wit_exports.go") {
            write(&bindings.join("exports/generated.go"), &exports(&text))?;
        } else if name.ends_with(".go") && !EMPTY.iter().any(|empty| folder.ends_with(empty)) {
            write_imports(&bindings.join(folder), &text)?;
        }
    }
    let formatted = Command::new("gofmt").arg("-w").arg(&bindings).status().context("gofmt")?;
    anyhow::ensure!(formatted.success(), "gofmt failed");
    Ok(())
}

fn write(file: &Path, text: &str) -> Result<()> {
    std::fs::create_dir_all(file.parent().context("a file has a folder")?)?;
    std::fs::write(file, text)?;
    Ok(())
}

fn with_own_packages(text: &str) -> String {
    text.replace("go.bytecodealliance.org/pkg/wit/types", "espalier/sdk/bindings/types")
        .replace("go.bytecodealliance.org/pkg/wit/runtime", "espalier/sdk/bindings/memory")
        .replace("unsafe.String((*uint8)", "witRuntime.String((*uint8)")
        .replace("unsafe.Slice((*uint8)", "witRuntime.Bytes((*uint8)")
}

/// The exports call functions of their own package, which the SDK sets.
fn exports(text: &str) -> String {
    let mut out = String::new();
    for line in text.lines() {
        if line.trim_start().starts_with("\"espalier/sdk/bindings/exports/") {
            continue;
        }
        let line = match line.split_once("export_espalier_") {
            Some((before, behind)) if !line.contains("func ") && !line.starts_with("//") => {
                format!("{before}{}", behind.split_once('.').map_or(behind, |(_, call)| call))
            }
            _ => line.to_owned(),
        };
        out.push_str(&line);
        out.push('\n');
    }
    out.replace("package wit_exports", "package exports")
}

/// A package of imports: what it declares, apart from the functions of the host, in a file of its own.
fn write_imports(folder: &Path, text: &str) -> Result<()> {
    anyhow::ensure!(!text.contains("unsafe.Slice("), "a list of numbers is read: copy it as bytes are");
    let (mut rest, mut wasm, mut other) = (String::new(), String::new(), String::new());
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if line.starts_with("//go:wasmimport ") {
            let declared = lines.next().context("a function is declared")?;
            wasm.push_str(&format!("{line}\n{declared}\n\n"));
            other.push_str(&format!("{declared} {{ panic(outside) }}\n"));
        } else if line.trim_start().starts_with("runtime.AddCleanup(") {
            let indent: String = line.chars().take_while(|letter| letter.is_whitespace()).collect();
            let end = format!("{indent}}}, 0)");
            lines.by_ref().take_while(|line| *line != end).for_each(drop);
        } else {
            if line.contains("wasm_import_") {
                rest.push_str("\twitRuntime.Enter()\n\tdefer witRuntime.Leave()\n");
            }
            rest.push_str(line);
            rest.push('\n');
        }
    }
    let with_host = !wasm.is_empty();
    if rest.contains("witRuntime.") && !rest.contains("espalier/sdk/bindings/memory") {
        rest = rest.replacen("import (", "import (\n\twitRuntime \"espalier/sdk/bindings/memory\"", 1);
    }
    write(&folder.join("bindings.go"), &with_used_imports(&rest))?;
    if with_host {
        let package =
            text.lines().find(|line| line.starts_with("package ")).context("a file has a package")?;
        let note = "// Generated by plugins/go/generate. DO NOT EDIT!\n\n";
        write(&folder.join("host_wasm.go"), &format!("{note}{package}\n\n{wasm}"))?;
        let outside = "const outside = \"the engine can only be called from inside of a component\"";
        write(
            &folder.join("host_other.go"),
            &format!("//go:build !wasm\n\n{note}{package}\n\n{outside}\n\n{other}"),
        )?;
    }
    Ok(())
}

/// Leaves out packages of the standard library that are not used any more, and adds `runtime` where it is.
fn with_used_imports(text: &str) -> String {
    let mut out = text.to_owned();
    for package in ["runtime", "unsafe"] {
        let import = format!("\"{package}\"");
        let used = out.contains(&format!("{package}."));
        let imported = out.contains(&import);
        if imported && !used {
            out = out.lines().filter(|line| line.trim() != import).flat_map(|line| [line, "\n"]).collect();
        }
        if used && !imported {
            out = match out.contains("import (") {
                true => out.replacen("import (", &format!("import (\n\t{import}"), 1),
                false => out,
            };
        }
    }
    out
}

//! What a component asks for and offers, read before anything is compiled, so that a refusal says what is the matter.

use crate::World;
use crate::packages::{Packages, Part, split_version};
use wasmparser::{CanonicalFunction, CanonicalOption, Encoding, Parser, Payload};

/// What every plugin exports, without its version.
pub(crate) const CONFIGURABLE: &str = "espalier:base/configurable";

/// How the names of this project's packages begin.
const OWN: &str = "espalier:";

/// The families of WASI 0.2 that are answered, virtually.
const WASI: [&str; 6] =
    ["wasi:cli", "wasi:clocks", "wasi:filesystem", "wasi:io", "wasi:random", "wasi:sockets"];

/// The part of WASI that is not answered and that HTTP libraries ask for.
const HTTP: &str = "wasi:http";

/// Names of what a component imports and exports, with their versions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Names {
    /// Interfaces it needs.
    pub imports: Vec<String>,
    /// Interfaces it offers.
    pub exports: Vec<String>,
}

/// The world of a component, or why an engine that provides these packages cannot take it.
pub(crate) fn world_of(wasm: &[u8], packages: Packages) -> Result<World, String> {
    let names = names_of(wasm)?;
    let world = exported_world(&names, packages)?;
    for import in &names.imports {
        check_import(world, import, packages)?;
    }
    match names.exports.iter().find(|export| split_version(export).0 == CONFIGURABLE) {
        Some(export) => packages.find("exports", export).map(|_| world),
        None => Err(format!(
            "does not export {CONFIGURABLE}, which every plugin must; build it for the world {world} of wit/"
        )),
    }
}

/// What a component imports and exports; an error says why it is not a component.
pub fn names_of(wasm: &[u8]) -> Result<Names, String> {
    if !wasm.starts_with(b"\0asm") {
        let what = if wasm.is_empty() { "is empty" } else { "is not WebAssembly" };
        return Err(format!("{what}; a plugin is a WebAssembly component"));
    }
    let mut names = Names::default();
    let mut depth = 0usize;
    for payload in Parser::new(0).parse_all(wasm) {
        match payload.map_err(|error| format!("is damaged: {error}"))? {
            Payload::Version { encoding: Encoding::Module, .. } if depth == 0 => {
                return Err(
                    "is a core module, not a component; wrap it with wasm-component-ld or `wasm-tools component new`"
                        .to_owned(),
                );
            }
            Payload::ModuleSection { .. } | Payload::ComponentSection { .. } => depth += 1,
            Payload::End(_) => depth = depth.saturating_sub(1),
            Payload::ComponentImportSection(section) if depth == 0 => {
                for import in section {
                    let import = import.map_err(|error| format!("is damaged: {error}"))?;
                    names.imports.push(import.name.name.to_owned());
                }
            }
            Payload::ComponentExportSection(section) if depth == 0 => {
                for export in section {
                    let export = export.map_err(|error| format!("is damaged: {error}"))?;
                    names.exports.push(export.name.name.to_owned());
                }
            }
            _ => {}
        }
    }
    Ok(names)
}

/// Whether a function belongs to the asynchronous part of the component model.
pub(crate) fn is_async(function: &CanonicalFunction) -> bool {
    match function {
        CanonicalFunction::Lift { options, .. } | CanonicalFunction::Lower { options, .. } => {
            options.contains(&CanonicalOption::Async)
        }
        CanonicalFunction::ResourceNew { .. }
        | CanonicalFunction::ResourceDrop { .. }
        | CanonicalFunction::ResourceRep { .. } => false,
        // Tasks, streams, futures, threads.
        _ => true,
    }
}

fn exported_world(names: &Names, packages: Packages) -> Result<World, String> {
    let mut found = Vec::new();
    for export in &names.exports {
        let (name, _) = split_version(export);
        if let Some(world) = World::ALL.into_iter().find(|world| world.export() == name) {
            packages.find("exports", export)?;
            found.push(world);
        }
    }
    match found[..] {
        [world] => Ok(world),
        [] => {
            // An import that this engine does not provide says more than a missing export.
            for import in names.imports.iter().filter(|import| import.starts_with(OWN)) {
                packages.find("imports", import)?;
            }
            let known: Vec<&str> = World::ALL.iter().map(|world| world.export()).collect();
            let has = if names.exports.is_empty() { "nothing".to_owned() } else { names.exports.join(", ") };
            Err(format!("exports {has}; a plugin must export one of {}", known.join(", ")))
        }
        _ => {
            let worlds: Vec<String> = found.iter().map(ToString::to_string).collect();
            Err(format!("implements several worlds ({}); build one component for each", worlds.join(", ")))
        }
    }
}

fn check_import(world: World, import: &str, packages: Packages) -> Result<(), String> {
    let (name, version) = split_version(import);
    if import.starts_with(OWN) {
        let interface = packages.find("imports", import)?;
        if matches!(interface.part, Part::Types(_)) || world.capabilities().contains(&name) {
            return Ok(());
        }
        return Err(format!(
            "imports {import}, a capability that the world {world} does not have; it has {}",
            world.capabilities().join(", ")
        ));
    }
    let package = name.split('/').next().unwrap_or(name);
    if WASI.contains(&package) {
        if version.is_some_and(|version| version.starts_with("0.2.")) {
            return Ok(());
        }
        return Err(format!(
            "imports {import}; this engine provides WASI 0.2, virtually; build the plugin for WASI 0.2, or without WASI"
        ));
    }
    if package == HTTP {
        return Err(format!(
            "imports {import}; plugins have no network: this engine provides {} of WASI 0.2, virtually, and to a {world} {}; \
             build the plugin without HTTP: models are reached by conversations, other servers by commands in a sandbox",
            WASI.join(", "),
            world.capabilities().join(", ")
        ));
    }
    Err(format!(
        "imports {import}, a capability that plugins do not have; a {world} has {}; build the plugin without it",
        world.capabilities().join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packages::PACKAGES;

    /// A component whose imports and exports are empty instances of these names.
    fn component(imports: &[&str], exports: &[&str]) -> Vec<u8> {
        let mut text = String::from("(component\n");
        for import in imports {
            text += &format!("(import \"{import}\" (instance))\n");
        }
        text += "(instance $i)\n";
        for export in exports {
            text += &format!("(export \"{export}\" (instance $i))\n");
        }
        wat::parse_str(text + ")").unwrap()
    }

    const CONFIGURABLE: &str = "espalier:base/configurable@0.1.0";

    #[test]
    fn each_world_is_known_by_its_export() {
        for world in World::ALL {
            let export = format!("{}@0.1.0", world.export());
            let imports: Vec<String> =
                world.capabilities().iter().map(|name| format!("{name}@0.1.0")).collect();
            let mut imports: Vec<&str> = imports.iter().map(String::as_str).collect();
            imports.extend(["espalier:base/types@0.1.0", "wasi:cli/stderr@0.2.6", "wasi:io/streams@0.2.0"]);
            let wasm = component(&imports, &[CONFIGURABLE, &export, "exports", "init"]);
            assert_eq!(world_of(&wasm, PACKAGES), Ok(world));
        }
    }

    #[test]
    fn a_refusal_says_what_the_matter_is() {
        let harness = "espalier:plugin/harness@0.1.0";
        let reward = "espalier:plugin/reward@0.1.0";
        let cases: Vec<(&str, Vec<u8>)> = vec![
            ("empty", Vec::new()),
            ("text", b"hello".to_vec()),
            ("core module", wat::parse_str("(module)").unwrap()),
            ("cut", component(&[], &[CONFIGURABLE, harness])[..40].to_vec()),
            ("newer import", component(&["espalier:model/conversations@0.9.0"], &[CONFIGURABLE, harness])),
            ("newer export", component(&[], &[CONFIGURABLE, "espalier:plugin/harness@0.2.0"])),
            ("newer patch", component(&["espalier:model/conversations@0.1.1"], &[CONFIGURABLE, harness])),
            ("pre-release", component(&["espalier:model/conversations@0.1.0-rc"], &[CONFIGURABLE, harness])),
            ("unknown interface", component(&["espalier:model/embeddings@0.1.0"], &[CONFIGURABLE, harness])),
            ("newer configurable", component(&[], &["espalier:base/configurable@0.2.0", harness])),
            ("no version", component(&["espalier:base/log"], &[CONFIGURABLE, harness])),
            (
                "capability of another world",
                component(&["espalier:model/conversations@0.1.0"], &[CONFIGURABLE, reward]),
            ),
            ("capability of no world", component(&["espalier:screen/pages@0.1.0"], &[CONFIGURABLE, harness])),
            ("wasi:http", component(&["wasi:http/outgoing-handler@0.2.0"], &[CONFIGURABLE, harness])),
            ("wasi 0.3", component(&["wasi:cli/stdout@0.3.0"], &[CONFIGURABLE, harness])),
            ("someone else's", component(&["acme:rockets/launch@1.0.0"], &[CONFIGURABLE, harness])),
            ("no export", component(&[], &[])),
            ("exports of no world", component(&[], &["wasi:cli/run@0.2.0"])),
            ("two worlds", component(&[], &[CONFIGURABLE, harness, reward])),
            ("not configurable", component(&[], &[harness])),
        ];
        let table: Vec<String> = cases
            .iter()
            .map(|(name, wasm)| format!("{name}: {}", world_of(wasm, PACKAGES).expect_err(name)))
            .collect();
        insta::assert_snapshot!(table.join("\n"));
    }
}

//! Components of a few lines: a core module of WebAssembly text, made an environment plugin that imports what its world says.

use std::path::Path;
use wit_component::{ComponentEncoder, StringEncoding, embed_component_metadata};
use wit_parser::Resolve;

/// What every environment exports, each trapping, but for the schema of its settings: `{}` at 16.
const EXPORTS: &str = r#"
    (memory (export "memory") 1)
    (data (i32.const 0) "\10\00\00\00\02\00\00\00")
    (data (i32.const 16) "{}")
    (func (export "cabi_realloc") (param i32 i32 i32 i32) (result i32) unreachable)
    (func (export "espalier:base/configurable@0.1.0#settings-schema") (result i32) i32.const 0)
    (func (export "espalier:environment/provider@0.1.0#reset") (param i32) (result i32) unreachable)
    (func (export "espalier:environment/provider@0.1.0#step") (param i32 i32) (result i32) unreachable)
    (func (export "espalier:environment/provider@0.1.0#actions") (result i32) unreachable)
    (func (export "espalier:environment/provider@0.1.0#close"))"#;

/// `imports`: lines of the world; `packages`: further packages that it imports, as files; `module`: what the core module has besides
/// the exports, its imports first.
pub(crate) fn environment(imports: &str, packages: &[&str], module: &str) -> Vec<u8> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut resolve = Resolve::default();
    resolve.push_dir(root.join("../../wit")).unwrap();
    for package in packages {
        resolve.push_file(root.join(package)).unwrap();
    }
    let world = format!(
        "package test:component; world component {{ {imports} export espalier:base/configurable@0.1.0; \
         export espalier:environment/provider@0.1.0; }}"
    );
    let package = resolve.push_str("world.wit", &world).unwrap();
    let world = resolve.select_world(&[package], Some("component")).unwrap();
    let mut wasm = wat::parse_str(format!("(module {module} {EXPORTS})")).unwrap();
    embed_component_metadata(&mut wasm, &resolve, world, StringEncoding::UTF8).unwrap();
    ComponentEncoder::default().module(&wasm).unwrap().encode().unwrap()
}

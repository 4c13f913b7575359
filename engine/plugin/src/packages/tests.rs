//! A patch of a package, as a later engine would provide it: `tests/patch/base.wit` is `espalier:base@0.1.0` with one
//! function added. One implementation serves components of both, and an engine without the patch refuses those that want it.

#![allow(clippy::unwrap_used, reason = "a test that cannot be set up fails")]

use super::{Interface, PACKAGES, Package, Packages, Part, capability};
use crate::bindings::harness::espalier::base::log as before;
use crate::guest::Guest;
use crate::{Compiler, Plugin, PluginError, PluginHost, PluginHostConfig};
use std::sync::Arc;
use wasmtime::component::HasSelf;

mod patch {
    #![allow(missing_docs, unreachable_pub, clippy::all, clippy::pedantic, reason = "generated code")]

    wasmtime::component::bindgen!({
        path: "tests/patch",
        world: "espalier:base/added",
        imports: { default: trappable },
    });
}

use patch::espalier::base::log;

impl log::Host for Guest {
    fn write(&mut self, level: log::Level, text: String, fields: Option<String>) -> wasmtime::Result<()> {
        let level = match level {
            log::Level::Debug => before::Level::Debug,
            log::Level::Info => before::Level::Info,
            log::Level::Warn => before::Level::Warn,
            log::Level::Error => before::Level::Error,
        };
        before::Host::write(self, level, text, fields)
    }

    fn count(&mut self) -> wasmtime::Result<u32> {
        Ok(self.gate.logs().lines().len() as u32)
    }
}

/// The engine's table with the patch in place of what it patches.
fn patched() -> Packages {
    let [base, rest @ ..] = PACKAGES.0 else { unreachable!("the table has packages") };
    let interfaces: Vec<Interface> = base
        .interfaces
        .iter()
        .map(|interface| match interface.name {
            "log" => capability("log", link!(log)),
            _ => *interface,
        })
        .collect();
    let base = Package { patch: 1, interfaces: interfaces.leak(), ..*base };
    Packages([&[base], rest].concat().leak())
}

/// A component of the world judge that imports the log in this version, and traps where it starts with lines in it.
fn component(version: &str) -> Vec<u8> {
    wat::parse_str(format!(
        r#"(component
            (import "espalier:base/log@{version}" (instance $log (export "count" (func (result u32)))))
            (core func $called (canon lower (func $log "count")))
            (core module $module
                (import "host" "called" (func $called (result i32)))
                (memory (export "memory") 1)
                (data (i32.const 0) "\10\00\00\00\02\00\00\00")
                (data (i32.const 16) "{{}}")
                (func (export "settings-schema") (result i32) i32.const 0)
                (func $start (if (call $called) (then unreachable)))
                (start $start))
            (core instance $core
                (instantiate $module (with "host" (instance (export "called" (func $called))))))
            (func $schema (result string)
                (canon lift (core func $core "settings-schema") (memory (core memory $core "memory"))))
            (instance $configurable (export "settings-schema" (func $schema)))
            (instance $judge)
            (export "espalier:base/configurable@{version}" (instance $configurable))
            (export "espalier:plugin/judge@0.1.0" (instance $judge)))"#
    ))
    .unwrap()
}

fn host(packages: Packages) -> PluginHost {
    let config = PluginHostConfig {
        cache_dir: None,
        compiler: Compiler::InProcess,
        guest_threads: 1,
        instances_max: 4,
        io: tokio::runtime::Handle::current(),
    };
    PluginHost::providing(config, packages).unwrap()
}

async fn load(host: &PluginHost, wasm: Vec<u8>) -> Result<Arc<Plugin>, PluginError> {
    host.load_bytes("x.wasm".into(), wasm).await
}

#[tokio::test(flavor = "multi_thread")]
async fn one_implementation_serves_a_patch_and_what_it_patches() {
    let host = host(patched());
    // Built against 0.1.0 and kept: what it imports of the package is answered by the patch's implementation.
    load(&host, include_bytes!("../../tests/kept/once-0.1.0.wasm").to_vec()).await.unwrap();
    // It was linked and has started; that it is no judge is found behind that.
    let error = load(&host, component("0.1.1")).await.unwrap_err();
    assert!(error.to_string().contains("its exports are not those of the world judge-plugin"), "{error}");
    let error = load(&host, component("0.1.2")).await.unwrap_err();
    let expect = "plugin x.wasm: imports espalier:base/log@0.1.2; this engine provides espalier:base@0.1.1, which is older";
    assert!(error.to_string().starts_with(expect), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_patch_a_component_that_wants_it_is_refused_before_it_is_compiled() {
    let host = host(PACKAGES);
    let error = load(&host, component("0.1.1")).await.unwrap_err();
    assert!(matches!(error, PluginError::Refused { .. }), "{error}");
    assert_eq!(
        error.to_string(),
        "plugin x.wasm: imports espalier:base/log@0.1.1; this engine provides espalier:base@0.1.0, which is older; \
         use a newer engine, or rebuild the plugin against the wit/ of this one"
    );
}

/// The table says what `wit/` has: every interface, and nothing else.
#[test]
fn the_table_is_that_of_the_files() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../wit");
    let mut found: Vec<String> = ["base", "model", "environment", "sandbox"]
        .iter()
        .map(|name| std::fs::read_to_string(root.join(format!("deps/{name}/{name}.wit"))).unwrap())
        .collect();
    found.push(std::fs::read_to_string(root.join("plugin.wit")).unwrap());
    assert_eq!(found.len(), PACKAGES.0.len());
    for (package, text) in PACKAGES.0.iter().zip(found) {
        let version = format!("package {}@{}.{};", package.name, package.track, package.patch);
        assert!(text.contains(&version), "{version}");
        let interfaces: Vec<&str> =
            text.lines().filter_map(|line| line.strip_prefix("interface ")?.strip_suffix(" {")).collect();
        let table: Vec<&str> = package.interfaces.iter().map(|interface| interface.name).collect();
        assert_eq!(table, interfaces, "{}", package.name);
        for interface in package.interfaces {
            let is_capability = matches!(interface.part, Part::Capability(_));
            let name = format!("{}/{}", package.name, interface.name);
            let imported =
                crate::World::ALL.iter().any(|world| world.capabilities().contains(&name.as_str()));
            assert_eq!(is_capability, imported, "{name}");
        }
    }
}

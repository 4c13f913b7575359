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

mod broken {
    #![allow(missing_docs, unreachable_pub, clippy::all, clippy::pedantic, reason = "generated code")]

    wasmtime::component::bindgen!({
        path: "tests/break",
        world: "espalier:base/broken",
        imports: { default: trappable },
    });
}

use broken::espalier::base::log as next;
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

impl next::Host for Guest {
    fn write(
        &mut self,
        level: next::Level,
        text: String,
        fields: Vec<(String, String)>,
    ) -> wasmtime::Result<()> {
        let level = match level {
            next::Level::Debug => before::Level::Debug,
            next::Level::Info => before::Level::Info,
            next::Level::Warn => before::Level::Warn,
            next::Level::Error => before::Level::Error,
        };
        let fields: serde_json::Map<String, serde_json::Value> =
            fields.into_iter().map(|(name, value)| (name, value.into())).collect();
        before::Host::write(self, level, text, Some(serde_json::Value::Object(fields).to_string()))
    }
}

/// The engine's table with the next track of `espalier:base` behind the one before.
fn with_both_tracks() -> Packages {
    let [base, rest @ ..] = PACKAGES.0 else { unreachable!("the table has packages") };
    let interfaces = vec![capability("log", link!(next))].leak();
    let next = Package { track: "0.2", patch: 0, interfaces, ..*base };
    Packages([&[*base, next], rest].concat().leak())
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

#[path = "../../tests/support/component.rs"]
mod component;

/// A component that imports the log in the patch, and traps where it starts with lines in it.
fn component() -> Vec<u8> {
    component::environment("import espalier:base/log@0.1.1;", &["tests/patch/base.wit"], COUNT)
}

const COUNT: &str = r#"(import "espalier:base/log@0.1.1" "count" (func $count (result i32)))
    (func $start (if (call $count) (then unreachable)))
    (start $start)"#;

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
    load(&host, component()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_patch_a_component_that_wants_it_is_refused_before_it_is_compiled() {
    let host = host(PACKAGES);
    let error = load(&host, component()).await.unwrap_err();
    assert!(matches!(error, PluginError::Refused { .. }), "{error}");
    assert_eq!(
        error.to_string(),
        "plugin x.wasm: imports espalier:base/log@0.1.1; this engine provides espalier:base@0.1.0, which is older; \
         use a newer engine, or rebuild the plugin against the wit/ of this one"
    );
}

/// A break: what was built before it and what is built after it load on one engine, which answers both.
#[tokio::test(flavor = "multi_thread")]
async fn two_tracks_of_a_package_are_provided_beside_each_other() {
    let host = host(with_both_tracks());
    let kept = load(&host, include_bytes!("../../tests/kept/once-0.1.0.wasm").to_vec()).await.unwrap();
    assert_eq!(kept.world(), crate::World::Harness);
    let module = r#"(import "espalier:base/log@0.2.0" "write" (func (param i32 i32 i32 i32 i32)))"#;
    let next = component::environment("import espalier:base/log@0.2.0;", &["tests/break/base.wit"], module);
    load(&host, next.clone()).await.unwrap();
    let error = load(&self::host(PACKAGES), next).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "plugin x.wasm: imports espalier:base/log@0.2.0; this engine provides espalier:base@0.1.0; use an engine that \
         provides espalier:base@0.2, or rebuild the plugin against the wit/ of this one"
    );
    let newer = component::environment("import espalier:base/log@0.1.1;", &["tests/patch/base.wit"], COUNT);
    let error = load(&host, newer).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "plugin x.wasm: imports espalier:base/log@0.1.1; this engine provides espalier:base@0.1.0, which is \
         older; use a newer engine, or rebuild the plugin against the wit/ of this one"
    );
}

/// The table says what `wit/` has: every interface, and nothing else.
#[test]
fn the_table_is_that_of_the_files() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../wit");
    let mut found: Vec<String> = ["base", "model", "environment", "sandbox", "browser", "service"]
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

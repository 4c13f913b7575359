//! Loading: refusals by name, one compilation for many callers, references to files.

#![allow(clippy::unwrap_used, reason = "a test that cannot be set up fails")]

mod support;

use async_trait::async_trait;
use espalier_core::ending::{HarnessEnd, Outcome};
use espalier_core::failure::Failure;
use espalier_core::host::{Environment, Environments, Observation, StepResult};
use espalier_core::journal::{Call, Reply, Verdict, measure};
use espalier_core::trajectory::HostCall;
use espalier_plugin::{PluginError, Registry, World, digest_of};
use std::sync::{Arc, Mutex};
use support::{Case, guest_path, host, new_host};

async fn refusal(name: &str, bytes: &[u8]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(name);
    std::fs::write(&path, bytes).unwrap();
    let error = host().load(&path).await.unwrap_err();
    error.to_string().replace(&folder.path().display().to_string(), "[folder]")
}

fn replaced(bytes: &[u8], from: &str, to: &str) -> Vec<u8> {
    assert_eq!(from.len(), to.len());
    let mut out = bytes.to_vec();
    let mut at = 0;
    while let Some(found) = out[at..].windows(from.len()).position(|window| window == from.as_bytes()) {
        out[at + found..at + found + to.len()].copy_from_slice(to.as_bytes());
        at += found + to.len();
    }
    out
}

#[tokio::test(flavor = "multi_thread")]
async fn real_components_of_another_version_or_world_are_refused_by_name() {
    let mut told = Vec::new();
    for name in ["fault-harness", "fault-js", "fault-py"] {
        let wasm = std::fs::read(guest_path(name)).unwrap();
        let newer =
            replaced(&wasm, "espalier:model/conversations@0.1.0", "espalier:model/conversations@0.9.0");
        told.push(refusal(&format!("{name}-newer.wasm"), &newer).await);
    }
    let wasm = std::fs::read(guest_path("fault-reward")).unwrap();
    let greedy = replaced(&wasm, "espalier:base/settings@0.1.0", "espalier:base/sandboxs@0.1.0");
    told.push(refusal("greedy.wasm", &greedy).await);
    // A field of the record that it returns has another name.
    told.push(refusal("changed.wasm", &replaced(&wasm, "reason", "ground")).await);
    let harness = std::fs::read(guest_path("fault-harness")).unwrap();
    told.push(refusal("cut.wasm", &harness[..harness.len() / 2]).await);
    told.push(refusal("text.wasm", b"#!/bin/sh").await);
    // Where the cut file ends depends on how the guest was built.
    insta::with_settings!({ filters => [(r"offset 0x[0-9a-f]+", "offset [end]")] }, {
        insta::assert_snapshot!(told.join("\n"));
    });
    let error = host().load("/nonexistent/x.wasm".as_ref()).await.unwrap_err();
    assert!(matches!(error, PluginError::Read { .. }));
    assert_eq!(error.to_string(), "plugin /nonexistent/x.wasm: cannot be read");
    let cause = std::error::Error::source(&error).and_then(|cause| cause.downcast_ref::<std::io::Error>());
    assert_eq!(cause.map(std::io::Error::kind), Some(std::io::ErrorKind::NotFound));
}

#[tokio::test(flavor = "multi_thread")]
async fn many_loads_compile_once_and_a_second_host_takes_the_cache() {
    let folder = tempfile::tempdir().unwrap();
    let path = guest_path("fault-reward");
    let host = new_host(folder.path(), 2);
    let loads: Vec<_> = (0..16)
        .map(|_| {
            let (host, path) = (host.clone(), path.clone());
            tokio::spawn(async move { host.load(&path).await.unwrap() })
        })
        .collect();
    let mut plugins = Vec::new();
    for load in loads {
        plugins.push(load.await.unwrap());
    }
    let mut files: Vec<_> = std::fs::read_dir(folder.path()).unwrap().flatten().collect();
    files.sort_by_key(|file| file.path().extension().map(|ending| ending != "cwasm"));
    assert_eq!(files.len(), 2, "code, and the record of it");
    let written = files[0].metadata().unwrap().modified().unwrap();
    assert!(plugins.iter().all(|plugin| plugin.digest() == digest_of(&std::fs::read(&path).unwrap())));
    let second = new_host(folder.path(), 1).load(&path).await.unwrap();
    assert_eq!(second.settings_schema(), plugins[0].settings_schema());
    assert_eq!(files[0].metadata().unwrap().modified().unwrap(), written, "taken, not written again");
}

/// The right line tables are used, also where code without them is cached; those of another build are not, and do no harm.
#[tokio::test(flavor = "multi_thread")]
async fn line_tables_beside_a_component_are_used_if_they_are_its_own() {
    let (folder, cache) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let path = folder.path().join("plugin.wasm");
    let component = guest_path("fault-reward");
    std::fs::copy(&component, &path).unwrap();
    let compiled_with_lines = || {
        let files = std::fs::read_dir(cache.path()).unwrap().flatten();
        let record = files.map(|file| file.path()).find(|path| path.extension().unwrap() == "json").unwrap();
        let record: serde_json::Value = serde_json::from_slice(&std::fs::read(record).unwrap()).unwrap();
        record["has_lines"].as_bool().unwrap()
    };
    let others = guest_path("fault-harness").with_extension("lines");
    for (lines, used) in
        [(None, false), (Some(others), false), (Some(component.with_extension("lines")), true)]
    {
        if let Some(lines) = lines {
            std::fs::copy(lines, path.with_extension("lines")).unwrap();
        }
        let plugin = new_host(cache.path(), 1).load(&path).await.unwrap();
        assert_eq!(plugin.digest(), digest_of(&std::fs::read(&path).unwrap()));
        assert_eq!(compiled_with_lines(), used);
    }
}

/// As Go's runtime does, it looks at the clock when it starts, and takes 0 for a clock that does not work.
fn needs_a_clock() -> Vec<u8> {
    support::component::environment(
        "import wasi:clocks/monotonic-clock@0.2.0;",
        &["tests/support/clock.wit"],
        r#"(import "wasi:clocks/monotonic-clock@0.2.0" "now" (func $now (result i64)))
           (func $start (if (i64.eqz (call $now)) (then unreachable)))
           (start $start)"#,
    )
}

#[tokio::test(flavor = "multi_thread")]
async fn the_clock_runs_before_the_first_host_call() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("clock.wasm");
    std::fs::write(&path, needs_a_clock()).unwrap();
    let plugin = host().load(&path).await.unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(plugin.settings_schema(), &serde_json::json!({}));
}

/// A component as text, of which more can be said.
const A_JUDGE: &str = r#"(component
    (import "wasi:clocks/monotonic-clock@0.2.0" (instance $clock (export "now" (func (result u64)))))
    (core func $now (canon lower (func $clock "now")))
    (core module $module
        (import "clock" "now" (func $now (result i64)))
        (memory (export "memory") 1)
        (data (i32.const 0) "\10\00\00\00\11\00\00\00")
        (data (i32.const 16) "{\22type\22:\22object\22}")
        (func (export "settings-schema") (result i32) i32.const 0)
        (func $start (if (i64.eqz (call $now)) (then unreachable)))
        (start $start))
    (core instance $core
        (instantiate $module (with "clock" (instance (export "now" (func $now))))))
    (func $schema (result string)
        (canon lift (core func $core "settings-schema") (memory (core memory $core "memory"))))
    (instance $configurable (export "settings-schema" (func $schema)))
    (instance $judge)
    (export "espalier:base/configurable@0.1.0" (instance $configurable))
    (export "espalier:plugin/judge@0.1.0" (instance $judge)))"#;

/// What componentize-qjs makes without `--sync` needs the asynchronous functions of the component model.
#[tokio::test(flavor = "multi_thread")]
async fn a_component_that_is_built_for_async_says_how_to_build_it() {
    for function in ["(canon task.cancel)", "(canon backpressure.inc)", "(canon waitable-set.new)"] {
        let text = A_JUDGE.replacen("(core module", &format!("(core func {function})\n(core module"), 1);
        let told = refusal("async.wasm", &wat::parse_str(text).unwrap()).await;
        assert_eq!(
            told,
            "plugin [folder]/async.wasm: is built for async: it uses asynchronous tasks, streams or calls; all functions of \
             this engine's interfaces are synchronous; rebuild it for synchronous calls (`espalier plugin build` does; \
             componentize-qjs: with --sync)"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_are_checked_against_the_plugins_own_schema() {
    let plugin = support::guest("fault-harness").await;
    assert_eq!(
        plugin.check_settings(&serde_json::json!({})).unwrap(),
        r#"{"fault":"none","times":0,"keep":0}"#
    );
    let error = plugin.check_settings(&serde_json::json!({ "falt": "x", "times": -1 })).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("`falt`: is not a setting of this plugin; did you mean `fault`?"), "{text}");
    assert!(text.contains("`times`: -1 is less than the minimum of 0"), "{text}");
}

#[test]
fn references_are_names_paths_or_digests() {
    let folder = tempfile::tempdir().unwrap();
    let dist = folder.path().join("dist");
    std::fs::create_dir(&dist).unwrap();
    for name in ["react-text", "textcraft"] {
        std::fs::write(dist.join(format!("{name}.wasm")), name).unwrap();
    }
    let registry = Registry::new(vec![dist.clone()]);
    let base = folder.path();
    let react = dist.join("react-text.wasm");
    let digest = digest_of(b"react-text");
    for reference in ["react-text", "dist/react-text.wasm", &digest, &digest[..12]] {
        assert_eq!(registry.resolve(reference, base).as_deref(), Ok(react.as_path()), "{reference}");
    }
    let names: Vec<String> = registry.list().into_iter().map(|entry| entry.name).collect();
    assert_eq!(names, ["react-text", "textcraft"]);
    let empty = Registry::new(vec![base.join("none")]);
    let told: Vec<String> = [
        registry.resolve("react-txt", base),
        registry.resolve("zebra", base),
        registry.resolve("dist/zebra.wasm", base),
        registry.resolve("0123456789abcdef", base),
        empty.resolve("react-text", base),
    ]
    .into_iter()
    .map(|found| found.unwrap_err().to_string().replace(&base.display().to_string(), "[base]"))
    .collect();
    insta::assert_snapshot!(told.join("\n"));
}

#[test]
fn a_host_ends_inside_a_runtime_without_a_panic() {
    let folder = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let host = Arc::new(new_host(folder.path(), 1));
        drop(host);
    });
}

/// A world of one step, which keeps the action.
#[derive(Clone, Default)]
struct Small(Arc<Mutex<Vec<String>>>);

#[async_trait]
impl Environments for Small {
    async fn open(&self) -> Result<Box<dyn Environment>, Failure> {
        Ok(Box::new(self.clone()))
    }
}

#[async_trait]
impl Environment for Small {
    async fn reset(&mut self) -> Result<Observation, Failure> {
        Ok(Observation { text: "a room".to_owned(), ..Observation::default() })
    }

    async fn step(&mut self, action: String) -> Result<StepResult, Failure> {
        self.0.lock().unwrap().push(action);
        Ok(StepResult { done: true, info: "{}".to_owned(), ..StepResult::default() })
    }

    async fn actions(&mut self) -> Result<Vec<String>, Failure> {
        Ok(Vec::new())
    }
}

/// A component built against the interfaces as they were released (`tests/kept/README.md`): it loads and runs for ever.
#[tokio::test(flavor = "multi_thread")]
async fn a_component_built_against_0_1_0_loads_and_runs() {
    const KEPT: &[u8] = include_bytes!("kept/once-0.1.0.wasm");
    assert!(include_str!("kept/README.md").contains(&digest_of(KEPT)), "it is another: {}", digest_of(KEPT));
    let plugin = host().load_bytes("once-0.1.0.wasm".into(), KEPT.to_vec()).await.unwrap();
    assert_eq!(plugin.world(), World::Harness);
    let small = Small::default();
    let case = Case { environments: Some(Arc::new(small.clone())), ..Case::new(serde_json::json!({})) };
    let outcome = case.run(&host(), &plugin).await;
    assert!(
        matches!(&outcome.end, HarnessEnd::Returned(Ok(report)) if report.outcome == Outcome::Submitted),
        "{:?}",
        outcome.end
    );
    assert_eq!(*small.0.lock().unwrap(), ["an answer"]);
    let calls: Vec<&str> = outcome.host_calls.iter().map(|call| call.name.as_ref()).collect();
    assert_eq!(
        calls,
        [
            "environments.open",
            "environment.reset",
            "conversations.open",
            "conversation.complete",
            "environment.step"
        ]
    );
}

/// What a call passed and returned is kept where that is asked for; its digests always, and the same each time.
#[tokio::test(flavor = "multi_thread")]
async fn calls_are_recorded_with_digests_and_where_asked_for_with_what_they_passed() {
    const KEPT: &[u8] = include_bytes!("kept/once-0.1.0.wasm");
    let plugin = host().load_bytes("once-0.1.0.wasm".into(), KEPT.to_vec()).await.unwrap();
    let mut runs = Vec::new();
    for record_calls in [false, true] {
        let environments: Option<Arc<dyn Environments>> = Some(Arc::new(Small::default()));
        let case = Case { environments, record_calls, ..Case::new(serde_json::json!({})) };
        runs.push(case.run(&host(), &plugin).await.host_calls);
    }
    let digests = |calls: &[HostCall]| -> Vec<_> {
        calls.iter().map(|call| (call.asked.unwrap(), call.told.unwrap(), call.verdict)).collect()
    };
    assert_eq!(digests(&runs[0]), digests(&runs[1]));
    assert!(runs[0].iter().all(|call| call.payload.is_none() && call.verdict == Verdict::Passed));
    assert!(runs[0].iter().all(|call| call.clock_ms >= 1_700_000_000_000));
    let step = runs[1].last().unwrap();
    let payload = step.payload.as_deref().unwrap();
    let Some(Call::Step { action, .. }) = &payload.call else { panic!("{payload:?}") };
    assert_eq!(action, "an answer");
    let Some(Reply::Step(told)) = &payload.reply else { panic!("{payload:?}") };
    assert!(told.done);
    assert_eq!(step.asked, Some(measure(payload.call.as_ref().unwrap()).digest));
}

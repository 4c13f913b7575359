//! What names stand for: a run's, the meaning it was begun with, from its first group on; an alias, the component that it
//! pointed at when a group opened.

use crate::setting::{Parts, Setting, plain_tasks};
use espalier_daemon::engine::{EngineError, RunEnd};
use espalier_daemon::shutdown::StopSignal;
use espalier_scripted::{Options, Scripted, by_text};
use espalier_store::{Store, StoreError, StoreUrl};
use espalier_tests::place::plugin_folder;

const WORLD: &str =
    "[environment]\nplugin = \"fault-environment\"\n[[rewards]]\nplugin = \"environment-reward\"\n";
const STEPS: &str = "plugin = \"fault-harness\"\nsettings = { fault = \"steps\", times = 2 }";
/// Nothing listens there: the port of discard, which no machine of today opens.
const NOBODY: &str = "http://127.0.0.1:9";

fn parts<'a>(url: &'a str, limits: &'a str) -> Parts<'a> {
    Parts { url, harness: STEPS, world: WORLD, groups: "size = 2", limits }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_opened_no_group_holds_no_name() {
    let server = Scripted::start(Options::new(by_text(|_| "well".to_owned()))).await.unwrap();
    let setting = Setting::new(&plain_tasks(1), &parts(NOBODY, "turns = 3"));
    let error = setting.run_with(setting.options(StopSignal::never())).await.unwrap_err();
    assert!(matches!(error, EngineError::Model { .. }), "{error}");
    // The user mends the file, and changes a limit while at it: nothing was run under the old meaning.
    setting.rewrite(&parts(server.url(), "turns = 4"));
    assert_eq!(setting.run().await.state, RunEnd::Finished);
    // From now on the name stands for something.
    setting.rewrite(&parts(server.url(), "turns = 5"));
    let error = setting.run_with(setting.options(StopSignal::never())).await.unwrap_err();
    let EngineError::Store(StoreError::ChangedMeaning { differences, .. }) = error else { panic!("{error}") };
    assert_eq!(differences.len(), 1, "{differences:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_alias_may_point_at_another_harness_in_the_middle_of_a_run() {
    let server = Scripted::start(Options::new(by_text(|_| "well".to_owned()))).await.unwrap();
    let parts = Parts { harness: "plugin = \"agent\"", ..parts(server.url(), "turns = 3") };
    let setting = Setting::new(&plain_tasks(2), &parts);
    let store = Store::open(&StoreUrl::Folder(setting.store_folder())).await.unwrap();
    let mut digests = Vec::new();
    for plugin in ["idle", "react-text"] {
        let component = std::fs::read(plugin_folder().join(format!("{plugin}.wasm"))).unwrap();
        let digest = store.blobs().put(component).await.unwrap();
        store.set_alias("agent", &digest, 0).await.unwrap();
        digests.push(digest);
        let mut options = setting.options(StopSignal::never());
        options.limit = Some(digests.len() as u64);
        assert_eq!(setting.run_with(options).await.unwrap().state, RunEnd::Finished);
    }
    let run = store.runs().await.unwrap().remove(0);
    let opened: Vec<String> = (store.groups(&run.run_id).await.unwrap().into_iter())
        .map(|group| group.opened.plugins["agent"].clone())
        .collect();
    assert_eq!(opened, digests);
    store.close().await;
}

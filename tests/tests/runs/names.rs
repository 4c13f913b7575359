//! What names stand for: a run's, the meaning it was begun with, from its first group on; an alias, the component that it
//! pointed at when a group opened.

use crate::setting::{BOUND, Parts, Setting, plain_tasks};
use espalier_daemon::engine::{EngineError, RunEnd};
use espalier_scripted::{Options, Scripted, by_text};
use espalier_store::{Store, StoreError, StoreUrl};
use espalier_tests::place::{espalier, plugin_folder};

const WORLD: &str =
    "[environment]\nplugin = \"fault-environment\"\n[[rewards]]\nplugin = \"environment-reward\"\n";
const STEPS: &str = "plugin = \"fault-harness\"\nsettings = { fault = \"steps\", times = 2 }";
/// Nothing listens there: the port of discard, which no machine of today opens.
const NOBODY: &str = "http://127.0.0.1:9";

fn parts<'a>(url: &'a str, limits: &'a str) -> Parts<'a> {
    Parts { url, model: "", harness: STEPS, world: WORLD, groups: "size = 2", limits }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_opened_no_group_holds_no_name() {
    let server = Scripted::start(Options::new(by_text(|_| "well".to_owned()))).await.unwrap();
    let setting = Setting::new(&plain_tasks(1), &parts(NOBODY, "turns = 3"));
    let error = setting.run_with(setting.options()).await.unwrap_err();
    assert!(matches!(error, EngineError::Model { .. }), "{error}");
    // The user mends the file, and changes a limit while at it: nothing was run under the old meaning.
    setting.rewrite(&parts(server.url(), "turns = 4"));
    assert_eq!(setting.run().await.state, RunEnd::Finished);
    // From now on the name stands for something.
    setting.rewrite(&parts(server.url(), "turns = 5"));
    let error = setting.run_with(setting.options()).await.unwrap_err();
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
        let mut options = setting.options();
        options.limit = Some(digests.len() as u64);
        let end = if digests.len() < 2 { RunEnd::Open } else { RunEnd::Finished };
        assert_eq!(setting.run_with(options).await.unwrap().state, end);
    }
    let run = store.runs().await.unwrap().remove(0);
    let opened: Vec<String> = (store.groups(&run.run_id).await.unwrap().into_iter())
        .map(|group| group.opened.plugins["agent"].clone())
        .collect();
    assert_eq!(opened, digests);
    store.close().await;
}

/// What a command printed, and how it ended.
struct Said {
    code: i32,
    out: String,
    err: String,
}

async fn said(setting: &Setting, arguments: &[&str]) -> Said {
    let mut command = espalier(&setting.store_folder());
    let output =
        tokio::time::timeout(BOUND, command.args(arguments).output()).await.expect("it ends").unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Said { code: output.status.code().unwrap(), out: text(output.stdout), err: text(output.stderr) }
}

impl Said {
    #[track_caller]
    fn done(self) -> Said {
        assert_eq!(self.code, 0, "{}{}", self.out, self.err);
        self
    }

    fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error}: {}", self.out))
    }
}

fn component(plugin: &str) -> Vec<u8> {
    std::fs::read(plugin_folder().join(format!("{plugin}.wasm"))).unwrap()
}

/// The same component with a section that means nothing: another digest.
fn changed(component: &[u8]) -> Vec<u8> {
    [component, &[0, 5, 4], b"note"].concat()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_component_that_changed_is_told_on_resume_in_tables_and_when_all_is_over() {
    let server = Scripted::start(Options::new(by_text(|_| "well".to_owned()))).await.unwrap();
    let parts = Parts { harness: "plugin = \"agent\"", ..parts(server.url(), "turns = 3") };
    let setting = Setting::new(&plain_tasks(3), &parts);
    let file = setting.file().display().to_string();
    let [old, new] = ["idle", "react-text"].map(|plugin| espalier_plugin::digest_of(&component(plugin)));
    let (was, is) = (&old[..6], &new[..6]);

    said(&setting, &["plugin", "alias", "agent", "idle"]).await.done();
    let first = said(&setting, &["run", &file, "--limit", "2"]).await;
    assert!(!first.err.contains("changed"), "{}", first.err);
    said(&setting, &["plugin", "alias", "agent", "react-text"]).await.done();
    let resumed = said(&setting, &["run", &file, "--json"]).await;
    let line = format!("agent changed: {was} to {is}, from group 2\n");
    assert!(resumed.err.contains(&line), "{}", resumed.err);
    let change = serde_json::json!([{ "plugin": "agent", "was": old, "is": new, "from_group": 2 }]);
    assert_eq!(resumed.json()["plugins_changed"], change);

    let shown = said(&setting, &["show", "test"]).await.done();
    for line in [format!("{was}  g0 to g1"), format!("{is}  g2")] {
        assert!(shown.out.contains(&line), "{line:?} is not in\n{}", shown.out);
    }
    let versions = said(&setting, &["show", "test", "--json"]).await.json()["plugin_versions"].clone();
    let expect = serde_json::json!([
        { "digest": old, "groups": [[0, 1]] },
        { "digest": new, "groups": [[2, 2]] },
    ]);
    assert_eq!(versions["agent"], expect);

    let again = said(&setting, &["run", &file]).await;
    assert!(!again.err.contains("changed"), "nothing has changed since: {}", again.err);
    said(&setting, &["plugin", "alias", "agent", "idle"]).await.done();
    let over = said(&setting, &["run", &file]).await;
    let line = format!("agent has changed since: {is} to {was}\n");
    assert!(over.err.contains(&line) && over.err.contains("--new"), "{}", over.err);
    let over = said(&setting, &["run", &file, "--json"]).await;
    assert_eq!(over.json()["plugins_changed"][0]["from_group"], serde_json::Value::Null);

    said(&setting, &["run", &file, "--new"]).await;
    let store = setting.store().await;
    let runs: Vec<String> = store.runs().await.unwrap().into_iter().map(|run| run.run_id).collect();
    store.close().await;
    let compared = said(&setting, &["show", &runs[1], &runs[0]]).await.done().out;
    let row = compared.lines().find(|line| line.starts_with("agent")).unwrap_or_default();
    let cells: Vec<&str> = row.split_whitespace().collect();
    assert_eq!(cells, ["agent", &format!("{was},"), is, was], "{compared}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_alias_takes_nothing_by_which_an_open_run_would_break() {
    let server = Scripted::start(Options::new(by_text(|_| "well".to_owned()))).await.unwrap();
    let harness = "plugin = \"agent\"\nsettings = { max_turns = 2 }";
    let parts = Parts { harness, ..parts(server.url(), "turns = 3") };
    let setting = Setting::new(&plain_tasks(2), &parts);
    let file = setting.file().display().to_string();
    said(&setting, &["plugin", "alias", "agent", "react-text"]).await.done();
    said(&setting, &["run", &file, "--limit", "1"]).await;
    let pointed = async || setting.store().await.alias("agent").await.unwrap();
    let before = pointed().await;

    let check = async |arguments: &[&str], expect: &[&str]| {
        let refused = said(&setting, &[&["plugin", "alias"], arguments].concat()).await;
        assert_eq!(refused.code, 3, "{}{}", refused.out, refused.err);
        for words in expect {
            assert!(refused.err.contains(words), "{words:?} is not in {}", refused.err);
        }
        assert!(!refused.err.contains(&before.as_ref().unwrap()[..20]), "a digest whole: {}", refused.err);
        assert_eq!(pointed().await, before, "{arguments:?}");
    };
    let world = "it needs a harness-plugin, this is a reward-plugin";
    check(
        &["agent", "environment-reward"],
        &["`agent` is a plugin of world harness-plugin", "as its harness", world],
    )
    .await;
    check(&["agent", "idle"], &["its settings are invalid", "`max_turns`"]).await;
    check(&["agent", "--remove"], &["no plugin has that name"]).await;
    // A name that no run uses, but that is the name of a plugin of another world.
    check(&["textcraft", "idle"], &["`textcraft` is a plugin of world environment-plugin"]).await;

    let forced = said(&setting, &["plugin", "alias", "agent", "idle", "--force"]).await.done();
    assert!(forced.err.contains("warning: ") && pointed().await != before, "{}", forced.err);
    // What it was told: the run stops, in words that name the alias.
    let stopped = said(&setting, &["run", &file]).await;
    assert_eq!(stopped.code, 2, "{}", stopped.err);
    assert!(stopped.err.contains("settings of plugin agent: "), "{}", stopped.err);
    said(&setting, &["plugin", "alias", "agent", "react-text"]).await.done();
    said(&setting, &["run", &file]).await;
    // The run is over: nothing breaks any more.
    said(&setting, &["plugin", "alias", "agent", "idle"]).await.done();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_component_has_the_same_names_for_every_command() {
    let server = Scripted::start(Options::new(by_text(|_| "well".to_owned()))).await.unwrap();
    let setting = Setting::new(&plain_tasks(1), &parts(server.url(), "turns = 3"));
    let file = setting.file().display().to_string();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mine.wasm");
    let bytes = changed(&component("idle"));
    let digest = espalier_plugin::digest_of(&bytes);
    std::fs::write(&path, bytes).unwrap();
    let mine = path.display().to_string();
    said(&setting, &["plugin", "alias", "agent", &mine]).await.done();
    said(&setting, &["plugin", "check", &mine]).await.done();
    std::fs::remove_file(&path).unwrap();
    // From here on the store alone has it.
    for (name, number) in [("agent", 0), (&*digest, 1), (&digest[..12], 2), (&digest[..6], 3)] {
        let checked = said(&setting, &["plugin", "check", name, "--json"]).await.done();
        assert_eq!(checked.json()["digest"], *digest, "{name}");
        said(&setting, &["plugin", "alias", &format!("other{number}"), name]).await.done();
        let set = format!("harness.plugin={name}");
        let arguments = ["run", &file, "--new", "--set", &set, "--set", "harness.settings={}", "--json"];
        let ran = said(&setting, &arguments).await;
        let id = ran.json()["run_id"].as_str().unwrap().to_owned();
        let store = setting.store().await;
        let group = store.groups(&id).await.unwrap().remove(0);
        assert!(group.opened.plugins.values().any(|of| *of == digest), "{name}: {:?}", group.opened.plugins);
        assert!(store.aliases().await.unwrap().contains(&(format!("other{number}"), digest.clone())));
        store.close().await;
    }
    let nobody = said(&setting, &["plugin", "check", "0123456789ab"]).await;
    assert_eq!(nobody.code, 2, "{}", nobody.err);
}

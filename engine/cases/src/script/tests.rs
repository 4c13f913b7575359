use super::*;
use crate::case::CaseFile;
use espalier_core::chat::{CompleteOptions, Finish, Message, Role};
use espalier_core::failure::BudgetKind;
use espalier_core::host::browser::{
    Action, Browsers, PictureFormat, ScreenshotOptions, ScriptWorld, SnapshotOptions, StepOutcome,
};
use espalier_core::host::sandbox::{Command, Program, Sandboxes, Show, WriteOptions};
use espalier_core::host::{Blobs, Environments, Models};
use espalier_core::limits::Limits;
use espalier_core::meter::Meter;

/// The capabilities of a case, with what they note.
struct Given {
    models: ScriptedModels,
    world: ScriptedWorld,
    sandboxes: ScriptedSandboxes,
    browsers: ScriptedBrowsers,
    blobs: Arc<MemoryBlobs>,
    notes: Notes,
}

fn given(case: &str) -> Given {
    let file = CaseFile::parse(case).unwrap();
    let meter = Arc::new(Meter::new(Limits { turns: 2, blob_bytes: 200, ..Limits::default() }));
    let notes = Notes::default();
    let blobs = Arc::new(MemoryBlobs::new(Arc::clone(&meter)));
    let pictures = Arc::new([("shop.png".into(), crate::picture::white(3, 2).unwrap())].into());
    Given {
        models: ScriptedModels::new(file.models, notes.clone(), meter),
        world: ScriptedWorld::new(file.environment, notes.clone()),
        sandboxes: ScriptedSandboxes::new(file.sandboxes, Arc::clone(&blobs), notes.clone()),
        browsers: ScriptedBrowsers::new(file.browsers, &pictures, &blobs, notes.clone()),
        blobs,
        notes,
    }
}

impl Given {
    /// Everything noted so far: `key: text`.
    fn noted(&self) -> Vec<String> {
        self.notes.take().into_iter().map(|problem| format!("{}: {}", problem.key, problem.text)).collect()
    }
}

fn say(text: &str) -> Vec<Message> {
    vec![Message::text(Role::User, text)]
}

fn options() -> CompleteOptions {
    CompleteOptions::default()
}

fn run(text: &str) -> Command {
    Command {
        program: Program::Shell(text.to_owned()),
        cwd: None,
        env: Vec::new(),
        stdin: Vec::new(),
        user: None,
        timeout: None,
        show: Show::default(),
        merge_stderr: false,
        terminal: None,
    }
}

#[tokio::test]
async fn answers_come_in_order_over_all_branches_and_turns_are_counted() {
    let given = given(
        "[[models.policy]]\ntext = \"a\"\nsaid = [\"go\"]
        [[models.policy]]\ntool_calls = [{ name = \"add\", arguments = { n = 1 } }]
        [[models.policy]]\ntext = \"never\"",
    );
    let mut one = given.models.open("policy", say("go"), Vec::new()).await.unwrap();
    assert_eq!(one.complete(options()).await.unwrap().message.joined_text(), "a");
    let mut other = one.fork().await.unwrap();
    let called = other.complete(options()).await.unwrap();
    assert_eq!((called.finish, called.call), (Finish::ToolCalls, Some(1)));
    assert_eq!(called.tool_calls[0].arguments, "{\"n\":1}");
    assert_eq!(other.complete(options()).await, Err(Failure::Budget(BudgetKind::Turns)));
    one.discard();
    assert!(one.append(say("more")).await.is_err());
    assert!(given.noted().is_empty());
    given.models.note_rest();
    assert_eq!(given.noted(), ["models.policy[2]: was not asked for: the plugin asked for 2 of 3 answers"]);
}

#[tokio::test]
async fn what_a_case_does_not_have_is_noted_with_its_key() {
    let given = given(
        "[[models.judge]]\ntext = \"a\"\nsaid = [\"one\", \"two\"]\n[[models.judge]]\nfail = \"budget: tokens\"",
    );
    assert!(given.models.open("policy", Vec::new(), Vec::new()).await.is_err());
    let mut judge = given.models.open("judge", say("one"), Vec::new()).await.unwrap();
    judge.complete(options()).await.unwrap();
    assert_eq!(judge.complete(options()).await, Err(Failure::Budget(BudgetKind::Tokens)));
    let refused = judge.complete(options()).await.unwrap_err();
    assert_eq!(
        refused.to_string(),
        "case: models.judge[2]: is not there, but the plugin asked for a further answer"
    );
    assert!(given.world.open().await.is_err());
    assert!(given.sandboxes.open("main").await.is_err());
    assert_eq!(
        given.noted(),
        [
            "models.policy: is not there, but the plugin opened a conversation with \"policy\"",
            "models.judge[0].said[1]: is not in what the plugin sent",
            "models.judge[2]: is not there, but the plugin asked for a further answer",
            "environment: is not there, but the plugin opened it",
            "sandboxes.main: is not there, but the plugin opened the sandbox \"main\"",
        ]
    );
}

#[tokio::test]
async fn steps_come_in_order_and_only_in_an_episode() {
    let given = given(
        "[environment]\nreset = \"dark\"\nactions = [\"light\"]
        [[environment.steps]]\naction = \"light\"\nobservation = \"lit\"\nreward = 1.0\ndone = true
        [[environment.steps]]\nobservation = \"more\"",
    );
    let mut world = given.world.open().await.unwrap();
    assert!(given.world.open().await.is_err(), "once");
    assert!(world.step("light".to_owned()).await.is_err(), "not reset yet");
    assert_eq!(world.reset().await.unwrap().text, "dark");
    assert_eq!(world.actions().await.unwrap(), ["light"]);
    let step = world.step("look".to_owned()).await.unwrap();
    assert_eq!(
        (step.observation.text.as_str(), step.reward, step.done, step.info.as_str()),
        ("lit", Some(1.0), true, "null")
    );
    assert!(world.step("light".to_owned()).await.is_err(), "the episode is done");
    given.world.note_rest();
    assert_eq!(
        given.noted(),
        [
            "environment.steps[0].action: is another action than the plugin's",
            "environment.steps[1]: was not taken: the plugin took 1 of 2 steps",
        ]
    );
}

#[tokio::test]
async fn a_sandbox_has_files_and_outcomes_of_commands() {
    let given = given(
        "[sandboxes.main]\nfiles = { \"/src/a\" = \"1\", \"/src/deep/b\" = \"22\" }
        [[sandboxes.main.commands]]\ncommand = \"make\"\nexit_code = 2\nstderr = \"no\"\nfiles = { \"/out\" = \"x\" }
        [[sandboxes.main.commands]]\nfail = \"unavailable: gone\"\n[[sandboxes.main.commands]]",
    );
    let main = given.sandboxes.open("main").await.unwrap();
    let names = |entries: Vec<espalier_core::host::sandbox::Entry>| {
        let name = |entry: espalier_core::host::sandbox::Entry| String::from_utf8(entry.path).unwrap();
        entries.into_iter().map(name).collect::<Vec<_>>()
    };
    assert_eq!(names(main.list_folder(b"/src", 1, 9).await.unwrap()), ["a", "deep"]);
    assert_eq!(names(main.list_folder(b"/src", 2, 9).await.unwrap()), ["a", "deep", "deep/b"]);
    main.write_file(b"/src/a", b"new".to_vec(), WriteOptions::default()).await.unwrap();
    let again = given.sandboxes.open("main").await.unwrap();
    assert_eq!(again.read_file(b"/src/a", 1, 9).await.unwrap(), b"ew");
    let fresh = given.sandboxes.open_fresh("main").await.unwrap();
    assert_eq!(fresh.read_file(b"/src/a", 0, 9).await.unwrap(), b"1", "it begins as the case says");
    let outcome = main.exec(run("make")).await.unwrap();
    assert_eq!((outcome.ended.to_string().as_str(), outcome.stderr.head.as_str()), ("exit 2", "no"));
    assert_eq!(main.read_file(b"/out", 0, 9).await.unwrap(), b"x");
    assert_eq!(fresh.exec(run("test")).await, Err(Failure::Unavailable("gone".to_owned())));
    assert_eq!(main.remove(b"/src", true, false).await.unwrap(), 2);
    assert!(main.stat(b"/src", false).await.is_err());
    assert!(main.checkpoint().await.is_err());
    given.sandboxes.note_rest();
    assert_eq!(
        given.noted(),
        [
            "sandboxes.main: has no answer to sandbox.checkpoint; use a case with `recorded`",
            "sandboxes.main.commands[2]: was not run: the plugin ran 2 of 3 commands",
        ]
    );
}

#[tokio::test]
async fn blobs_are_kept_within_their_budget() {
    let given = given("");
    let blob = given.blobs.put(b"four".to_vec(), "text/plain").await.unwrap();
    assert_eq!(given.blobs.read(&blob, 2, 9).await.unwrap(), b"ur");
    assert_eq!(given.blobs.stat(&blob).await.unwrap().length, 4);
    assert!(given.blobs.read("blob-7", 0, 1).await.is_err());
    assert_eq!(given.blobs.put(vec![0; 200], "").await, Err(Failure::Budget(BudgetKind::BlobBytes)));
}

const SHOP: &str = r#"
[browsers.main]
tools = [{ name = "click" }]
[browsers.main.page]
url = "http://shop.example/"
title = "Shop"
snapshot = "button \"Cart\" e1"
screenshot = "shop.png"
evaluate = [{ expression = "document.title", value = "Shop" }, { expression = "rest", value = 1 }]
[[browsers.main.steps]]
tool = "click"
arguments = { ref = "e1" }
effects = [{ navigated = { url = "http://shop.example/cart", title = "Cart" } }]
[browsers.main.steps.page]
url = "http://shop.example/cart"
screenshot = [40, 20]
evaluate = [{ expression = "document.title", world = "isolated", value = "Cart" }]
[[browsers.main.steps]]
tool = "click"
problem = "stale-reference: e1 is not there any more"
[[browsers.main.steps]]
tool = "click"
fail = "unavailable: the browser is lost"
[[browsers.main.steps]]
tool = "done"
ended = {}
"#;

fn act(name: &str, arguments: &str) -> Action {
    Action { name: name.to_owned(), arguments: arguments.to_owned() }
}

#[tokio::test]
async fn a_browser_shows_what_the_actions_so_far_have_led_to() {
    let given = given(SHOP);
    let main = given.browsers.open("main").await.unwrap();
    assert_eq!(
        (main.tools()[0].name.as_str(), main.tabs().await.unwrap()[0].title.as_str()),
        ("click", "Shop")
    );
    let shown = main.screenshot(ScreenshotOptions::default()).await.unwrap();
    assert_eq!((shown.width, shown.height), (3, 2));
    assert_eq!(main.evaluate("document.title".to_owned(), ScriptWorld::Page).await.unwrap(), "\"Shop\"");
    let steps = main.act(vec![act("click", r#"{"ref":"e1"}"#), act("click", "{}")]).await.unwrap();
    assert_eq!(steps[0].text, "Succeed: `click`.");
    assert_eq!(steps[1].outcome, StepOutcome::Skipped("an action before it opened another page".to_owned()));
    let tabs = main.tabs().await.unwrap();
    assert_eq!((tabs[0].url.as_str(), tabs[0].title.as_str()), ("http://shop.example/cart", "Shop"));
    let half = ScreenshotOptions { scale: Some(0.5), ..ScreenshotOptions::default() };
    let shown = main.screenshot(half).await.unwrap();
    assert_eq!((shown.width, shown.height), (20, 10));
    assert_eq!(main.evaluate("document.title".to_owned(), ScriptWorld::Isolated).await.unwrap(), "\"Cart\"");
    assert_eq!(main.snapshot(SnapshotOptions::default()).await.unwrap().text, "button \"Cart\" e1");
    let steps = main.act(vec![act("click", "{}"), act("click", "{}")]).await.unwrap();
    assert_eq!(steps[0].text, "Failed: `click`: stale-reference: e1 is not there any more.");
    assert!(matches!(steps[1].outcome, StepOutcome::Skipped(_)), "{steps:?}");
    let lost = Failure::Unavailable("the browser is lost".to_owned());
    assert_eq!(main.act(vec![act("click", "{}")]).await, Err(lost.clone()));
    assert_eq!(main.tabs().await, Err(lost), "it stays lost");
    assert_eq!(given.noted(), [""; 0]);
    given.browsers.note_rest();
    assert_eq!(
        given.noted(),
        [
            "browsers.main.steps[3]: was not taken: the plugin took 3 of 4 steps",
            "browsers.main.page.evaluate[1]: was not asked for: rest",
        ]
    );
}

#[tokio::test]
async fn calls_that_a_browser_of_a_case_does_not_have_are_noted() {
    let given =
        given(&format!("{SHOP}\n[browsers.other]\n[browsers.gone]\nfail = \"unavailable: no Chromium\""));
    assert!(given.browsers.open("third").await.is_err());
    assert_eq!(given.browsers.open("gone").await.err(), Some(Failure::Unavailable("no Chromium".to_owned())));
    let main = given.browsers.open("main").await.unwrap();
    main.act(vec![act("click", r#"{"ref":"e2"}"#)]).await.unwrap();
    assert!(main.act(vec![act("write", r#"{"text":"a"}"#)]).await.is_err());
    let jpeg = ScreenshotOptions { format: PictureFormat::Jpeg, ..ScreenshotOptions::default() };
    assert!(main.screenshot(jpeg).await.is_err());
    assert!(main.evaluate("location.href".to_owned(), ScriptWorld::Page).await.is_err());
    assert!(main.storage_state().await.is_err());
    given.browsers.note_rest();
    insta::assert_snapshot!(given.noted().join("\n"));
}

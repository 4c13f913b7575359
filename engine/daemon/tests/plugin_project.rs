//! `espalier plugin test` and `plugin run`, by the real binary, in projects around components of `plugins/dist` (`make build`): what
//! passes, what differs, what is refused, what was recorded.

#![expect(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// A project whose plugin is a component that is there already.
struct Fixture {
    folder: TempDir,
}

/// What a command left behind.
struct Ran {
    code: i32,
    stdout: String,
    stderr: String,
}

fn dist() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../plugins/dist")
}

impl Fixture {
    fn new(kind: &str, component: &str) -> Fixture {
        let fixture = Fixture { folder: tempfile::tempdir().unwrap() };
        fixture.write("plugin.toml", &format!("name = \"mine\"\nkind = \"{kind}\"\nlanguage = \"rust\"\n"));
        let component = dist().join(format!("{component}.wasm"));
        assert!(component.is_file(), "{} is missing: run `make build`", component.display());
        fs::create_dir_all(fixture.folder.path().join("build")).unwrap();
        fs::copy(component, fixture.folder.path().join("build/mine.wasm")).unwrap();
        fixture
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.folder.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn run(&self, arguments: &[&str]) -> Ran {
        let mut command = Command::new(env!("CARGO_BIN_EXE_espalier"));
        command
            .args(arguments)
            .current_dir(self.folder.path())
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap())
            .env("HOME", std::env::var_os("HOME").unwrap())
            .env("ESPALIER_PLUGINS", dist());
        let output = command.output().unwrap();
        Ran {
            code: output.status.code().unwrap(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// What `plugin test` prints, with its exit code.
    fn test(&self) -> String {
        let ran = self.run(&["plugin", "test"]);
        assert!(!ran.stdout.is_empty(), "{}", ran.stderr);
        format!("{}exit {}", ran.stdout, ran.code)
    }
}

macro_rules! assert_test {
    ($fixture:expr) => {
        insta::with_settings!({ filters => vec![(r"\d+ ms", "0 ms")] }, { insta::assert_snapshot!($fixture.test()) });
    };
}

const LAMP: &str = r#"
[task]
id = "lamp"
instruction = "Light the lamp."

[environment]
reset = "It is dark."
"#;

#[test]
fn a_harness_that_does_what_its_cases_say_passes() {
    let fixture = Fixture::new("harness", "react-text");
    let case = format!(
        "settings = {{ system = \"Be brief.\" }}\n{LAMP}
        [[environment.steps]]
        action = \"light\"
        observation = \"It is lit.\"
        reward = 1.0
        done = true
        [[models.policy]]
        said = [\"Be brief.\", \"Light the lamp.\\n\\nIt is dark.\"]
        text = \"Hm.\"
        [[models.policy]]
        said = [\"There was no action\"]
        text = \"Action: light\"
        [expect]
        report = {{ outcome = \"submitted\", answer = false, data = {{ turns = 2, format_errors = 1, reward = 1 }} }}
        calls = [\"environment.reset\", \"conversation.complete\", \"environment.step\"]"
    );
    fixture.write("cases/lit.toml", &case);
    fixture.write(
        "cases/lost.toml",
        &format!("{LAMP}\n[[models.policy]]\nfail = \"unavailable: no server\"\n[expect]\nfailure = \"unavailable: no\""),
    );
    fixture.write(
        "cases/refused.toml",
        &format!("settings = {{ max_turn = 3 }}\n{LAMP}\n[expect]\nrefused = \"max_turn\""),
    );
    assert_test!(fixture);
    let json = fixture.run(&["plugin", "test", "--case", "lit", "--json"]);
    let report: serde_json::Value = serde_json::from_str(&json.stdout).unwrap();
    assert_eq!((&report["passed"], &report["failed"]), (&1.into(), &0.into()), "{}", json.stdout);
    assert_eq!(report["cases"][0]["result"]["report"]["outcome"], "submitted");
}

#[test]
fn what_differs_is_shown_with_its_key() {
    let fixture = Fixture::new("harness", "react-text");
    let case = format!(
        "{LAMP}
        [[environment.steps]]
        action = \"light\"
        observation = \"It is lit.\"
        done = true
        [[models.policy]]
        said = [\"It is bright.\"]
        text = \"Action: light lamp\"
        [[models.policy]]
        text = \"Action: more\"
        [expect]
        report = {{ outcome = \"gave-up\", data = {{ turns = 1, reward = 2 }} }}
        log = [\"hello\"]
        calls = [\"environment.step\", \"environment.reset\"]"
    );
    fixture.write("cases/differs.toml", &case);
    fixture.write("cases/missing.toml", &format!("{LAMP}\n[[models.policy]]\ntext = \"Action: light\""));
    assert_test!(fixture);
}

#[test]
fn a_case_that_cannot_be_run_is_refused_by_its_place() {
    let fixture = Fixture::new("harness", "react-text");
    fixture.write("cases/form.toml", "[enviroment]\nreset = \"Dark.\"\n");
    fixture.write("cases/kind.toml", "[request]\ncount = 1\n");
    fixture.write(
        "cases/record.toml",
        &format!("recorded = \"calls.json\"\n{LAMP}").replace("[environment]\nreset = \"It is dark.\"", ""),
    );
    fixture.write("cases/calls.json", "{ \"host_calls\": 7 }");
    fixture.write("cases/task.toml", "[task]\nid = \"lamp\"\n");
    insta::with_settings!({ filters => vec![(r"\d+ ms", "0 ms"), (r#""/[^"]*/cases/"#, "\"cases/")] }, {
        insta::assert_snapshot!(fixture.test());
    });
}

#[test]
fn an_exception_of_python_is_told_without_the_panic_of_its_runtime() {
    let fixture = Fixture::new("harness", "fault-py");
    let task = "[task]\nid = \"a\"\ninstruction = \"Go.\"\n";
    fixture.write("cases/panic.toml", &format!("settings = {{ fault = \"panic\" }}\n{task}"));
    assert_test!(fixture);
}

#[test]
fn a_trap_is_told_with_its_line_and_the_log_before_it() {
    let fixture = Fixture::new("harness", "fault-harness");
    let task = "[task]\nid = \"a\"\ninstruction = \"Go.\"\n";
    fixture.write("cases/panic.toml", &format!("settings = {{ fault = \"panic\" }}\n{task}"));
    fixture.write(
        "cases/expected.toml",
        &format!("settings = {{ fault = \"panic\" }}\n{task}\n[expect]\ntrap = \"panic: on purpose\""),
    );
    fixture.write(
        "cases/loop.toml",
        &format!("settings = {{ fault = \"loop\" }}\nlimits = {{ guest_cpu = \"200ms\" }}\n{task}\n[expect]\ntrap = \"cpu\""),
    );
    fixture.write(
        "cases/json.toml",
        &format!("settings = {{ fault = \"invalid-json\" }}\n{task}\n[expect]\ntrap = \"panic\""),
    );
    assert_test!(fixture);
}

#[test]
fn every_kind_of_plugin_has_cases() {
    let environment = Fixture::new("environment", "textcraft");
    environment.write(
        "cases/stick.toml",
        "[task]\nid = \"stick\"\ninstruction = \"Craft 1 stick.\"
        data = { goal = \"stick\", commands = [\"craft 1 stick using 2 bamboo\"] }
        [[steps]]\naction = \"get 2 bamboo\"\nexpect = { observation = \"Got 2 bamboo\", done = false }
        [[steps]]\naction = \"craft 1 stick using 2 bamboo\"\nexpect = { reward = 1, done = true }
        [expect]\nobservation = \"Crafting commands:\\ncraft 1 stick using 2 bamboo\\n\\nGoal: craft stick.\"",
    );
    environment.write(
        "cases/no-data.toml",
        "[task]\nid = \"a\"\ninstruction = \"Go.\"\n[expect]\nfailure = \"invalid: data of the task\"",
    );
    let reward = Fixture::new("reward", "exact-match");
    reward.write(
        "cases/right.toml",
        "[task]\nid = \"a\"\ninstruction = \"?\"\nprivate = { answer = \"42\" }
        [rollout]\nreport = { outcome = \"submitted\", answer = \" 42\" }
        [expect]\nscores = [{ name = \"reward\", value = 1, turn = false }]",
    );
    reward.write("cases/no-answer.toml", "[task]\nid = \"a\"\ninstruction = \"?\"\n[expect]\nfailure = \"invalid: the task has no private.answer\"");
    let group = Fixture::new("group-reward", "length-penalty");
    group.write(
        "cases/same.toml",
        "[[rollouts]]\nturns = [{ text = \"four\" }]\nextra = { reward = 1 }
        [[rollouts]]\nturns = [{ text = \"five\" }]\nextra = { reward = 1 }
        [expect]\nscores = [[{ name = \"reward\", value = 0 }], [{ value = 0 }]]",
    );
    let judge = Fixture::new("judge", "llm-judge");
    judge.write("cases/unparsed.toml", "settings = { votes = 1 }\n[rollout]\n[[models.judge]]\ntext = \"Hm.\"\n[expect]\nfailure = \"unparsed\"");
    let generator = Fixture::new("task-generator", "crafting-tasks");
    generator.write(
        "cases/two.toml",
        "[request]\ncount = 2\nseed = 1\n[expect]\ntasks = [{ id = \"craft-1-0\" }, { id = \"craft-1-1\" }]",
    );
    for fixture in [environment, reward, group, judge, generator] {
        let told = fixture.test();
        assert!(told.ends_with("exit 0"), "{told}");
    }
}

const SHOP: &str = r#"
[task]
id = "order"
instruction = "Order a lamp."

[browsers.main]
tools = [{ name = "click" }, { name = "done" }]

[browsers.main.page]
url = "http://shop.example/"
title = "Shop"
screenshot = "shop.png"

[[browsers.main.steps]]
tool = "click"
arguments = { ref = "e1" }
text = "Succeed: `click` on button \"Order\"."
element = { text = "button \"Order\"", role = "button", name = "Order" }
effects = [{ navigated = { url = "http://shop.example/thanks", title = "Thanks" } }]
page = { url = "http://shop.example/thanks", title = "Thanks" }

[[browsers.main.steps]]
tool = "done"
ended = { response = "ordered" }

[[models.policy]]
said = ["Order a lamp.", "0 (active): Shop - http://shop.example/"]
tool_calls = [{ name = "click", arguments = { ref = "e1" } }]

[[models.policy]]
said = ["button \"Order\"", "0 (active): Thanks"]
tool_calls = [{ name = "done", arguments = { response = "ordered" } }]

[expect]
report = { outcome = "submitted", answer = "ordered", data = { turns = 2 } }
"#;

/// A picture of one white pixel.
const PIXEL: &[u8] =
    b"\x89PNG\x0d\x0a\x1a\x0a\x00\x00\x00\x0dIHDR\x00\x00\x00\x01\x00\x00\x00\x01\x01\x00\x00\x00\x007n\xf9$\x00\x00\x00\x0aIDATx\x9cc\xf8\x0f\x00\x01\x01\x01\x00\xb18\xf6\x14\x00\x00\x00\x00IEND\xaeB`\x82";

#[test]
fn a_harness_acts_in_the_browser_of_its_case() {
    let fixture = Fixture::new("harness", "gui-agent");
    fixture.write("cases/order.toml", SHOP);
    fs::write(fixture.folder.path().join("cases/shop.png"), PIXEL).unwrap();
    let lost = SHOP
        .replace("ended = { response = \"ordered\" }", "fail = \"unavailable: the browser is lost\"")
        .replace("report = {", "failure = \"unavailable: the browser is lost\"\n#");
    fixture.write("cases/lost.toml", &lost);
    let stale = "tool = \"click\"\nproblem = \"stale-reference: e1 is gone\"\n[[browsers.main.steps]]\ntool = \"done\"";
    let again =
        "tool_calls = [{ name = \"click\" }]\n[[models.policy]]\nsaid = [\"stale-reference: e1 is gone\"]";
    let stale = SHOP
        .replace("tool = \"done\"", stale)
        .replace("said = [\"button \\\"Order\\\"\", \"0 (active): Thanks\"]", again)
        .replace("turns = 2", "turns = 3");
    fixture.write("cases/stale.toml", &stale);
    let told = fixture.test();
    assert!(told.ends_with("exit 0"), "{told}");
    fixture.write(
        "cases/order.toml",
        &SHOP.replace("arguments = { ref = \"e1\" }\ntext", "arguments = { ref = \"e2\" }\ntext"),
    );
    fixture.write("cases/lost.toml", &SHOP.replace("tool = \"click\"", "tool = \"write\""));
    fixture.write("cases/stale.toml", &SHOP.replace("shop.png", "order.toml"));
    assert_test!(fixture);
}

#[test]
fn a_reward_looks_at_the_browser_of_its_case() {
    let fixture = Fixture::new("reward", "page-state");
    let case = |evaluate: &str, expect: &str| {
        format!(
            "[task]\nid = \"order\"\ninstruction = \"Order a lamp.\"
            private = {{ page = [{{ expression = \"document.title\", equals = \"Thanks\" }}] }}
            [rollout]
            [browsers.main.page]\nevaluate = [{evaluate}]
            [expect]\n{expect}"
        )
    };
    let value = |more: &str| format!("{{ expression = \"document.title\", world = \"isolated\", {more} }}");
    let right = value("value = \"Thanks\"");
    fixture.write("cases/right.toml", &case(&right, "scores = [{ name = \"reward\", value = 1 }]"));
    fixture.write("cases/wrong.toml", &case(&value("value = \"Cart\""), "scores = [{ value = 0 }]"));
    let scores = "scores = [{ value = 0, reason = \"document.title: TypeError: document is gone\" }]";
    let throws = value("fail = \"script: TypeError: document is gone\"");
    fixture.write("cases/throws.toml", &case(&throws, scores));
    let lost = value("fail = \"unavailable: the browser is lost\"");
    fixture.write("cases/lost.toml", &case(&lost, "failure = \"unavailable: the browser is lost\""));
    let told = fixture.test();
    assert!(told.ends_with("exit 0"), "{told}");
    for name in ["right", "throws", "lost"] {
        fs::remove_file(fixture.folder.path().join(format!("cases/{name}.toml"))).unwrap();
    }
    let other = "{ expression = \"location.href\", value = 1 }";
    fixture.write("cases/wrong.toml", &case(other, "scores = [{ value = 0 }]"));
    fixture.write("cases/more.toml", &case(&format!("{right}, {other}"), "scores = [{ value = 1 }]"));
    assert_test!(fixture);
}

const EXPERIMENT: &str = r#"
name = "mine"
seed = 7
record_calls = true
tasks.source = "tasks.jsonl"
groups.size = 2
harness = { plugin = "build/mine.wasm" }
environment = { plugin = "textcraft" }
rewards = [{ plugin = "environment-reward" }]

[models.policy]
kind = "scripted"
answers = [
  { text = "Action: get 2 bamboo", when = "stick" },
  "Action: craft 1 stick using 2 bamboo",
]
"#;

const TASK: &str = r#"{"id": "stick", "instruction": "Craft 1 stick.", "data": {"goal": "stick", "commands": ["craft 1 stick using 2 bamboo"]}}"#;

#[test]
fn calls_that_were_recorded_are_played_again() {
    let fixture = Fixture::new("harness", "react-text");
    fixture.write("experiment.toml", EXPERIMENT);
    fixture.write("tasks.jsonl", TASK);
    let ran = fixture.run(&["run"]);
    assert_eq!(ran.code, 0, "{}{}", ran.stdout, ran.stderr);
    let runs: serde_json::Value = serde_json::from_str(&fixture.run(&["list", "--json"]).stdout).unwrap();
    let rollout = format!("{}.g0.r1", runs[0]["run_id"].as_str().unwrap());
    let calls = fixture.run(&["show", &rollout, "--calls", "--full", "--json"]).stdout;
    fixture.write("cases/calls.json", &calls);
    let case = |more: &str, instruction: &str| {
        format!(
            "recorded = \"calls.json\"\n{more}\n[task]\nid = \"stick\"\ninstruction = \"{instruction}\"
            [expect]\nreport = {{ outcome = \"submitted\", data = {{ reward = 1 }} }}"
        )
    };
    fixture.write("cases/again.toml", &case("", "Craft 1 stick."));
    fixture.write("cases/other.toml", &case("", "Craft a stick."));
    fixture.write("cases/shorter.toml", &case("settings = { max_turns = 1 }", "Craft 1 stick."));
    assert_test!(fixture);
}

#[test]
fn one_rollout_is_played_and_shown() {
    let fixture = Fixture::new("harness", "react-text");
    fixture.write("experiment.toml", EXPERIMENT);
    fixture.write("tasks.jsonl", TASK);
    let ran = fixture.run(&["plugin", "run"]);
    assert_eq!(ran.code, 0, "{}{}", ran.stdout, ran.stderr);
    for part in ["submitted, completed", "Action: get 2 bamboo", "Crafted 1 minecraft:stick"] {
        assert!(ran.stdout.contains(part), "{part}: {}", ran.stdout);
    }
    assert!(!fixture.folder.path().join(".espalier").exists(), "nothing is kept");
    let ran = fixture.run(&["plugin", "run", "--task", "tasks.jsonl", "--id", "torch"]);
    assert_eq!((ran.code, ran.stderr.contains("has no task \"torch\"")), (2, true), "{}", ran.stderr);
    // A plugin that panics is named with its line.
    let fixture = Fixture::new("harness", "fault-harness");
    fixture.write("experiment.toml", EXPERIMENT);
    fixture.write("tasks.jsonl", TASK);
    let ran = fixture.run(&["plugin", "run", "--set", "harness.settings.fault=panic"]);
    assert_eq!(ran.code, 1, "{}{}", ran.stdout, ran.stderr);
    assert!(ran.stdout.contains("guest-trap") && ran.stdout.contains(".rs:"), "{}", ran.stdout);
}

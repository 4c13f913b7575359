//! Bad input, by the real binary: each message names file, place, value and remedy, and the exit code is the documented
//! one. The plugins of `plugins/dist` must have been built (`make build`).

#![expect(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// A folder with an experiment, a task file and nothing else.
struct Fixture {
    folder: TempDir,
}

/// What a command left behind.
struct Ran {
    code: i32,
    stdout: String,
    stderr: String,
}

const EXPERIMENT: &str = r#"name = "craft"
seed = 7

[tasks]
source = "tasks.jsonl"

[groups]
size = 2

[harness]
plugin = "idle"

[environment]
plugin = "textcraft"

[[rewards]]
plugin = "environment-reward"
"#;

const TASK: &str = r#"{"id":"stick","instruction":"Craft 1 stick.","data":{"goal":"stick"}}"#;

impl Fixture {
    fn new() -> Fixture {
        let fixture = Fixture { folder: tempfile::tempdir().unwrap() };
        fixture.write("tasks.jsonl", &task_lines());
        fixture
    }

    /// With the experiment, one piece of it replaced.
    fn with(from: &str, to: &str) -> Fixture {
        assert!(EXPERIMENT.contains(from), "{from}");
        let fixture = Fixture::new();
        fixture.write("craft.toml", &EXPERIMENT.replacen(from, to, 1));
        fixture
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.folder.path().join(name);
        fs::write(&path, text).unwrap();
        path
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let mut command = Command::new(env!("CARGO_BIN_EXE_espalier"));
        command
            .args(arguments)
            .current_dir(self.folder.path())
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap())
            .env("HOME", std::env::var_os("HOME").unwrap())
            .env("ESPALIER_PLUGINS", repository.join("plugins/dist"));
        command
    }

    fn run(&self, arguments: &[&str]) -> Ran {
        ran(&self.command(arguments).output().unwrap())
    }

    /// The message of `espalier run craft.toml` with its exit code; nothing may stand on standard output.
    fn refused(&self, arguments: &[&str]) -> String {
        let ran = self.run(arguments);
        assert_eq!(ran.stdout, "", "{}", ran.stderr);
        format!("{}exit {}", ran.stderr, ran.code)
    }
}

fn ran(output: &std::process::Output) -> Ran {
    Ran {
        code: output.status.code().unwrap(),
        stdout: String::from_utf8(output.stdout.clone()).unwrap(),
        stderr: String::from_utf8(output.stderr.clone()).unwrap(),
    }
}

/// The first task of the generated set, so that the environment knows it; else a line of the right form.
fn task_lines() -> String {
    let generated = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tasks/textcraft.jsonl");
    let first = fs::read_to_string(generated).ok().and_then(|text| text.lines().next().map(str::to_owned));
    first.unwrap_or_else(|| TASK.to_owned()) + "\n"
}

macro_rules! assert_message {
    ($fixture:expr, $message:expr) => {{
        let fixture: &Fixture = &$fixture;
        let folder = regex_escape(&fixture.folder.path().display().to_string());
        let repository = regex_escape(
            &Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap().display().to_string(),
        );
        let given = regex_escape(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").display().to_string());
        let filters = [
            (folder.as_str(), "[folder]"),
            (given.as_str(), "[repository]"),
            (repository.as_str(), "[repository]"),
            (r"craft-[0-9a-f]{8}", "craft-[hash]"),
            (r#""[0-9a-f]{20,64}(\.\.\.)?"#, "\"[hash]"),
        ];
        insta::with_settings!({ filters => filters }, { insta::assert_snapshot!($message) });
    }};
}

fn regex_escape(text: &str) -> String {
    text.chars().flat_map(|c| if ".+*?()[]{}|^$\\-".contains(c) { vec!['\\', c] } else { vec![c] }).collect()
}

// After the macro, which they use.
#[path = "bad_input/authoring.rs"]
mod authoring;
#[path = "bad_input/bombs.rs"]
mod bombs;
#[path = "bad_input/signals.rs"]
mod signals;

const RUN: &[&str] = &["run", "craft.toml"];

#[test]
fn unknown_key() {
    let fixture = Fixture::with("size = 2", "sise = 2");
    assert_message!(fixture, fixture.refused(RUN));
}

#[test]
fn unknown_key_of_a_model() {
    let models = "[models.policy]\nkind = \"llama-cpp\"\nembedded = true\nsampling = { temprature = 0.4 }\n\n[harness]";
    let fixture = Fixture::with("[harness]", models);
    assert_message!(fixture, fixture.refused(RUN));
}

#[test]
fn unknown_word() {
    let fixture = Fixture::with("[harness]", "[models.policy]\nkind = \"llamacpp\"\n\n[harness]");
    assert_message!(fixture, fixture.refused(RUN));
}

#[test]
fn wrong_type() {
    let fixture = Fixture::with("size = 2", "size = \"two\"");
    assert_message!(fixture, fixture.refused(RUN));
}

#[test]
fn out_of_range() {
    let fixture = Fixture::with("size = 2", "size = 0");
    assert_message!(fixture, fixture.refused(RUN));
}

#[test]
fn limit_out_of_range() {
    let fixture = Fixture::with("[harness]", "[limits]\nturns = 20000\n\n[harness]");
    assert_message!(fixture, fixture.refused(RUN));
}

#[test]
fn duration_without_a_unit() {
    let fixture = Fixture::with("[harness]", "[limits]\nrollout_wall = \"10\"\n\n[harness]");
    assert_message!(fixture, fixture.refused(RUN));
}

#[test]
fn missing_section() {
    let fixture = Fixture::with("[harness]\nplugin = \"idle\"\n", "");
    assert_message!(fixture, fixture.refused(RUN));
}

#[test]
fn not_toml() {
    let fixture = Fixture::with("size = 2", "size = ");
    assert_message!(fixture, fixture.refused(RUN));
}

#[test]
fn no_such_experiment() {
    let fixture = Fixture::new();
    assert_message!(fixture, fixture.refused(&["run", "craff.toml"]));
}

#[test]
fn bad_set() {
    let fixture = Fixture::with("size = 2", "size = 2");
    let twice = |argument: &str| fixture.refused(&["run", "craft.toml", "--set", argument]);
    assert_message!(
        fixture,
        [twice("groups.size"), twice("groups.size=many"), twice("groups.sice=3")].join("\n\n")
    );
}

#[test]
fn model_without_an_address() {
    let fixture = Fixture::with("[harness]", "[models.policy]\nkind = \"vllm\"\n\n[harness]");
    assert_message!(fixture, fixture.refused(RUN));
}

#[test]
fn missing_plugin() {
    let fixture = Fixture::with("\"idle\"", "\"idel\"");
    assert_message!(fixture, fixture.refused(RUN));
}

#[test]
fn plugin_of_another_world() {
    let fixture = Fixture::with("\"idle\"", "\"textcraft\"");
    assert_message!(fixture, fixture.refused(RUN));
}

#[test]
fn plugin_that_is_none() {
    let fixture = Fixture::with("\"idle\"", "\"./mine.wasm\"");
    fixture.write("mine.wasm", "not a component");
    assert_message!(fixture, fixture.refused(RUN));
}

#[test]
fn settings_against_the_schema() {
    let fixture = Fixture::with(
        "\"environment-reward\"",
        "\"environment-reward\"\nsettings = { take = \"best\", tage = 1 }",
    );
    assert_message!(fixture, fixture.refused(RUN));
}

#[test]
fn a_setting_of_a_plugin_without_settings() {
    let fixture = Fixture::with("\"idle\"", "\"idle\"\nsettings = { turns = 1 }");
    assert_message!(fixture, fixture.refused(RUN));
}

#[test]
fn a_part_that_the_harness_needs() {
    let environment = "[environment]\nplugin = \"textcraft\"\n";
    let fixture = Fixture::with(environment, "");
    let reference = "harness={plugin=\"reference\", grants=[\"private-task\"]}";
    assert_message!(fixture, fixture.refused(&["run", "craft.toml", "--set", reference]));
    let listed: serde_json::Value = serde_json::from_str(&fixture.run(&["list", "--json"]).stdout).unwrap();
    assert_eq!((&listed[0]["state"], &listed[0]["rollouts"]), (&"blocked".into(), &0.into()));
    // Mended, the same command does what was meant.
    fixture.write("craft.toml", EXPERIMENT);
    assert_eq!(fixture.run(&["run", "craft.toml", "--set", reference]).code, 0);
    let fixture = Fixture::with("\"idle\"", "\"react-text\"");
    assert_message!(fixture, fixture.refused(RUN));
}

#[test]
fn files_of_a_model_that_cannot_be_read() {
    for key in ["template = \"none.jinja\"", "tokenizer = \"none.json\""] {
        let models = format!(
            "[models.policy]\nkind = \"llama-cpp\"\nurl = \"http://127.0.0.1:9\"\n{key}\n\n[harness]"
        );
        let fixture = Fixture::with("[harness]", &models);
        assert_message!(fixture, fixture.refused(RUN));
    }
}

#[test]
fn a_chat_model_without_its_name() {
    let models = "[models.policy]\nkind = \"openai-chat\"\nurl = \"http://127.0.0.1:9\"\n\n[harness]";
    let fixture = Fixture::with("[harness]", models);
    assert_message!(fixture, fixture.refused(RUN));
}

#[test]
fn plugin_cache_not_writable() {
    let fixture = Fixture::with("size = 2", "size = 2");
    let taken = fixture.write("taken", "");
    let output = fixture.command(RUN).env("ESPALIER_CACHE", taken.join("cache")).output().unwrap();
    let ran = ran(&output);
    assert_message!(fixture, format!("{}exit {}", ran.stderr, ran.code));
}

/// What anybody could have made first is not looked into: without a folder of one's own plugins are compiled each time.
#[test]
fn compiled_code_is_kept_in_a_folder_of_ones_own_or_not_at_all() {
    let fixture = Fixture::new();
    let (temporary, open) = (fixture.folder.path().join("tmp"), fixture.folder.path().join("open"));
    for folder in [temporary.join("espalier/plugins"), open.clone()] {
        fs::create_dir_all(folder).unwrap();
    }
    fs::set_permissions(&open, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    for (cache, said) in [
        (None, "compiled plugins are not cached: no cache folder is set".to_owned()),
        (Some(&open), format!("other users can write to {} (mode 0777, owner ", open.display())),
    ] {
        let mut command = fixture.command(&["plugin", "check", "idle"]);
        command.env_remove("HOME").env("TMPDIR", &temporary);
        if let Some(cache) = cache {
            command.env("XDG_CACHE_HOME", cache);
        }
        let ran = ran(&command.output().unwrap());
        assert_eq!(ran.code, 0, "{}", ran.stderr);
        assert!(ran.stderr.contains(&said), "{}", ran.stderr);
        assert_eq!(ran.stderr.matches("are not cached").count(), 1, "{}", ran.stderr);
    }
    assert_eq!(fs::read_dir(temporary.join("espalier/plugins")).unwrap().count(), 0);
    assert_eq!(fs::read_dir(&open).unwrap().count(), 0);
}

#[test]
fn a_new_run_that_fails_its_checks_does_not_stand_before_the_old_one() {
    let fixture = Fixture::with("size = 2", "size = 2");
    assert_eq!(fixture.run(RUN).code, 0);
    assert_eq!(fixture.run(&["run", "craft.toml", "--new", "--set", "harness.plugin=idel"]).code, 2);
    let listed: serde_json::Value = serde_json::from_str(&fixture.run(&["list", "--json"]).stdout).unwrap();
    assert_eq!(listed.as_array().unwrap().len(), 1);
    assert_eq!(fixture.run(&["show", "craft"]).code, 0);
    assert_eq!(fixture.run(&["show", "craft.g0.r0"]).code, 0);
    assert_eq!(fixture.run(&["show", ""]).code, 2);
}

#[test]
fn task_lines_that_not_every_reader_takes() {
    let fixture = Fixture::with("size = 2", "size = 2");
    let mut lines = b"\xEF\xBB\xBF".to_vec();
    lines.extend_from_slice(task_lines().as_bytes());
    lines.extend_from_slice(b"{\"id\":\"a\xFF\"}\n[\"b\",\"x\"]\n");
    let half = "{\"id\":\"c\",\"instruction\":\"x\",\"data\":{\"n\":\"\\ud83d\"}}\n";
    lines.extend_from_slice(half.as_bytes());
    fs::write(fixture.folder.path().join("tasks.jsonl"), lines).unwrap();
    assert_message!(fixture, fixture.refused(RUN));
    let ran = fixture.run(&["task", "check", "tasks.jsonl"]);
    assert_eq!(ran.code, 1);
    assert_message!(fixture, ran.stdout);
    let ran = fixture.run(&["run", "craft.toml", "--skip-bad-tasks"]);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
}

#[test]
#[expect(clippy::disallowed_methods, reason = "there is no runtime here whose thread could be blocked")]
fn a_check_that_is_stopped_leaves_nothing() {
    let fixture = Fixture::with("size = 2", "size = 2");
    let many: String =
        (0..3000).map(|n| TASK.replace("\"stick\",\"ins", &format!("\"t{n}\",\"ins")) + "\n").collect();
    fixture.write("tasks.jsonl", &many);
    let temporary = fixture.folder.path().join("tmp");
    fs::create_dir(&temporary).unwrap();
    for (signal, code) in [("-INT", 130), ("-TERM", 130)] {
        let mut check = fixture
            .command(&["task", "check", "craft.toml"])
            .env("TMPDIR", &temporary)
            .stdout(std::process::Stdio::null())
            .stderr(std::process::Stdio::null())
            .spawn()
            .unwrap();
        while fs::read_dir(&temporary).unwrap().next().is_none() {
            assert_eq!(check.try_wait().unwrap(), None, "it runs");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        assert!(Command::new("kill").args([signal, &check.id().to_string()]).status().unwrap().success());
        assert_eq!(check.wait().unwrap().code(), Some(code), "{signal}");
        assert_eq!(fs::read_dir(&temporary).unwrap().count(), 0, "{signal}");
    }
}

#[test]
fn a_reader_of_messages_that_is_gone_changes_no_exit_code() {
    let fixture = Fixture::with("size = 2", "sise = 2");
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let status = fixture.command(RUN).stderr(writer).status().unwrap();
    assert_eq!(status.code(), Some(2));
}

#[test]
fn broken_task_line() {
    let fixture = Fixture::with("size = 2", "size = 2");
    fixture.write(
        "tasks.jsonl",
        &format!("{TASK}\n{{\"id\":\"b\",\"instruction\":\"x\",\"colour\":1}}\n{{\"id\":\"c\"\n"),
    );
    assert_message!(fixture, fixture.refused(RUN));
}

#[test]
fn tasks_that_a_plugin_cannot_use() {
    let fixture = Fixture::with("plugin = \"environment-reward\"", "plugin = \"page-state\"");
    let task =
        |id: &str, page: &str| format!(r#"{{"id":"{id}","instruction":"x","private":{{"page":{page}}}}}"#);
    let tasks = [
        task("good", r#"[{"expression":"true"}]"#),
        task("misspelt", r#"[{"expression":"true"},{"expresion":"true"}]"#),
        task("world", r#"[{"expression":"true","world":"main"}]"#),
    ];
    fixture.write("tasks.jsonl", &tasks.join("\n"));
    assert_message!(fixture, fixture.refused(RUN));
}

#[test]
fn duplicate_ids() {
    let fixture = Fixture::with("size = 2", "size = 2");
    fixture.write("tasks.jsonl", &format!("{TASK}\n\n{TASK}\n"));
    assert_message!(fixture, fixture.refused(RUN));
    let ran = fixture.run(&["task", "check", "tasks.jsonl"]);
    assert_eq!(ran.code, 1);
    assert_message!(fixture, ran.stdout);
}

#[test]
fn missing_task_file() {
    let fixture = Fixture::with("tasks.jsonl", "task.jsonl");
    assert_message!(fixture, fixture.refused(RUN));
}

#[test]
fn model_not_reachable() {
    // Port 9 is discard: nobody listens there on a machine without inetd.
    let model = "[models.policy]\nkind = \"llama-cpp\"\nurl = \"http://127.0.0.1:9\"\nretries = { attempts = 1 }\n\n[harness]";
    let fixture = Fixture::with("[harness]", model);
    assert_message!(fixture, fixture.refused(RUN));
}

#[test]
fn store_not_writable() {
    // A file where the folder should be: permissions do not stop root, and tests may run as root.
    let fixture = Fixture::with("size = 2", "size = 2");
    fixture.write("taken", "");
    assert_message!(fixture, fixture.refused(&["run", "craft.toml", "--store", "taken/store"]));
}

#[test]
fn store_of_a_newer_version() {
    let fixture = Fixture::with("size = 2", "size = 2");
    let first = fixture.run(RUN);
    assert_eq!(first.code, 0, "{}", first.stderr);
    newer(&fixture.folder.path().join(".espalier/store.sqlite"));
    assert_message!(fixture, fixture.refused(&["list"]));
}

#[test]
fn store_that_lost_its_database() {
    let fixture = Fixture::with("size = 2", "size = 2");
    let first = fixture.run(RUN);
    assert_eq!(first.code, 0, "{}", first.stderr);
    let whole = fixture.run(&["store", "check"]);
    assert_eq!(whole.code, 0, "{}{}", whole.stdout, whole.stderr);
    assert!(whole.stdout.ends_with("all whole\n"), "{}", whole.stdout);
    std::fs::write(fixture.folder.path().join(".espalier/store.sqlite"), "").unwrap();
    let refused = fixture.run(RUN);
    assert_eq!(refused.code, 4);
    assert_message!(fixture, refused.stderr);
    assert_eq!(fixture.run(&["store", "check"]).code, 4);
}

/// What a newer engine would leave: one more migration. Written by Python's sqlite3, since only the store names SQL.
fn newer(database: &Path) {
    let script = "import sqlite3,sys\n\
        c = sqlite3.connect(sys.argv[1])\n\
        c.execute(\"INSERT INTO _sqlx_migrations SELECT 9999, 'newer', installed_on, success, checksum, execution_time \
        FROM _sqlx_migrations LIMIT 1\")\n\
        c.commit()";
    let status = Command::new("python3").args(["-c", script]).arg(database).status().unwrap();
    assert!(status.success());
}

#[test]
fn changed_meaning() {
    let fixture = Fixture::with("size = 2", "size = 2");
    let first = fixture.run(RUN);
    assert_eq!(first.code, 0, "{}", first.stderr);
    let again = fixture.run(RUN);
    assert_eq!(again.code, 0, "a finished run prints its table again: {}", again.stderr);
    assert_message!(
        fixture,
        fixture.refused(&["run", "craft.toml", "--set", "seed=8", "--set", "limits.turns=3"])
    );
    let new = fixture.run(&["run", "craft.toml", "--set", "seed=8", "--new"]);
    assert_eq!(new.code, 0, "{}", new.stderr);
    let listed: serde_json::Value = serde_json::from_str(&fixture.run(&["list", "--json"]).stdout).unwrap();
    assert_eq!(listed.as_array().unwrap().len(), 2);
}

#[test]
fn no_such_run() {
    let fixture = Fixture::with("size = 2", "size = 2");
    assert_message!(fixture, fixture.refused(&["show", "craft"]));
    assert_eq!(fixture.run(RUN).code, 0);
    assert_message!(fixture, fixture.refused(&["show", "nothing"]));
    assert_message!(fixture, fixture.refused(&["show", "craft", "craft.g0.r0"]));
    assert_message!(fixture, fixture.refused(&["show", "craft", "craft", "--tokens"]));
    let shown: serde_json::Value =
        serde_json::from_str(&fixture.run(&["show", "craft", "craft", "--json"]).stdout).unwrap();
    assert_eq!(shown["runs"].as_array().map(Vec::len), Some(2));
    assert_eq!(shown["differences"], serde_json::json!([]));
    assert_eq!(shown["rewards"][1]["difference_to_first"]["mean"], 0.0);
}

#[test]
fn errors_for_programs() {
    let fixture = Fixture::with("size = 2", "sise = 2");
    let ran = fixture.run(&["run", "craft.toml", "--json"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (2, ""));
    let error: serde_json::Value = serde_json::from_str(&ran.stderr).unwrap();
    assert_eq!(error["error"]["line"], 8);
    assert_eq!(error["error"]["exit"], 2);
    assert!(error["error"]["hint"].as_str().unwrap().contains("size"));
    let ran = fixture.run(&["run", "--json", "--limit", "none", "craft.toml"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (2, ""));
    let error: serde_json::Value = serde_json::from_str(&ran.stderr).unwrap();
    assert_eq!(error["error"]["exit"], 2);
    assert!(error["error"]["message"].as_str().unwrap().contains("'none'"), "{error}");
}

#[test]
fn usage_errors_and_help() {
    let fixture = Fixture::new();
    assert_eq!(fixture.run(&["runn"]).code, 2);
    assert_eq!(fixture.run(&["run"]).code, 2);
    let help = fixture.run(&["--help"]);
    assert_eq!(help.code, 0);
    assert!(help.stdout.contains("Exit codes"));
}

#[test]
fn published_sets_are_made_into_tasks_or_refused() {
    let fixture = Fixture::new();
    let row = |id: &str, tests: &str| {
        format!(
            r#"{{"repo":"a/b","instance_id":"{id}","base_commit":"0123456789012345678901234567890123456789","patch":"--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n","test_patch":"--- a/tests/test_x.py\n+++ b/tests/test_x.py\n@@ -1 +1 @@\n-a\n+b\n","problem_statement":"It fails.","version":"1.0","FAIL_TO_PASS":{tests},"PASS_TO_PASS":"[]"}}"#
        )
    };
    let good = row("a__b-1", r#""[\"tests/test_x.py::test_a\"]""#);
    fixture.write("rows.jsonl", &format!("{good}\n{}\n", row("a__b-2", "7")));
    let import = |more: &[&str]| {
        let fixed = ["task", "import", "swe-bench", "rows.jsonl", "--out", "made.jsonl"];
        let command = ["--command", "pytest -rA {files}", "--parser", "pytest"];
        fixture.run(&[&fixed[..], &command[..], more].concat())
    };
    let refused = import(&[]);
    assert_eq!(refused.code, 2);
    assert!(refused.stderr.contains("record 2 (a__b-2)"), "{}", refused.stderr);
    assert!(refused.stderr.contains("1 record of rows.jsonl cannot be read"), "{}", refused.stderr);
    assert!(!fixture.folder.path().join("made.jsonl").exists());
    let made = import(&["--skip-bad-tasks"]);
    assert_eq!(made.code, 0, "{}", made.stderr);
    let checked = fixture.run(&["task", "check", "made.jsonl"]);
    assert_eq!(checked.code, 0, "{}{}", checked.stdout, checked.stderr);
    let none = import(&["--skip-bad-tasks", "--only", "a__b-9"]);
    assert!(none.stderr.contains("rows.jsonl contains none of the requested tasks"), "{}", none.stderr);
    let unknown = fixture.run(&["task", "import", "swe", "rows.jsonl", "--out", "made.jsonl"]);
    let expect = "unknown task format \"swe\": expected one of swe-bench, swe-rebench, swe-rebench-v2, swe-gym, harbor";
    assert!(unknown.stderr.contains(expect), "{}", unknown.stderr);
}

#[test]
fn causes_stand_in_the_message_or_line_by_line_but_once() {
    let fixture = Fixture::with("size = 2", "size = 2");
    fixture.write("taken", "a file");
    let arguments = ["run", "craft.toml", "--store", "taken/store"];
    let (effect, cause) = ("store taken/store/blobs is not writable", "Not a directory (os error 20)");
    let plain = fixture.run(&arguments).stderr;
    assert!(plain.starts_with(&format!("error: {effect}: {cause}\n")), "{plain}");
    let verbose = fixture.run(&[&arguments[..], &["--verbose"]].concat()).stderr;
    assert!(verbose.starts_with(&format!("error: {effect}\n  caused by: {cause}\n")), "{verbose}");
    for told in [&plain, &verbose] {
        assert_eq!(told.matches(cause).count(), 1, "{told}");
    }
    let json = fixture.run(&[&arguments[..], &["--json"]].concat()).stderr;
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["error"]["message"], format!("{effect}: {cause}"));
    assert_eq!(json["error"]["causes"], serde_json::json!([cause]));
}

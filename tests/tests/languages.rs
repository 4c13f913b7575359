//! The harnesses `react-text` and `once` in three languages: the same answers of a model must lead to the same messages,
//! the same actions and the same report, each through its own runtime.

#![expect(clippy::unwrap_used, reason = "a failed step of a test is a failed test")]

use async_trait::async_trait;
use espalier_core::chat::{CompleteOptions, Completion, Finish, Message, Part, Role, Tool, Usage};
use espalier_core::ending::{HarnessEnd, Outcome};
use espalier_core::failure::Failure;
use espalier_core::host::{BlobInfo, Blobs, Branch, Capabilities, Conversation, Environments, Models};
use espalier_core::limits::Limits;
use espalier_core::meter::Meter;
use espalier_core::task::TaskView;
use espalier_plugin::{CancelToken, Compiler, EnvironmentRun, Job, JobClock, PluginHost, PluginHostConfig};
use serde_json::{Value, json};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};
use xtask::place;

const REACT_TEXT: [&str; 3] = ["react-text", "react-text-js", "react-text-py"];
const ONCE: [(&str, &str); 3] = [
    ("once", "plugins/rust/once/src/lib.rs"),
    ("once-js", "plugins/javascript/once/app.js"),
    ("once-py", "plugins/python/once/app.py"),
];

/// What was said to the model, with the options of each completion, until its answers ran out.
#[derive(Clone, Default)]
struct Script {
    answers: Arc<Mutex<VecDeque<String>>>,
    said: Arc<Mutex<Vec<String>>>,
}

impl Script {
    fn hear(&self, messages: &[Message]) {
        let text = |part: &Part| match part {
            Part::Text(text) => text.clone(),
            other => format!("{other:?}"),
        };
        let lines = messages.iter().map(|message| {
            format!("{}: {}", message.role.as_str(), message.parts.iter().map(text).collect::<String>())
        });
        self.said.lock().unwrap().extend(lines);
    }
}

#[async_trait]
impl Models for Script {
    async fn open(
        &self,
        model: &str,
        messages: Vec<Message>,
        tools: Vec<Tool>,
    ) -> Result<Box<dyn Conversation>, Failure> {
        assert!(tools.is_empty());
        self.said.lock().unwrap().push(format!("open {model}"));
        self.hear(&messages);
        Ok(Box::new(self.clone()))
    }
}

#[async_trait]
impl Conversation for Script {
    async fn append(&mut self, messages: Vec<Message>) -> Result<(), Failure> {
        self.hear(&messages);
        Ok(())
    }

    async fn complete(&mut self, options: CompleteOptions) -> Result<Completion, Failure> {
        let asked = format!("{:?} {:?} {:?}", options.max_tokens, options.stop, options.temperature);
        self.said.lock().unwrap().push(asked);
        let answer = self.answers.lock().unwrap().pop_front();
        let answer = answer.ok_or_else(|| Failure::Unavailable("endpoint gone".to_owned()))?;
        Ok(Completion {
            message: Message::text(Role::Assistant, answer),
            tool_calls: Vec::new(),
            malformed: None,
            finish: Finish::Stop,
            usage: Usage::default(),
            call: None,
        })
    }

    async fn complete_many(&mut self, _: u32, _: CompleteOptions) -> Result<Vec<Branch>, Failure> {
        Err(Failure::Invalid("not asked for".to_owned()))
    }

    fn discard(&mut self) {}

    async fn fork(&mut self) -> Result<Box<dyn Conversation>, Failure> {
        Ok(Box::new(self.clone()))
    }

    async fn rewrite(&mut self, _: Vec<Message>) -> Result<(), Failure> {
        Ok(())
    }

    async fn elide_images(&mut self, _: u32) -> Result<u32, Failure> {
        Ok(0)
    }

    fn set_trainable(&mut self, _: u32, _: bool) -> Result<(), Failure> {
        Ok(())
    }

    fn usage(&self) -> Usage {
        Usage::default()
    }
}

/// The harness keeps none.
struct NoBlobs;

#[async_trait]
impl Blobs for NoBlobs {
    async fn put(&self, _: Vec<u8>, _: &str) -> Result<String, Failure> {
        Err(Failure::Invalid("no blobs here".to_owned()))
    }

    async fn stat(&self, blob: &str) -> Result<BlobInfo, Failure> {
        Err(Failure::Invalid(blob.to_owned()))
    }

    async fn read(&self, blob: &str, _: u64, _: u32) -> Result<Vec<u8>, Failure> {
        Err(Failure::Invalid(blob.to_owned()))
    }
}

/// All that can be seen of a dialogue from outside.
#[derive(Debug, PartialEq)]
struct Played {
    said: Vec<String>,
    actions: Vec<String>,
    end: Result<(Outcome, BTreeMap<String, f64>), Failure>,
}

/// Compiles into `folder`.
fn host(folder: &tempfile::TempDir) -> PluginHost {
    let (cache_dir, io) = (Some(folder.path().to_owned()), tokio::runtime::Handle::current());
    let compiler = Compiler::InProcess;
    PluginHost::new(PluginHostConfig { cache_dir, compiler, guest_threads: 2, instances_max: 64, io })
        .unwrap()
}

async fn play(host: &PluginHost, harness: &str, settings: &Value, answers: &[&str]) -> Played {
    let load = |name: &str| place::dist().join(format!("{name}.wasm"));
    let plugin = host.load(&load(harness)).await.expect("plugins are built (cargo xtask plugins)");
    let world = host.load(&load("textcraft")).await.expect("plugins are built (cargo xtask plugins)");
    let meter = Arc::new(Meter::new(Limits::default()));
    let task = TaskView {
        id: "planks".to_owned(),
        instruction: "Craft {observation}.".to_owned(),
        environment: None,
        sandboxes: Vec::new(),
        tags: Vec::new(),
        data: json!({ "goal": "oak planks", "commands": ["craft 4 oak planks using 1 oak logs"] })
            .to_string(),
        private_data: None,
    };
    let environments = host.environment(EnvironmentRun {
        settings: world.check_settings(&json!({})).unwrap(),
        plugin: world,
        alias: "textcraft".to_owned(),
        task: Arc::new(task.clone()),
        seed: 1,
        start_ms: 0,
        meter: Arc::clone(&meter),
    });
    let script = Script::default();
    script.answers.lock().unwrap().extend(answers.iter().map(ToString::to_string));
    let job = Job {
        settings: plugin.check_settings(settings).unwrap(),
        plugin,
        alias: harness.to_owned(),
        capabilities: Capabilities {
            models: Some(Arc::new(script.clone())),
            environments: Some(Arc::clone(&environments) as Arc<dyn Environments>),
            blobs: Some(Arc::new(NoBlobs)),
            sandboxes: None,
            browsers: None,
            services: None,
        },
        wall: meter.limits().rollout_wall,
        meter,
        clock: JobClock::Runs { start_ms: 0 },
        seed: 1,
        record_calls: false,
        cancel: CancelToken::new(),
    };
    let outcome = host.run_harness(job, task).await;
    environments.end_episode().await;
    let end = match outcome.end {
        HarnessEnd::Returned(Ok(report)) => {
            let data: Option<BTreeMap<String, f64>> = serde_json::from_str(&report.data).unwrap();
            Ok((report.outcome, data.unwrap_or_default()))
        }
        HarnessEnd::Returned(Err(failure)) => Err(failure),
        other => panic!("{harness}: {other:?}, logged {:?}", outcome.logs),
    };
    let said = script.said.lock().unwrap().clone();
    Played { said, actions: environments.steps().into_iter().map(|step| step.action).collect(), end }
}

#[tokio::test(flavor = "multi_thread")]
async fn three_languages_hold_the_same_dialogue() {
    let folder = tempfile::tempdir().unwrap();
    let host = host(&folder);
    let line = json!({
        "form": "line", "prompt": "", "examples": ["e1 {prompt}", "e2"], "max_turns": 4, "stop": ["\n"],
        "opening": "{examples}\n\n{observation}\n>", "reply": "\n{observation}\n>", "max_tokens": 9,
    });
    let action =
        json!({ "system": "Be brief.", "format_errors_max": 2, "give_up": "give up", "temperature": 0.5 });
    let prompt = json!({ "form": "prompt", "max_turns": 2 });
    let cases: [(&Value, &[&str]); 9] = [
        (&line, &[" get 1 oak logs", "\n craft 4 oak planks using 1 oak logs "]),
        (&line, &["", "look", "look", "look"]),
        (
            &action,
            &["I need wood.\nAction: get 2 oak logs", "hm", "Action: craft 4 oak planks using 1 oak logs"],
        ),
        (&action, &["Action: inventory", "hm", "Action:"]),
        (&action, &["Action: a\nAction: give up"]),
        (&action, &["Action: inventory"]),
        (&prompt, &["wood\n> get 1 oak logs\n", "> get 木 '\"{observation}"]),
        (&prompt, &["get 1 oak logs", "hm", "never asked"]),
        (&json!({ "model": "judge" }), &["Action: inventory \u{1f333}"]),
    ];
    for (number, (settings, answers)) in cases.into_iter().enumerate() {
        let first = play(&host, REACT_TEXT[0], settings, answers).await;
        for harness in &REACT_TEXT[1..] {
            let other = play(&host, harness, settings, answers).await;
            assert_eq!(other, first, "case {number}, {harness} against {}", REACT_TEXT[0]);
        }
        if number == 0 {
            let options = "Some(9) [\"\\n\"] None";
            let opening = "user: e1 {prompt}\n\ne2\n\nCrafting commands:\ncraft 4 oak planks using 1 oak logs\n\n\
                           Goal: craft oak planks.\n>";
            assert_eq!(first.said, ["open policy", opening, options, "user: \nGot 1 oak logs\n>", options]);
            assert_eq!(first.actions, ["get 1 oak logs", "craft 4 oak planks using 1 oak logs"]);
            let data = [("turns", 2.0), ("steps", 2.0), ("format_errors", 0.0), ("reward", 1.0)];
            let data = data.map(|(key, value)| (key.to_owned(), value)).into();
            assert_eq!(first.end, Ok((Outcome::Submitted, data)));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_example_of_the_plugin_guide_does_the_same_in_each_language() {
    let guide = std::fs::read_to_string(place::root().join("docs/plugins.md")).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let host = host(&folder);
    for (harness, source) in ONCE {
        let code = std::fs::read_to_string(place::root().join(source)).unwrap();
        assert!(guide.contains(&format!("\n{code}```\n")), "docs/plugins.md does not show {source} as it is");
        let played = play(&host, harness, &json!({}), &[" get 1 oak logs\n"]).await;
        assert_eq!(played.actions, ["get 1 oak logs"], "{harness}");
        assert_eq!(played.end, Ok((Outcome::Submitted, BTreeMap::new())), "{harness}");
        assert_eq!(played.said.len(), 3, "{harness}: {:?}", played.said);
    }
}

//! The harness `once`: lets the model answer once and carries the answer out. The example of docs/plugins.md.
#![cfg(target_arch = "wasm32")]

espalier_sdk::bindings!("harness-plugin");

use bindings::espalier::base::types::TaskView;
use bindings::espalier::environment::environments;
use bindings::espalier::model::conversations::{self, Options};
use bindings::espalier::model::messages::{Message, Part, Role};
use bindings::espalier::plugin::reports::{Outcome, Report};
use bindings::exports::espalier::base::configurable;
use bindings::exports::espalier::plugin::harness::Guest;

struct Plugin;

impl configurable::Guest for Plugin {
    fn settings_schema() -> String {
        espalier_sdk::schema_of::<espalier_sdk::NoSettings>()
    }
}

impl Guest for Plugin {
    fn run(task: TaskView) -> Result<Report, Failure> {
        report_panics();
        let world = environments::open()?;
        let seen = world.reset()?;
        let text = format!("{}\n{}", task.instruction, seen.text);
        let first = Message { role: Role::User, parts: vec![Part::Text(text)], extra: None };
        let conversation = conversations::open("policy", &[first], &[])?;
        let options =
            Options { max_tokens: None, stop: vec![], temperature: None, tool_choice: None, extra: None };
        let answer = conversation.complete(&options)?;
        if let Some(Part::Text(action)) = answer.message.parts.first() {
            world.step(action.trim())?;
        }
        Ok(Report { outcome: Outcome::Submitted, answer: None, data: "null".into(), extra: None })
    }
}

bindings::export!(Plugin with_types_in bindings);

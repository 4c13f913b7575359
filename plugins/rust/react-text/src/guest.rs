//! The component's exports.

espalier_sdk::bindings!("harness-plugin");

use crate::dialogue::{Dialogue, End, Move};
use crate::settings::Settings;
use bindings::espalier::base::types::TaskView;
use bindings::espalier::environment::environments;
use bindings::espalier::model::conversations::{self, Options};
use bindings::espalier::model::messages::{Message, Part, Role};
use bindings::espalier::plugin::reports::{Limit, Outcome, Report};
use bindings::exports::espalier::base::configurable;
use bindings::exports::espalier::plugin::harness::Guest;

struct Plugin;

impl configurable::Guest for Plugin {
    fn settings_schema() -> String {
        espalier_sdk::schema_of::<Settings>()
    }
}

impl Guest for Plugin {
    fn run(task: TaskView) -> Result<Report, Failure> {
        report_panics();
        let settings: Settings = settings()?;
        let options = Options {
            max_tokens: settings.max_tokens,
            stop: settings.stop.clone(),
            temperature: settings.temperature,
            tool_choice: None,
            extra: None,
        };
        let (model, system) = (settings.model.clone(), settings.system.clone());
        let mut dialogue = Dialogue::new(settings);

        let world = environments::open()?;
        let first = world.reset()?;
        let mut messages: Vec<Message> = system.into_iter().map(|text| message(Role::System, text)).collect();
        messages.push(message(Role::User, dialogue.opening(&task.instruction, &first.text)));
        let conversation = conversations::open(&model, &messages, &[])?;

        let end = loop {
            let answer = conversation.complete(&options)?;
            let mut next = dialogue.answered(&text_of(&answer.message));
            if let Move::Act(action) = &next {
                let step = world.step(action)?;
                next = dialogue.stepped(&step.observation.text, step.reward, step.done);
            }
            match next {
                Move::Say(text) => conversation.append(&[message(Role::User, text)])?,
                Move::End(end) => break end,
                Move::Act(action) => {
                    return Err(invalid(format_args!("action {action:?} was not carried out")));
                }
            }
        };
        let outcome = match end {
            End::Done => Outcome::Submitted,
            End::GaveUp => Outcome::GaveUp,
            End::Turns => Outcome::Limit(Limit::Turns),
            End::Format => Outcome::Limit(Limit::Format),
        };
        Ok(Report { outcome, answer: None, data: dialogue.data().to_string(), extra: None })
    }
}

fn message(role: Role, text: String) -> Message {
    Message { role, parts: vec![Part::Text(text)], extra: None }
}

/// The text of an answer; other parts are not text.
fn text_of(message: &Message) -> String {
    let texts = message.parts.iter().filter_map(|part| match part {
        Part::Text(text) => Some(text.as_str()),
        _ => None,
    });
    texts.collect()
}

bindings::export!(Plugin with_types_in bindings);

//! The component's exports.

espalier_sdk::bindings!("harness-plugin");

use crate::answer;
use crate::dialogue::{Dialogue, End};
use crate::screen::Screen;
use crate::settings::{Mode, Settings};
use bindings::espalier::base::clock;
use bindings::espalier::base::types::TaskView;
use bindings::espalier::model::conversations::{self, Completion, Options, Tool};
use bindings::espalier::model::messages::{Message, Part, Role, ToolResult};
use bindings::espalier::plugin::reports::{Limit, Outcome, Report};
use bindings::espalier::sandbox::sandboxes::{
    self, Command, Ending, Path, Program, RunOptions, Sandbox, Shell, ShellOptions,
};
use bindings::exports::espalier::base::configurable;
use bindings::exports::espalier::plugin::harness::Guest;
use espalier_sdk::serde_json::json;

/// Bytes of an output that the host hands over: all that is shown, and a submission of some length.
const OUTPUT_BYTES: u32 = 256 << 10;

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
        let mut place = Place::open(&settings)?;
        let options = Options {
            max_tokens: settings.max_tokens,
            stop: settings.stop.clone(),
            temperature: settings.temperature,
            tool_choice: None,
            extra: None,
        };
        let (mode, fence) = (settings.mode, settings.fence.clone());
        let mut dialogue = Dialogue::new(settings, clock::now_ms());
        let system = dialogue.settings.system_text().map(|text| message(Role::System, text));
        let mut messages: Vec<Message> = system.into_iter().collect();
        messages.push(message(Role::User, dialogue.opening(&task.instruction)));
        let tools = match mode {
            Mode::Tool => vec![bash_tool()],
            Mode::Fenced => Vec::new(),
        };
        let conversation = conversations::open(&dialogue.settings.model, &messages, &tools)?;
        let mut sampled = 0;
        while dialogue.may_ask(clock::now_ms(), sampled) {
            let answer = conversation.complete(&options)?;
            sampled = answer.usage.sampled_tokens;
            let said = match mode {
                Mode::Tool => by_calls(&mut dialogue, &mut place, &answer)?,
                Mode::Fenced => by_block(&mut dialogue, &mut place, &answer, &fence)?,
            };
            if dialogue.end().is_some() {
                break;
            }
            conversation.append(&said)?;
        }
        let outcome = match dialogue.end() {
            Some(End::Submitted) => Outcome::Submitted,
            Some(End::Tokens) => Outcome::Limit(Limit::Tokens),
            Some(End::Time) => Outcome::Limit(Limit::Wall),
            Some(End::Format) => Outcome::Limit(Limit::Format),
            Some(End::Turns) | None => Outcome::Limit(Limit::Turns),
        };
        let answer = dialogue.submission().map(str::to_owned);
        Ok(Report { outcome, answer, data: dialogue.data().to_string(), extra: None })
    }
}

fn bash_tool() -> Tool {
    Tool {
        name: "bash".to_owned(),
        description: "Runs a shell command and returns what it prints.".to_owned(),
        parameters: json!({
            "type": "object",
            "properties": { "command": { "type": "string", "description": "The command." } },
            "required": ["command"],
        })
        .to_string(),
    }
}

/// Carries out the one block of an answer.
fn by_block(
    dialogue: &mut Dialogue,
    place: &mut Place,
    answer: &Completion,
    fence: &str,
) -> Result<Vec<Message>, Failure> {
    let found = answer::fenced(&text_of(&answer.message), fence);
    let told = dialogue.answered(found.as_ref().err().map(String::as_str));
    let told = match found {
        Ok(command) => dialogue.saw(&place.run(&dialogue.settings, command)?),
        Err(_) => told,
    };
    Ok(told.map(|text| message(Role::User, text)).into_iter().collect())
}

/// Carries out the calls of an answer, in order, and answers each.
fn by_calls(
    dialogue: &mut Dialogue,
    place: &mut Place,
    answer: &Completion,
) -> Result<Vec<Message>, Failure> {
    let calls: Vec<(&str, Result<String, String>)> = answer
        .tool_calls
        .iter()
        .map(|call| (call.id.as_str(), answer::called(&call.name, &call.arguments)))
        .collect();
    let problem = match (calls.iter().any(|(_, found)| found.is_ok()), &answer.malformed) {
        (true, _) => None,
        (false, Some(why)) => Some(format!("The call could not be read: {why}")),
        (false, None) => Some(
            calls
                .iter()
                .find_map(|(_, found)| found.clone().err())
                .unwrap_or_else(|| "Your answer called no tool".to_owned()),
        ),
    };
    let told = dialogue.answered(problem.as_deref());
    if calls.is_empty() {
        return Ok(told.map(|text| message(Role::User, text)).into_iter().collect());
    }
    let mut said = Vec::new();
    for (id, found) in calls {
        let (text, is_error) = match found {
            Ok(_) if dialogue.end().is_some() => break,
            Ok(command) => match dialogue.saw(&place.run(&dialogue.settings, command)?) {
                Some(text) => (text, false),
                None => break,
            },
            Err(problem) => (dialogue.settings.format_error_text(&problem), true),
        };
        let result = ToolResult { call_id: id.to_owned(), text, is_error };
        said.push(Message { role: Role::Tool, parts: vec![Part::ToolResult(result)], extra: None });
    }
    Ok(said)
}

/// Where commands run.
struct Place {
    sandbox: Sandbox,
    shell: Option<Shell>,
}

impl Place {
    fn open(settings: &Settings) -> Result<Place, Failure> {
        Ok(Place { sandbox: sandboxes::open(&settings.sandbox)?, shell: None })
    }

    /// What came of a command. What the sandbox refuses the model is told; what does not depend on the sandbox ends the rollout.
    fn run(&mut self, settings: &Settings, command: String) -> Result<Screen, Failure> {
        let outcome = match settings.shell {
            true => self.in_shell(settings, &command),
            false => self.sandbox.exec(&Command {
                program: Program::Shell(command),
                cwd: settings.cwd.clone().map(Path::Text),
                env: env(settings),
                stdin: None,
                user: settings.user.clone(),
                timeout_ms: Some(timeout_ms(settings)),
                output_max: Some(OUTPUT_BYTES.max(settings.output_max.saturating_mul(4))),
                keep_whole: false,
                merge_stderr: true,
                terminal: None,
                extra: None,
            }),
        };
        match outcome {
            Ok(outcome) => Ok(screen(outcome)),
            Err(Failure::Other(other)) => {
                self.shell = None;
                Ok(Screen {
                    returncode: -1,
                    note: format!("({}: {})", other.code, other.text),
                    ..Screen::default()
                })
            }
            Err(failure) => Err(failure),
        }
    }

    fn in_shell(&mut self, settings: &Settings, command: &str) -> Result<sandboxes::Outcome, Failure> {
        let shell = match self.shell.take() {
            Some(shell) => shell,
            None => self.sandbox.open_shell(&ShellOptions {
                program: None,
                cwd: settings.cwd.clone().map(Path::Text),
                env: env(settings),
                user: settings.user.clone(),
                extra: None,
            })?,
        };
        let options = RunOptions {
            timeout_ms: Some(timeout_ms(settings)),
            stdin: None,
            output_max: Some(OUTPUT_BYTES.max(settings.output_max.saturating_mul(4))),
            keep_whole: false,
            merge_stderr: true,
            extra: None,
        };
        let outcome = shell.run(command, &options)?;
        if !shell_ended(&outcome) {
            self.shell = Some(shell);
        }
        Ok(outcome)
    }
}

fn shell_ended(outcome: &sandboxes::Outcome) -> bool {
    outcome.extra.as_deref().is_some_and(|extra| extra.contains(r#""shell_ended":true"#))
}

fn env(settings: &Settings) -> Vec<(String, String)> {
    settings.env.iter().map(|(name, value)| (name.clone(), value.clone())).collect()
}

fn timeout_ms(settings: &Settings) -> u64 {
    u64::from(settings.timeout_s) * 1_000
}

fn screen(outcome: sandboxes::Outcome) -> Screen {
    let mut notes = Vec::new();
    if shell_ended(&outcome) {
        notes.push("(the shell has ended: the next command gets a new one)");
    }
    let returncode = match outcome.ending {
        Ending::ExitCode(code) => code,
        Ending::Signal(number) => 128 + number,
        Ending::TimedOut => -1,
        Ending::OutOfMemory => {
            notes.push("(killed: out of memory)");
            137
        }
        Ending::Other(_) => -1,
    };
    Screen {
        returncode,
        timed_out: matches!(outcome.ending, Ending::TimedOut),
        head: outcome.stdout.head,
        left_out: outcome.stdout.left_out,
        tail: outcome.stdout.tail,
        note: notes.join("\n"),
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

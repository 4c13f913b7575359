//! Commands as clients send and see them.

use super::super::sandboxes::seconds;
use super::{TIMEOUT_S, excerpts};
use crate::calls;
use crate::problem::{Code, Problem};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use espalier_agent_client::wire::{self, CommandSpec, Id, outcome::Outcome};
use espalier_agent_client::{AgentError, Excerpts, Reason, command};
use espalier_core::cause::with_causes;
use espalier_sandbox::service::Sandbox;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;
use utoipa::ToSchema;

/// Longest label.
const LABEL_BYTES_MAX: usize = 256;

/// Shell text, or a program with its arguments.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(untagged, expecting = "expected shell text, or a list of strings")]
pub(crate) enum CommandLine {
    /// Shell text, run by `bash`, or by `sh` if the sandbox has no bash.
    Script(String),
    /// A program with its arguments, run without a shell.
    Arguments(Vec<String>),
}

/// The size of a terminal.
#[derive(Clone, Copy, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Terminal {
    /// Number of lines.
    #[schema(minimum = 1, maximum = 65_535)]
    rows: u16,
    /// Number of characters per line.
    #[schema(minimum = 1, maximum = 65_535)]
    columns: u16,
}

impl From<Terminal> for wire::Terminal {
    fn from(terminal: Terminal) -> wire::Terminal {
        wire::Terminal { rows: terminal.rows.into(), columns: terminal.columns.into() }
    }
}

/// The command to run.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RunCommand {
    /// The id of the call, `SESSION.EPOCH.COUNTER`, chosen by the client. A repeated id is answered from the record of the first
    /// call. Without an id the request must not be repeated.
    #[serde(default)]
    #[schema(pattern = r"^[A-Za-z0-9_-]{1,48}\.[1-9][0-9]{0,15}\.[1-9][0-9]{0,15}$")]
    pub(crate) id: Option<String>,
    /// A counter: the client will send no new id of this session at or below it.
    #[serde(default)]
    pub(crate) floor: Option<u64>,
    /// Shell text, or a program with its arguments.
    pub(crate) command: CommandLine,
    /// The id of an open shell to run the command in. Then only `stdin`, `timeout_s`, `output_max` and `merge_stderr` of the
    /// other fields apply.
    #[serde(default)]
    #[schema(pattern = r"^[A-Za-z0-9_-]{1,48}\.[1-9][0-9]{0,15}\.[1-9][0-9]{0,15}$")]
    pub(crate) shell: Option<String>,
    /// The folder to start in; default the folder of the sandbox.
    #[serde(default)]
    pub(crate) cwd: Option<String>,
    /// Variables added to the environment of the sandbox.
    #[serde(default)]
    pub(crate) env: Option<BTreeMap<String, String>>,
    /// The user that runs the command; default the user of the sandbox.
    #[serde(default)]
    pub(crate) user: Option<String>,
    /// Standard input, as text.
    #[serde(default)]
    pub(crate) stdin: Option<String>,
    /// Standard input, as base64.
    #[serde(default)]
    pub(crate) stdin_base64: Option<String>,
    /// Whether more input follows through `.../input`; default false.
    #[serde(default)]
    pub(crate) stdin_open: Option<bool>,
    /// Time limit in seconds, after which the command and everything it started is killed; default 300, 0: no limit.
    #[serde(default)]
    #[schema(minimum = 0, maximum = 604_800)]
    pub(crate) timeout_s: Option<f64>,
    /// How many bytes of each output to keep, from its start and its end; default 8 MiB.
    #[serde(default)]
    pub(crate) output_max: Option<u64>,
    /// How many bytes to return from the start of each output; default 32768.
    #[serde(default)]
    #[schema(maximum = 1_048_576)]
    pub(crate) head_bytes: Option<u32>,
    /// How many bytes to return from the end of each output; default 32768.
    #[serde(default)]
    #[schema(maximum = 1_048_576)]
    pub(crate) tail_bytes: Option<u32>,
    /// Run the command in a terminal of this size.
    #[serde(default)]
    pub(crate) terminal: Option<Terminal>,
    /// Merge standard error into standard output, in order; default false.
    #[serde(default)]
    pub(crate) merge_stderr: Option<bool>,
    /// A label shown in lists; default the beginning of the command.
    #[serde(default)]
    #[schema(max_length = 256)]
    pub(crate) label: Option<String>,
    /// How long to wait for the command to end, in seconds; default until it ends, at most 600.
    #[serde(default)]
    #[schema(minimum = 0, maximum = 600)]
    pub(crate) wait_s: Option<f64>,
}

/// The state of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(crate) enum CommandState {
    /// The command is running.
    Running,
    /// The command has ended.
    Ended,
}

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Ending {
    /// The command exited with an exit code.
    Exit,
    /// The command was killed by a signal.
    Signal,
    /// The command exceeded its time limit and was killed.
    TimedOut,
    /// The kernel killed the command because it ran out of memory.
    OutOfMemory,
    /// The command could not be started: see `message`.
    NotStarted,
    /// Its sandbox was lost while it ran: how far it came is unknown, see `message`.
    Unknown,
}

/// A command.
#[derive(Clone, Debug, Serialize, ToSchema)]
#[schema(as = Command)]
pub(crate) struct CommandView {
    /// The id of the command.
    pub(crate) id: String,
    /// The id of the sandbox.
    pub(crate) sandbox_id: String,
    /// The state of the command.
    pub(crate) state: CommandState,
    /// The label of the request.
    pub(crate) label: Option<String>,
    /// How the command ended; null: it is running.
    pub(crate) outcome: Option<Ending>,
    /// The exit code, if the command exited.
    pub(crate) exit_code: Option<i32>,
    /// The signal, if one killed the command.
    pub(crate) signal: Option<i32>,
    /// Why the command did not start, or how its sandbox was lost.
    pub(crate) message: Option<String>,
    /// Whether the program, or the folder to start in, does not exist.
    #[serde(skip)]
    pub(crate) not_found: bool,
    /// How long the command ran, in milliseconds.
    pub(crate) duration_ms: Option<u64>,
    /// Standard output: its start and its end, with a note about the bytes left out between. Invalid UTF-8 is replaced.
    pub(crate) stdout: String,
    /// Standard error, like `stdout`.
    pub(crate) stderr: String,
    /// Standard output as base64, if it is not valid UTF-8.
    pub(crate) stdout_base64: Option<String>,
    /// The same for standard error.
    pub(crate) stderr_base64: Option<String>,
    /// Number of bytes written to standard output.
    pub(crate) stdout_bytes: u64,
    /// Number of bytes written to standard error.
    pub(crate) stderr_bytes: u64,
    /// Number of bytes left out of standard output.
    pub(crate) stdout_omitted: u64,
    /// Number of bytes left out of standard error.
    pub(crate) stderr_omitted: u64,
    /// Whether the shell it ran in ended as well.
    pub(crate) shell_ended: bool,
    /// Number of processes the command left running.
    pub(crate) left_running: u32,
    /// CPU time in user mode, in milliseconds.
    pub(crate) user_ms: u64,
    /// CPU time in the kernel, in milliseconds.
    pub(crate) system_ms: u64,
    /// Peak memory, in bytes.
    pub(crate) memory_max_bytes: u64,
}

/// One output as an answer has it.
#[derive(Default)]
struct Shown {
    text: String,
    base64: Option<String>,
    omitted: u64,
}

impl Shown {
    fn of(excerpt: wire::Excerpt) -> Shown {
        let wire::Excerpt { head, omitted_bytes: omitted, tail } = excerpt;
        let whole =
            if omitted == 0 { Bytes::from([head.clone(), tail.clone()].concat()) } else { Bytes::new() };
        let parts: &[&[u8]] = if omitted == 0 { &[&whole] } else { &[&head, &tail] };
        let utf8 = parts.iter().all(|part| mostly_utf8(part));
        let base64 = (!utf8).then(|| BASE64_STANDARD.encode(parts.concat()));
        let between = format!("\n[... {omitted} bytes left out ...]\n");
        let texts: Vec<_> = parts.iter().map(|part| String::from_utf8_lossy(part)).collect();
        Shown { text: texts.join(&between), base64, omitted }
    }
}

/// Whether bytes are UTF-8, but for a character that an excerpt cut at either end.
fn mostly_utf8(bytes: &[u8]) -> bool {
    let start = bytes.iter().take(3).take_while(|byte| **byte & 0xC0 == 0x80).count();
    match std::str::from_utf8(&bytes[start..]) {
        Ok(_) => start == 0 || bytes.len() > start,
        Err(error) => error.error_len().is_none(),
    }
}

impl CommandView {
    /// A command of which nothing is known but that it runs.
    fn running(sandbox_id: &str, id: &Id) -> CommandView {
        CommandView {
            id: calls::text(id).unwrap_or_default(),
            sandbox_id: sandbox_id.to_owned(),
            state: CommandState::Running,
            label: None,
            outcome: None,
            exit_code: None,
            signal: None,
            message: None,
            not_found: false,
            duration_ms: None,
            stdout: String::new(),
            stderr: String::new(),
            stdout_base64: None,
            stderr_base64: None,
            stdout_bytes: 0,
            stderr_bytes: 0,
            stdout_omitted: 0,
            stderr_omitted: 0,
            shell_ended: false,
            left_running: 0,
            user_ms: 0,
            system_ms: 0,
            memory_max_bytes: 0,
        }
    }

    /// With how it ended.
    pub(crate) fn of(sandbox_id: &str, id: &Id, ended: Option<&wire::Ended>) -> CommandView {
        let mut view = CommandView::running(sandbox_id, id);
        let Some(ended) = ended else { return view };
        view.state = CommandState::Ended;
        view.duration_ms = Some(ended.duration_ms);
        (view.stdout_bytes, view.stderr_bytes) = (ended.stdout_bytes, ended.stderr_bytes);
        view.shell_ended = ended.shell_ended;
        view.left_running = ended.left_running;
        (view.user_ms, view.system_ms) = (ended.user_ms, ended.system_ms);
        view.memory_max_bytes = ended.memory_max_bytes;
        let outcome = ended.outcome.as_ref().and_then(|outcome| outcome.outcome.as_ref());
        view.outcome = Some(match outcome {
            Some(Outcome::ExitCode(code)) => {
                view.exit_code = Some(*code);
                Ending::Exit
            }
            Some(Outcome::Signal(signal)) => {
                view.signal = Some(*signal);
                Ending::Signal
            }
            Some(Outcome::TimedOut(_)) => Ending::TimedOut,
            Some(Outcome::OutOfMemory(_)) => Ending::OutOfMemory,
            Some(Outcome::Unstarted(unstarted)) => {
                view.message = Some(unstarted.message.clone());
                view.not_found = unstarted.reason() == Reason::NotFound;
                Ending::NotStarted
            }
            None => Ending::NotStarted,
        });
        view
    }

    /// The view of a call that had been sent before `error`: if the sandbox was lost meanwhile, the command has ended with an unknown
    /// outcome.
    pub(crate) fn lost(sandbox_id: &str, id: &Id, error: AgentError) -> Result<CommandView, AgentError> {
        if !error.is_lost_under_way() {
            return Err(error);
        }
        Ok(CommandView {
            state: CommandState::Ended,
            outcome: Some(Ending::Unknown),
            message: Some(with_causes(&error)),
            ..CommandView::running(sandbox_id, id)
        })
    }

    /// For those who have no word for an end that is not known.
    pub(crate) fn known(self) -> Result<CommandView, Problem> {
        match self.outcome {
            Some(Ending::Unknown) => Err(Problem::sandbox_lost(self.message.unwrap_or_default())),
            _ => Ok(self),
        }
    }

    /// With what it printed.
    pub(super) fn printed(mut self, stdout: wire::Excerpt, stderr: wire::Excerpt) -> CommandView {
        let total = |excerpt: &wire::Excerpt| {
            ((excerpt.head.len() + excerpt.tail.len()) as u64).saturating_add(excerpt.omitted_bytes)
        };
        self.stdout_bytes = self.stdout_bytes.max(total(&stdout));
        self.stderr_bytes = self.stderr_bytes.max(total(&stderr));
        let (out, err) = (Shown::of(stdout), Shown::of(stderr));
        (self.stdout, self.stdout_base64, self.stdout_omitted) = (out.text, out.base64, out.omitted);
        (self.stderr, self.stderr_base64, self.stderr_omitted) = (err.text, err.base64, err.omitted);
        self
    }
}

impl RunCommand {
    /// As the agent takes it.
    pub(crate) fn spec(&self, sandbox: &Sandbox) -> Result<CommandSpec, Problem> {
        let base = match (&self.command, &self.shell) {
            (CommandLine::Script(text), None) => command::script(text.clone()),
            (CommandLine::Arguments(words), None) if !words.is_empty() => command::arguments(words),
            (CommandLine::Arguments(_), None) => {
                return Err(Problem::invalid("command", "[]", "a program with its arguments"));
            }
            (CommandLine::Script(text), Some(shell)) => {
                command::in_shell(&calls::parse("shell", shell)?, text.clone())
            }
            (CommandLine::Arguments(_), Some(_)) => {
                return Err(Problem::invalid("command", "a list", "shell text, where it runs in a `shell`"));
            }
        };
        let stdin = match (&self.stdin, &self.stdin_base64) {
            (Some(_), Some(_)) => {
                return Err(Problem::invalid("stdin_base64", "given", "no value, because `stdin` is set"));
            }
            (Some(text), None) => Bytes::from(text.clone()),
            (None, Some(text)) => BASE64_STANDARD
                .decode(text)
                .map_err(|error| Problem::new(Code::Invalid, format!("stdin_base64: {error}")))?
                .into(),
            (None, None) => Bytes::new(),
        };
        let timeout = seconds("timeout_s", self.timeout_s.unwrap_or(TIMEOUT_S), 604_800.0)?;
        let spec = CommandSpec {
            folder: calls::folder(sandbox, self.cwd.as_deref()).into(),
            environment: calls::variables(self.env.as_ref()),
            user: self.user.clone().or_else(|| sandbox.user.clone()).unwrap_or_default(),
            stdin,
            stdin_open: self.stdin_open.unwrap_or(false),
            merge_stderr: self.merge_stderr.unwrap_or(false),
            terminal: self.terminal.map(Into::into),
            output_keep_bytes: self.output_max.unwrap_or(0),
            label: self.shown_label(),
            ..base
        };
        // Less than a millisecond would be none.
        Ok(if timeout.is_zero() {
            spec
        } else {
            command::within(spec, timeout.max(Duration::from_millis(1)))
        })
    }

    fn shown_label(&self) -> String {
        let whole = match (&self.label, &self.command) {
            (Some(label), _) => label.clone(),
            (None, CommandLine::Script(text)) => text.clone(),
            (None, CommandLine::Arguments(words)) => words.join(" "),
        };
        cut(&whole)
    }

    pub(super) fn excerpts(&self) -> Result<Excerpts, Problem> {
        excerpts(self.head_bytes, self.tail_bytes)
    }
}

/// As much of a text as a label holds.
pub(crate) fn cut(text: &str) -> String {
    let mut end = text.len().min(LABEL_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_owned()
}

/// A signal, by name or number.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(untagged, expecting = "expected a number, or a name such as `TERM`")]
pub(crate) enum SignalName {
    /// The number of the signal.
    Number(i32),
    /// The name of the signal, such as `TERM` or `SIGTERM`.
    Name(String),
}

impl SignalName {
    pub(crate) fn number(&self) -> Result<i32, Problem> {
        const NAMES: [(&str, i32); 17] = [
            ("HUP", 1),
            ("INT", 2),
            ("QUIT", 3),
            ("ILL", 4),
            ("TRAP", 5),
            ("ABRT", 6),
            ("FPE", 8),
            ("KILL", 9),
            ("USR1", 10),
            ("SEGV", 11),
            ("USR2", 12),
            ("PIPE", 13),
            ("ALRM", 14),
            ("TERM", 15),
            ("CONT", 18),
            ("STOP", 19),
            ("WINCH", 28),
        ];
        match self {
            SignalName::Number(number @ 1..=64) => Ok(*number),
            SignalName::Number(number) => Err(Problem::invalid("signal", number, "1 to 64, or a name")),
            SignalName::Name(text) => {
                let name = text.strip_prefix("SIG").unwrap_or(text);
                let found = NAMES.iter().find(|(known, _)| *known == name);
                found.map(|(_, number)| *number).ok_or_else(|| {
                    Problem::invalid("signal", crate::http::shown(text), "a name like TERM, or 1 to 64")
                })
            }
        }
    }
}

/// The signal to send.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct SendSignal {
    /// The signal.
    pub(crate) signal: SignalName,
    /// Whether to send it to all processes of the command, even after its end; default false: only to its first process.
    #[serde(default)]
    pub(crate) tree: Option<bool>,
}

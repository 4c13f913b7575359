//! Short ways to say what to run.

use crate::wire::{Arguments, CommandSpec, Id, Script, command_spec::Program};
use bytes::Bytes;
use std::time::Duration;

/// Shell text, run by bash where the sandbox has it, else by sh.
pub fn script(text: impl Into<Bytes>) -> CommandSpec {
    let script = Script { text: text.into(), shell: String::new() };
    CommandSpec { program: Some(Program::Script(script)), ..CommandSpec::default() }
}

/// A program and its arguments, without a shell.
pub fn arguments<T: AsRef<[u8]>>(words: impl IntoIterator<Item = T>) -> CommandSpec {
    let words = words.into_iter().map(|word| Bytes::copy_from_slice(word.as_ref())).collect();
    CommandSpec { program: Some(Program::Arguments(Arguments { words })), ..CommandSpec::default() }
}

/// Shell text, run inside an open shell.
pub fn in_shell(shell: &Id, text: impl Into<Bytes>) -> CommandSpec {
    CommandSpec { shell: Some(shell.clone()), ..script(text) }
}

/// The same with a timeout.
pub fn within(spec: CommandSpec, timeout: Duration) -> CommandSpec {
    CommandSpec { timeout_ms: u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX).max(1), ..spec }
}

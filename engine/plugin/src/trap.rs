//! Why a guest was stopped, in words that name plugin, place and cause.

mod words;

use crate::guest::Guest;
use espalier_core::failure::Failure;
use espalier_core::limits::{DurationText, GRACE, GRACE_CALLS, SizeText};
use espalier_core::plugin_failure::{self, PluginFailure, PluginFailureClass};
use std::time::Duration;
use wasmtime::{Trap, WasmBacktrace};

/// The host's own reasons to stop a guest.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub(crate) enum Stop {
    /// It ran too long between two host calls.
    #[error("ran {} without a host call (limits.guest_cpu)", DurationText(*limit))]
    Cpu { limit: Duration },
    /// It went on after its budget error and its grace.
    #[error("continued for {GRACE_CALLS} host calls or {} after `{cause}`", DurationText(GRACE))]
    BudgetIgnored { cause: Failure },
    /// Its owner gave it up.
    #[error("stopped by the engine")]
    Killed,
    /// It called an import while imports are closed.
    #[error("called {import} {reason}")]
    Closed { import: &'static str, reason: &'static str },
    /// It called `exit`.
    #[error("called exit({status})")]
    Exit { status: u32 },
    /// It asked WASI for something that cannot be refused by a result.
    #[error("asked WASI for {0}, which plugins do not have")]
    Wasi(String),
    /// It returned, or passed to an import, what its type allows and its contract does not.
    #[error("{0}")]
    InvalidData(String),
}

/// What kind of trap it was: the word in parentheses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TrapClass {
    Cpu,
    Memory,
    Stack,
    Panic,
    InvalidData,
    BudgetIgnored,
    Stopped,
    /// Not the guest's doing: the machine refused memory or maps.
    Host,
}

impl TrapClass {
    fn as_str(self) -> &'static str {
        match self {
            TrapClass::Cpu => "cpu",
            TrapClass::Memory => "memory",
            TrapClass::Stack => "stack",
            TrapClass::Panic => "panic",
            TrapClass::InvalidData => "invalid data",
            TrapClass::BudgetIgnored => "budget-ignored",
            TrapClass::Stopped => "stopped",
            TrapClass::Host => "host",
        }
    }
}

/// A trap, told.
#[derive(Clone, Debug)]
pub(crate) struct TrapReport {
    pub(crate) class: TrapClass,
    /// `plugin react-text (0123456789ab) in harness.run after host call 12 (conversation.complete): guest trap (cpu):
    /// ran 30s without ...`.
    pub(crate) text: String,
    /// The same in parts.
    pub(crate) failure: Box<PluginFailure>,
}

/// Tells what happened to the guest: from the error of the call, and from what the guest did and said before.
pub(crate) fn report(error: &wasmtime::Error, guest: &Guest, function: &str) -> TrapReport {
    let (class, cause) = classify(error, guest);
    let mut text = format!(
        "plugin {} ({}) in {function} {}: guest trap ({}): {cause}",
        guest.alias,
        &guest.digest[..12],
        guest.gate.place(),
        class.as_str()
    );
    guest.gate.logs().forget_runtime_panic();
    let words = guest.gate.logs().last_words();
    if !words.is_empty() {
        text.push_str(": ");
        text.push_str(&words);
    }
    let backtrace = error.downcast_ref::<WasmBacktrace>();
    let lines = backtrace.map(source_lines).unwrap_or_default();
    if class == TrapClass::Panic && lines.is_empty() && tells_no_place(&words) {
        text.push_str(
            "; a JavaScript plugin ends like this when a value that it passes or returns does not match its type",
        );
        if let Some(expected) = returned_by(function) {
            text.push_str(&format!(": {function} returns {expected}"));
        }
    }
    if !lines.is_empty() {
        let lines: Vec<String> = lines.iter().map(|line| format!("at {line}")).collect();
        text.push_str("; ");
        text.push_str(&lines.join(", "));
    } else if let Some(functions) = backtrace.and_then(go_functions) {
        text.push_str(&format!("; in {functions}"));
    }
    let said = words::Said::read(&words);
    // Code that is interpreted has no lines of its own in the backtrace.
    let position = guest.position.as_ref().filter(|(_, calls)| *calls == guest.gate.total());
    let is_last_known = class == TrapClass::Panic && said.place.is_none() && lines.is_empty();
    let position = position.filter(|_| stopped_anywhere(class) || is_last_known);
    if let Some((place, _)) = position {
        text.push_str(&format!("; at {place}"));
    }
    let failure = PluginFailure {
        class: class.told(),
        place: said
            .place
            .or_else(|| position.map(|(place, _)| place.clone()))
            .or_else(|| lines.into_iter().next())
            .or_else(|| backtrace.and_then(innermost)),
        message: said.message.unwrap_or(cause),
        ..failure(guest, function)
    };
    TrapReport { class, text, failure: Box::new(failure) }
}

/// Whether the engine ends the guest wherever it happens to be, so that the last position that it told is the best one known.
fn stopped_anywhere(class: TrapClass) -> bool {
    matches!(class, TrapClass::Cpu | TrapClass::BudgetIgnored | TrapClass::Stack | TrapClass::Memory)
}

/// A failure of this guest that returned; nothing is said yet of how.
pub(crate) fn failure(guest: &Guest, export: &str) -> PluginFailure {
    let world = match export.split_once('.').map_or(export, |(interface, _)| interface) {
        "harness" => "harness",
        "reward" | "group-reward" => plugin_failure::REWARD,
        "judge" => plugin_failure::JUDGE,
        "task-generator" => "task-generator",
        "settings-schema" => "plugin",
        _ => "environment",
    };
    PluginFailure {
        world: world.to_owned(),
        plugin: guest.alias.clone(),
        digest: guest.digest.clone(),
        export: export.to_owned(),
        class: PluginFailureClass::Returned,
        place: None,
        message: String::new(),
        excused: guest.gate.was_refused(),
    }
}

/// The same of one that returned `failure`.
pub(crate) fn returned(guest: &Guest, export: &str, failure: &Failure) -> PluginFailure {
    let own = self::failure(guest, export);
    PluginFailure { message: failure.to_string(), excused: own.excused || failure.is_no_defect(), ..own }
}

impl TrapClass {
    fn told(self) -> PluginFailureClass {
        match self {
            TrapClass::Cpu => PluginFailureClass::Cpu,
            TrapClass::Memory => PluginFailureClass::Memory,
            TrapClass::Stack => PluginFailureClass::Stack,
            TrapClass::Panic => PluginFailureClass::Panic,
            TrapClass::InvalidData => PluginFailureClass::InvalidData,
            TrapClass::BudgetIgnored => PluginFailureClass::BudgetIgnored,
            TrapClass::Stopped => PluginFailureClass::Stopped,
            TrapClass::Host => PluginFailureClass::Host,
        }
    }
}

/// Whether the guest's last words leave its author without a trace: none at all, or those of componentize-qjs's conversion of
/// values, which name neither field nor type. A hint for people follows from it, nothing else.
fn tells_no_place(words: &str) -> bool {
    words.is_empty() || words.contains("FromJs")
}

/// What JavaScript has to return from an export, as `wit/` says it.
fn returned_by(function: &str) -> Option<&'static str> {
    Some(match function {
        "harness.run" => {
            "{ outcome: { tag: 'submitted' | 'gave-up' | 'limit' | 'other', val? }, answer: string | null, \
             data: string (JSON), extra: string | null }"
        }
        "reward.score-rollout" => {
            "a list of { name: string, value: number, turn: number | null, reason: string, extra: string | null }"
        }
        "provider.reset" => "{ text: string, images: list of strings, extra: string | null }",
        "provider.step" => {
            "{ observation: { text, images, extra }, reward: number | null, done: boolean, info: string (JSON), \
             extra: string | null }"
        }
        "provider.actions" => "a list of strings",
        "settings-schema" => "a string (JSON Schema)",
        "group-reward.score-group" => {
            "for each rollout a list of { name: string, value: number, turn: number | null, reason: string, \
             extra: string | null }"
        }
        "judge.judge" => {
            "{ scores: list of { name, value, turn, reason, extra }, votes: list of { turn: number | null, value: number | \
             null, text: string, call: string | null, extra: string | null }, extra: string | null }"
        }
        "task-generator.generate" | "task-generator.adapt" => "a list of strings (JSON)",
        _ => return None,
    })
}

fn classify(error: &wasmtime::Error, guest: &Guest) -> (TrapClass, String) {
    if let Some(stop) = error.downcast_ref::<Stop>() {
        let class = match stop {
            Stop::Cpu { .. } => TrapClass::Cpu,
            Stop::BudgetIgnored { .. } => TrapClass::BudgetIgnored,
            Stop::Killed => TrapClass::Stopped,
            Stop::Closed { .. } | Stop::InvalidData(_) => TrapClass::InvalidData,
            Stop::Exit { .. } | Stop::Wasi(_) => TrapClass::Panic,
        };
        return (class, stop.to_string());
    }
    if let Some(refusal) =
        error.chain().find(|cause| cause.is::<std::io::Error>() || cause.is::<rustix::io::Errno>())
    {
        let hint = "the machine refuses to map it; hint: raise vm.max_map_count, or lower groups.concurrent_rollouts";
        return (TrapClass::Host, format!("{refusal}: {hint}"));
    }
    let refused = guest.bounds.refused_at(guest.gate.total());
    match error.downcast_ref::<Trap>() {
        // Go without memory has no room to say so either, and calls itself until the stack is exhausted.
        Some(Trap::StackOverflow) if refused.is_none() => {
            (TrapClass::Stack, "call stack exhausted".to_owned())
        }
        Some(Trap::MemoryOutOfBounds) if is_deep_recursion(error) => {
            (TrapClass::Stack, "call stack in linear memory exhausted".to_owned())
        }
        // What a runtime does when it gets no memory is its own affair; the refusal is the cause.
        Some(trap) => match refused {
            Some(wanted) => (TrapClass::Memory, memory_text(wanted, guest)),
            None => (TrapClass::Panic, trap.to_string()),
        },
        None => match refused {
            Some(wanted) => (TrapClass::Memory, memory_text(wanted, guest)),
            None => (TrapClass::InvalidData, format!("{:#}", error.root_cause())),
        },
    }
}

/// Whether the innermost frames repeat one function: a language whose stack lies in linear memory runs below its start
/// when it recurses too deep, which WebAssembly sees as an access out of bounds.
fn is_deep_recursion(error: &wasmtime::Error) -> bool {
    const REPEATS: usize = 5;
    let Some(backtrace) = error.downcast_ref::<WasmBacktrace>() else { return false };
    let functions: Vec<u32> = backtrace.frames().iter().map(wasmtime::FrameInfo::func_index).collect();
    functions.iter().any(|one| functions.iter().filter(|other| *other == one).count() >= REPEATS)
}

fn memory_text(wanted: u64, guest: &Guest) -> String {
    format!(
        "requested {} KiB of memory (limits.guest_memory = {})",
        wanted.div_ceil(1024),
        SizeText(guest.bounds.memory_max())
    )
}

/// In the paths of the language's own code: Rust's, Zig's libc.
const OF_LANGUAGE: [&str; 5] = ["/rustc", "/library/", "/rust-src", "/ziglang/lib/", "/lib/zig/"];
/// In the paths of packages and of the SDK.
const OF_OTHERS: [&str; 5] = ["/registry/src/", "/git/checkouts/", "/sdk/", "/ziglang/", "/zig/"];
/// Source lines told of one trap.
const LINES: usize = 3;

/// The innermost frames that have a source line of the plugin's own, else any outside of the language's runtime.
fn source_lines(backtrace: &WasmBacktrace) -> Vec<String> {
    let (mut own, mut others) = (Vec::new(), Vec::new());
    for frame in backtrace.frames() {
        for symbol in frame.symbols() {
            let (Some(file), Some(line)) = (symbol.file(), symbol.line()) else { continue };
            let name = symbol.name().or(frame.func_name()).map_or_else(|| "?".to_owned(), plain_name);
            let told = format!("{file}:{line} ({name})");
            let path = format!("/{file}");
            let lies_in = |folders: &[&str]| folders.iter().any(|folder| path.contains(folder));
            if lies_in(&OF_OTHERS) {
                others.push(told);
            } else if !lies_in(&OF_LANGUAGE) {
                own.push(told);
            }
        }
        if own.len() >= LINES {
            break;
        }
    }
    let mut lines = if own.is_empty() { others } else { own };
    lines.truncate(LINES);
    lines
}

/// Functions named by [`innermost`]: enough to tell callers apart behind a language's own panic functions.
const INNERMOST: usize = 6;

/// The innermost functions of a component without source lines: the same whenever it fails in the same place.
fn innermost(backtrace: &WasmBacktrace) -> Option<String> {
    go_functions(backtrace).or_else(|| {
        let names = backtrace.frames().iter().map(frame_name).filter(|name| !name.starts_with("runtime."));
        chain(names.take(INNERMOST))
    })
}

/// The innermost functions of an author in Go: those of package `main`.
fn go_functions(backtrace: &WasmBacktrace) -> Option<String> {
    let names = backtrace.frames().iter().map(frame_name).filter(|name| name.starts_with("main."));
    chain(names.take(LINES))
}

fn chain(names: impl Iterator<Item = String>) -> Option<String> {
    let names: Vec<String> = names.collect();
    (!names.is_empty()).then(|| names.join(" < "))
}

fn frame_name(frame: &wasmtime::FrameInfo) -> String {
    let function = frame.func_name().map_or_else(|| frame.func_index().to_string(), plain_name);
    format!("{function}+{:#x}", frame.func_offset().unwrap_or_default())
}

/// A function's name as its author wrote it: Rust's mangling is undone, any other name is left as it is.
fn plain_name(name: &str) -> String {
    format!("{:#}", rustc_demangle::demangle(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_functions_are_as_their_authors_wrote_them() {
        for (name, plain) in [
            ("_RNvCs3QJrVXXXXXX_13fault_harness7recurse", "fault_harness::recurse"),
            ("_RINvNtC4core3ptr13drop_in_placeNtC3std6StringE", "core::ptr::drop_in_place::<std::String>"),
            ("_ZN13fault_harness6faults7recurse17h0123456789abcdefE", "fault_harness::faults::recurse"),
            ("cabi_realloc", "cabi_realloc"),
            ("PyEval_EvalFrame", "PyEval_EvalFrame"),
        ] {
            assert_eq!(plain_name(name), plain);
        }
    }
}

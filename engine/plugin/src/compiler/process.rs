//! The compiler's own process: sets its limits, reads a component, writes its code.

use crate::bounds::COMPONENT_BYTES_MAX;
use crate::{cache, engine};
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, Signal};
use std::ffi::OsString;
use std::io::{Read, Write};
use std::process::ExitCode;

/// Exit codes: the code is on standard output; the component is refused, and standard error says why; memory ran out;
/// anything else.
pub(super) const DONE: i32 = 0;
pub(super) const REFUSED: i32 = 1;
pub(super) const OUT_OF_MEMORY: i32 = 3;
const BROKEN: i32 = 4;
/// Exit code of a Rust program that panicked.
pub(super) const PANICKED: i32 = 101;

/// Address space beyond the memory: reserved by allocators for each thread, and not touched.
const RESERVED_BYTES: u64 = 8 << 30;
/// Bytes of code: several times what the largest component that is compiled becomes.
pub(super) const CODE_BYTES_MAX: u64 = 1 << 29;

enum Failure {
    Refused(String),
    OutOfMemory,
    Broken(String),
}

/// What its arguments say: the process that asked, its engine, bytes of memory, seconds of all cores together.
struct Order {
    parent: u32,
    engine_hash: u64,
    memory_bytes_max: u64,
    cpu_s_max: u64,
}

pub(super) fn main(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let done = order(arguments).and_then(|order| {
        bound(&order)?;
        compile(&order)
    });
    let (code, text) = match done {
        Ok(()) => (DONE, String::new()),
        Err(Failure::Refused(text)) => (REFUSED, text),
        Err(Failure::OutOfMemory) => (OUT_OF_MEMORY, String::new()),
        Err(Failure::Broken(text)) => (BROKEN, text),
    };
    // Nobody may be left to read it; the exit code still says it.
    let _ = writeln!(std::io::stderr(), "{text}");
    ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX))
}

fn order(arguments: impl Iterator<Item = OsString>) -> Result<Order, Failure> {
    let words: Vec<String> = arguments.filter_map(|word| word.into_string().ok()).collect();
    let read = || {
        let [parent, engine_hash, memory, cpu] = &words[..] else { return None };
        Some(Order {
            parent: parent.parse().ok()?,
            engine_hash: u64::from_str_radix(engine_hash, 16).ok()?,
            memory_bytes_max: memory.parse().ok()?,
            cpu_s_max: cpu.parse().ok()?,
        })
    };
    read().ok_or_else(|| Failure::Broken("the engine starts it for itself, with other arguments".to_owned()))
}

/// Takes the limits, before a byte of the component is seen.
fn bound(order: &Order) -> Result<(), Failure> {
    let broken = |error: Errno| Failure::Broken(std::io::Error::from(error).to_string());
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).map_err(broken)?;
    // It may have ended before that.
    if rustix::process::getppid().is_none_or(|parent| parent.as_raw_nonzero().get() as u32 != order.parent) {
        return Err(Failure::Broken("whoever asked for it has ended".to_owned()));
    }
    for (resource, most) in [
        (Resource::Data, order.memory_bytes_max),
        (Resource::As, order.memory_bytes_max.saturating_add(RESERVED_BYTES)),
        (Resource::Fsize, CODE_BYTES_MAX),
        (Resource::Cpu, order.cpu_s_max),
        (Resource::Core, 0),
    ] {
        let most = rustix::process::getrlimit(resource).maximum.map_or(most, |highest| most.min(highest));
        let limit = Rlimit { current: Some(most), maximum: Some(most) };
        rustix::process::setrlimit(resource, limit).map_err(broken)?;
    }
    // Where the machine itself runs out of memory, this is what it can best do without.
    let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
    Ok(())
}

fn compile(order: &Order) -> Result<(), Failure> {
    let broken = |error: std::io::Error| Failure::Broken(error.to_string());
    let mut wasm = Vec::new();
    std::io::stdin().lock().take(COMPONENT_BYTES_MAX).read_to_end(&mut wasm).map_err(broken)?;
    let engine = engine::for_compiling().map_err(|error| Failure::Broken(format!("{error:#}")))?;
    if cache::compatibility_hash(&engine) != order.engine_hash {
        return Err(Failure::Broken(
            "it is from another build than the engine; restart the engine".to_owned(),
        ));
    }
    let code = engine.precompile_component(&wasm).map_err(|error| {
        let short = error.chain().any(|cause| {
            cause
                .downcast_ref::<std::io::Error>()
                .is_some_and(|error| error.kind() == std::io::ErrorKind::OutOfMemory)
                || cause.downcast_ref::<Errno>() == Some(&Errno::NOMEM)
        });
        if short { Failure::OutOfMemory } else { Failure::Refused(format!("{error:#}")) }
    })?;
    let mut output = std::io::stdout().lock();
    output.write_all(&code).and_then(|()| output.flush()).map_err(broken)
}

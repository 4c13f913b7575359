//! WASI 0.2 as guests of Python, JavaScript and Go want it, answered virtually: no files, no sockets, no environment,
//! no arguments; standard output and error become log lines; random numbers are seeded; time moves with host calls
//! and with the guest's own sleeping, which passes at once.
//!
//! Only what a component imports is linked. The functions named here do something; every other one is refused by its
//! own error type (`access-denied`, `closed`), by an empty answer, or, where its type leaves no such way, by a trap that
//! names it. None of this is journaled: every answer follows from seed, host calls and the guest itself.

use crate::guest::Guest;
use crate::trap::Stop;
use espalier_core::trajectory::LogSource;
use rand_chacha::ChaCha12Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use std::collections::HashMap;
use wasmtime::StoreContextMut;
use wasmtime::component::types::{ComponentFunc, ComponentItem, Type};
use wasmtime::component::{
    Component, ComponentType, Lift, Linker, LinkerInstance, Lower, Resource, ResourceType, Val,
};

/// Timers a guest may hold; further ones are ready at once.
const TIMERS_MAX: usize = 1_024;
/// Bytes that a stream takes at a time.
const WRITE_BYTES_MAX: u64 = 64 << 10;
/// Random bytes of one call.
const RANDOM_BYTES_MAX: u64 = 1 << 20;
/// Where the monotonic clock starts: above 0, which Go's runtime takes for a clock that does not work.
const MONOTONIC_START_NS: u64 = 1_000_000_000;
/// The random stream beside the one of `espalier:base/random`.
const RANDOM_STREAM: u64 = 1;

/// The virtual machine's state for one instance.
pub(crate) struct Wasi {
    random: ChaCha12Rng,
    /// What the guest has slept.
    slept_ns: u64,
    timers: HashMap<u32, u64>,
    next_timer: u32,
}

impl Wasi {
    pub(crate) fn new(seed: u64) -> Wasi {
        let mut random = ChaCha12Rng::seed_from_u64(seed);
        random.set_stream(RANDOM_STREAM);
        Wasi { random, slept_ns: 0, timers: HashMap::new(), next_timer: 1 }
    }
}

/// Standard output (1) or standard error (2).
enum OutputStream {}
/// Standard input: at its end.
enum InputStream {}
/// A timer, or something that is always ready (0).
enum Pollable {}
/// Never made.
enum IoError {}
/// Everything else: descriptors, sockets, terminals. Never made, but for the one network.
enum Nothing {}

#[derive(ComponentType, Lift, Lower)]
#[component(variant)]
enum StreamError {
    #[component(name = "last-operation-failed")]
    LastOperationFailed(Resource<IoError>),
    #[component(name = "closed")]
    Closed,
}

#[derive(ComponentType, Lift, Lower)]
#[component(record)]
struct Datetime {
    seconds: u64,
    nanoseconds: u32,
}

type Context<'a> = StoreContextMut<'a, Guest>;

/// Links every WASI interface that the component imports, at the version it names.
pub(crate) fn link(linker: &mut Linker<Guest>, component: &Component) -> wasmtime::Result<()> {
    let engine = component.engine().clone();
    let ty = component.component_type();
    for (name, import) in ty.imports(&engine) {
        let ComponentItem::ComponentInstance(instance) = import.ty else { continue };
        if !name.starts_with("wasi:") {
            continue;
        }
        let interface = name.split('@').next().unwrap_or(name);
        let mut linked = linker.instance(name)?;
        for (item, export) in instance.exports(&engine) {
            match export.ty {
                ComponentItem::Resource(_) => link_resource(&mut linked, item)?,
                ComponentItem::ComponentFunc(_) if !link_function(&mut linked, interface, item)? => {
                    refuse(&mut linked, interface, item)?;
                }
                _ => {}
            }
        }
    }
    Ok(())
}

fn link_resource(linked: &mut LinkerInstance<'_, Guest>, name: &str) -> wasmtime::Result<()> {
    let ty = match name {
        "output-stream" => ResourceType::host::<OutputStream>(),
        "input-stream" => ResourceType::host::<InputStream>(),
        "error" => ResourceType::host::<IoError>(),
        "pollable" => {
            return linked.resource(
                name,
                ResourceType::host::<Pollable>(),
                |mut context: Context<'_>, timer| {
                    context.data_mut().wasi.timers.remove(&timer);
                    Ok(())
                },
            );
        }
        _ => ResourceType::host::<Nothing>(),
    };
    linked.resource(name, ty, |_, _| Ok(()))
}

/// Whether the function is one that does something.
fn link_function(
    linked: &mut LinkerInstance<'_, Guest>,
    interface: &str,
    name: &str,
) -> wasmtime::Result<bool> {
    match (interface, name) {
        ("wasi:cli/stdin", _) => {
            linked.func_wrap(name, |_: Context<'_>, ()| Ok((Resource::<InputStream>::new_own(0),)))
        }
        ("wasi:cli/stdout", _) => {
            linked.func_wrap(name, |_: Context<'_>, ()| Ok((Resource::<OutputStream>::new_own(1),)))
        }
        ("wasi:cli/stderr", _) => {
            linked.func_wrap(name, |_: Context<'_>, ()| Ok((Resource::<OutputStream>::new_own(2),)))
        }
        ("wasi:cli/exit", "exit") => {
            linked.func_wrap(name, |_: Context<'_>, (status,): (Result<(), ()>,)| -> wasmtime::Result<()> {
                Err(Stop::Exit { status: u32::from(status.is_err()) }.into())
            })
        }
        ("wasi:clocks/monotonic-clock" | "wasi:clocks/wall-clock", _) => link_clock(linked, interface, name),
        ("wasi:random/random" | "wasi:random/insecure" | "wasi:random/insecure-seed", _) => {
            link_random(linked, name)
        }
        ("wasi:io/poll", _) => link_poll(linked, name),
        ("wasi:io/streams", name) if name.starts_with("[method]output-stream.") => {
            return link_output(linked, name);
        }
        ("wasi:io/streams", name) if name.starts_with("[method]input-stream.") => {
            return link_input(linked, name);
        }
        ("wasi:sockets/instance-network", _) => {
            linked.func_wrap(name, |_: Context<'_>, ()| Ok((Resource::<Nothing>::new_own(0),)))
        }
        _ => return Ok(false),
    }
    .map(|()| true)
}

impl Guest {
    /// Nanoseconds since a moment before the instance started: what passed by host calls, and by its own sleep.
    fn monotonic_ns(&self) -> u64 {
        let passed_ns = self.gate.passed_ms().saturating_mul(1_000_000);
        MONOTONIC_START_NS.saturating_add(passed_ns).saturating_add(self.wasi.slept_ns)
    }

    fn timer(&mut self, at_ns: u64) -> Resource<Pollable> {
        if at_ns <= self.monotonic_ns() || self.wasi.timers.len() >= TIMERS_MAX {
            return Resource::new_own(0);
        }
        let number = self.wasi.next_timer;
        self.wasi.next_timer = number.wrapping_add(1).max(1);
        self.wasi.timers.insert(number, at_ns);
        Resource::new_own(number)
    }

    fn is_ready(&self, pollable: &Resource<Pollable>) -> bool {
        self.wasi.timers.get(&pollable.rep()).is_none_or(|at_ns| *at_ns <= self.monotonic_ns())
    }

    /// Sleeps until the first of these is ready: time passes at once.
    fn sleep_until_first(&mut self, pollables: &[Resource<Pollable>]) {
        if pollables.iter().any(|pollable| self.is_ready(pollable)) {
            return;
        }
        let first = pollables.iter().filter_map(|one| self.wasi.timers.get(&one.rep())).min().copied();
        if let Some(first) = first {
            let missing = first.saturating_sub(self.monotonic_ns());
            self.wasi.slept_ns = self.wasi.slept_ns.saturating_add(missing);
        }
    }
}

fn link_clock(linked: &mut LinkerInstance<'_, Guest>, interface: &str, name: &str) -> wasmtime::Result<()> {
    match (interface, name) {
        ("wasi:clocks/monotonic-clock", "now") => {
            linked.func_wrap(name, |context: Context<'_>, ()| Ok((context.data().monotonic_ns(),)))
        }
        ("wasi:clocks/monotonic-clock", "resolution") => {
            linked.func_wrap(name, |_: Context<'_>, ()| Ok((1_000_000u64,)))
        }
        ("wasi:clocks/monotonic-clock", "subscribe-instant") => linked
            .func_wrap(name, |mut context: Context<'_>, (at_ns,): (u64,)| {
                Ok((context.data_mut().timer(at_ns),))
            }),
        ("wasi:clocks/monotonic-clock", "subscribe-duration") => {
            linked.func_wrap(name, |mut context: Context<'_>, (for_ns,): (u64,)| {
                let at_ns = context.data().monotonic_ns().saturating_add(for_ns);
                Ok((context.data_mut().timer(at_ns),))
            })
        }
        ("wasi:clocks/wall-clock", "now") => linked.func_wrap(name, |context: Context<'_>, ()| {
            let ms = context.data().gate.now_ms();
            let nanoseconds = (ms % 1_000) as u32 * 1_000_000;
            Ok((Datetime { seconds: ms / 1_000, nanoseconds },))
        }),
        _ => linked
            .func_wrap(name, |_: Context<'_>, ()| Ok((Datetime { seconds: 0, nanoseconds: 1_000_000 },))),
    }
}

fn link_random(linked: &mut LinkerInstance<'_, Guest>, name: &str) -> wasmtime::Result<()> {
    match name {
        "get-random-bytes" | "get-insecure-random-bytes" => {
            linked.func_wrap(name, |mut context: Context<'_>, (length,): (u64,)| {
                if length > RANDOM_BYTES_MAX {
                    return Err(Stop::Wasi(format!("{length} random bytes at once")).into());
                }
                let mut bytes = vec![0; usize::try_from(length).unwrap_or(0)];
                context.data_mut().wasi.random.fill_bytes(&mut bytes);
                Ok((bytes,))
            })
        }
        "get-random-u64" | "get-insecure-random-u64" => linked
            .func_wrap(name, |mut context: Context<'_>, ()| Ok((context.data_mut().wasi.random.next_u64(),))),
        _ => linked.func_wrap(name, |mut context: Context<'_>, ()| {
            let random = &mut context.data_mut().wasi.random;
            Ok(((random.next_u64(), random.next_u64()),))
        }),
    }
}

fn link_poll(linked: &mut LinkerInstance<'_, Guest>, name: &str) -> wasmtime::Result<()> {
    match name {
        "poll" => {
            linked.func_wrap(name, |mut context: Context<'_>, (pollables,): (Vec<Resource<Pollable>>,)| {
                if pollables.is_empty() {
                    return Err(Stop::Wasi("a poll without a subject".to_owned()).into());
                }
                let guest = context.data_mut();
                guest.sleep_until_first(&pollables);
                let ready: Vec<u32> = pollables
                    .iter()
                    .zip(0u32..)
                    .filter(|(pollable, _)| guest.is_ready(pollable))
                    .map(|(_, index)| index)
                    .collect();
                Ok((ready,))
            })
        }
        "[method]pollable.ready" => {
            linked.func_wrap(name, |context: Context<'_>, (pollable,): (Resource<Pollable>,)| {
                Ok((context.data().is_ready(&pollable),))
            })
        }
        _ => linked.func_wrap(name, |mut context: Context<'_>, (pollable,): (Resource<Pollable>,)| {
            context.data_mut().sleep_until_first(&[pollable]);
            Ok(())
        }),
    }
}

impl Guest {
    fn write(&mut self, stream: &Resource<OutputStream>, bytes: &[u8]) {
        let source = if stream.rep() == 2 { LogSource::Stderr } else { LogSource::Stdout };
        self.gate.logs().bytes(source, bytes);
    }
}

type Output = Resource<OutputStream>;
type Written = Result<(), StreamError>;

fn link_output(linked: &mut LinkerInstance<'_, Guest>, name: &str) -> wasmtime::Result<bool> {
    match name.trim_start_matches("[method]output-stream.") {
        "check-write" => linked.func_wrap(name, |_: Context<'_>, (_,): (Output,)| {
            Ok((Ok::<u64, StreamError>(WRITE_BYTES_MAX),))
        }),
        "write" | "blocking-write-and-flush" => {
            linked.func_wrap(name, |mut context: Context<'_>, (stream, bytes): (Output, Vec<u8>)| {
                context.data_mut().write(&stream, &bytes);
                Ok((Written::Ok(()),))
            })
        }
        "flush" | "blocking-flush" => {
            linked.func_wrap(name, |_: Context<'_>, (_,): (Output,)| Ok((Written::Ok(()),)))
        }
        "write-zeroes" | "blocking-write-zeroes-and-flush" => {
            linked.func_wrap(name, |_: Context<'_>, (_, _): (Output, u64)| Ok((Written::Ok(()),)))
        }
        "subscribe" => {
            linked.func_wrap(name, |_: Context<'_>, (_,): (Output,)| Ok((Resource::<Pollable>::new_own(0),)))
        }
        "splice" | "blocking-splice" => {
            linked.func_wrap(name, |_: Context<'_>, (_, _, _): (Output, Resource<InputStream>, u64)| {
                Ok((Err::<u64, StreamError>(StreamError::Closed),))
            })
        }
        _ => return Ok(false),
    }
    .map(|()| true)
}

fn link_input(linked: &mut LinkerInstance<'_, Guest>, name: &str) -> wasmtime::Result<bool> {
    match name.trim_start_matches("[method]input-stream.") {
        "read" | "blocking-read" => {
            linked.func_wrap(name, |_: Context<'_>, (_, _): (Resource<InputStream>, u64)| {
                Ok((Err::<Vec<u8>, StreamError>(StreamError::Closed),))
            })
        }
        "skip" | "blocking-skip" => {
            linked.func_wrap(name, |_: Context<'_>, (_, _): (Resource<InputStream>, u64)| {
                Ok((Err::<u64, StreamError>(StreamError::Closed),))
            })
        }
        "subscribe" => linked.func_wrap(name, |_: Context<'_>, (_,): (Resource<InputStream>,)| {
            Ok((Resource::<Pollable>::new_own(0),))
        }),
        _ => return Ok(false),
    }
    .map(|()| true)
}

/// Links a function that is refused in whatever way its type allows.
fn refuse(linked: &mut LinkerInstance<'_, Guest>, interface: &str, name: &str) -> wasmtime::Result<()> {
    let full = format!("{interface}.{name}");
    linked.func_new_async(
        name,
        move |mut context: Context<'_>, ty: ComponentFunc, params: &[Val], results: &mut [Val]| {
            let full = full.clone();
            Box::new(async move {
                for param in params {
                    if let Val::Resource(handle) = param {
                        handle.resource_drop_async(&mut context).await?;
                    }
                }
                for (result, ty) in results.iter_mut().zip(ty.results()) {
                    *result = refusal(&ty).ok_or_else(|| Stop::Wasi(full.clone()))?;
                }
                Ok(())
            })
        },
    )
}

/// The value of this type that says no.
fn refusal(ty: &Type) -> Option<Val> {
    match ty {
        Type::Option(_) => Some(Val::Option(None)),
        Type::List(_) => Some(Val::List(Vec::new())),
        Type::String => Some(Val::String(String::new())),
        Type::Bool => Some(Val::Bool(false)),
        Type::Result(result) => match result.err() {
            None => Some(Val::Result(Err(None))),
            Some(Type::Enum(error)) => {
                let names: Vec<&str> = error.names().collect();
                let known = ["access-denied", "access", "not-permitted", "unsupported", "not-supported"];
                let name =
                    known.into_iter().find(|name| names.contains(name)).or_else(|| names.first().copied())?;
                Some(Val::Result(Err(Some(Box::new(Val::Enum(name.to_owned()))))))
            }
            Some(Type::Variant(error)) => {
                let empty = error.cases().find(|case| case.ty.is_none())?;
                Some(Val::Result(Err(Some(Box::new(Val::Variant(empty.name.to_owned(), None))))))
            }
            Some(_) => None,
        },
        _ => None,
    }
}

//! Who compiles components that are not in the cache: a process of its own, with limits on memory and time.
//!
//! What a component may consist of is bounded before ([`crate::bounds`]); a compiler that takes too much all the same is
//! killed, and takes nothing else with it. The process is this program, or another of the same build, started with
//! [`COMPILER_ARGUMENT`]. It reads the component from standard input, writes the code to standard output and what is wrong to
//! standard error, all of them files in memory; its exit code says which ([`process`]). It ends with this process.

mod process;

use crate::PluginError;
use rustix::fs::MemfdFlags;
use rustix::process::Signal;
use std::ffi::OsString;
use std::io::{Read, Seek, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Command, ExitCode, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use wasmtime::Engine;

/// First argument of a program that makes it a compiler ([`compile_if_asked`]).
pub const COMPILER_ARGUMENT: &str = "plugin-compiler";
/// Set for a compiler, so that a program that does not know the argument does not start itself again and again.
const COMPILING_VARIABLE: &str = "ESPALIER_COMPILING";
/// What a busy machine is given in place of [`CompilerProcess::time_max`].
const BUSY: u32 = 3;
/// Threads of a compiler: more take more memory, and the largest components known are soon done with these.
const THREADS_MAX: usize = 8;
/// How often a compiler is looked at, at first and at most.
const POLL: (Duration, Duration) = (Duration::from_micros(500), Duration::from_millis(10));
/// What is read of a compiler's messages.
const MESSAGE_BYTES_MAX: u64 = 16 << 10;

/// Who compiles.
#[derive(Clone, Debug)]
pub enum Compiler {
    /// A process for each component, with limits.
    Process(CompilerProcess),
    /// This process, without limits on memory and time: for components that are trusted.
    InProcess,
}

/// How a compiler is started, and what it may take.
#[derive(Clone, Debug)]
pub struct CompilerProcess {
    /// A program of the same build as this one, which calls [`compile_if_asked`].
    pub program: PathBuf,
    /// Its memory, bytes. What it is given and what it makes are not counted.
    pub memory_bytes_max: u64,
    /// How long it may take on a machine of its own, by the processor time of its threads; on a busy one three times that.
    pub time_max: Duration,
}

/// Components with all of CPython or SpiderMonkey need 0.4 to 0.5 GiB with two threads; this is less than 1 GiB more.
const MEMORY_BYTES_MAX: u64 = 1408 << 20;
const TIME_MAX: Duration = Duration::from_secs(60);

impl Compiler {
    /// This very program, which has to call [`compile_if_asked`] first of all.
    pub fn this_program() -> Compiler {
        // The running program, even where its file was replaced since.
        Compiler::program("/proc/self/exe")
    }

    /// Another program of the same build, which calls [`compile_if_asked`] first of all.
    pub fn program(program: impl Into<PathBuf>) -> Compiler {
        let (memory_bytes_max, time_max) = (MEMORY_BYTES_MAX, TIME_MAX);
        Compiler::Process(CompilerProcess { program: program.into(), memory_bytes_max, time_max })
    }

    /// The code of a component. Blocks, at most for the time limit.
    pub(crate) fn compile(
        &self,
        engine: &Engine,
        engine_hash: u64,
        wasm: &[u8],
    ) -> Result<Vec<u8>, CompileError> {
        match self {
            Compiler::Process(process) => process.compile(engine_hash, wasm),
            Compiler::InProcess => {
                engine.precompile_component(wasm).map_err(|error| CompileError::Refused(format!("{error:#}")))
            }
        }
    }
}

/// Makes this process a compiler of components where its first argument is [`COMPILER_ARGUMENT`], and gives its exit code. To be
/// called first of all, before any thread is started.
pub fn compile_if_asked() -> Option<ExitCode> {
    let mut arguments = std::env::args_os().skip(1);
    (arguments.next()? == COMPILER_ARGUMENT).then(|| process::main(arguments))
}

/// Why there is no code.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum CompileError {
    /// The compiler refuses the component.
    Refused(String),
    /// The compiler took more than it may.
    Limit(String),
    /// The compiler cannot be started, or is of another build.
    Host(String),
}

impl CompileError {
    pub(crate) fn of(self, path: PathBuf) -> PluginError {
        match self {
            CompileError::Refused(reason) => PluginError::Compile { path, reason },
            CompileError::Limit(reason) => PluginError::TooLarge { path, reason },
            CompileError::Host(reason) => PluginError::host("compiler", reason),
        }
    }
}

impl CompilerProcess {
    fn compile(&self, engine_hash: u64, wasm: &[u8]) -> Result<Vec<u8>, CompileError> {
        if std::env::var_os(COMPILING_VARIABLE).is_some() {
            let text = "this program was started as a compiler and did not become one: `compile_if_asked` was not called";
            return Err(CompileError::Host(text.to_owned()));
        }
        let failed = |error: std::io::Error| CompileError::Host(error.to_string());
        let mut component = memory_file("component").map_err(failed)?;
        component.write_all(wasm).and_then(|()| component.rewind()).map_err(failed)?;
        let (code, messages) =
            (memory_file("code").map_err(failed)?, memory_file("messages").map_err(failed)?);
        let output = |file: &std::fs::File| file.try_clone().map(Stdio::from).map_err(failed);
        let mut child = self
            .command(engine_hash)
            .stdin(component)
            .stdout(output(&code)?)
            .stderr(output(&messages)?)
            .spawn()
            .map_err(|error| CompileError::Host(format!("{}: {error}", self.program.display())))?;
        let ended = wait(&mut child, self.time_max * BUSY);
        // Also where waiting failed: nothing of it stays.
        let _ = child.kill();
        let _ = child.wait();
        let Some(status) = ended.map_err(failed)? else { return Err(too_long(self.time_max * BUSY)) };
        match status.code() {
            Some(process::DONE) => read(code, u64::MAX).map_err(failed),
            Some(process::REFUSED) => Err(CompileError::Refused(said(messages))),
            Some(process::OUT_OF_MEMORY) => Err(self.too_large()),
            Some(process::PANICKED) => {
                Err(CompileError::Refused(format!("crashes the compiler: {}", said(messages))))
            }
            Some(code) => Err(CompileError::Host(format!("it ended with {code}: {}", said(messages)))),
            None => Err(self.killed(status)),
        }
    }

    fn command(&self, engine_hash: u64) -> Command {
        let mut command = Command::new(&self.program);
        let threads = std::thread::available_parallelism().map_or(1, usize::from).min(THREADS_MAX);
        command
            .arg0("espalier")
            .arg(COMPILER_ARGUMENT)
            .arg(std::process::id().to_string())
            .arg(format!("{engine_hash:016x}"))
            .arg(self.memory_bytes_max.to_string())
            .arg((self.time_max.as_secs() + 1).saturating_mul(threads as u64).to_string())
            // It needs none of the user's secrets.
            .env_clear()
            .envs(kept_variables())
            .env(COMPILING_VARIABLE, "1")
            .env("RAYON_NUM_THREADS", threads.to_string())
            .current_dir("/")
            // A signal from the terminal is for whoever waits for it.
            .process_group(0);
        command
    }

    fn killed(&self, status: ExitStatus) -> CompileError {
        match status.signal().and_then(Signal::from_named_raw) {
            // What Rust does where no memory is left.
            Some(Signal::ABORT) => self.too_large(),
            Some(Signal::XCPU) => too_long(self.time_max),
            Some(Signal::XFSZ) => CompileError::Limit(format!(
                "compiles to more than {} MiB of code",
                process::CODE_BYTES_MAX >> 20
            )),
            Some(Signal::KILL) => {
                let text = "it was killed; the machine may be short of memory";
                CompileError::Host(text.to_owned())
            }
            _ => CompileError::Refused(format!("crashes the compiler ({status})")),
        }
    }

    fn too_large(&self) -> CompileError {
        CompileError::Limit(format!(
            "takes more than {} MiB of memory to compile",
            self.memory_bytes_max >> 20
        ))
    }
}

fn too_long(limit: Duration) -> CompileError {
    CompileError::Limit(format!("takes more than {} s to compile", limit.as_secs_f64()))
}

/// What the program may need to start at all.
fn kept_variables() -> impl Iterator<Item = (&'static str, OsString)> {
    ["LD_LIBRARY_PATH"].into_iter().filter_map(|name| Some((name, std::env::var_os(name)?)))
}

fn memory_file(name: &str) -> std::io::Result<std::fs::File> {
    Ok(rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC)?.into())
}

/// How it ended; none where it has not, after so long. From one thread, since a process ends with the thread that started it.
#[expect(clippy::disallowed_methods, reason = "it is called where blocking is allowed, and bounded")]
fn wait(child: &mut std::process::Child, longest: Duration) -> std::io::Result<Option<ExitStatus>> {
    let started = Instant::now();
    let (mut pause, pause_max) = POLL;
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        let left = longest.saturating_sub(started.elapsed());
        if left.is_zero() {
            return Ok(None);
        }
        std::thread::sleep(pause.min(left));
        pause = (pause * 5 / 4).min(pause_max);
    }
}

fn read(mut file: std::fs::File, bytes_max: u64) -> std::io::Result<Vec<u8>> {
    file.rewind()?;
    let mut bytes = Vec::new();
    file.take(bytes_max).read_to_end(&mut bytes)?;
    Ok(bytes)
}

fn said(messages: std::fs::File) -> String {
    let bytes = read(messages, MESSAGE_BYTES_MAX).unwrap_or_default();
    String::from_utf8_lossy(&bytes).trim().to_owned()
}

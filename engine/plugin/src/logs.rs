//! What a plugin says: bounded, and readable while it runs.

use espalier_core::meter::Meter;
use espalier_core::trajectory::{LogLine, LogSource};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// What a line costs beside its bytes, so that empty lines are bounded too.
const LINE_BYTES: u64 = 64;
/// A line of standard output without an end is cut here.
const PARTIAL_BYTES_MAX: usize = 8 << 10;
/// Lines of standard error kept for the report of a trap.
const TAIL_LINES: usize = 24;

/// The log of one instance. Written by the guest, read by whoever keeps the trajectory.
#[derive(Clone, Debug)]
pub(crate) struct Logs(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    /// Host calls so far: written by the gate without a lock, to date lines and the last words.
    host_calls: AtomicU64,
    /// Counts the turns of the rollout, where lines belong to one.
    turns: Option<Arc<Meter>>,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    plugin: String,
    started: Instant,
    left_bytes: u64,
    dropped_bytes: u64,
    lines: Vec<LogLine>,
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    last_words: Vec<String>,
    /// Host calls so far.
    last_words_at: u64,
    /// The policy's last answer so far.
    turn: Option<u32>,
}

impl Logs {
    /// Logs of an instance that belongs to no turn.
    pub(crate) fn new(plugin: &str, bytes_max: u64) -> Logs {
        Logs::dated(plugin, bytes_max, None)
    }

    /// Logs of an instance that acts in the turns of the rollout that `meter` counts.
    pub(crate) fn of_rollout(plugin: &str, bytes_max: u64, meter: &Arc<Meter>) -> Logs {
        Logs::dated(plugin, bytes_max, Some(Arc::clone(meter)))
    }

    fn dated(plugin: &str, bytes_max: u64, turns: Option<Arc<Meter>>) -> Logs {
        let inner = Inner {
            plugin: plugin.to_owned(),
            started: Instant::now(),
            left_bytes: bytes_max,
            dropped_bytes: 0,
            lines: Vec::new(),
            stdout: Vec::new(),
            stderr: Vec::new(),
            last_words: Vec::new(),
            last_words_at: 0,
            turn: None,
        };
        Logs(Arc::new(Shared { host_calls: AtomicU64::new(0), turns, inner: Mutex::new(inner) }))
    }

    /// Adds a line; beyond the bound it is counted and dropped.
    pub(crate) fn line(&self, source: LogSource, text: String, fields: Option<String>) {
        self.with(|inner| inner.line(source, text, fields));
    }

    /// Adds bytes of a stream, joined to lines.
    pub(crate) fn bytes(&self, source: LogSource, bytes: &[u8]) {
        self.with(|inner| inner.bytes(source, bytes));
    }

    /// Notes a host call: what was said before it is no longer the guest's last word.
    pub(crate) fn went_on(&self, host_calls: u64) {
        self.0.host_calls.store(host_calls, Ordering::Relaxed);
    }

    /// Ends lines that have no end yet, and gives what was said on `error` and standard error since the last host call.
    pub(crate) fn last_words(&self) -> String {
        self.with(|inner| {
            inner.end_partial_lines();
            inner.last_words.join("\n")
        })
    }

    /// Forgets what the runtime of Python says of its own end behind the traceback of the exception that ended it.
    pub(crate) fn forget_runtime_panic(&self) {
        self.with(|inner| {
            inner.end_partial_lines();
            inner.forget_runtime_panic();
        });
    }

    /// Ends lines that have no end yet.
    pub(crate) fn end_lines(&self) {
        self.with(Inner::end_partial_lines);
    }

    /// Lines so far.
    pub(crate) fn lines(&self) -> Vec<LogLine> {
        self.with(|inner| inner.lines.clone())
    }

    /// All lines, unfinished ones ended, and the bytes dropped.
    pub(crate) fn take(&self) -> (Vec<LogLine>, u64) {
        self.with(|inner| {
            inner.end_partial_lines();
            (std::mem::take(&mut inner.lines), inner.dropped_bytes)
        })
    }

    /// Bytes beyond the bound.
    pub(crate) fn dropped_bytes(&self) -> u64 {
        self.with(|inner| inner.dropped_bytes)
    }

    fn with<T>(&self, act: impl FnOnce(&mut Inner) -> T) -> T {
        let mut inner = self.0.inner.lock();
        let host_calls = self.0.host_calls.load(Ordering::Relaxed);
        if inner.last_words_at != host_calls {
            inner.last_words_at = host_calls;
            inner.last_words.clear();
        }
        inner.turn = self.0.turns.as_ref().and_then(|meter| meter.turns().checked_sub(1));
        act(&mut inner)
    }
}

impl Inner {
    fn line(&mut self, source: LogSource, text: String, fields: Option<String>) {
        if matches!(source, LogSource::Error | LogSource::Stderr) {
            if self.last_words.len() == TAIL_LINES {
                self.last_words.remove(0);
            }
            self.last_words.push(text.chars().take(2_000).collect());
        }
        let bytes = (text.len() + fields.as_ref().map_or(0, String::len)) as u64;
        match self.left_bytes.checked_sub(bytes + LINE_BYTES) {
            Some(left) => {
                self.left_bytes = left;
                let at_us = u64::try_from(self.started.elapsed().as_micros()).unwrap_or(u64::MAX);
                let (plugin, turn) = (self.plugin.clone(), self.turn);
                let call = self.last_words_at.checked_sub(1);
                self.lines.push(LogLine { at_us, plugin, source, text, fields, turn, call });
            }
            None => self.dropped_bytes += bytes,
        }
    }

    fn bytes(&mut self, source: LogSource, bytes: &[u8]) {
        for piece in bytes.split_inclusive(|byte| *byte == b'\n') {
            for chunk in piece.chunks(PARTIAL_BYTES_MAX) {
                let partial = if source == LogSource::Stderr { &mut self.stderr } else { &mut self.stdout };
                partial.extend_from_slice(chunk);
                if partial.len() >= PARTIAL_BYTES_MAX || partial.ends_with(b"\n") {
                    let whole = std::mem::take(partial);
                    self.end_line(source, &whole);
                }
            }
        }
    }

    fn end_line(&mut self, source: LogSource, bytes: &[u8]) {
        let text = String::from_utf8_lossy(bytes).trim_end_matches(['\n', '\r']).to_owned();
        self.line(source, text, None);
    }

    fn forget_runtime_panic(&mut self) {
        let words = &self.last_words;
        let traceback = words.iter().position(|line| line.contains("Traceback (most recent call last)"));
        let panic =
            words.iter().position(|line| line.starts_with("thread '") && line.contains("panicked at "));
        let (Some(traceback), Some(panic)) = (traceback, panic) else { return };
        if traceback > panic {
            return;
        }
        let mut first = panic;
        while first > 0 && words[first - 1].is_empty() {
            first -= 1;
        }
        for forgotten in self.last_words.split_off(first).iter().rev() {
            let is_same = |line: &LogLine| line.source == LogSource::Stderr && line.text == *forgotten;
            if let Some(place) = self.lines.iter().rposition(is_same) {
                self.lines.remove(place);
            }
        }
    }

    fn end_partial_lines(&mut self) {
        for source in [LogSource::Stdout, LogSource::Stderr] {
            let partial = if source == LogSource::Stderr { &mut self.stderr } else { &mut self.stdout };
            if !partial.is_empty() {
                let whole = std::mem::take(partial);
                self.end_line(source, &whole);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_are_joined_by_line_and_a_flood_is_counted() {
        let logs = Logs::new("p", 1_000);
        for piece in ["Trace", "back\nVal", "ueError: x\n", "rest"] {
            logs.bytes(LogSource::Stderr, piece.as_bytes());
        }
        assert_eq!(logs.last_words(), "Traceback\nValueError: x\nrest");
        for _ in 0..100 {
            logs.line(LogSource::Info, String::new(), None);
            logs.line(LogSource::Info, "x".repeat(100), None);
        }
        let (lines, dropped) = logs.take();
        assert_eq!(lines[1].text, "ValueError: x");
        assert!(lines.len() < 20, "{}", lines.len());
        assert!(dropped >= 90 * 100, "{dropped}");
    }

    #[test]
    fn of_a_python_exception_the_traceback_stays_and_the_panic_of_the_runtime_goes() {
        let panic = "\nthread '<unnamed>' (1) panicked at runtime/src/lib.rs:1293:29:\nPython function threw\nnote: run with";
        let traceback =
            "Traceback (most recent call last):\n  File \"app.py\", line 1, in run\nValueError: no";
        let logs = Logs::new("p", 1 << 20);
        logs.line(LogSource::Info, "before".to_owned(), None);
        logs.bytes(LogSource::Stderr, format!("{traceback}\n{panic}").as_bytes());
        logs.forget_runtime_panic();
        assert_eq!(logs.last_words(), traceback);
        assert_eq!(logs.lines().len(), 4);
        let rust = Logs::new("p", 1 << 20);
        rust.bytes(LogSource::Stderr, panic.as_bytes());
        rust.forget_runtime_panic();
        assert_eq!(rust.last_words(), panic);
    }

    #[test]
    fn a_line_names_the_turn_and_the_host_call_before_it() {
        let meter = Arc::new(Meter::new(espalier_core::limits::Limits::default()));
        let logs = Logs::of_rollout("p", 1 << 20, &meter);
        let say = |text: &str| logs.line(LogSource::Info, text.to_owned(), None);
        say("at the start");
        logs.went_on(1);
        say("opened");
        meter.take_turns(1).unwrap();
        logs.went_on(2);
        say("answered");
        meter.take_turns(2).unwrap();
        logs.went_on(7);
        logs.bytes(LogSource::Stdout, b"branched");
        let (lines, _) = logs.take();
        let dated: Vec<_> = lines.iter().map(|line| (line.text.as_str(), line.turn, line.call)).collect();
        assert_eq!(
            dated,
            [
                ("at the start", None, None),
                ("opened", None, Some(0)),
                ("answered", Some(0), Some(1)),
                ("branched", Some(2), Some(6)),
            ]
        );
        let reward = Logs::new("r", 1 << 20);
        reward.went_on(1);
        reward.line(LogSource::Info, String::new(), None);
        assert_eq!((reward.lines()[0].turn, reward.lines()[0].call), (None, Some(0)));
    }

    #[test]
    fn a_line_without_an_end_is_cut() {
        let logs = Logs::new("p", 1 << 20);
        logs.bytes(LogSource::Stdout, &b"x".repeat(PARTIAL_BYTES_MAX * 2 + 5));
        let (lines, _) = logs.take();
        let lengths: Vec<usize> = lines.iter().map(|line| line.text.len()).collect();
        assert_eq!(lengths, [PARTIAL_BYTES_MAX, PARTIAL_BYTES_MAX, 5]);
    }
}

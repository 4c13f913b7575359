//! Standard error: the log, and the one line that is redrawn. Neither ever goes to standard output.

mod plain;

use crate::output::Look;
use crate::output::text::{harmless, wrap};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use opentelemetry::trace::TracerProvider;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SdkTracerProvider;
use plain::Plain;
use std::io::{self, Write};
use std::time::Duration;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer};

/// Which lines are logged: `warn`, `info,espalier_plugin=debug` ...
const VARIABLE: &str = "ESPALIER_LOG";
/// For the last spans, at the end.
const FLUSH_MAX: Duration = Duration::from_secs(2);

/// The line at the foot of the terminal. A clone is another handle to the same line.
#[derive(Clone, Debug)]
pub(super) struct Screen {
    bar: Option<ProgressBar>,
    /// How standard error looks.
    pub(super) look: Look,
}

impl Screen {
    fn new() -> Screen {
        let look = Look::of_stderr();
        let bar = look.terminal.then(|| {
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(10));
            let style = ProgressStyle::with_template("{msg}").expect("the template is a constant");
            bar.set_style(style);
            bar
        });
        Screen { bar, look }
    }

    /// How often the line may change: often enough to look alive, seldom enough for a log.
    pub(super) fn period(&self) -> Duration {
        if self.bar.is_some() { Duration::from_millis(250) } else { Duration::from_secs(5) }
    }

    /// Shows a line in the place of the last one; in a pipe, prints it.
    pub(super) fn show(&self, line: &str) {
        match &self.bar {
            Some(bar) => {
                bar.set_message(line.to_owned());
                // One that was taken away is not drawn until then.
                if bar.is_finished() {
                    bar.reset();
                }
            }
            // A log that nobody can read any more is not a reason to stop a run.
            None => drop(writeln!(io::stderr(), "{line}")),
        }
    }

    /// Prints a line that stays; on a terminal broken between words.
    pub(super) fn say(&self, line: &str) {
        let is_plain = !line.contains('\u{1b}');
        let broken = (self.look.terminal && is_plain).then(|| wrap(line, self.look.width).join("\n"));
        let line = broken.as_deref().unwrap_or(line);
        match &self.bar {
            Some(bar) => bar.suspend(|| drop(writeln!(io::stderr(), "{line}"))),
            None => drop(writeln!(io::stderr(), "{line}")),
        }
    }

    /// Takes the redrawn line away.
    pub(super) fn clear(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// How lines of the log look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LogStyle {
    /// Of a service: with level, and time in a pipe.
    Service,
    /// Of a long run: the same, in a pipe alone.
    Run,
    /// Of any other command: as its own warnings.
    Command,
}

/// Starts the log, at this level where nothing is said, and gives the screen it shares with the progress. With `traces`, spans go
/// to the collector that the environment names.
pub(super) fn start(default: &str, style: LogStyle, traces: bool) -> (Screen, Traces) {
    let screen = Screen::new();
    let filter = EnvFilter::try_from_env(VARIABLE).unwrap_or_else(|_| EnvFilter::new(default));
    let log = tracing_subscriber::fmt::layer()
        .with_ansi(screen.look.colour)
        .with_target(false)
        .with_writer(LogWriter(screen.clone()));
    let log = match (style, screen.look.terminal) {
        (LogStyle::Service, true) => log.without_time().boxed(),
        (LogStyle::Service | LogStyle::Run, false) => log.boxed(),
        (LogStyle::Run, true) | (LogStyle::Command, _) => log.event_format(Plain(screen.look)).boxed(),
    };
    let provider = if traces { provider(&screen) } else { None };
    let spans = provider.as_ref().map(|provider| {
        let tracer = provider.tracer("espalier");
        tracing_opentelemetry::layer().with_tracer(tracer).with_filter(LevelFilter::INFO)
    });
    // Nobody else sets one; a second call would only keep the first.
    let _ = tracing_subscriber::registry().with(log.with_filter(filter)).with(spans).try_init();
    (screen, Traces(provider))
}

/// Sends spans as the OpenTelemetry variables say (`OTEL_EXPORTER_OTLP_ENDPOINT` and its kin); nothing where none names a collector.
fn provider(screen: &Screen) -> Option<SdkTracerProvider> {
    let named = ["OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"];
    if !named.iter().any(|name| std::env::var_os(name).is_some_and(|value| !value.is_empty())) {
        return None;
    }
    match opentelemetry_otlp::SpanExporter::builder().with_http().build() {
        Ok(exporter) => {
            let resource = Resource::builder().with_service_name("espalier").build();
            Some(SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource).build())
        }
        Err(error) => {
            screen.say(&format!("warning: traces are not sent: {error}"));
            None
        }
    }
}

/// Spans that are on their way; those left are sent when this is dropped.
pub(super) struct Traces(Option<SdkTracerProvider>);

impl Drop for Traces {
    fn drop(&mut self) {
        if let Some(provider) = &self.0 {
            // A collector that is away loses them.
            let _ = provider.shutdown_with_timeout(FLUSH_MAX);
        }
    }
}

/// Writes above the redrawn line.
struct LogWriter(Screen);

/// One log line, written whole.
struct LogLine(Screen, Vec<u8>);

impl<'a> MakeWriter<'a> for LogWriter {
    type Writer = LogLine;

    fn make_writer(&'a self) -> LogLine {
        LogLine(self.0.clone(), Vec::new())
    }
}

impl Write for LogLine {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.1.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for LogLine {
    fn drop(&mut self) {
        if !self.1.is_empty() {
            let text = String::from_utf8_lossy(&self.1);
            // With colours it has codes of its own, and a plain line is harmless already.
            let text = if self.0.look.colour { text.into_owned() } else { harmless(&text) };
            self.0.say(text.trim_end());
        }
    }
}

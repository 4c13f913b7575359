//! Lines of the log as commands print their own warnings: `warning: message (key value, ...)`.

use crate::output::text::one_line;
use crate::output::{Look, styles};
use std::fmt;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// Without time, target and spans.
pub(super) struct Plain(pub(super) Look);

impl<S, N> FormatEvent<S, N> for Plain
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut said = Said::default();
        event.record(&mut said);
        let (word, style) = match *event.metadata().level() {
            Level::ERROR => ("error:", styles::ERROR),
            Level::WARN => ("warning:", styles::WARN),
            Level::INFO => ("info:", styles::FAINT),
            Level::DEBUG => ("debug:", styles::FAINT),
            Level::TRACE => ("trace:", styles::FAINT),
        };
        writeln!(writer, "{} {}", self.0.paint(style, word), one_line(&said.text()))
    }
}

/// The parts of an event.
#[derive(Default)]
struct Said {
    message: String,
    fields: Vec<String>,
}

impl Said {
    fn text(&self) -> String {
        match self.fields.as_slice() {
            [] => self.message.clone(),
            fields => format!("{} ({})", self.message, fields.join(", ")),
        }
    }
}

impl Visit for Said {
    fn record_str(&mut self, field: &Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        match field.name() {
            "message" => self.message = format!("{value:?}"),
            name => self.fields.push(format!("{name} {value:?}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use parking_lot::Mutex;
    use std::io::Write;
    use std::sync::Arc;
    use tracing_subscriber::layer::SubscriberExt;

    #[derive(Clone, Default)]
    struct Kept(Arc<Mutex<Vec<u8>>>);

    impl Write for Kept {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn an_event_is_one_line_with_its_fields_behind_it() {
        let (kept, look) = (Kept::default(), Look { colour: false, width: 80, terminal: false });
        let writer = kept.clone();
        let layer =
            tracing_subscriber::fmt::layer().event_format(Plain(look)).with_writer(move || writer.clone());
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), || {
            tracing::warn!(path = %"a\u{1b}b", reason = "it is old", "line tables are not used");
            tracing::error!("lost");
        });
        let text = String::from_utf8(kept.0.lock().clone()).unwrap();
        assert_eq!(
            text,
            "warning: line tables are not used (path a\\u{1b}b, reason it is old)\nerror: lost\n"
        );
    }
}

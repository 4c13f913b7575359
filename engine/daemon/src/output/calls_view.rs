//! `show ROLLOUT --calls`: the calls of its harness to the host, in a table or one by one with what was passed; then what judges and
//! rewards of the group asked of models.

mod judges;

use super::rollout_view::block;
use super::table::{Align, Cell, Table};
use super::text::{bytes, count, duration};
use super::{Look, styles};
use anstyle::Style;
use espalier_core::journal::Digest;
use espalier_core::trajectory::{AttemptRecord, HostCall};
use serde::Serialize;
use std::collections::BTreeMap;
use std::time::Duration;

/// Calls shown before the rest is counted.
const CALLS_SHOWN: usize = 400;
/// Bytes shown of the arguments, and of the reply, of one call.
const PAYLOAD_BYTES_SHOWN: usize = 4 << 10;

/// All of them; `full`: with what was passed.
pub(super) fn lines(record: &AttemptRecord, full: bool, look: &Look) -> Vec<String> {
    let calls = &record.host_calls;
    let mut lines = if full { self::full(calls, look) } else { table(calls, look) };
    lines.extend(edges(record, look).filter(|_| full));
    lines.extend(judges::lines(record, full, look));
    lines
}

/// A row for each call.
fn table(calls: &[HostCall], look: &Look) -> Vec<String> {
    let mut table = Table::new(&[
        ("call", Align::Right),
        ("name", Align::Left),
        ("at", Align::Right),
        ("took", Align::Right),
        ("in", Align::Right),
        ("out", Align::Right),
        ("", Align::Left),
    ]);
    for call in calls.iter().take(CALLS_SHOWN) {
        table.row(vec![
            call.number.to_string().into(),
            call.name.as_ref().into(),
            time(call.start_us).into(),
            time(call.duration_us).into(),
            bytes(call.bytes_in).into(),
            bytes(call.bytes_out).into(),
            noted(call),
        ]);
    }
    let mut lines = if calls.is_empty() { Vec::new() } else { table.lines(look) };
    lines.extend(rest(calls, look));
    lines
}

/// Each call with its digests, the guest's clock and its verdict, and with arguments and reply where they were kept.
fn full(calls: &[HostCall], look: &Look) -> Vec<String> {
    let mut lines = Vec::new();
    for call in calls.iter().take(CALLS_SHOWN) {
        let (at, took) = (time(call.start_us), time(call.duration_us));
        let head = look.paint(styles::STRONG, &format!("call {} {}", call.number, call.name));
        let facts = format!("at {at}, took {took}, clock {}, {}", call.clock_ms, call.verdict);
        lines.push(format!("{head} {}", look.paint(styles::FAINT, &facts)));
        let payload = call.payload.as_deref();
        let asked = payload.and_then(|payload| payload.call.as_ref());
        lines.extend(passed("asked", call.asked, call.bytes_in, asked, look));
        let told = payload.and_then(|payload| payload.reply.as_ref());
        lines.extend(passed("told", call.told, call.bytes_out, told, look));
        if let Some(failure) = &call.failure {
            lines.extend(block("failed: ", failure, styles::BAD, look));
        }
    }
    lines.extend(rest(calls, look));
    if !calls.is_empty() && calls.iter().all(|call| call.payload.is_none()) {
        let hint = "arguments and replies are kept only with `record_calls = true` in the experiment";
        lines.push(look.paint(styles::FAINT, hint));
    }
    lines
}

/// What the host's own code was told from outside, counted by kind; `--json` has it.
fn edges(record: &AttemptRecord, look: &Look) -> Option<String> {
    if record.edges.is_empty() && record.edges_missing == 0 {
        return None;
    }
    let mut kinds: BTreeMap<&str, u64> = BTreeMap::new();
    for edge in &record.edges {
        *kinds.entry(edge.kind()).or_default() += 1;
    }
    let mut parts: Vec<String> = kinds.iter().map(|(kind, n)| format!("{} {kind}", count(*n))).collect();
    if record.edges_missing > 0 {
        parts.push(format!("{} not kept (over 16 MiB)", count(record.edges_missing)));
    }
    let text = format!("answers from outside: {}; --json has them", parts.join(", "));
    Some(look.paint(styles::FAINT, &text))
}

/// The digest and size of what was passed, and what it was.
fn passed(
    which: &str,
    digest: Option<Digest>,
    size: u64,
    value: Option<&impl Serialize>,
    look: &Look,
) -> Vec<String> {
    let digest = digest.map_or(String::new(), |digest| format!(" {digest}"));
    let label = format!("{which}{digest}, {}: ", bytes(size));
    let text = match value.map(serde_json::to_string) {
        Some(Ok(text)) => beginning(text),
        Some(Err(_)) | None => "not kept".to_owned(),
    };
    block(&label, &text, Style::new(), look)
}

/// A text, cut where it is long.
fn beginning(text: String) -> String {
    if text.len() <= PAYLOAD_BYTES_SHOWN {
        return text;
    }
    format!("{}... (--json has all of it)", &text[..text.floor_char_boundary(PAYLOAD_BYTES_SHOWN)])
}

fn rest(calls: &[HostCall], look: &Look) -> Option<String> {
    match calls.len().checked_sub(CALLS_SHOWN) {
        _ if calls.is_empty() => Some("no calls to the host".to_owned()),
        Some(more @ 1..) => {
            Some(look.paint(styles::FAINT, &format!("{} more: --json has them all", count(more as u64))))
        }
        _ => None,
    }
}

fn time(us: u64) -> String {
    match us {
        0..1_000 => format!("{us} us"),
        1_000..100_000 => format!("{:.1} ms", us as f64 / 1_000.0),
        _ => duration(Duration::from_micros(us)),
    }
}

/// Its failure, or what was asked and what came of it.
fn noted(call: &HostCall) -> Cell {
    match (call.failure.as_deref(), call.note.as_deref()) {
        (Some(failure), Some(note)) => Cell::styled(format!("{note}: {failure}"), styles::BAD),
        (Some(failure), None) => Cell::styled(failure, styles::BAD),
        (None, note) => note.unwrap_or("").into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use espalier_core::journal::{Call, Handle, Limit, Payload, Reply, Verdict, measure};
    use std::borrow::Cow;

    fn call(call: Call<'static>, reply: Reply<'static>, kept: bool) -> HostCall {
        let (asked, told) = (measure(&call), measure(&reply));
        HostCall {
            number: 0,
            name: call.name().into(),
            start_us: 12,
            duration_us: 2_500,
            bytes_in: asked.bytes,
            bytes_out: told.bytes,
            failure: None,
            clock_ms: 1_700_000_000_002,
            asked: Some(asked.digest),
            told: Some(told.digest),
            verdict: Verdict::Passed,
            note: None,
            payload: kept.then(|| Box::new(Payload { call: Some(call), reply: Some(reply) })),
        }
    }

    #[test]
    fn calls_are_shown_with_what_was_passed_within_bounds() {
        let step = Call::Step { environment: Handle(1), action: Cow::Borrowed("look") };
        let long = Reply::Text(Cow::Owned("x".repeat(5_000)));
        let kept = [call(step.clone(), long, true), call(step, Reply::Done, true)];
        let mut cut = call(Call::ClockNow {}, Reply::Number(7), false);
        (cut.verdict, cut.failure) = (Verdict::Cut(Limit::Import), Some("unavailable: late".into()));
        let look = Look { colour: false, width: usize::MAX, terminal: false };
        let text = full(&kept, &look).join("\n");
        assert!(
            text.contains("call 0 environment.step at 12 us, took 2.5 ms, clock 1700000000002, passed"),
            "{text}"
        );
        assert!(text.contains(r#"{"environment.step":{"environment":1,"action":"look"}}"#), "{text}");
        assert!(text.contains("x... (--json has all of it)") && text.len() < 6_000, "{text}");
        assert!(text.ends_with("\"done\""), "{text}");
        let text = full(&[cut], &look).join("\n");
        assert!(text.contains("cut by import_wall") && text.contains(", 8 B: not kept"), "{text}");
        assert!(
            text.contains("failed: unavailable: late") && text.contains("`record_calls = true`"),
            "{text}"
        );
        assert_eq!(full(&[], &look), ["no calls to the host"]);
    }
}

//! New weights, for a terminal and for programs: what an update came to at each server, and which updates a run had.

use super::Look;
use super::table::{Align, Cell, Table};
use super::text::{count, counted, duration};
use espalier_inference::weights::WeightReport;
use espalier_store::ModelVersion;
use serde_json::{Value, json};
use std::time::Duration;

/// Updates that are told of a run; those before are counted.
const TOLD_MAX: usize = 5;

/// One line for each server.
pub(crate) fn report_lines(report: &WeightReport, look: &Look) -> Vec<String> {
    let columns = [
        ("server", Align::Whole),
        ("took", Align::Right),
        ("stood still", Align::Right),
        ("result", Align::Wrap),
    ];
    let mut table = Table::new(&columns);
    for server in &report.servers {
        let result = match (&server.failed, server.fenced) {
            (None, _) if server.prefix_cache_reset => "has them, prefix cache emptied".to_owned(),
            (None, _) => "has them, prefix cache kept".to_owned(),
            (Some(why), true) => format!("{why}; gets no more calls until an update succeeds"),
            (Some(why), false) => format!("{why}; goes on as before"),
        };
        let [took, still] = [server.took_ms, server.still_ms].map(|ms| duration(Duration::from_millis(ms)));
        table.row(vec![Cell::from(server.url.as_str()), took.into(), still.into(), result.into()]);
    }
    table.lines(look)
}

/// The updates of a run, the last of many.
pub(crate) fn run_lines(versions: &[ModelVersion], look: &Look) -> Vec<String> {
    if versions.is_empty() {
        return Vec::new();
    }
    let columns = [
        ("weights", Align::Left),
        ("model", Align::Left),
        ("train step", Align::Right),
        ("servers", Align::Right),
        ("stood still", Align::Right),
    ];
    let mut table = Table::new(&columns);
    let before = versions.len().saturating_sub(TOLD_MAX);
    for version in &versions[before..] {
        let report = report(version);
        let servers = report.as_ref().map(|report| report.servers.as_slice()).unwrap_or_default();
        let with = servers.iter().filter(|server| server.failed.is_none()).count();
        let still = servers.iter().map(|server| server.still_ms).max();
        let of = match servers.len() {
            0 => "trainer".to_owned(),
            all => format!("{with} of {all}"),
        };
        table.row(vec![
            version.label.as_str().into(),
            version.model.as_str().into(),
            version.train_step.map_or_else(|| "-".to_owned(), |step| step.to_string()).into(),
            of.into(),
            still.map_or_else(|| "-".to_owned(), |ms| duration(Duration::from_millis(ms))).into(),
        ]);
    }
    let mut lines = table.lines(look);
    if before > 0 {
        lines.push(format!("{} before", counted(before as u64, "update")));
    }
    lines
}

/// For programs: all of them.
pub(crate) fn json(versions: &[ModelVersion]) -> Value {
    let one = |version: &ModelVersion| {
        let servers = report(version).map(|report| json!(report.servers));
        json!({
            "model": version.model,
            "label": version.label,
            "train_step": version.train_step,
            "taken_ms": version.taken_ms,
            "servers": servers,
        })
    };
    versions.iter().map(one).collect()
}

fn report(version: &ModelVersion) -> Option<WeightReport> {
    serde_json::from_str(&version.report).ok()
}

/// `2 of 3 servers have step-9`.
pub(crate) fn summary(report: &WeightReport) -> String {
    let with = report.servers.iter().filter(|server| server.failed.is_none()).count();
    match report.servers.len() {
        0 => format!("answers are labelled {} from now on", report.label),
        all => format!("{} of {} have {}", count(with as u64), counted(all as u64, "server"), report.label),
    }
}

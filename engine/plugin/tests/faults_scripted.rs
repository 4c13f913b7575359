//! The same faults in JavaScript and in Python: runtimes of their own, WASI virtual, and the same causes.

#![allow(clippy::unwrap_used, reason = "a test that cannot be set up fails")]

mod support;

use espalier_core::ending::{HarnessEnd, Outcome};
use espalier_core::failure::Failure;
use espalier_core::trajectory::LogSource;
use espalier_plugin::HarnessOutcome;
use serde_json::json;
use std::time::Duration;
use support::{Case, Script, guest, host, short};

/// What a fault must lead to.
enum Expect {
    /// A trap whose text has both.
    Trap(&'static str, &'static str),
    BudgetIgnored(&'static str),
    /// A report with this outcome and this data.
    Report(Outcome, &'static str),
}

async fn run(name: &str, fault: &str) -> HarnessOutcome {
    let plugin = guest(name).await;
    let mut case = Case::new(json!({ "fault": fault, "times": 10_000 }));
    // A debug build of the engine runs nothing slower, but these runtimes need more than Rust to start.
    case.limits.guest_cpu = Duration::from_secs(1);
    case.limits.guest_memory = 128 << 20;
    if fault == "swallow" {
        case.script = Script::Unavailable;
    }
    case.run(&host(), &plugin).await
}

async fn check(name: &str, cases: Vec<(&str, Expect)>) {
    for (fault, expect) in cases {
        let outcome = run(name, fault).await;
        match (&expect, &outcome.end) {
            (Expect::Trap(class, said), HarnessEnd::Trapped(text)) => {
                assert!(text.contains(class) && text.contains(said), "{name} {fault}: {text}");
                assert!(text.starts_with(&format!("plugin {name} (")), "{name} {fault}: {text}");
            }
            (Expect::BudgetIgnored(said), HarnessEnd::BudgetIgnored(text)) => {
                assert!(text.contains(said), "{name} {fault}: {text}");
            }
            (Expect::Report(outcome, data), HarnessEnd::Returned(Ok(report))) => {
                assert_eq!((&report.outcome, report.data.as_str()), (outcome, *data), "{name} {fault}");
            }
            (_, end) => panic!("{name} {fault}: {end:?}"),
        }
        if fault == "flood" {
            assert!(outcome.log_bytes_dropped > 9_000_000, "{name}: {}", outcome.log_bytes_dropped);
            let kept: u64 = outcome.logs.iter().map(|line| line.text.len() as u64).sum();
            assert!(kept <= short().log_bytes);
        }
    }
}

fn common() -> Vec<(&'static str, Expect)> {
    vec![
        ("none", Expect::Report(Outcome::Submitted, "null")),
        ("loop", Expect::Trap("guest trap (cpu): ran 1s without a host call", "")),
        ("memory", Expect::Trap("guest trap (memory): requested ", "limits.guest_memory = 128MiB")),
        ("invalid-json", Expect::Trap("guest trap (invalid data): report.data is not valid JSON", "")),
        ("flood", Expect::Report(Outcome::Submitted, "null")),
        ("import-loop", Expect::BudgetIgnored("budget used up: host-calls")),
        ("ignore-budget", Expect::BudgetIgnored("budget used up: turns")),
        ("swallow", Expect::Report(Outcome::GaveUp, "\"lost\"")),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failure_in_parts_has_its_place_and_says_whose_it_is() {
    for (name, fault, place, message, defect) in [
        ("fault-js", "panic", "app.js:", "TypeError: a panic on purpose", true),
        ("fault-py", "panic", "app.py:", "TypeError: a panic on purpose", true),
        ("fault-harness", "panic", "faults.rs:", "a panic on purpose", true),
        (
            "fault-harness",
            "index",
            "faults.rs:",
            "index out of bounds: the len is 0 but the index is 7",
            true,
        ),
        ("fault-harness", "invalid-json", "", "report.data is not valid JSON", true),
        ("fault-js", "memory", "", "out of memory", false),
        ("fault-harness", "recurse", "faults.rs:", "call stack", false),
        ("fault-harness", "own-failure", "", "invalid: a failure of my own", false),
        ("fault-harness", "ignore-budget", "", "budget used up", false),
    ] {
        let outcome = run(name, fault).await;
        let failure = outcome.failure.unwrap();
        println!("{failure}");
        assert_eq!((&*failure.plugin, &*failure.world, &*failure.export), (name, "harness", "harness.run"));
        assert!(failure.place.clone().unwrap_or_default().contains(place), "{failure:?}");
        assert!(failure.message.contains(message), "{failure:?}");
        assert_eq!(failure.is_defect(), defect, "{failure:?}");
        if fault == "panic" {
            let again = run(name, fault).await.failure.unwrap();
            assert_eq!(again.signature(), failure.signature(), "one fault has one place");
        }
    }
    assert_eq!(run("fault-harness", "none").await.failure, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn javascript() {
    let mut cases = common();
    cases.extend([
        ("panic", Expect::Trap("guest trap (panic)", "TypeError: a panic on purpose")),
        ("recurse", Expect::Trap("guest trap (", "stack")),
        (
            "invalid-shape",
            Expect::Trap("does not match its type: harness.run returns { outcome: { tag: 'submitted' | ", ""),
        ),
    ]);
    check("fault-js", cases).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn python() {
    let mut cases = common();
    cases.extend([
        ("panic", Expect::Trap("guest trap (panic)", "TypeError: a panic on purpose")),
        ("panic", Expect::Trap("guest trap (panic)", "app.py\", line ")),
        ("recurse", Expect::Trap("guest trap (panic)", "RecursionError")),
        ("invalid-shape", Expect::Trap("guest trap (", "")),
        ("exit", Expect::Trap("guest trap (", "")),
    ]);
    check("fault-py", cases).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn python_finds_a_virtual_machine_without_files_or_sockets() {
    let outcome = run("fault-py", "wasi").await;
    let HarnessEnd::Returned(Ok(report)) = &outcome.end else { panic!("{:?}", outcome.end) };
    let seen: serde_json::Value = serde_json::from_str(&report.data).unwrap();
    assert_eq!(seen["slept"], 3600, "sleeping passes at once");
    assert_eq!(seen["year"], 2023, "the clock is the rollout's");
    assert_eq!(seen["environment"], 0);
    for name in ["file", "socket"] {
        let error = seen[name].as_str().unwrap();
        assert!(error.ends_with("Error"), "{name}: {error}");
    }
    let said =
        |source, text: &str| outcome.logs.iter().any(|line| line.source == source && line.text == text);
    assert!(
        said(LogSource::Stdout, "to stdout") && said(LogSource::Stderr, "to stderr"),
        "{:?}",
        outcome.logs
    );
    let again = run("fault-py", "wasi").await;
    let HarnessEnd::Returned(Ok(again)) = &again.end else { panic!("{:?}", again.end) };
    assert_eq!(report.data, again.data, "random numbers are seeded");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failure_that_is_passed_on_keeps_its_kind() {
    let plugin = guest("fault-js").await;
    let mut case = Case::fault("ignore-budget");
    case.cancel.cancel();
    case.limits.guest_cpu = Duration::from_secs(1);
    let outcome = case.run(&host(), &plugin).await;
    // Opening the conversation is refused, and the plugin passes the failure on.
    assert_eq!(outcome.end, HarnessEnd::Returned(Err(Failure::Cancelled)));
}

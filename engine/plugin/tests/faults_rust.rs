//! Each fault of a harness in Rust ends with the right named cause.

#![allow(clippy::unwrap_used, reason = "a test that cannot be set up fails")]

mod support;

use espalier_core::ending::{HarnessEnd, Outcome};
use espalier_core::failure::{BudgetKind, Failure};
use espalier_core::limits::Limits;
use espalier_core::meter::Meter;
use std::sync::Arc;
use std::time::Duration;
use support::{Case, Script, guest, host, short};

fn returned(end: &HarnessEnd) -> &espalier_core::ending::Report {
    match end {
        HarnessEnd::Returned(Ok(report)) => report,
        other => panic!("{other:?}"),
    }
}

fn trapped(end: &HarnessEnd) -> &str {
    match end {
        HarnessEnd::Trapped(text) => text,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn traps_name_their_class_and_place() {
    let plugin = guest("fault-harness").await;
    for (fault, class, said) in [
        ("loop", "guest trap (cpu): ran 200ms without a host call (limits.guest_cpu)", ""),
        ("memory", "guest trap (memory): requested ", "(limits.guest_memory = 64MiB)"),
        ("panic", "guest trap (panic): ", "a panic on purpose"),
        ("panic", "guest trap (panic): ", "faults.rs:"),
        ("index", "guest trap (panic): ", "index out of bounds: the len is 0 but the index is 7"),
        ("recurse", "guest trap (stack): call stack in linear memory exhausted", "faults.rs"),
        ("invalid-json", "guest trap (invalid data): report.data is not valid JSON: ", "{\\\"cut"),
    ] {
        let outcome = Case::fault(fault).run(&host(), &plugin).await;
        let text = trapped(&outcome.end);
        let place = format!(
            "plugin fault-harness ({}) in harness.run after host call 0 (settings.get): ",
            &plugin.digest()[..12]
        );
        assert!(text.starts_with(&place), "{fault}: {text}");
        assert!(text.contains(class) && text.contains(said), "{fault}: {text}");
        assert!(!outcome.wall);
        assert_eq!(outcome.host_calls.len(), 1, "{fault}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn budgets_are_told_first_and_ignored_ones_trap() {
    let plugin = guest("fault-harness").await;
    let obeyed = Case::fault("obey-budget").run(&host(), &plugin).await;
    assert_eq!(obeyed.end, HarnessEnd::Returned(Err(Failure::Budget(BudgetKind::Turns))));

    let ignored = Case::fault("ignore-budget").run(&host(), &plugin).await;
    let HarnessEnd::BudgetIgnored(text) = &ignored.end else { panic!("{:?}", ignored.end) };
    assert!(
        text.contains(
            "guest trap (budget-ignored): continued for 16 host calls or 5s after `budget used up: turns`"
        ),
        "{text}"
    );
    // settings, open, 3 answers, the refusal, and 16 more.
    assert_eq!(ignored.host_calls_total, 2 + 3 + 1 + 16);
    let refused = &ignored.host_calls[5];
    assert_eq!((&*refused.name, refused.number), ("conversation.complete", 5));
    assert_eq!(refused.failure.as_deref(), Some("budget used up: turns"));

    let tight = Case::fault("import-loop").run(&host(), &plugin).await;
    let HarnessEnd::BudgetIgnored(text) = &tight.end else { panic!("{:?}", tight.end) };
    assert!(text.contains("continued for 16 host calls or 5s after `budget used up: host-calls`"), "{text}");
    assert_eq!(tight.host_calls_total, short().host_calls + 1 + 16);

    // The grace has an end in time too: this one makes no call after its error.
    let mut case = Case::fault("spin-after-budget");
    case.limits.guest_cpu = Duration::from_secs(60);
    let spun = case.run(&host(), &plugin).await;
    assert!(matches!(&spun.end, HarnessEnd::BudgetIgnored(_)), "{:?}", spun.end);
}

#[tokio::test(flavor = "multi_thread")]
async fn walls_cut_the_import_under_way() {
    let plugin = guest("fault-harness").await;
    let mut case = Case::fault("obey-budget");
    case.script = Script::Hangs;
    case.limits.rollout_wall = Duration::from_millis(100);
    let outcome = case.run(&host(), &plugin).await;
    assert_eq!(outcome.end, HarnessEnd::Returned(Err(Failure::Budget(BudgetKind::Wall))));
    assert!(outcome.wall);

    // One import out of time is unavailable, and the conversation is as it was.
    let mut case = Case::fault("retry-unavailable");
    case.script = Script::HangsOnce;
    case.limits.import_wall = Duration::from_millis(100);
    let outcome = case.run(&host(), &plugin).await;
    assert_eq!(returned(&outcome.end).data, "[true, true]");
    assert_eq!(
        outcome.host_calls[2].failure.as_deref(),
        Some("unavailable: conversation.complete did not end within limits.import_wall = 100ms")
    );
    assert!(!outcome.wall);

    // A spinning guest meets the wall too.
    let mut case = Case::fault("loop");
    case.limits.guest_cpu = Duration::from_secs(60);
    case.limits.rollout_wall = Duration::from_millis(50);
    let outcome = case.run(&host(), &plugin).await;
    assert!(matches!(&outcome.end, HarnessEnd::BudgetIgnored(_)), "{:?}", outcome.end);
    assert!(outcome.wall);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_run_returns_and_a_panicking_capability_is_unavailable() {
    let plugin = guest("fault-harness").await;
    let mut case = Case::fault("obey-budget");
    case.script = Script::Hangs;
    let cancel = case.cancel.clone();
    let host = host();
    let (outcome, ()) = tokio::join!(case.run(&host, &plugin), async {
        tokio::task::yield_now().await;
        cancel.cancel();
    });
    assert_eq!(outcome.end, HarnessEnd::Returned(Err(Failure::Cancelled)));

    let mut case = Case::fault("obey-budget");
    case.script = Script::Panics;
    let outcome = case.run(&host, &plugin).await;
    let text = "conversation.complete: the host's own code panicked".to_owned();
    assert_eq!(outcome.end, HarnessEnd::Returned(Err(Failure::Unavailable(text))));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_guest_swallows_is_in_the_record() {
    let plugin = guest("fault-harness").await;
    let mut case = Case::fault("swallow");
    case.script = Script::Unavailable;
    let outcome = case.run(&host(), &plugin).await;
    assert_eq!(returned(&outcome.end).outcome, Outcome::GaveUp);
    let failures: Vec<_> = outcome.host_calls.iter().filter_map(|call| call.failure.as_deref()).collect();
    assert_eq!(failures, ["unavailable: endpoint gone"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_flood_of_logs_is_counted_and_dropped() {
    let plugin = guest("fault-harness").await;
    let outcome =
        Case::new(serde_json::json!({ "fault": "flood", "times": 10_000 })).run(&host(), &plugin).await;
    assert_eq!(returned(&outcome.end).outcome, Outcome::Submitted);
    let kept: u64 = outcome.logs.iter().map(|line| line.text.len() as u64).sum();
    assert!(kept <= short().log_bytes, "{kept}");
    assert_eq!(kept + outcome.log_bytes_dropped, 10_000 * 1024);
    assert_eq!(outcome.host_calls_total, 1, "logs are no host calls");
}

#[tokio::test(flavor = "multi_thread")]
async fn clock_and_random_follow_from_start_and_seed() {
    let plugin = guest("fault-harness").await;
    let data = async |seed| {
        let mut case = Case::fault("clock");
        case.seed = seed;
        let outcome = case.run(&host(), &plugin).await;
        let data: serde_json::Value = serde_json::from_str(&returned(&outcome.end).data).unwrap();
        data
    };
    let (one, again, other) = (data(7).await, data(7).await, data(8).await);
    assert_eq!(one[2], again[2]);
    assert_ne!(one[2], other[2]);
    let (first, last) = (one[0].as_u64().unwrap(), one[1].as_u64().unwrap());
    assert!((1_700_000_000_000..=last).contains(&first), "{first} {last}");
}

#[tokio::test(flavor = "multi_thread")]
async fn blobs_are_read_in_bounded_slices_and_handles_are_bounded() {
    let plugin = guest("fault-harness").await;
    let outcome = Case::fault("blob").run(&host(), &plugin).await;
    assert_eq!(returned(&outcome.end).data, "[\"a\", true, true, 6]");
    let mut case = Case::fault("handles");
    case.limits.host_calls = 100_000;
    let outcome = case.run(&host(), &plugin).await;
    let forks: u32 = returned(&outcome.end).data.parse().unwrap();
    assert!((1_000..5_000).contains(&forks), "{forks}");
}

#[tokio::test(flavor = "multi_thread")]
async fn neighbours_of_faults_are_unaffected() {
    let plugin = guest("fault-harness").await;
    let faults = ["loop", "memory", "panic", "recurse", "ignore-budget", "import-loop"];
    let mut good = Vec::new();
    let mut bad = Vec::new();
    for round in 0..24 {
        let plugin = Arc::clone(&plugin);
        bad.push(tokio::spawn({
            let plugin = Arc::clone(&plugin);
            async move { Case::fault(faults[round % faults.len()]).run(&host(), &plugin).await }
        }));
        good.push(tokio::spawn(async move {
            let mut case = Case::new(serde_json::json!({ "fault": "complete", "times": 3 }));
            case.limits = Limits::default();
            case.run(&host(), &plugin).await
        }));
    }
    for task in good {
        let outcome = task.await.unwrap();
        assert_eq!(returned(&outcome.end).outcome, Outcome::Submitted);
        assert_eq!(outcome.host_calls_total, 5);
    }
    for task in bad {
        let outcome = task.await.unwrap();
        assert!(!matches!(outcome.end, HarnessEnd::Returned(_)), "{:?}", outcome.end);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_run_stops_its_guest() {
    let plugin = guest("fault-harness").await;
    let mut case = Case::fault("loop");
    case.limits.guest_cpu = Duration::from_secs(600);
    let meter = Arc::new(Meter::new(case.limits.clone()));
    case.meter = Some(Arc::clone(&meter));
    let host = host();
    let task = tokio::spawn(async move { case.run(&host, &plugin).await });
    while meter.host_calls() == 0 {
        tokio::task::yield_now().await;
    }
    task.abort();
    assert!(task.await.unwrap_err().is_cancelled());
    // The guest held the meter; when it is gone, this is the only hold left.
    for _ in 0..1_000 {
        if Arc::strong_count(&meter) == 1 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("the guest still runs");
}

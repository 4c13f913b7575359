//! Spinning guests hold up neither the timers of the engine's runtime nor other guests.

#![allow(clippy::unwrap_used, reason = "a test that cannot be set up fails")]

mod support;

use espalier_core::ending::HarnessEnd;
use espalier_core::limits::Limits;
use espalier_core::meter::Meter;
use std::sync::Arc;
use std::time::Duration;
use support::{Case, guest, host, io};

/// What takes so long waits for guests that never end.
const HANGS: Duration = Duration::from_secs(120);
/// More spinners than threads for guests.
const SPINNERS: usize = 16;

/// Nothing here is timed: the spinners spin until they are dropped, so whatever else ends has run beside them.
#[tokio::test(flavor = "multi_thread")]
async fn spinning_guests_starve_nobody() {
    let plugin = guest("fault-harness").await;
    let endless = Limits { guest_cpu: Duration::from_secs(1 << 20), ..support::short() };
    let meters: Vec<Arc<Meter>> = (0..SPINNERS).map(|_| Arc::new(Meter::new(endless.clone()))).collect();
    let spinners: Vec<_> = meters
        .iter()
        .map(|meter| {
            let (plugin, meter) = (Arc::clone(&plugin), Arc::clone(meter));
            tokio::spawn(async move {
                let mut case = Case::fault("loop");
                case.meter = Some(meter);
                case.run_unbounded(&host(), &plugin).await
            })
        })
        .collect();
    let others = async {
        // All of them spin now: each has read its settings. Those that came last got through between the slices of the first.
        while meters.iter().any(|meter| meter.host_calls() == 0) {
            tokio::task::yield_now().await;
        }
        // Timers of the engine's runtime fire, one after the other, while the guests hold all their threads.
        let ticks = io().spawn(async {
            let mut ticks = 0;
            for _ in 0..20 {
                tokio::time::sleep(Duration::from_millis(1)).await;
                ticks += 1;
            }
            ticks
        });
        assert_eq!(ticks.await.unwrap(), 20);
        // A neighbour that makes calls gets through, too.
        let neighbour =
            Case::new(serde_json::json!({ "fault": "complete", "times": 3 })).run(&host(), &plugin).await;
        assert!(matches!(neighbour.end, HarnessEnd::Returned(Ok(_))), "{:?}", neighbour.end);
        assert!(neighbour.host_calls.iter().filter(|call| call.name == "conversation.complete").count() == 3);
    };
    tokio::time::timeout(HANGS, others).await.expect("nobody waits for guests that never end");
    assert!(spinners.iter().all(|spinner| !spinner.is_finished()), "they spin for good");
    for spinner in spinners {
        spinner.abort();
        assert!(spinner.await.is_err_and(|error| error.is_cancelled()));
    }
    // Their threads are free again.
    let alone = Case::fault("none").run(&host(), &plugin).await;
    assert!(matches!(alone.end, HarnessEnd::Returned(Ok(_))), "{:?}", alone.end);
}

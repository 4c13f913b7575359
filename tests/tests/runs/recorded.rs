//! `record_calls = true`: what a rollout was told from outside of the engine is kept, so that it can be driven again.

use crate::setting::{Left, Parts, Setting, plain_tasks};
use espalier_core::journal::Edge;
use espalier_scripted::{Options, Scripted, by_text};

const WORLD: &str = "[[rewards]]\nplugin = \"environment-reward\"";

async fn play(record_calls: bool) -> Left {
    let server = Scripted::start(Options::new(by_text(|_| "well".to_owned()))).await.unwrap();
    let harness = "plugin = \"fault-harness\"\nsettings = { fault = \"complete\", times = 2 }";
    let parts = Parts { url: server.url(), harness, world: WORLD, groups: "size = 1", limits: "", model: "" };
    let setting = Setting::new(&plain_tasks(1), &parts);
    let text = std::fs::read_to_string(setting.file()).unwrap();
    std::fs::write(setting.file(), format!("record_calls = {record_calls}\n{text}")).unwrap();
    setting.run().await;
    setting.left().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_of_servers_are_kept_where_the_experiment_says_so() {
    let left = play(true).await;
    let (_, record) = left.finals().next().unwrap();
    assert_eq!(record.edges_missing, 0);
    let calls = &record.trajectory.calls;
    assert_eq!(calls.len(), 2);
    for call in calls {
        let sampled = record.edges.iter().find_map(|edge| match edge {
            Edge::Sampled { call_id, ids, logprobs, versions, .. } if *call_id == call.call_id => {
                Some((ids, logprobs, versions))
            }
            _ => None,
        });
        let (ids, logprobs, versions) = sampled.expect("each call has its answer");
        assert_eq!((ids.len(), logprobs.len()), (call.n_sampled as usize, ids.len()));
        assert_eq!(versions.iter().map(|run| run.1).sum::<u32>(), call.n_sampled);
        // The tokens that the trainer gets are among those that the server sent.
        let row = &record.trajectory.segments[0].tokens;
        assert!(row.windows(ids.len()).any(|part| part == ids), "{row:?} {ids:?}");
    }
    // The server tokenizes here; a text that came twice was asked for once.
    let mut texts: Vec<(&str, bool)> = Vec::new();
    for edge in &record.edges {
        if let Edge::Encoded { model, text, special, ids, .. } = edge {
            assert_eq!(model, "policy");
            assert!(!ids.is_empty() || text.is_empty());
            texts.push((text, *special));
        }
    }
    let all = texts.len();
    texts.sort_unstable();
    texts.dedup();
    assert!(all == texts.len() && all > 0, "{texts:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_it_nothing_of_that_is_kept() {
    let left = play(false).await;
    let (_, record) = left.finals().next().unwrap();
    assert!(record.edges.is_empty() && record.host_calls.iter().all(|call| call.payload.is_none()));
}

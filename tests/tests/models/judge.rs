//! A judge on the embedded model: the experiment of `llm-judge` with a scripted policy.

use crate::CORES;
use espalier_scripted::{Options, Scripted, by_text};
use espalier_store::{AttemptState, Store, StoreUrl};
use espalier_tests::export;
use espalier_tests::place::{espalier, repository};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_real_model_says_is_a_verdict_or_none_and_never_guessed() {
    let _cores = CORES.lock().await;
    let policy = Scripted::start(Options::new(by_text(|_| "Paris".to_owned()))).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("store");
    let mut run = espalier(&store);
    run.arg("run").arg(repository().join("experiments/llm-judge.toml"));
    let url = format!("models.policy.url=\"{}\"", policy.url());
    let sets = [
        "models.policy.embedded=false",
        &url,
        "groups.size=1",
        "groups.min_size=1",
        "groups.replacements=0",
        // A model of this size writes JSON now and then, and follows no other form.
        "judges.0.settings.form=json",
        "judges.0.settings.votes=8",
        "judges.0.on_failure=null",
    ];
    run.args(sets.iter().flat_map(|set| ["--set", set]));
    let output = tokio::time::timeout(crate::BOUND, run.output()).await.expect("the run ends").unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    // 1: the group failed, for want of verdicts.
    assert!(matches!(output.status.code(), Some(0 | 1)), "{}: {told}", output.status);

    let opened = Store::open_existing(&StoreUrl::Folder(store.clone())).await.unwrap();
    let run = opened.runs().await.unwrap().remove(0);
    let mut scored = 0;
    for group in opened.groups(&run.run_id).await.unwrap() {
        for row in opened.attempts(&run.run_id, group.opened.group_index).await.unwrap() {
            assert!(matches!(row.state, AttemptState::Final(_)), "{}", row.traj_id);
            let record = opened.record(&row).await.unwrap().unwrap();
            let [judge] = &record.judges[..] else { panic!("{:?}", record.judges) };
            let calls = &record.trajectory.other_calls;
            assert_eq!((judge.transcript.turns.len(), calls.len()), (8, 8));
            assert!(calls.iter().all(|call| call.model == "judge" && call.n_sampled > 0));
            let parsed = judge.votes.iter().filter(|vote| vote.value.is_some()).count();
            println!("{}: {parsed} verdicts; {:?}", row.traj_id, record.trajectory.reward);
            match record.trajectory.reward {
                Some(reward) => assert!(parsed > 0 && (0.0..=1.0).contains(&reward), "{reward}"),
                None => {
                    let error = &record.trajectory.errors[0].text;
                    assert!(parsed == 0 && error.contains("no verdict on the outcome"), "{error}");
                }
            }
            scored += usize::from(record.trajectory.reward.is_some());
        }
    }
    opened.close().await;
    println!("{scored} of 3 scored");
    let files = export::files(&store, "llm-judge", folder.path()).await;
    export::checked_by_python(&files);
}

//! The demo's experiment through a recording proxy before the embedded model.

use crate::{CORES, embedded, finished};
use espalier_scripted::Proxy;
use espalier_tests::accounts::Accounts;
use espalier_tests::place::{demo, espalier};
use espalier_tests::{export, recording};

/// Groups of four: at least 50 rollouts.
const TASKS: &str = "13";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_model_was_sent_and_what_it_said_is_what_trainers_get() {
    let _cores = CORES.lock().await;
    let model = embedded().await;
    let proxy = Proxy::start(&model.url().await.unwrap()).await.unwrap();
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("store");
    let mut run = espalier(&store);
    run.arg("run").arg(demo()).args(["--limit", TASKS, "--set", "models.policy.embedded=false", "--set"]);
    run.arg(format!("models.policy.url=\"{}\"", proxy.url()));
    println!("{}", finished(run).await);
    model.stop().await;

    let files = export::files(&store, "textcraft", folder.path()).await;
    let groups = export::groups(&files[0]);
    let compared = recording::compare(&groups, &proxy.exchanges(), "base");
    println!("{compared:?}");
    assert!(compared.rollouts >= 50, "{compared:?}");
    assert!(compared.calls > 2 * compared.rollouts, "several turns each: {compared:?}");
    assert!(compared.requests > compared.calls, "some answers came in pieces: {compared:?}");
    assert!(compared.in_rows >= 1000, "{compared:?}");

    let accounts = Accounts::of(&groups);
    println!("{accounts:?}");
    accounts.check_shown(&export::shown(&store, "textcraft").await);
    let trained = groups.iter().flat_map(|group| &group.trajectories).filter(|one| one.trainable).count();
    assert_eq!(trained, compared.rollouts, "every rollout of the demo trains");
    if let Some(said) = export::checked_by_python(&files) {
        let sums = accounts.tokens;
        let expected = format!(
            "; {} sampled = {} trained + {} masked + {} dropped",
            sums.sampled, sums.trained, sums.masked, sums.dropped
        );
        println!("{said:?}");
        assert!(said.len() == 2 && said[0] == said[1] && said[0].ends_with(&expected), "{said:?}");
    }
}

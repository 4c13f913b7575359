//! New weights of the models of a run.

use crate::on_both;
use crate::sample::{NOW, spec, stranger};
use espalier_store::{ModelVersion, Start};

on_both! {
    async fn versions_stand_in_their_order_and_survive_the_session(backend: Backend) {
        let store = backend.open().await;
        let run = store.claim_run(&spec("a", 1), &stranger(1), Start::Resume, NOW).await.unwrap().run;
        let version = |model: &str, number: i64| ModelVersion {
            model: model.to_owned(),
            label: format!("step-{number}"),
            train_step: (number > 1).then_some(number),
            taken_ms: NOW + number.unsigned_abs(),
            report: "{}".to_owned(),
        };
        // The same label again is another update.
        let all = [version("policy", 1), version("judge", 2), version("policy", 3), version("policy", 3)];
        for version in &all {
            run.model_version(version.clone()).await.unwrap();
        }
        assert_eq!(store.model_versions(run.run_id()).await.unwrap(), all);
        assert_eq!(store.model_versions("another").await.unwrap(), []);
    }
}

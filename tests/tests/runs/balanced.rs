//! `[groups.bar]`: groups that are chosen out of strides of rollouts, from the experiment to the export.

use crate::setting::Setting;
use espalier_core::ending::Status;
use espalier_core::samples::{GroupStatus, Trajectory};
use espalier_daemon::engine::RunEnd;
use espalier_scripted::{Options, Prompt, Scripted};
use espalier_tests::export::{checked_by_python, files, groups, printed, shown};

const ANSWERS: [(&str, &str); 3] = [("France", "Paris"), ("hexagon", "six"), ("north", "South")];

/// Right in about one of four rollouts.
fn answer(prompt: &Prompt<'_>) -> Option<String> {
    let right = ANSWERS.iter().find(|(part, _)| prompt.text.contains(part)).map(|(_, answer)| *answer);
    // Seeds of a group follow one another: they are mixed first.
    let mixed = prompt.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 62;
    Some(if mixed == 0 { right? } else { "no idea" }.to_owned())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn groups_are_chosen_out_of_strides_and_the_others_are_kept() {
    let policy = Scripted::start(Options::new(answer)).await.unwrap();
    let sets = [
        "models.policy.embedded=false".to_owned(),
        format!("models.policy.url=\"{}\"", policy.url()),
        "tasks.repeat=4".to_owned(),
        "groups.size=4".to_owned(),
        "groups.bar.rollouts_max=8".to_owned(),
        "groups.bar.positive_min=0.25".to_owned(),
        "groups.bar.positive_max=0.75".to_owned(),
    ];
    let setting = Setting::empty();
    let summary = setting.run_named("experiments/exact-match.toml", &sets).await;
    assert_eq!(
        (summary.state, summary.counts.groups_closed.get(&GroupStatus::Ready)),
        (RunEnd::Finished, Some(&12))
    );
    setting.left().await;

    let out = tempfile::tempdir().unwrap();
    let store = setting.store_folder();
    let written = files(&store, "exact-match", out.path()).await;
    let (mut rollouts, mut not_chosen, mut masked) = (0, 0, 0);
    for group in groups(&written[0]) {
        let positive = |one: &&Trajectory| one.reward.is_some_and(|reward| reward > 0.0);
        let all = group.all().filter(positive).count();
        let chosen = group.trajectories.iter().filter(positive).count();
        assert_eq!((group.trajectories.len(), group.replaced.len()), (4, 0), "{}", group.group_id);
        assert!(group.all().all(|one| one.status == Status::Completed), "{}", group.group_id);
        let there = group.all().count();
        match (all, chosen) {
            (0, 0) => assert_eq!(there, 8, "{}: no positive, so all strides came", group.group_id),
            (all, chosen) => {
                assert!((1..=3).contains(&chosen), "{}: {chosen} of {all}", group.group_id);
                let before_last = group.all().filter(|one| (one.rollout_index as usize) < there - 2);
                let found = there == 4 || before_last.filter(positive).count() == 0;
                assert!(found, "{}: a stride came that was not needed", group.group_id);
            }
        }
        for one in &group.not_chosen {
            assert!(!one.trainable && one.reward.is_some(), "{}", one.traj_id);
            assert!(
                one.excluded.iter().all(|excluded| excluded.reason == "not-chosen"),
                "{:?}",
                one.excluded
            );
            let sums = one.token_sums();
            assert_eq!((sums.trained, sums.masked), (0, sums.sampled));
            masked += sums.masked;
        }
        rollouts += there;
        not_chosen += group.not_chosen.len();
    }
    assert!(not_chosen > 0 && rollouts == 48 + not_chosen, "{not_chosen} of {rollouts}");
    assert_eq!((summary.counts.not_chosen, summary.counts.tokens.masked), (not_chosen as u64, masked));

    let told = printed(&store, &["show", "exact-match"]).await;
    assert!(told.contains(&format!("{rollouts}, of them {not_chosen} not chosen")), "{told}");
    let json = shown(&store, "exact-match").await;
    assert_eq!(json["not_chosen"], not_chosen, "{json}");
    if let Some(checked) = checked_by_python(&written) {
        assert_eq!(checked[0], checked[1]);
        assert!(checked[0].contains(&format!("{rollouts} trajectories")), "{checked:?}");
    }
    let lines = out.path().join("chat.jsonl");
    let path = lines.to_str().unwrap();
    printed(&store, &["export", "exact-match", "--format", "sft-chat", "--out", path]).await;
    assert_eq!(std::fs::read_to_string(&lines).unwrap().lines().count(), 48, "those that were chosen");
}

use super::*;
use espalier_core::samples::{GroupStatus, Timing, TokenSums};
use espalier_store::{Exclusion, GroupOpened, GroupRow, RolloutCounts, RunState};

/// A run of one task per entry, with these rewards.
fn run(run_id: &str, changed: &str, rewards: &[(&str, &[f64])], seconds: u64) -> Compared {
    let mut tasks = BTreeMap::new();
    let (mut rollouts, mut endings) = (RolloutCounts::default(), BTreeMap::new());
    for (task, rewards) in rewards {
        let solved = rewards.iter().filter(|reward| is_solved(**reward)).count() as u64;
        let (scored, sum) = (rewards.len() as u64, rewards.iter().sum::<f64>());
        tasks.insert((*task).to_owned(), TaskRewards { scored, solved, sum });
        rollouts.ended += scored;
        rollouts.rewarded += scored;
        rollouts.solved += solved;
        rollouts.reward_sum += sum;
        *endings.entry(StopReason::Submitted).or_default() += solved;
        *endings.entry(StopReason::LimitTurns).or_default() += scored - solved;
    }
    let tokens = TokenSums {
        sampled: 40 * rollouts.ended,
        trained: 39 * rollouts.ended,
        masked: 0,
        dropped: rollouts.ended,
    };
    let exclusion = Exclusion { how: "dropped".into(), reason: "after-stop".into(), tokens: tokens.dropped };
    Compared {
        run: RunRow {
            run_id: run_id.to_owned(),
            name: "textcraft".into(),
            serial: 1,
            state: RunState::Finished,
            paused: false,
            lock: None,
            engine: "0.1.0".into(),
            groups_planned: None,
            groups_open: 0,
            groups: [(GroupStatus::Ready, rewards.len() as u64)].into(),
            rollouts,
            tokens,
            created_ms: 0,
            changed_ms: 0,
        },
        state: "finished".into(),
        totals: RunTotals {
            unscored: BTreeMap::new(),
            endings,
            abandoned: BTreeMap::new(),
            tokens_by_group: [(Some(GroupStatus::Ready), tokens)].into(),
            tokens,
            exclusions: vec![exclusion],
            timing: Timing { model: 900 * rollouts.ended, ..Timing::default() },
            turns: 3 * rollouts.ended,
            calls: 3 * rollouts.ended,
            span_ms: Some((5_000, 5_000 + 1000 * seconds)),
        },
        versions: Versions::of(&[group(0, "089081"), group(1, changed)]),
        tasks,
    }
}

/// A group whose harness was the component with this digest.
fn group(group_index: u64, digest: &str) -> GroupRow {
    GroupRow {
        group_id: format!("g{group_index}"),
        opened: GroupOpened {
            group_index,
            model: "policy".into(),
            task_id: "tc-1".into(),
            task_hash: String::new(),
            task_text: None,
            repeat: 0,
            environment: String::new(),
            n_requested: 2,
            dispatch_version: String::new(),
            deadline_ms: None,
            step_budget: None,
            purpose: espalier_core::samples::GroupPurpose::Train,
            endpoint: None,
            plugins: [("react-text".to_owned(), format!("{digest:0<64}"))].into(),
            opened_ms: 0,
        },
        status: None,
        drop_reason: None,
        n_ready: None,
        closed_ms: None,
    }
}

#[test]
fn groups_of_one_component_are_told_as_ranges() {
    let digests = ["aa", "aa", "bb", "bb", "aa"];
    let groups: Vec<GroupRow> = digests.iter().zip(0..).map(|(digest, index)| group(index, digest)).collect();
    let versions = Versions::of(&groups);
    let look = Look { colour: false, width: 80, terminal: true };
    insta::assert_snapshot!(versions.mixed().lines(&look).join("\n"), @"
    mixed plugin  digest  groups
    react-text    aa0000  g0 to g1, g4
                  bb0000  g2 to g3
    ");
    assert_eq!(versions.json()["react-text"][0]["groups"], json!([[0, 1], [4, 4]]));
    assert!(Versions::of(&groups[..2]).mixed().is_empty());
}

fn view() -> CompareView {
    let one = run(
        "textcraft-3fa9c1d2",
        "78c77f",
        &[("tc-1", &[1.0, 0.0]), ("tc-2", &[1.0, 1.0]), ("tc-3", &[0.0, 0.0])],
        20,
    );
    let two = run(
        "textcraft-81b0e4f7",
        "089081",
        &[("tc-1", &[0.0, 0.0]), ("tc-2", &[1.0, 1.0]), ("tc-4", &[1.0])],
        8,
    );
    let values = vec![Some("\"vllm\"".to_owned()), Some("\"llama-cpp\"".to_owned())];
    let differences = vec![
        DifferingKey { key: "models.policy.kind".into(), values },
        DifferingKey { key: "models.policy.tokenizer".into(), values: vec![Some("\"a0b1\"".into()), None] },
    ];
    CompareView { runs: vec![one, two], differences, all: false }
}

#[test]
fn two_runs_stand_side_by_side_in_eighty_columns() {
    let lines = view().lines(&Look { colour: false, width: 80, terminal: true });
    assert!(lines.iter().all(|line| crate::output::text::width(line) <= 80));
    insta::assert_snapshot!(lines.join("\n"));
}

#[test]
fn errors_are_by_task_and_a_difference_is_within_tasks() {
    let value = view().json(&[]);
    let second = &value["rewards"][1];
    // Over tc-1 and tc-2: means 0.5 and 1 against 0 and 1.
    assert_eq!(second["common_mean_reward"], json!({"mean": 0.5, "standard_error": 0.5}));
    assert_eq!(second["difference_to_first"], json!({"mean": -0.25, "standard_error": 0.25}));
    assert_eq!(second["mean_reward"], json!(0.6));
    assert_eq!(value["tasks"].as_array().map(Vec::len), Some(2));
    assert_eq!(Mean::of(&[0.5]), Some(Mean { mean: 0.5, error: None }));
    assert_eq!(Mean::of(&[]), None);
}

//! Judges: asked before rewards, by a model of their own; a judge that fails is never a 0.

use crate::setting::{Left, Parts, Setting, plain_tasks};
use espalier_core::samples::{GroupKind, GroupStatus};
use espalier_daemon::engine::{RunEnd, RunSummary};
use espalier_scripted::{Options, Scripted, by_text};
use espalier_store::export::{ExportOptions, Format};
use espalier_tests::export;
use espalier_tests::place::plugin_folder;
use serde_json::{Value, json};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Two requests, then it submits.
const TWICE: &str = "plugin = \"fault-harness\"\nsettings = { fault = \"complete\", times = 2 }";
const GROUPS: &str = "size = 2\nreplacements = 0\nconcurrent_rollouts = 1";

/// Runs one group of two whose judge answers these texts, over and over.
async fn play(answers: &'static [&'static str], judge: &str) -> (RunSummary, Left, u64) {
    play_judge(answers, &format!("plugin = \"llm-judge\"\n{judge}")).await
}

/// The same with any judge.
async fn play_judge(answers: &'static [&'static str], judge: &str) -> (RunSummary, Left, u64) {
    let policy = Scripted::start(Options::new(by_text(|_| "well".to_owned()))).await.unwrap();
    let asked = AtomicUsize::new(0);
    let answer = move |_: &str| answers[asked.fetch_add(1, Ordering::SeqCst) % answers.len()].to_owned();
    let server = Scripted::start(Options::new(by_text(answer))).await.unwrap();
    let world = format!(
        "[models.judge]\nkind = \"llama-cpp\"\nurl = \"{}\"\nsampling = {{ max_tokens = 64 }}\n\
         [[judges]]\n{judge}",
        server.url()
    );
    let parts =
        Parts { url: policy.url(), harness: TWICE, world: &world, groups: GROUPS, limits: "", model: "" };
    let setting = Setting::new(&plain_tasks(1), &parts);
    let summary = setting.run().await;
    assert_eq!(summary.state, RunEnd::Finished);
    let requests = server.counts().requests;
    (summary, setting.left().await, requests)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn votes_on_the_outcome_are_the_reward_and_no_part_of_what_trains() {
    let (summary, left, requests) =
        play(&["\\boxed{1}", "so \\boxed{0}", "\\boxed{1}"], "weight = 2.0").await;
    assert_eq!(left.groups, [Some(GroupStatus::Ready)]);
    assert_eq!((summary.counts.scored, requests), (2, 6));
    for (_, record) in left.finals() {
        let trajectory = &record.trajectory;
        assert_eq!(trajectory.reward, Some(2.0));
        let names: Vec<&str> = trajectory.reward_parts.keys().map(String::as_str).collect();
        assert_eq!(names, ["llm-judge/outcome-votes", "llm-judge/reward"]);
        let [judge] = &record.judges[..] else { panic!("{:?}", record.judges) };
        // Answered at once, in whatever order.
        let mut values: Vec<f64> = judge.votes.iter().map(|vote| vote.value.unwrap()).collect();
        values.sort_by(f64::total_cmp);
        assert_eq!(values, [0.0, 1.0, 1.0]);
        assert!(judge.votes.iter().all(|vote| vote.turn.is_none()));
        assert_eq!(judge.sampled, None);
        assert_eq!(trajectory.other_calls.len(), 3);
        assert!(trajectory.other_calls.iter().all(|call| call.model == "judge"));
        assert!(trajectory.calls.iter().all(|call| call.model == "policy"));
        assert!(trajectory.plugins.contains_key("llm-judge"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn votes_on_turns_are_averaged_into_their_rewards() {
    let judge = "votes = 0.5\nsettings = { about = \"turns\", votes = 2, lowest = -1.0 }";
    let (_, left, requests) = play(&["\\boxed{1}", "\\boxed{1}", "\\boxed{-1}", "who knows"], judge).await;
    assert_eq!(requests, 8, "two rollouts, two turns, two votes");
    for (_, record) in left.finals() {
        // The second turn: a vote of -1 and one that counts 0.
        assert_eq!(record.trajectory.turn_rewards, Some(vec![Some(0.5), Some(-0.25)]));
        assert_eq!(record.trajectory.reward, Some(0.0), "turns alone are no outcome");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_cannot_be_parsed_is_asked_again_and_then_null() {
    for (on_failure, asked) in [("retry", 2 * 3 * 2), ("null", 2 * 3)] {
        let judge = format!("on_failure = \"{on_failure}\"\nattempts = 2");
        let (summary, left, requests) = play(&["no verdict"], &judge).await;
        assert_eq!(requests, asked, "{on_failure}");
        assert_eq!((summary.counts.scored, summary.counts.reward_sum), (0, 0.0));
        assert_eq!(left.groups, [Some(GroupStatus::Failed)]);
        for (_, record) in left.finals() {
            assert_eq!(record.trajectory.reward, None, "which is not 0");
            let error = &record.trajectory.errors[0].text;
            assert!(
                error.contains("judge llm-judge failed") && error.contains("no verdict on the outcome"),
                "{error}"
            );
            assert_eq!(record.trajectory.other_calls.len() as u64, asked / 2, "every try is in the books");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_judge_has_limits_of_its_own() {
    let judge = "limits = { calls = 2 }\nattempts = 1";
    let (_, left, requests) = play(&["\\boxed{1}"], judge).await;
    assert_eq!(requests, 0, "three votes are over two calls");
    for (_, record) in left.finals() {
        let error = &record.trajectory.errors[0].text;
        assert!(error.contains("budget used up: turns"), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rewards_see_what_judges_gave() {
    let judge = "name = \"strict\"\nvotes = 0.0\nsettings = { about = \"both\", votes = 1 }\n\
                 [[rewards]]\nplugin = \"fault-reward\"\nsettings = { fault = \"judges\" }";
    let (_, left, _) = play(&["\\boxed{1}", "\\boxed{0}", "hm"], judge).await;
    for (_, record) in left.finals() {
        let told = record.scores.iter().find(|scored| scored.plugin == "fault-reward").unwrap();
        let extra: Value = serde_json::from_str(&told.score.reason).unwrap();
        let judge = &extra["judges"][0];
        assert_eq!((&judge["name"], &judge["failed"]), (&json!("strict"), &Value::Null));
        let votes: Vec<_> =
            judge["votes"].as_array().unwrap().iter().map(|vote| (&vote["turn"], &vote["value"])).collect();
        assert_eq!(votes, [(&Value::Null, &json!(1.0)), (&json!(0), &json!(0.0)), (&json!(1), &Value::Null)]);
        let names: Vec<&Value> =
            judge["scores"].as_array().unwrap().iter().map(|score| &score["name"]).collect();
        assert_eq!(names, ["reward", "outcome-votes", "votes"]);
        assert!(record.trajectory.reward_parts.contains_key("strict/reward"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_that_failed_is_told_to_rewards_and_its_ties_are_the_lowest() {
    let judge = "on_failure = \"null\"\nsettings = { votes = 2 }\n\
                 [[rewards]]\nplugin = \"fault-reward\"\nsettings = { fault = \"judges\" }";
    let (_, left, _) = play(&["no verdict"], judge).await;
    for (_, record) in left.finals() {
        assert_eq!(record.trajectory.reward, None);
        let told = record.scores.iter().find(|scored| scored.plugin == "fault-reward").unwrap();
        assert!(
            told.score.reason.contains("no verdict on the outcome in 2 answers"),
            "{}",
            told.score.reason
        );
    }
    let (_, left, _) = play(&["\\boxed{1}", "\\boxed{0}"], judge).await;
    assert!(left.finals().all(|(_, record)| record.trajectory.reward == Some(0.0)), "a tie is the lowest");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_trained_judge_sampled_leaves_as_groups_of_its_own() {
    let policy = Scripted::start(Options::new(by_text(|_| "well".to_owned()))).await.unwrap();
    let asked = AtomicUsize::new(0);
    // Of each turn: one vote for, one against, one that says nothing.
    let answer = move |_: &str| {
        ["\\boxed{1}", "so \\boxed{-1}", "hm"][asked.fetch_add(1, Ordering::SeqCst) % 3].to_owned()
    };
    let server = Scripted::start(Options::new(by_text(answer))).await.unwrap();
    let world = format!(
        "[models.judge]\nkind = \"llama-cpp\"\nurl = \"{}\"\nsampling = {{ max_tokens = 64 }}\n\
         [[judges]]\nplugin = \"llm-judge\"\ntrained = true\nsettings = {{ about = \"turns\", votes = 3, lowest = -1.0 }}\n\
         [[rewards]]\nplugin = \"fault-reward\"\n",
        server.url()
    );
    let parts =
        Parts { url: policy.url(), harness: TWICE, world: &world, groups: GROUPS, limits: "", model: "" };
    let setting = Setting::new(&plain_tasks(1), &parts);
    assert_eq!(setting.run().await.state, RunEnd::Finished);
    for (_, record) in setting.left().await.finals() {
        let judge = &record.judges[0];
        assert!(judge.votes.iter().all(|vote| vote.call.is_some()), "{:?}", judge.votes);
        assert_eq!(judge.sampled.as_ref().map(|sampled| sampled.calls.len()), Some(6));
    }
    let folder = tempfile::tempdir().unwrap();
    let store = setting.store().await;
    let run = store.runs().await.unwrap().remove(0);
    let files = [("groups.jsonl", Format::GroupJsonl), ("groups.msgpack", Format::GroupMsgpack)];
    let files = files.map(|(name, format)| (folder.path().join(name), format));
    for (file, format) in &files {
        store.export(&ExportOptions::new(run.run_id.clone(), *format), file).await.unwrap();
    }
    store.close().await;
    let files = files.map(|(file, _)| file);
    let groups = export::groups(&files[0]);
    let kinds: Vec<(GroupKind, &str)> =
        groups.iter().map(|group| (group.kind, group.model.as_str())).collect();
    let judged = (GroupKind::JudgeTurn, "judge");
    // Two rollouts of two turns.
    assert_eq!(kinds, [(GroupKind::Task, "policy"), judged, judged, judged, judged]);
    let [task, judged @ ..] = &groups[..] else { panic!() };
    assert!(task.trajectories.iter().all(|one| one.other_calls.is_empty()), "they are calls of a group now");
    for (group, (rollout, turn)) in judged.iter().zip([(0, 0), (0, 1), (1, 0), (1, 1)]) {
        let parent = group.parent.as_ref().unwrap();
        assert_eq!((&parent.traj_id, parent.turn), (&task.trajectories[rollout].traj_id, turn));
        let mut rewards: Vec<f64> = group.trajectories.iter().map(|one| one.reward.unwrap()).collect();
        rewards.sort_by(f64::total_cmp);
        // The outcome is 0, and so is the mean of 1, -1 and nothing.
        assert_eq!(rewards, [-2.0, 0.0, 0.0]);
        for trajectory in &group.trajectories {
            let sums = trajectory.token_sums();
            assert!(trajectory.trainable && sums.trained > 0 && sums.trained == sums.sampled, "{sums:?}");
            assert!(trajectory.plugins.contains_key("llm-judge"));
        }
    }
    if let Some(said) = export::checked_by_python(&files) {
        assert!(said.iter().all(|line| line.contains("5 groups")), "{said:?}");
    }
    // A trainer of one model gets its groups alone.
    for (model, count) in [("judge", 4), ("policy", 1)] {
        let out = folder.path().join(model).display().to_string();
        let arguments = ["export", "test", "--format", "group-jsonl", "--model", model, "--out", &out];
        export::printed(&setting.store_folder(), &arguments).await;
        assert_eq!(export::groups(out.as_ref()).len(), count, "{model}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_only_a_judge_has_failed_is_judged_again_when_it_changed_and_every_call_counts_once() {
    let policy = Scripted::start(Options::new(by_text(|_| "well".to_owned()))).await.unwrap();
    let asked = AtomicUsize::new(0);
    // Two rollouts, two tries, two votes: then there are verdicts.
    let answer = move |_: &str| match asked.fetch_add(1, Ordering::SeqCst) {
        ..8 => "hm".to_owned(),
        _ => "\\boxed{1}".to_owned(),
    };
    let server = Scripted::start(Options::new(by_text(answer))).await.unwrap();
    let world = format!(
        "[models.judge]\nkind = \"llama-cpp\"\nurl = \"{}\"\nsampling = {{ max_tokens = 64 }}\n\
         [[judges]]\nplugin = \"./strict.wasm\"\nattempts = 2\nsettings = {{ votes = 2 }}",
        server.url()
    );
    let parts =
        Parts { url: policy.url(), harness: TWICE, world: &world, groups: GROUPS, limits: "", model: "" };
    let setting = Setting::new(&plain_tasks(1), &parts);
    let component = setting.file().with_file_name("strict.wasm");
    let mut bytes = std::fs::read(plugin_folder().join("llm-judge.wasm")).unwrap();
    std::fs::write(&component, &bytes).unwrap();
    setting.run().await;
    assert_eq!(setting.left().await.groups, [Some(GroupStatus::Failed)]);
    let sampled = policy.counts().requests;

    // The same component with a custom section more is another one.
    bytes.extend([0, 2, 1, b'x']);
    std::fs::write(&component, bytes).unwrap();
    let summary = setting.run().await;
    assert_eq!(
        (summary.counts.scored_again, policy.counts().requests),
        (2, sampled),
        "nothing is sampled again"
    );
    let left = setting.left().await;
    assert_eq!(left.groups, [Some(GroupStatus::Ready)]);
    for (_, record) in left.finals() {
        assert_eq!(record.trajectory.reward, Some(1.0));
        assert_eq!((record.judges.len(), record.trajectory.other_calls.len()), (1, 6), "{:?}", record.judges);
    }
    let folder = tempfile::tempdir().unwrap();
    let files = export::files(&setting.store_folder(), "test", folder.path()).await;
    assert_eq!(export::groups(&files[0]).len(), 1, "no call stands twice");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn images_are_shown_to_a_judge_that_sees_them() {
    let policy = Scripted::start(Options::vision(by_text(|_| "well".to_owned()))).await.unwrap();
    for (sees, shown) in [("sees = [\"turns\", \"images\"]", 1), ("sees = [\"turns\"]", 0)] {
        let server = Scripted::start(Options::vision(by_text(|_| "\\boxed{1}".to_owned()))).await.unwrap();
        let world = format!(
            "[models.judge]\nkind = \"openai-chat\"\nurl = \"{}\"\nmodel = \"any\"\n\
             [[judges]]\nplugin = \"llm-judge\"\nsettings = {{ images = 2, votes = 1 }}\n{sees}",
            server.url()
        );
        let harness = "plugin = \"fault-harness\"\nsettings = { fault = \"image\" }";
        let parts = Parts {
            url: policy.url(),
            harness,
            world: &world,
            groups: GROUPS,
            limits: "",
            model: "model = \"any\"",
        };
        let setting = Setting::new(&plain_tasks(1), &parts);
        let text = std::fs::read_to_string(setting.file()).unwrap();
        std::fs::write(setting.file(), text.replacen("llama-cpp", "openai-chat", 1)).unwrap();
        assert_eq!(setting.run().await.state, RunEnd::Finished);
        let left = setting.left().await;
        assert_eq!(
            left.finals().map(|(_, record)| record.trajectory.reward).collect::<Vec<_>>(),
            [Some(1.0); 2]
        );
        let asked = server.recorded();
        assert_eq!(asked.len(), 2);
        for one in asked {
            let body = one.request.to_string();
            assert_eq!(body.matches("data:image/png;base64,iVBORw0KGgo=").count(), shown, "{body}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_verdict_or_a_judge_that_is_away_removes_the_sample() {
    let judge = "plugin = \"gui-judge\"\nweight = 1.0\non_failure = \"remove\"\nattempts = 2\nsettings = { images = 0 }";
    let (summary, left, requests) = play_judge(&["VERDICT: SUCCESS", "VERDICT: CAPTCHA"], judge).await;
    assert_eq!((left.groups.clone(), requests), (vec![Some(GroupStatus::Failed)], 2), "1 of 2 has a reward");
    assert_eq!((summary.counts.scored, summary.counts.replacements), (1, 0));
    let ends: Vec<_> = left
        .finals()
        .map(|(row, record)| (row.replaced, record.trajectory.reward, record.trajectory.removed.clone()))
        .collect();
    assert_eq!(ends, [(false, Some(1.0), None), (false, None, Some("captcha".to_owned()))]);
    let causes: Vec<_> =
        summary.causes.list.iter().map(|cause| (cause.rollouts, cause.error.clone())).collect();
    assert_eq!(causes, [(1, Some("removed: captcha".to_owned()))]);

    // No verdict in any attempt: the judge has failed, which says nothing of the rollout.
    let (summary, left, requests) = play_judge(&["no verdict"], judge).await;
    assert_eq!((requests, summary.counts.replacements), (2 * 2, 0));
    for (_, record) in left.finals() {
        let trajectory = &record.trajectory;
        assert_eq!((trajectory.reward, trajectory.removed.as_deref()), (None, Some("judge unavailable")));
        assert_eq!(trajectory.stop_reason, espalier_core::ending::StopReason::Submitted);
        assert!(
            trajectory.errors[0].text.contains("no verdict in 1 answers of the model"),
            "{:?}",
            trajectory.errors
        );
        assert!(trajectory.excluded.iter().all(|one| one.reason == "removed: judge unavailable"));
        assert_eq!(trajectory.token_sums().trained, 0);
    }
}

//! What of a run is learned by fine-tuning: answers with credit, selected rollouts; and models whose rollouts have no rows.

use crate::setting::{IMPATIENT, Parts, Setting, plain_tasks};
use espalier_core::samples::Trajectory;
use espalier_daemon::engine::RunEnd;
use espalier_scripted::{Options, Prompt, Scripted, by_text, decode};
use espalier_tests::export::{checked_by_python, groups, printed};
use espalier_tests::place::espalier;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

const FOUR_TURNS: &str = "plugin = \"fault-harness\"\nsettings = { fault = \"complete\", times = 4 }";

/// Exports into a file of this folder; the file, and what the command says.
async fn export(setting: &Setting, folder: &Path, name: &str, arguments: &[&str]) -> (PathBuf, Value) {
    let file = folder.join(name);
    let mut all = vec!["export", "test", "--json", "--out", file.to_str().unwrap()];
    all.extend_from_slice(arguments);
    let told = printed(&setting.store_folder(), &all).await;
    (file, serde_json::from_str(&told).unwrap())
}

fn lines(file: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(file).unwrap();
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

/// Tokens that train, by turn.
fn trained(one: &Trajectory) -> Vec<usize> {
    let mut by_turn = vec![0; one.calls.len()];
    for segment in &one.segments {
        for span in &segment.spans {
            let turn = one.calls.iter().find(|call| call.call_id == span.call_id).unwrap().turn as usize;
            let mask = &segment.mask[span.start as usize..][..span.len as usize];
            by_turn[turn] += mask.iter().filter(|bit| **bit == 1).count();
        }
    }
    by_turn
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_an_unsuccessful_rollout_the_answers_of_rise_segments_train() {
    let policy = Scripted::start(Options::new(by_text(|_| "well".to_owned()))).await.unwrap();
    // It rises to turn 2, by two turns of which one is interpolated, and falls.
    let estimates =
        r#"So: [{"turn": 0, "value": 0.2}, {"turn": 2, "value": 0.6}, {"turn": 3, "value": 0.1}]"#;
    let judge = Scripted::start(Options::new(by_text(|_| estimates.to_owned()))).await.unwrap();
    let world = format!(
        "[models.judge]\nkind = \"llama-cpp\"\nurl = \"{}\"\nsampling = {{ max_tokens = 512 }}\n\
         [[judges]]\nplugin = \"value-judge\"\nafter_rewards = true\n\
         [[rewards]]\nplugin = \"fault-reward\"\n",
        judge.url()
    );
    let parts = Parts {
        url: policy.url(),
        model: "",
        harness: FOUR_TURNS,
        world: &world,
        groups: "size = 2\nconcurrent_rollouts = 1",
        limits: "",
    };
    let setting = Setting::new(&plain_tasks(2), &parts);
    assert_eq!(setting.run().await.state, RunEnd::Finished);
    for (_, record) in setting.left().await.finals() {
        assert_eq!((record.trajectory.reward, record.trajectory.turn_rewards.as_ref()), (Some(0.0), None));
        assert_eq!(record.judges[0].votes.len(), 3);
        assert_eq!(record.trajectory.other_calls.len(), 1);
    }
    // It is told the reward, and why.
    let ids = |request: &Value| serde_json::from_value::<Vec<u32>>(request["prompt"].clone()).unwrap();
    let asked: Vec<String> = judge.recorded().iter().map(|one| decode(&ids(&one.request))).collect();
    assert!(
        asked.iter().all(|text| text.contains("reward 0") && text.contains("0 steps, clock moved by 0")),
        "{asked:?}"
    );

    let out = tempfile::tempdir().unwrap();
    let by_judge = ["--credit", "value-judge"];
    let mut files = Vec::new();
    for (name, format) in [("g.jsonl", "group-jsonl"), ("g.msgpack", "group-msgpack")] {
        let arguments = [&["--format", format, "--advantages", "dr-grpo"][..], &by_judge].concat();
        let (file, told) = export(&setting, out.path(), name, &arguments).await;
        let tokens = &told["tokens"];
        let (sampled, trained, masked) = (&tokens["sampled"], &tokens["trained"], &tokens["masked"]);
        assert_eq!((trained, masked), (masked, trained), "half of four equal answers: {told}");
        assert_eq!(sampled.as_u64().unwrap(), 2 * trained.as_u64().unwrap());
        files.push(file);
    }
    for group in groups(&files[0]) {
        for one in &group.trajectories {
            let by_turn = trained(one);
            assert!(one.trainable && by_turn[0] > 0 && by_turn[0] == by_turn[1], "{by_turn:?}");
            assert_eq!(by_turn[2..], [0, 0]);
            assert!(
                one.excluded.iter().all(|excluded| excluded.reason == "outside-rise-segment"),
                "{:?}",
                one.excluded
            );
        }
    }
    if let Some(said) = checked_by_python(&files) {
        assert_eq!((said.len(), &said[0]), (2, &said[1]));
    }
    let weights = |row: &Value| -> Vec<Option<u64>> {
        let messages = row["messages"].as_array().unwrap().iter();
        messages
            .filter(|message| message["role"] == "assistant")
            .map(|message| message["weight"].as_u64())
            .collect()
    };
    let (file, told) =
        export(&setting, out.path(), "c.jsonl", &[&["--format", "sft-chat"][..], &by_judge].concat()).await;
    assert_eq!((lines(&file).len(), &told["left_out"]), (4, &json!({})), "{told}");
    assert_eq!(weights(&lines(&file)[0]), [None, None, Some(0), Some(0)]);

    // Values of a file, for two of the four rollouts; one of them never rises.
    let ids: Vec<String> =
        lines(&file).iter().map(|row| row["traj_id"].as_str().unwrap().to_owned()).collect();
    let values = out.path().join("values.jsonl");
    let of = |id: &String, values: Value| json!({ "traj_id": id, "values": values }).to_string();
    let text =
        [of(&ids[0], json!([0.1, 0.1, 0.1, 0.9])), of(&ids[1], json!([0.5, null, null, 0.4]))].join("\n");
    std::fs::write(&values, text).unwrap();
    let by_file = ["--format", "sft-chat", "--credit-file", values.to_str().unwrap()];
    let (file, told) = export(&setting, out.path(), "f.jsonl", &by_file).await;
    assert_eq!(told["left_out"], json!({"no-values": 2, "outside-rise-segment": 1}), "{told}");
    assert_eq!(weights(&lines(&file)[0]), [Some(0), Some(0), None, Some(0)]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_judge_that_fails_after_the_rewards_changes_none() {
    let policy = Scripted::start(Options::new(by_text(|_| "well".to_owned()))).await.unwrap();
    let judge = Scripted::start(Options::new(by_text(|_| "I cannot say.".to_owned()))).await.unwrap();
    let world = format!(
        "[models.judge]\nkind = \"llama-cpp\"\nurl = \"{}\"\n{IMPATIENT}\n\
         [[judges]]\nplugin = \"value-judge\"\nafter_rewards = true\nattempts = 2\n\
         [[rewards]]\nplugin = \"fault-reward\"\n",
        judge.url()
    );
    let parts = Parts {
        url: policy.url(),
        model: "",
        harness: FOUR_TURNS,
        world: &world,
        groups: "size = 2",
        limits: "",
    };
    let setting = Setting::new(&plain_tasks(1), &parts);
    assert_eq!(setting.run().await.state, RunEnd::Finished);
    for (_, record) in setting.left().await.finals() {
        assert_eq!((record.trajectory.reward, record.trajectory.trainable), (Some(0.0), true));
        let [error] = &record.trajectory.errors[..] else { panic!("{:?}", record.trajectory.errors) };
        assert!(
            error.code == "judge-failure" && error.text.contains("no estimates in 1 answers"),
            "{error:?}"
        );
        assert_eq!(record.trajectory.other_calls.len(), 2, "each try is in the books");
    }
}

/// Right in about half of the rollouts, at different lengths.
fn answer(prompt: &Prompt<'_>) -> Option<String> {
    let mixed = prompt.seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 62;
    Some(["right", "wrong", "right", "not at all"][mixed as usize].to_owned())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rollouts_are_selected_by_task_and_site() {
    let policy = Scripted::start(Options::new(answer)).await.unwrap();
    let task = |number: usize| {
        let site = if number < 4 { "shop" } else { "mail" };
        format!(
            "{{\"id\":\"t{number}\",\"instruction\":\"go\",\"data\":{{\"site\":\"{site}\"}},\"private\":{{\"answer\":[\"right\"]}}}}\n"
        )
    };
    let tasks: String = (0..6).map(task).collect();
    let parts = Parts {
        url: policy.url(),
        model: "",
        harness: "plugin = \"answer\"",
        world: "[[rewards]]\nplugin = \"exact-match\"",
        groups: "size = 6",
        limits: "",
    };
    let setting = Setting::new(&tasks, &parts);
    assert_eq!(setting.run().await.state, RunEnd::Finished);
    let out = tempfile::tempdir().unwrap();
    let (all, _) = export(&setting, out.path(), "all.jsonl", &["--format", "sft-chat"]).await;
    let all = lines(&all);
    assert_eq!(all.len(), 36);
    let of_task = |rows: &[Value], number: usize| -> Vec<f64> {
        let of = rows.iter().filter(|row| row["task_id"] == format!("t{number}"));
        of.map(|row| row["reward"].as_f64().unwrap()).collect()
    };
    let solved: Vec<usize> = (0..6).filter(|number| of_task(&all, *number).contains(&1.0)).collect();

    let shortest = ["--format", "sft-chat", "--select", "shortest-success"];
    let (file, told) = export(&setting, out.path(), "s.jsonl", &shortest).await;
    let rows = lines(&file);
    let tasks: Vec<usize> = (0..6).filter(|number| of_task(&rows, *number) == [1.0]).collect();
    assert_eq!((rows.len(), &tasks), (solved.len(), &solved), "{told}");
    assert_eq!(told["not_selected"]["not-picked"], 36 - rows.len(), "{told}");

    let path = setting.file().with_file_name("tasks.jsonl").display().to_string();
    let capped = [&shortest[..], &["--per-site", "1", "--tasks", &path]].concat();
    let (file, told) = export(&setting, out.path(), "p.jsonl", &capped).await;
    let sites = |shops: bool| solved.iter().filter(|number| (**number < 4) == shops).count().min(1);
    assert_eq!(lines(&file).len(), sites(true) + sites(false), "{told}");

    // The same answer is the same actions: one right and at most two wrong ones stay.
    let (file, _) = export(&setting, out.path(), "d.jsonl", &["--format", "sft-chat", "--dedupe"]).await;
    let rows = lines(&file);
    let rewards: Vec<Vec<f64>> = (0..6).map(|number| of_task(&rows, number)).collect();
    assert!(
        rewards.iter().all(|rewards| rewards.iter().filter(|reward| **reward == 1.0).count() <= 1),
        "{rewards:?}"
    );
    assert!(rewards.iter().all(|rewards| rewards.len() <= 3), "{rewards:?}");

    // In groups the others stay, and do not train.
    let both = ["--format", "group-jsonl", "--select", "best-and-worst"];
    let (file, told) = export(&setting, out.path(), "g.jsonl", &both).await;
    for group in groups(&file) {
        assert_eq!((group.trajectories.len(), group.n_ready), (6, 6));
        let rewards: Vec<Option<f64>> =
            group.trajectories.iter().filter(|one| one.trainable).map(|one| one.reward).collect();
        let differ = group.trajectories.iter().any(|one| one.reward != group.trajectories[0].reward);
        assert_eq!(rewards.len(), if differ { 2 } else { 0 }, "{rewards:?}");
        for one in group.trajectories.iter().filter(|one| !one.trainable) {
            assert!(
                one.excluded.iter().all(|excluded| excluded.reason == "not-selected"),
                "{:?}",
                one.excluded
            );
        }
    }
    if let Some(said) = checked_by_python(&[file]) {
        assert!(said[0].contains("36 trajectories"), "{said:?} {told}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rollouts_without_rows_are_refused_by_name() {
    let server = Scripted::start(Options::new(by_text(|_| "well".to_owned()))).await.unwrap();
    let parts = Parts {
        url: server.url(),
        model: "model = \"scripted\"",
        harness: FOUR_TURNS,
        world: "[[rewards]]\nplugin = \"fault-reward\"",
        groups: "size = 2",
        limits: "",
    };
    let setting = Setting::new(&plain_tasks(1), &parts);
    let text = std::fs::read_to_string(setting.file()).unwrap();
    std::fs::write(setting.file(), text.replacen("llama-cpp", "openai-chat", 1)).unwrap();
    assert_eq!(setting.run().await.state, RunEnd::Finished);
    let out = tempfile::tempdir().unwrap();
    let file = out.path().join("g.jsonl");
    for asked in [["--rows", "per-call"], ["--advantages", "grpo"], ["--credit", "nobody"]] {
        let arguments = ["export", "test", "--format", "group-jsonl", "--out", file.to_str().unwrap()];
        let told = espalier(&setting.store_folder()).args(arguments).args(asked).output().await.unwrap();
        let text = String::from_utf8_lossy(&told.stderr);
        assert!(!told.status.success() && !file.exists(), "{asked:?}: {text}");
        assert!(text.contains(".g0.r0.a0 has no rows: model `policy` gave text without token ids"), "{text}");
        assert!(text.contains("hint: use --format sft-chat or sharegpt"), "{text}");
    }
    let (_, told) = export(&setting, out.path(), "h.jsonl", &["--format", "group-jsonl"]).await;
    assert_eq!(told["groups"], 1, "as it is, it leaves: {told}");
}

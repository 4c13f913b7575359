//! GUI experiments over their whole way: prompts, rewards, rows and advantages for 0, 1 and 3 screenshots, and a removed sample.

use crate::browsers::serve;
use crate::whole::{Store, run, text};
use espalier_core::ending::StopReason;
use espalier_core::samples::{Group, GroupStatus, SpanUse, Trajectory};
use espalier_scripted::{IMAGE_PAD, Options, Prompt, Scripted, by_text, decode, tokenizer_json};
use espalier_tests::export;
use std::path::Path;

/// Answers of the five rollouts: one that is done well, one that once called no tool, one that never calls any, one that is done
/// badly, one that meets a captcha.
const ROLLOUTS: [&[&str]; 5] = [
    &[WAIT, WAIT, WAIT, GOOD],
    &["I wait.", WAIT, WAIT, GOOD],
    &["I wait.", "I wait.", "I wait."],
    &[WAIT, WAIT, WAIT, BAD],
    &[WAIT, WAIT, WAIT, CAPTCHA],
];
const WAIT: &str =
    "<think>It loads.</think><tool_call>{\"name\": \"wait\", \"arguments\": {\"seconds\": 0}}</tool_call>";
const GOOD: &str = "<think>It is there.</think><tool_call>{\"name\": \"done\", \"arguments\": {\"response\": \"good\"}}</tool_call>";
const BAD: &str = "<think>I give up.</think><tool_call>{\"name\": \"done\", \"arguments\": {\"response\": \"bad\"}}</tool_call>";
const CAPTCHA: &str = "<think>A captcha.</think><tool_call>{\"name\": \"done\", \"arguments\": {\"response\": \"captcha\"}}</tool_call>";

/// The answer of the rollout that the session names, at its turn.
fn policy(prompt: &Prompt<'_>) -> Option<String> {
    let rollout = prompt.session_id.rsplit_once(".r").and_then(|(_, index)| index.parse::<usize>().ok());
    let turn = prompt.text.matches("<|im_start|>assistant").count().checked_sub(1)?;
    let answers = ROLLOUTS.get(rollout.unwrap_or(0)).copied().unwrap_or(ROLLOUTS[0]);
    Some((*answers.get(turn).unwrap_or(&GOOD)).to_owned())
}

/// A judge that believes the final answer.
fn verdict(prompt: &str) -> String {
    let answer = prompt.split("# Final answer\n\n").nth(1).unwrap_or_default();
    let word = match answer.lines().next().unwrap_or_default() {
        "good" => "SUCCESS",
        "captcha" => "CAPTCHA",
        _ => "FAILURE",
    };
    format!("It says so.\nVERDICT: {word}")
}

async fn play(store: &Path, screenshots: u32) -> (u16, Scripted) {
    let port = serve(|_| ()).await;
    let server = Scripted::start(Options::vision(policy)).await.unwrap();
    let judge = Scripted::start(Options::new(by_text(verdict))).await.unwrap();
    std::fs::write(store.join("tokenizer.json"), tokenizer_json()).unwrap();
    std::fs::write(store.join("tasks.jsonl"), "{\"id\":\"t\",\"instruction\":\"Save it.\"}\n").unwrap();
    let text_of_file = format!(
        r#"name = "gui"
[tasks]
source = "tasks.jsonl"
[groups]
size = 5
concurrent_rollouts = 2
[browser]
start_url = "http://127.0.0.1:{port}/"
viewport = [320, 240]
network = {{ allow = ["127.0.0.1:{port}"] }}
[models.policy]
kind = "vllm"
url = "{policy}"
model = "scripted"
tokenizer = "tokenizer.json"
tool_parser = "hermes"
images = true
[models.judge]
kind = "openai-chat"
url = "{judge}"
model = "scripted"
[harness]
plugin = "gui-agent"
settings = {{ system = "Use the browser.", screenshots = {screenshots}, thought = "required" }}
[[judges]]
plugin = "gui-judge"
weight = 0.0
on_failure = "remove"
settings = {{ images = 0 }}
[[rewards]]
plugin = "gui-reward"
"#,
        policy = server.url(),
        judge = judge.url(),
    );
    let file = store.join("gui.toml");
    std::fs::write(&file, text_of_file).unwrap();
    let played = run(store, &["run", &file.display().to_string()]).await;
    assert!(played.status.success(), "{}", text(&played));
    assert_eq!(judge.counts().requests, 4, "it is not asked about `limit-format`");
    (port, server)
}

/// The prompts of the first rollout, an image as one token.
fn prompts(port: u16, screenshots: usize) -> Vec<String> {
    let tabs = format!("Tabs:\n0 (active): Orders - http://127.0.0.1:{port}/");
    let message = |role: &str, content: &str| format!("<|im_start|>{role}\n{content}<|im_end|>\n");
    let one = |call: usize| {
        let picture = |taken: usize| match taken + screenshots > call {
            _ if screenshots == 0 => "",
            true => "<|vision_start|><|image_pad|><|vision_end|>",
            false => "[an earlier image]",
        };
        let mut prompt = message("system", "Use the browser.");
        prompt += &message("user", &format!("Save it.\n\n{tabs}{}", picture(0)));
        for (answer, said) in ROLLOUTS[0].iter().enumerate().take(call) {
            prompt += &message("assistant", said);
            prompt += &message("tool", &format!("Succeed: `wait`.\n\n{tabs}"));
            if screenshots > 0 {
                prompt += &message("user", picture(answer + 1));
            }
        }
        prompt + "<|im_start|>assistant\n"
    };
    (0..4).map(one).collect()
}

/// What the server was sent for the first rollout.
fn sent(server: &Scripted) -> Vec<String> {
    let of_first = |session: &str| session.ends_with(".r0");
    let recorded = server.recorded().into_iter().filter(|one| of_first(&one.session_id));
    recorded
        .map(|one| {
            let ids =
                one.request["token_ids"].as_array().or(one.request["prompt"].as_array()).unwrap().clone();
            let mut ids: Vec<u32> = ids.iter().map(|id| id.as_u64().unwrap() as u32).collect();
            ids.dedup_by(|next, last| *next == IMAGE_PAD && *last == IMAGE_PAD);
            decode(&ids)
        })
        .collect()
}

/// What the Python package makes of histories is what the engine exports by call.
const SAME: &str = "
import sys, numpy as np
from espalier import samples
(histories,), (calls,) = (list(samples.read(path)) for path in sys.argv[1:])
mine = samples.with_advantages(samples.per_call(histories))
assert mine.images == calls.images
for one, other in zip(mine.trajectories, calls.trajectories):
    assert len(one.segments) == len(other.segments), one.traj_id
    for row, (a, b) in enumerate(zip(one.segments, other.segments)):
        for name in a.__dataclass_fields__:
            x, y = getattr(a, name), getattr(b, name)
            same = np.allclose(x, y) if isinstance(y, np.ndarray) else x == y
            assert same, (one.traj_id, row, name, x, y)
";

/// Calls that each row holds as sampled.
fn rows(trajectory: &Trajectory) -> Vec<usize> {
    let sampled = |row: &espalier_core::samples::Segment| {
        row.spans.iter().filter(|span| span.usage == SpanUse::Sampled).count()
    };
    trajectory.segments.iter().map(sampled).collect()
}

async fn exported(store: &Path, name: &str, more: &[&str]) -> (std::path::PathBuf, Group) {
    let file = store.join(name);
    let form = if name.ends_with("jsonl") { "group-jsonl" } else { "group-msgpack" };
    let out = file.display().to_string();
    export::printed(store, &[&["export", "gui", "--format", form, "--out", &out], more].concat()).await;
    let groups = if name.ends_with("jsonl") { export::groups(&file) } else { Vec::new() };
    let group = groups.into_iter().next();
    (file, group.unwrap_or_else(|| panic!("no group in {name}")))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn prompts_rewards_rows_and_advantages_are_those_of_the_definitions() {
    // By k: calls in the rows of a rollout of four answers, as histories.
    for (screenshots, histories) in [(0, &[4][..]), (1, &[1, 1, 1, 1]), (3, &[3, 1])] {
        let store = Store::new();
        let (port, server) = play(store.path(), screenshots).await;
        assert_eq!(sent(&server), prompts(port, screenshots as usize), "{screenshots} screenshots");

        let (first, group) = exported(store.path(), "histories.jsonl", &[]).await;
        assert_eq!((group.status, group.n_ready, group.n_requested), (GroupStatus::Short, 4, 5));
        assert_eq!(group.replaced, [], "a captcha would meet a replacement, too");
        let ends: Vec<_> = group.trajectories.iter().map(|one| (one.stop_reason, one.reward)).collect();
        let done = |reward| (StopReason::Submitted, reward);
        let format = (StopReason::LimitFormat, Some(-1.0));
        assert_eq!(ends, [done(Some(1.0)), done(Some(0.0)), format, done(Some(0.0)), done(None)]);
        let parts: Vec<f64> =
            group.trajectories[..4].iter().map(|one| one.reward_parts["gui-reward/format"].score).collect();
        assert_eq!(parts, [1.0, 0.0, 0.0, 1.0]);
        assert_eq!(rows(&group.trajectories[0]), histories, "{screenshots} screenshots");

        let removed = &group.trajectories[4];
        assert_eq!((removed.removed.as_deref(), removed.trainable), (Some("captcha"), false));
        let sums = removed.token_sums();
        assert_eq!((sums.trained, sums.masked + sums.dropped), (0, sums.sampled));
        assert!(removed.excluded.iter().all(|excluded| excluded.reason == "removed: captcha"));

        let asked = ["--rows", "per-call", "--advantages", "grpo-ddof1"];
        let (cut, group) = exported(store.path(), "calls.jsonl", &asked).await;
        // Mean 0, s = sqrt((1 + 0 + 1 + 0) / 3): the removed one takes no part.
        let high = (1.0 / ((2.0f64 / 3.0).sqrt() + 1e-6)) as f32;
        let answers = [4, 4, 3, 4, 4];
        let advantages = [Some(high), Some(0.0), Some(-high), Some(0.0), None];
        for ((one, answers), advantage) in group.trajectories.iter().zip(answers).zip(advantages) {
            assert_eq!(rows(one), vec![1; answers], "one row for each answer");
            for (row, number) in one.segments.iter().zip(0u32..) {
                let call = row.spans.iter().find(|span| span.usage == SpanUse::Sampled).unwrap();
                assert_eq!(one.calls[number as usize].call_id, call.call_id);
                // An answer that does not parse brings no new picture.
                if [0, 3, 4].contains(&one.rollout_index) {
                    assert_eq!(row.images.len() as u32, screenshots.min(number + 1));
                }
                let given = |mask: &u8| advantage.map(|value| if *mask == 1 { value } else { 0.0 });
                let expected: Option<Vec<f32>> = row.mask.iter().map(given).collect();
                assert_eq!(row.advantages, expected, "rollout {}", one.rollout_index);
            }
        }
        let images: u32 = (0..4).map(|call: u32| screenshots.min(call + 1)).sum();
        let of_first: usize = group.trajectories[0].segments.iter().map(|row| row.images.len()).sum();
        assert_eq!(of_first, images as usize);
        assert_eq!(group.images, group.images_in_rows());
        export::python(&["-c", SAME], &[first.clone(), cut.clone()]);
        if let Some(said) = export::checked_by_python(&[first, cut]) {
            let told = |line: &String| {
                line.contains("all invariants hold") && line.contains("images in rows") == (screenshots > 0)
            };
            assert!(said.iter().all(told), "{said:?}");
        }

        let shown = text(&run(store.path(), &["show", "gui"]).await);
        assert!(shown.contains("(removed)") && shown.contains("removed: captcha"), "{shown}");
        let shown = text(&run(store.path(), &["show", &removed.traj_id]).await);
        assert!(shown.contains("removed: captcha; it neither trains nor counts"), "{shown}");
        // A finished run has nothing to do again.
        let again = run(store.path(), &["run", &store.path().join("gui.toml").display().to_string()]).await;
        assert!(again.status.success(), "{}", text(&again));
        let (_, after) = exported(store.path(), "after.jsonl", &[]).await;
        assert_eq!(after.trajectories.len(), 5);
        assert!(store.sandboxes().await.is_empty());
    }
}

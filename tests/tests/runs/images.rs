//! Images in whole runs: what the server is sent, what trainers get, and models that take none.

use crate::setting::{Parts, Setting, plain_tasks};
use espalier_core::samples::GroupStatus;
use espalier_daemon::engine::RunEnd;
use espalier_scripted::{IMAGE_PAD, Options, Scripted, by_text, tokenizer_json};
use espalier_tests::export;
use std::collections::BTreeSet;

const GROUPS: &str = "size = 2\nreplacements = 0\nconcurrent_rollouts = 1";

/// An experiment whose harness shows `times` screens and keeps the last `keep`.
fn setting(url: &str, kind: &str, times: u32, keep: u32, model: &str) -> Setting {
    let harness = format!(
        "plugin = \"fault-harness\"\nsettings = {{ fault = \"screens\", times = {times}, keep = {keep} }}"
    );
    let tokenizer = if kind == "vllm" { "tokenizer = \"tokenizer.json\"\n" } else { "" };
    let model = format!("model = \"scripted\"\n{tokenizer}{model}");
    let parts = Parts {
        url,
        harness: &harness,
        world: "[[rewards]]\nplugin = \"fault-reward\"\n",
        groups: GROUPS,
        limits: "",
        model: &model,
    };
    let setting = Setting::new(&plain_tasks(1), &parts);
    let text = std::fs::read_to_string(setting.file()).unwrap();
    std::fs::write(setting.file(), text.replacen("llama-cpp", kind, 1)).unwrap();
    std::fs::write(setting.file().with_file_name("tokenizer.json"), tokenizer_json()).unwrap();
    setting
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn groups_leave_with_images_by_digest_and_place() {
    let server = Scripted::start(Options::vision(by_text(|_| "on".to_owned()))).await.unwrap();
    let setting = setting(server.url(), "vllm", 3, 1, "images = true");
    assert_eq!(setting.run().await.state, RunEnd::Finished);
    assert_eq!(setting.left().await.groups, [Some(GroupStatus::Ready)]);
    // Four answers of each of two rollouts; the first has seen no screen yet, the others the last one alone.
    let sent: Vec<usize> = server
        .recorded()
        .iter()
        .map(|one| one.request["features"]["mm_hashes"]["image"].as_array().map_or(0, Vec::len))
        .collect();
    assert_eq!(sent, [0, 1, 1, 1, 0, 1, 1, 1]);

    let folder = tempfile::tempdir().unwrap();
    let files = export::files(&setting.store_folder(), "test", folder.path()).await;
    let groups = export::groups(&files[0]);
    let mut digests = BTreeSet::new();
    for trajectory in &groups[0].trajectories {
        assert!(trajectory.trainable);
        let sums = trajectory.token_sums();
        assert_eq!((sums.trained, sums.dropped), (sums.sampled, 0), "an elision loses no sampled token");
        let kinds: Vec<Option<&str>> =
            trajectory.segments.iter().map(|segment| segment.drift_kind.as_deref()).collect();
        assert_eq!(kinds, [None, Some("elide"), Some("elide")]);
        for segment in &trajectory.segments {
            let [image] = &segment.images[..] else { panic!("{:?}", segment.images) };
            let tokens = &segment.tokens[image.start as usize..][..image.len as usize];
            assert!(tokens.iter().all(|id| *id == IMAGE_PAD), "{tokens:?}");
            assert_eq!(segment.tokens.iter().filter(|id| **id == IMAGE_PAD).count(), image.len as usize);
            digests.insert(image.digest.clone());
        }
    }
    assert_eq!((groups[0].images, digests.len()), (6, 3), "both rollouts were shown the same three");
    for file in &files {
        let mut beside = file.as_os_str().to_owned();
        beside.push(".images");
        for digest in &digests {
            let pixels = std::fs::read(std::path::Path::new(&beside).join(format!("{digest}.png"))).unwrap();
            assert!(String::from_utf8_lossy(&pixels).contains("screen "));
        }
    }
    if let Some(said) = export::checked_by_python(&files) {
        assert!(said.iter().all(|line| line.ends_with("; 6 images in rows")), "{said:?}");
    }
    // What the command says of them.
    let out = folder.path().join("told.jsonl").display().to_string();
    let arguments = ["export", "test", "--format", "group-jsonl", "--out", &out, "--json"];
    let told = export::printed(&setting.store_folder(), &arguments).await;
    let told: serde_json::Value = serde_json::from_str(&told).unwrap();
    assert_eq!((&told["images"], &told["image_files"]), (&6.into(), &3.into()), "{told}");
    assert_eq!(told["images_folder"].as_str(), Some(format!("{out}.images").as_str()));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_chat_server_gets_them_behind_the_tool_results_and_nothing_of_it_trains() {
    let server = Scripted::start(Options::vision(by_text(|_| "on".to_owned()))).await.unwrap();
    let setting = setting(server.url(), "openai-chat", 2, 1, "images = true");
    assert_eq!(setting.run().await.state, RunEnd::Finished);
    let left = setting.left().await;
    for (_, record) in left.finals() {
        assert!(!record.trajectory.trainable, "an endpoint of text gives no token ids");
        let elided: Vec<u32> = record.transcript.turns.iter().map(|turn| turn.images_elided).collect();
        assert_eq!(elided, [0, 0, 1], "the record says what each answer was shown");
    }
    let asked = server.recorded();
    // The first request tries the server before the first rollout.
    assert_eq!(asked.len(), 1 + 2 * 3);
    let roles = |request: &serde_json::Value| {
        let messages = request["messages"].as_array().unwrap().iter();
        messages.map(|message| message["role"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let last = &asked[3].request;
    assert_eq!(roles(last), ["user", "assistant", "tool", "user", "assistant", "tool", "user"]);
    assert_eq!(last["messages"][3]["content"], "[an earlier image]");
    assert_eq!(last["messages"][6]["content"][0]["type"], "image_url");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_model_without_images_is_refused_before_the_first_rollout_where_it_is_known() {
    let server = Scripted::start(Options::new(by_text(|_| "on".to_owned()))).await.unwrap();
    let told = setting(server.url(), "vllm", 1, 1, "images = true");
    let error = told.run_with(told.options()).await.err().map(|error| format!("{error:?}")).unwrap();
    assert!(
        error.contains("the model takes no images") && error.contains("not a multimodal model"),
        "{error}"
    );
    assert_eq!(server.counts().requests, 0, "no rollout has begun");

    // Not said beforehand: the harness learns it with its first image.
    let untold = setting(server.url(), "vllm", 1, 1, "");
    untold.run().await;
    for (_, record) in untold.left().await.finals() {
        let error = &record.trajectory.errors[0].text;
        assert!(error.contains("contains an image, but model \"policy\" takes none"), "{error}");
    }
}

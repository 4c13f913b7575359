//! What leaves the store.

use crate::on_both;
use crate::sample::{NOW, closed, ended, opened, play, record, spec, started, stranger};
use espalier_core::chat::{Message, Part, Role, ToolCall, ToolResult};
use espalier_core::samples::advantages::Advantages;
use espalier_core::samples::{Group, GroupStatus, ImageSpan};
use espalier_core::trajectory::{ConversationLog, Turn};
use espalier_store::export::{ExportError, ExportOptions, Format, Images, ToolArguments};
use espalier_store::{Finality, GroupOpened, RunWriter, Start, Store};
use serde_json::{Value, json};
use std::path::Path;

pub(crate) async fn played(store: &Store) -> RunWriter {
    let run = store.claim_run(&spec("a", 1), &stranger(1), Start::Resume, NOW).await.unwrap().run;
    run.open_group(opened(0)).await.unwrap();
    play(&run, 0, 0, 0, Some(1.0), Finality::Final).await.unwrap();
    play(&run, 0, 1, 0, None, Finality::Final).await.unwrap();
    play(&run, 0, 2, 0, Some(0.5), Finality::Final).await.unwrap();
    run.close_group(closed(0, GroupStatus::Ready, 2, &[1])).await.unwrap();
    run.open_group(opened(1)).await.unwrap();
    play(&run, 1, 0, 0, None, Finality::Final).await.unwrap();
    run.close_group(closed(1, GroupStatus::Failed, 0, &[])).await.unwrap();
    run.open_group(opened(2)).await.unwrap();
    play(&run, 2, 0, 0, Some(0.0), Finality::Final).await.unwrap();
    play(&run, 2, 1, 0, None, Finality::Final).await.unwrap();
    run.close_group(closed(2, GroupStatus::Short, 1, &[])).await.unwrap();
    run.open_group(opened(3)).await.unwrap();
    run
}

fn lines(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap();
    assert!(text.ends_with('\n'));
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap().flatten();
    let mut names: Vec<String> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

on_both! {
    async fn both_forms_hold_the_same_groups(backend: Backend) {
        let store = backend.open().await;
        let run = played(&store).await;
        let out = tempfile::tempdir().unwrap();
        let (jsonl, msgpack) = (out.path().join("g.jsonl"), out.path().join("g.msgpack"));
        let summary = store.export(&ExportOptions::new(run.run_id(), Format::GroupJsonl), &jsonl).await.unwrap();
        assert_eq!((summary.groups, summary.trajectories, summary.records), (2, 5, 2));
        assert!(summary.tokens.close());
        assert_eq!(summary.bytes, std::fs::metadata(&jsonl).unwrap().len());
        store.export(&ExportOptions::new(run.run_id(), Format::GroupMsgpack), &msgpack).await.unwrap();
        assert_eq!(names(out.path()), ["g.jsonl", "g.msgpack"]);
        let text = std::fs::read_to_string(&jsonl).unwrap();
        let from_lines: Vec<Group> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let bytes = std::fs::read(&msgpack).unwrap();
        let (mut rest, mut from_msgpack) = (&bytes[..], Vec::<Group>::new());
        while let Some((length, tail)) = rest.split_first_chunk::<4>() {
            let (body, tail) = tail.split_at(u32::from_le_bytes(*length) as usize);
            from_msgpack.push(rmp_serde::from_slice(body).unwrap());
            rest = tail;
        }
        assert_eq!(from_lines, from_msgpack);
        let first = &from_lines[0];
        assert_eq!(first.trajectories[1], record(run.run_id(), 0, 2, 0, Some(0.5)).trajectory);
        assert_eq!(first.replaced[0], record(run.run_id(), 0, 1, 0, None).trajectory);
        // The form itself: shortest numbers, codes, no absent keys, reward always there.
        assert!(text.contains(r#""logprobs":[0.0,0.0,-0.1,-1e-7,-3.25,0.0]"#), "{text}");
        assert!(text.contains(r#""origin":[0,0,1,1,1,2]"#) && text.contains(r#""reward":null"#));
        let row = &lines(&jsonl)[0]["trajectories"][0]["segments"][0];
        for absent in ["advantages", "parent_segment", "drift_kind"] {
            assert!(row.get(absent).is_none(), "{absent}");
        }
    }

    async fn images_leave_beside_or_in_the_groups_and_are_counted(backend: Backend) {
        let store = backend.open().await;
        let run = store.claim_run(&spec("a", 1), &stranger(1), Start::Resume, NOW).await.unwrap().run;
        run.open_group(opened(0)).await.unwrap();
        let png = b"\x89PNG\r\n\x1a\n and more".to_vec();
        let digest = store.blobs().put(png.clone()).await.unwrap();
        for rollout in 0..2 {
            run.attempt_started(started(0, rollout, 0)).await.unwrap();
            let mut shown = record(run.run_id(), 0, rollout, 0, Some(1.0));
            let image = ImageSpan { digest: digest.clone(), start: 0, len: 2 };
            shown.trajectory.segments[0].images.push(image);
            let transcript = &mut shown.transcript;
            transcript.conversations[0].opening[1].parts.push(Part::Image(digest.clone()));
            transcript.turns[0].results[0].parts.push(Part::Image(digest.clone()));
            transcript.turns[0].images_elided = 1;
            run.attempt_ended(ended(shown, Finality::Final)).await.unwrap();
        }
        run.close_group(closed(0, GroupStatus::Ready, 2, &[])).await.unwrap();
        let out = tempfile::tempdir().unwrap();
        let export = async |images: Images, format: Format, name: &str| {
            let options = ExportOptions { images, ..ExportOptions::new(run.run_id(), format) };
            store.export(&options, &out.path().join(name)).await.unwrap()
        };
        for _ in 0..2 {
            let beside = export(Images::Beside, Format::GroupJsonl, "g.jsonl").await;
            assert_eq!((beside.images, beside.image_files, beside.image_bytes), (2, 1, png.len() as u64));
            assert_eq!(beside.images_folder, Some(out.path().join("g.jsonl.images")));
            assert_eq!(names(out.path()), ["g.jsonl", "g.jsonl.images"]);
            let file = out.path().join("g.jsonl.images").join(format!("{digest}.png"));
            assert_eq!(std::fs::read(file).unwrap(), png);
        }
        let line = &lines(&out.path().join("g.jsonl"))[0];
        assert_eq!((&line["images"], line.get("image_data")), (&Value::from(2), None));
        let text = std::fs::read_to_string(out.path().join("g.jsonl")).unwrap();
        assert!(text.starts_with(r#"{"schema":"group/v1","images":2,"#), "{text}");

        export(Images::Embed, Format::GroupJsonl, "e.jsonl").await;
        let line = &lines(&out.path().join("e.jsonl"))[0];
        let data = &line["image_data"][&digest];
        assert_eq!((&data["media_type"], &data["data"]), (&"image/png".into(), &"iVBORw0KGgogYW5kIG1vcmU=".into()));
        let embedded = export(Images::Embed, Format::GroupMsgpack, "e.msgpack").await;
        assert_eq!((embedded.image_files, embedded.images_folder), (1, None));
        let bytes = std::fs::read(out.path().join("e.msgpack")).unwrap();
        assert!(bytes.windows(png.len()).any(|window| window == png));
        let group: Group = rmp_serde::from_slice(&bytes[4..]).unwrap();
        assert_eq!(group.images, 2, "a reader skips what it does not know");
        let omitted = export(Images::Omit, Format::GroupMsgpack, "o.msgpack").await;
        assert_eq!((omitted.images, omitted.image_files), (2, 0));
        assert_eq!(names(out.path()), ["e.jsonl", "e.msgpack", "g.jsonl", "g.jsonl.images", "o.msgpack"]);

        let chat = export(Images::Beside, Format::SftChat, "chat.jsonl").await;
        assert_eq!((chat.images, chat.image_files), (2, 1));
        let row = &lines(&out.path().join("chat.jsonl"))[0];
        let content = |at: usize| &row["messages"][at]["content"];
        assert_eq!((content(1), &row["images"]), (&json!([{"type": "text", "text": "craft a stick"}, {"type": "text", "text": "[an earlier image]"}]), &Value::from([digest.as_str()])));
        assert_eq!(content(3), &json!([{"type": "text", "text": "got 1 log"}, {"type": "image"}]));
        assert!(out.path().join("chat.jsonl.images").join(format!("{digest}.png")).is_file());
        export(Images::Omit, Format::Sharegpt, "share.jsonl").await;
        let row = &lines(&out.path().join("share.jsonl"))[0];
        // What follows the last answer is in no row of this form, so neither is its image; the first was elided.
        assert_eq!(row["conversations"][1]["value"], "craft a stick[an earlier image]");
        assert!(row.get("images").is_none());
        assert!(!out.path().join("share.jsonl.images").exists());

        // Documents have parts for images, with the paths of their files from where they lie.
        let path = |folder: &str| json!({"type": "image", "source": {"media_type": "image/png", "path": format!("{folder}/{digest}.png")}});
        let name = format!("{}.g0.r0.a0.json", run.run_id());
        let atif = export(Images::Beside, Format::Atif, "atif").await;
        assert_eq!((atif.images, atif.image_files, atif.images_folder), (4, 1, Some(out.path().join("atif/images"))));
        let read = |file: &Path| serde_json::from_str::<Value>(&std::fs::read_to_string(file).unwrap()).unwrap();
        let document = read(&out.path().join("atif").join(&name));
        let step = |at: usize| &document["steps"][at];
        assert_eq!(step(1)["message"], json!([{"type": "text", "text": "craft a stick"}, path("images")]));
        assert_eq!(step(0)["message"].as_str().map(str::is_empty), Some(false), "text alone stays text");
        assert_eq!(std::fs::read(out.path().join(format!("atif/images/{digest}.png"))).unwrap(), png);
        export(Images::Beside, Format::Atif, "a.jsonl").await;
        let in_lines = &lines(&out.path().join("a.jsonl"))[0];
        assert_eq!(in_lines["steps"][1]["message"][1], path("a.jsonl.images"));
        assert!(out.path().join(format!("a.jsonl.images/{digest}.png")).is_file());
        export(Images::Omit, Format::Atif, "named").await;
        let document = read(&out.path().join("named").join(name));
        assert_eq!((&document["steps"][1]["message"], &document["steps"][1]["extra"]["images"]), (&"craft a stick".into(), &json!([digest])));
    }

    async fn each_answer_trains_with_the_images_that_it_was_given_to(backend: Backend) {
        let store = backend.open().await;
        let run = store.claim_run(&spec("a", 1), &stranger(1), Start::Resume, NOW).await.unwrap().run;
        run.open_group(opened(0)).await.unwrap();
        let mut digests = Vec::new();
        for number in 0..4u8 {
            let image = [b"\x89PNG\r\n\x1a\n".as_slice(), &[number]].concat();
            digests.push(store.blobs().put(image).await.unwrap());
        }
        // Of four pictures the last is shown, but for the second answer, which is given to the same as the first.
        run.attempt_started(started(0, 0, 0)).await.unwrap();
        let mut shown = record(run.run_id(), 0, 0, 0, Some(1.0));
        let transcript = &mut shown.transcript;
        transcript.conversations[0].opening[1].parts.push(Part::Image(digests[0].clone()));
        let first = transcript.turns[0].clone();
        transcript.turns.clear();
        for (index, elided) in [(0u32, 0u32), (1, 0), (2, 2), (3, 3)] {
            let mut turn = Turn { index, images_elided: elided, ..first.clone() };
            turn.message = Message::text(Role::Assistant, format!("answer {index}"));
            if index < 3 {
                turn.results[0].parts.push(Part::Image(digests[index as usize + 1].clone()));
            }
            transcript.turns.push(turn);
        }
        run.attempt_ended(ended(shown, Finality::Final)).await.unwrap();
        run.close_group(closed(0, GroupStatus::Short, 1, &[])).await.unwrap();
        let out = tempfile::tempdir().unwrap();
        for format in [Format::SftChat, Format::Sharegpt] {
            let file = out.path().join(format.as_str());
            store.export(&ExportOptions::new(run.run_id(), format), &file).await.unwrap();
            let rows = lines(&file);
            let told: Vec<(Vec<String>, usize)> = rows
                .iter()
                .map(|row| {
                    let messages = row["messages"].as_array().or(row["conversations"].as_array()).unwrap();
                    let is_answer = |message: &&Value| message["role"] == "assistant" || message["from"] == "gpt";
                    let answers = messages.iter().filter(is_answer);
                    let learned = answers.filter(|answer| answer.get("weight").is_none());
                    let text = |answer: &Value| answer["content"][0]["text"].as_str().or(answer["value"].as_str()).unwrap().to_owned();
                    (learned.map(text).collect(), row["images"].as_array().unwrap().len())
                })
                .collect();
            let row = |answers: &[&str], images: usize| (answers.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>(), images);
            // The second answer stands behind two pictures, both shown.
            assert_eq!(told, [row(&["answer 0", "answer 1"], 2), row(&["answer 2"], 1), row(&["answer 3"], 1)], "{}", format.as_str());
            assert_eq!(rows[1]["images"], json!([digests[2]]));
        }
    }

    async fn status_and_model_choose_the_groups(backend: Backend) {
        let store = backend.open().await;
        let run = played(&store).await;
        let out = tempfile::tempdir().unwrap();
        let count = async |status: &[GroupStatus], model: Option<&str>, name: &str| {
            let mut options = ExportOptions::new(run.run_id(), Format::GroupJsonl);
            options.status = status.to_vec();
            options.model = model.map(str::to_owned);
            store.export(&options, &out.path().join(name)).await.unwrap().groups
        };
        assert_eq!(count(&[GroupStatus::Ready], None, "a").await, 1);
        assert_eq!(count(&[GroupStatus::Failed, GroupStatus::Short], None, "b").await, 2);
        assert_eq!(count(&[GroupStatus::Ready], Some("judge"), "c").await, 0);
        assert_eq!(count(&[GroupStatus::Ready], Some("policy"), "d").await, 1);
    }

    async fn advantages_are_whitened_over_the_groups_of_the_export(backend: Backend) {
        let store = backend.open().await;
        let run = played(&store).await;
        let out = tempfile::tempdir().unwrap();
        let of = async |advantages: Advantages, status: &[GroupStatus]| {
            let options = ExportOptions {
                advantages: Some(advantages),
                status: status.to_vec(),
                ..ExportOptions::new(run.run_id(), Format::GroupJsonl)
            };
            let path = out.path().join("g.jsonl");
            store.export(&options, &path).await.unwrap();
            let text = std::fs::read_to_string(path).unwrap();
            let groups: Vec<Group> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
            let all = groups.into_iter().flat_map(|group| group.trajectories);
            all.map(|one| one.segments[0].advantages.as_ref().map(|of| of[2])).collect::<Vec<_>>()
        };
        let both = [GroupStatus::Ready, GroupStatus::Short];
        // Rewards 1, 0.5 and 0, none; two tokens each: mean 1/2, deviation sqrt(1/6).
        let high = (0.5 / (1.0f64 / 6.0).sqrt()) as f32;
        assert_eq!(of(Advantages::ReinforcePlusPlus, &both).await, [Some(high), Some(0.0), Some(-high), None]);
        assert_eq!(of(Advantages::ReinforcePlusPlus, &both[..1]).await, [Some(1.0), Some(-1.0)]);
        // 1/4, -1/4 and 0: mean 0, deviation sqrt(1/24).
        let high = (0.25 / (1.0f64 / 24.0).sqrt()) as f32;
        let expected = [Some(high), Some(-high), Some(0.0), None];
        assert_eq!(of(Advantages::ReinforcePlusPlusBaseline, &both).await, expected);
        assert_eq!(of(Advantages::Rloo, &both).await, [Some(0.5), Some(-0.5), Some(0.0), None]);
    }

    async fn a_group_that_breaks_a_rule_does_not_leave(backend: Backend) {
        let store = backend.open().await;
        let run = store.claim_run(&spec("a", 1), &stranger(1), Start::Resume, NOW).await.unwrap().run;
        run.open_group(opened(0)).await.unwrap();
        run.attempt_started(started(0, 0, 0)).await.unwrap();
        let mut bad = record(run.run_id(), 0, 0, 0, Some(1.0));
        bad.trajectory.excluded.clear();
        run.attempt_ended(ended(bad, Finality::Final)).await.unwrap();
        run.close_group(closed(0, GroupStatus::Short, 1, &[])).await.unwrap();
        let out = tempfile::tempdir().unwrap();
        let path = out.path().join("g.jsonl");
        std::fs::write(&path, "an older export\n").unwrap();
        let error = store.export(&ExportOptions::new(run.run_id(), Format::GroupJsonl), &path).await.unwrap_err();
        assert!(matches!(&error, ExportError::Violation { group_id, .. } if group_id.ends_with(".g0")), "{error}");
        assert!(error.to_string().contains("1 of 3 tokens of call"), "{error}");
        assert_eq!(names(out.path()), ["g.jsonl"]);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "an older export\n");
    }

    async fn only_a_regular_file_is_replaced(backend: Backend) {
        let store = backend.open().await;
        let run = played(&store).await;
        let out = tempfile::tempdir().unwrap();
        let at = |name: &str| out.path().join(name);
        let options = ExportOptions::new(run.run_id(), Format::GroupJsonl);
        store.export(&options, &at("plain.jsonl")).await.unwrap();
        let expect = std::fs::read(at("plain.jsonl")).unwrap();
        // A named pipe is written into, and stays one.
        assert!(std::process::Command::new("mkfifo").arg(at("pipe")).status().unwrap().success());
        let pipe = at("pipe");
        let reader = tokio::task::spawn_blocking(move || std::fs::read(pipe).unwrap());
        store.export(&options, &at("pipe")).await.unwrap();
        assert_eq!(reader.await.unwrap(), expect);
        assert!(std::os::unix::fs::FileTypeExt::is_fifo(&std::fs::symlink_metadata(at("pipe")).unwrap().file_type()));
        // A link stays a link: what it means is replaced, or made.
        std::fs::create_dir(at("elsewhere")).unwrap();
        std::fs::write(at("elsewhere/old.jsonl"), "an older export, longer than nothing\n").unwrap();
        for (link, target) in [("old", "elsewhere/old.jsonl"), ("new", "elsewhere/new.jsonl")] {
            std::os::unix::fs::symlink(target, at(link)).unwrap();
            store.export(&options, &at(link)).await.unwrap();
            assert!(at(link).is_symlink(), "{link}");
            assert_eq!(std::fs::read(at(target)).unwrap(), expect, "{link}");
        }
        assert_eq!(names(out.path()), ["elsewhere", "new", "old", "pipe", "plain.jsonl"]);
        assert_eq!(names(&at("elsewhere")), ["new.jsonl", "old.jsonl"]);
    }

    async fn conversations_of_scored_rollouts(backend: Backend) {
        let store = backend.open().await;
        let run = played(&store).await;
        let out = tempfile::tempdir().unwrap();
        let path = out.path().join("chat.jsonl");
        let summary = store.export(&ExportOptions::new(run.run_id(), Format::SftChat), &path).await.unwrap();
        assert_eq!(summary.records, 3);
        let rows = lines(&path);
        assert_eq!(
            rows[0],
            json!({
                "messages": [
                    {"role": "system", "content": "play"},
                    {"role": "user", "content": "craft a stick"},
                    {"role": "assistant", "content": "get 1 log"},
                    {"role": "user", "content": "got 1 log"},
                ],
                "traj_id": format!("{}.g0.r0.a0", run.run_id()),
                "task_id": "task-0",
                "reward": 1.0,
                "stop_reason": "submitted",
            })
        );
        store.export(&ExportOptions::new(run.run_id(), Format::Sharegpt), &path).await.unwrap();
        let said = &lines(&path)[0]["conversations"];
        let from: Vec<&str> = said.as_array().unwrap().iter().map(|one| one["from"].as_str().unwrap()).collect();
        assert_eq!(from, ["system", "human", "gpt"]);
    }

    async fn calls_and_their_results_are_written_with_ids_that_match(backend: Backend) {
        let store = backend.open().await;
        let run = store.claim_run(&spec("a", 1), &stranger(1), Start::Resume, NOW).await.unwrap().run;
        run.open_group(GroupOpened { n_requested: 4, ..opened(0) }).await.unwrap();
        run.attempt_started(started(0, 0, 0)).await.unwrap();
        let mut called = record(run.run_id(), 0, 0, 0, Some(1.0));
        let turn = called.transcript.turns[0].clone();
        let call = |id: &str, arguments: &str| ToolCall {
            id: id.into(), name: "click".into(), arguments: arguments.into(),
        };
        let result = |id: &str, text: &str| Message {
            role: Role::Tool,
            parts: vec![Part::ToolResult(ToolResult { call_id: id.into(), text: text.into(), is_error: false })],
            extra: None,
        };
        // The calls of the first answer stand beside its text; those of the second in it; their ids repeat, or are empty.
        let turns = [
            ("I click.", vec![call("c", r#"{"at":[1,2]}"#), call("d", "{}")], vec![], vec![result("d", "two"), result("c", "one")]),
            ("<think>so</think><call/>", vec![call("c", r#"{"at":"x"}"#)], vec![(17, 24)], vec![result("c", "three")]),
            ("", vec![call("", "{}")], vec![], vec![Message::text(Role::Tool, "four"), Message::text(Role::User, "look")]),
            ("done", vec![], vec![], vec![Message::text(Role::User, "ended")]),
        ];
        called.transcript.turns = (0u32..).zip(turns)
            .map(|(index, (text, tool_calls, calls_at, results))| Turn {
                index,
                call_id: format!("text.{index}"),
                message: Message::text(Role::Assistant, text),
                tool_calls, calls_at, results,
                ..turn.clone()
            })
            .collect();
        run.attempt_ended(ended(called.clone(), Finality::Final)).await.unwrap();
        // Others name ids that nothing has, answer half, or do not say where their calls stand.
        let mut left_out = Vec::new();
        for (rollout, fault) in (1..).zip(["result", "call", "text"]) {
            let mut bad = record(run.run_id(), 0, rollout, 0, Some(1.0));
            bad.transcript.turns = called.transcript.turns.clone();
            let turns = &mut bad.transcript.turns;
            match fault {
                "result" => turns[1].results[0] = result("e", "three"),
                "call" => { turns[0].results.remove(0); }
                _ => turns[0].call_id.clone_from(&turn.call_id.replace("g0.r0", &format!("g0.r{rollout}"))),
            }
            left_out.push(bad.trajectory.traj_id.clone());
            run.attempt_started(started(0, rollout, 0)).await.unwrap();
            run.attempt_ended(ended(bad, Finality::Final)).await.unwrap();
        }
        run.close_group(closed(0, GroupStatus::Ready, 4, &[])).await.unwrap();
        let out = tempfile::tempdir().unwrap();
        let path = out.path().join("chat.jsonl");
        let mut options = ExportOptions::new(run.run_id(), Format::SftChat);
        let summary = store.export(&options, &path).await.unwrap();
        assert_eq!((summary.records, summary.ids_replaced), (1, 3));
        let counts = [("call-without-answer", 1), ("calls-in-text", 1), ("result-without-call", 1)];
        assert_eq!(summary.left_out, counts.into());
        let first = format!(
            "conversation 0 of {}: message 6 is the result of the call \"e\", which no answer before it made",
            left_out[0],
        );
        assert_eq!(summary.left_out_first, Some(first));
        let text_call = |id: &str, arguments: &str| json!({
            "id": id, "type": "function", "function": {"name": "click", "arguments": arguments},
        });
        let row = lines(&path).remove(0);
        assert_eq!(
            row["messages"].as_array().unwrap()[2..],
            [
                json!({"role": "assistant", "content": "I click.", "tool_calls": [
                    text_call("c", r#"{"at":[1,2]}"#), text_call("d", "{}"),
                ]}),
                json!({"role": "tool", "tool_call_id": "d", "content": "two"}),
                json!({"role": "tool", "tool_call_id": "c", "content": "one"}),
                json!({"role": "assistant", "content": "<think>so</think>", "tool_calls": [
                    text_call("c-2", r#"{"at":"x"}"#),
                ]}),
                json!({"role": "tool", "tool_call_id": "c-2", "content": "three"}),
                json!({"role": "assistant", "content": "", "tool_calls": [text_call("call-2", "{}")]}),
                json!({"role": "tool", "tool_call_id": "call-2", "content": "four"}),
                json!({"role": "user", "content": "look"}),
                json!({"role": "assistant", "content": "done"}),
                json!({"role": "user", "content": "ended"}),
            ]
        );
        options.tool_arguments = ToolArguments::Object;
        store.export(&options, &path).await.unwrap();
        let arguments = &lines(&path)[0]["messages"][2]["tool_calls"][0]["function"]["arguments"];
        assert_eq!(*arguments, json!({"at": [1, 2]}));

        options.format = Format::Sharegpt;
        let summary = store.export(&options, &path).await.unwrap();
        assert_eq!((summary.records, summary.left_out), (1, counts.into()));
        let said: Vec<(String, String)> = lines(&path)[0]["conversations"].as_array().unwrap()[1..].iter()
            .map(|one| (one["from"].as_str().unwrap().to_owned(), one["value"].as_str().unwrap().to_owned()))
            .collect();
        let said: Vec<(&str, &str)> = said.iter().map(|(from, value)| (from.as_str(), value.as_str())).collect();
        assert_eq!(
            said,
            [
                ("human", "craft a stick"),
                (
                    "function_call",
                    "<think>\nI click.\n</think>\n[{\"name\":\"click\",\"arguments\":{\"at\":[1,2]}},{\"name\":\"click\",\"arguments\":{}}]",
                ),
                ("observation", "two\none"),
                ("function_call", "<think>so</think>\n[{\"name\":\"click\",\"arguments\":{\"at\":\"x\"}}]"),
                ("observation", "three"),
                ("function_call", "[{\"name\":\"click\",\"arguments\":{}}]"),
                ("observation", "four\nlook"),
                ("gpt", "done"),
            ]
        );
    }

    async fn a_fork_carries_its_parents_past_as_context(backend: Backend) {
        let store = backend.open().await;
        let run = store.claim_run(&spec("a", 1), &stranger(1), Start::Resume, NOW).await.unwrap().run;
        run.open_group(opened(0)).await.unwrap();
        run.attempt_started(started(0, 0, 0)).await.unwrap();
        let mut branched = record(run.run_id(), 0, 0, 0, Some(1.0));
        let transcript = &mut branched.transcript;
        // Forked behind the first answer's result; the parent goes on, and is rewritten; one fork is dropped.
        let log = |inherited, opening: &[(Role, &str)], discarded| ConversationLog {
            model: "policy".into(),
            opening: opening.iter().map(|(role, text)| Message::text(*role, *text)).collect(),
            tools: Vec::new(),
            forked_from: Some(0),
            inherited,
            discarded,
        };
        transcript.conversations.push(log(4, &[(Role::User, "think")], false));
        transcript.conversations.push(log(0, &[(Role::User, "in short"), (Role::Assistant, "an example")], false));
        transcript.conversations.push(log(4, &[], true));
        for (conversation, text) in [(0, "more"), (1, "branch"), (2, "afresh"), (3, "dropped")] {
            let message = Message::text(Role::Assistant, text);
            let call_id = format!("else.{conversation}");
            let turn = Turn { conversation, message, call_id, results: Vec::new(), ..transcript.turns[0].clone() };
            transcript.turns.push(turn);
        }
        run.attempt_ended(ended(branched, Finality::Final)).await.unwrap();
        run.close_group(closed(0, GroupStatus::Short, 1, &[])).await.unwrap();
        let out = tempfile::tempdir().unwrap();
        let path = out.path().join("chat.jsonl");
        store.export(&ExportOptions::new(run.run_id(), Format::SftChat), &path).await.unwrap();
        let told = |row: &Value| -> Vec<String> {
            let messages = row["messages"].as_array().unwrap().iter();
            messages
                .map(|message| {
                    let mark = if message["weight"] == 0 { " (context)" } else { "" };
                    format!("{}{mark}", message["content"].as_str().unwrap())
                })
                .collect()
        };
        let rows: Vec<Vec<String>> = lines(&path).iter().map(told).collect();
        assert_eq!(
            rows,
            [
                vec!["play", "craft a stick", "get 1 log", "got 1 log", "more"],
                vec!["play", "craft a stick", "get 1 log (context)", "got 1 log", "think", "branch"],
                vec!["in short", "an example (context)", "afresh"],
            ]
        );
    }

    async fn trajectories_in_harbors_form(backend: Backend) {
        let store = backend.open().await;
        let run = played(&store).await;
        let out = tempfile::tempdir().unwrap();
        let folder = out.path().join("atif");
        let options = ExportOptions::new(run.run_id(), Format::Atif);
        let summary = store.export(&options, &folder).await.unwrap();
        assert_eq!(summary.records, 5);
        let file = folder.join(format!("{}.g0.r0.a0.json", run.run_id()));
        let document: Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
        assert_eq!(document["schema_version"], "ATIF-v1.8");
        let steps = document["steps"].as_array().unwrap();
        let sources: Vec<&str> = steps.iter().map(|step| step["source"].as_str().unwrap()).collect();
        assert_eq!(sources, ["system", "user", "agent", "user"]);
        let metrics = &steps[2]["metrics"];
        assert_eq!(metrics["completion_token_ids"], json!([10, 11, 12]));
        assert_eq!(metrics["logprobs"].to_string(), "[-0.1,-1e-7,-3.25]");
        assert_eq!(metrics["extra"]["mask"], json!([1, 1, 0]));
        assert_eq!(metrics["extra"]["versions"], json!([[0, 3, "base", null]]));
        assert_eq!(steps[2]["extra"]["environment_steps"][0]["action"], "get 1 log");
        assert_eq!(document["final_metrics"]["extra"]["reward"], 1.0);
        let again = store.export(&options, &folder).await.unwrap_err();
        assert!(matches!(again, ExportError::Exists(_)), "{again}");
        let file = out.path().join("atif.jsonl");
        store.export(&options, &file).await.unwrap();
        assert_eq!(lines(&file).len(), 5);
    }
}

//! `sft-chat` and `sharegpt` of rollouts whose model called tools: calls and results with ids, whatever the model gave.

use crate::setting::{Parts, Setting, plain_tasks};
use espalier_daemon::engine::RunEnd;
use espalier_scripted::{Options, Scripted, by_text};
use espalier_tests::export::printed;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// An experiment whose harness offers the tool `click` and carries each call out.
fn setting(url: &str, kind: &str, model: &str, keep: u32) -> Setting {
    let harness =
        format!("plugin = \"fault-harness\"\nsettings = {{ fault = \"tools\", times = 4, keep = {keep} }}");
    let model = format!("model = \"scripted\"\n{model}");
    let parts = Parts {
        url,
        harness: &harness,
        world: "[[rewards]]\nplugin = \"fault-reward\"\n",
        groups: "size = 2\nconcurrent_rollouts = 1",
        limits: "",
        model: &model,
    };
    let setting = Setting::new(&plain_tasks(2), &parts);
    let text = std::fs::read_to_string(setting.file()).unwrap();
    std::fs::write(
        setting.file(),
        text.replacen("llama-cpp", kind, 1).replace("max_tokens = 64", "max_tokens = 512"),
    )
    .unwrap();
    setting
}

/// The rows of an export, and what the command says of it.
async fn exported(setting: &Setting, format: &[&str]) -> (Vec<Value>, Value) {
    let out = tempfile::tempdir().unwrap();
    let path = out.path().join("rows.jsonl");
    let mut arguments = vec!["export", "test", "--json", "--out", path.to_str().unwrap(), "--format"];
    arguments.extend_from_slice(format);
    let told = printed(&setting.store_folder(), &arguments).await;
    let text = std::fs::read_to_string(&path).unwrap();
    let rows = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    (rows, serde_json::from_str(&told).unwrap())
}

/// Reads rows as a columnar reader does (Arrow's JSON reader, which `datasets` uses): a field has one type in all rows, null apart.
fn one_type_each(rows: &[Value]) {
    fn note(place: &str, value: &Value, types: &mut BTreeMap<String, &'static str>) {
        let kind = match value {
            Value::Null => return,
            Value::Bool(_) => "bool",
            Value::Number(number) if number.is_f64() => "float",
            Value::Number(_) => "int",
            Value::String(_) => "string",
            Value::Array(all) => {
                all.iter().for_each(|one| note(&format!("{place}[]"), one, types));
                "list"
            }
            Value::Object(fields) => {
                fields.iter().for_each(|(key, one)| note(&format!("{place}.{key}"), one, types));
                "struct"
            }
        };
        let before = *types.entry(place.to_owned()).or_insert(kind);
        assert_eq!(before, kind, "{place} is of two types");
    }
    let mut types = BTreeMap::new();
    for row in rows {
        note("row", row, &mut types);
    }
}

/// As a template and a checker of OpenAI's form read it: each call has one result behind it, each result a call before it.
fn all_answered(row: &Value) -> usize {
    let (mut open, mut ids) = (BTreeSet::new(), BTreeSet::new());
    for message in row["messages"].as_array().unwrap() {
        match message["role"].as_str().unwrap() {
            "assistant" => {
                assert!(open.is_empty(), "{row}");
                for call in message["tool_calls"].as_array().into_iter().flatten() {
                    let arguments: Value =
                        serde_json::from_str(call["function"]["arguments"].as_str().unwrap()).unwrap();
                    assert!(arguments.is_object() && call["function"]["name"] == "click", "{call}");
                    assert!(ids.insert(call["id"].as_str().unwrap()), "{row}");
                    open.insert(call["id"].as_str().unwrap());
                }
            }
            "tool" => assert!(open.remove(message["tool_call_id"].as_str().unwrap()), "{row}"),
            _ => {}
        }
    }
    ids.len()
}

/// As LLaMA-Factory reads ShareGPT: people and tools at odd places, the model at even ones, calls as JSON behind an optional thought.
fn takes_turns(row: &Value) -> Vec<Value> {
    let said = row["conversations"].as_array().unwrap();
    assert_eq!(said.len() % 2, 0, "{row}");
    let mut calls = Vec::new();
    for (place, one) in said.iter().enumerate() {
        let (from, value) = (one["from"].as_str().unwrap(), one["value"].as_str().unwrap());
        let expected: &[&str] =
            if place % 2 == 0 { &["human", "observation"] } else { &["gpt", "function_call"] };
        assert!(expected.contains(&from), "{from} at {place}: {row}");
        if from == "function_call" {
            let behind = value.split_once("</think>").map_or(value, |(_, behind)| behind);
            let list: Vec<Value> = serde_json::from_str(behind).unwrap();
            assert!(list.iter().all(|call| call["arguments"].is_object()), "{value}");
            calls.extend(list);
            assert_eq!(said[place + 1]["from"], "observation");
        }
    }
    let tools: Value = serde_json::from_str(row["tools"].as_str().unwrap()).unwrap();
    assert_eq!(tools[0]["function"]["name"], "click");
    calls
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_beside_the_text_are_written_and_repeated_ids_told_apart() {
    // The server gives every call the same id.
    let answers = ["CALL click {\"at\":[1,2]}", "CALL click {\"at\":\"x\"}", "done"];
    let policy = by_text(move |prompt| answers[prompt.matches("click {").count().min(2)].to_owned());
    let server = Scripted::start(Options::vision(policy)).await.unwrap();
    let setting = setting(server.url(), "openai-chat", "images = true", 2);
    assert_eq!(setting.run().await.state, RunEnd::Finished);
    let (rows, told) = exported(&setting, &["sft-chat"]).await;
    assert_eq!((rows.len(), &told["ids_replaced"], &told["left_out"]), (4, &json!(4), &json!({})), "{told}");
    one_type_each(&rows);
    for row in &rows {
        assert_eq!(all_answered(row), 2);
        assert_eq!(row["tools"][0]["function"]["name"], "click");
    }
    let (rows, told) = exported(&setting, &["sharegpt"]).await;
    assert_eq!((rows.len(), &told["left_out"]), (4, &json!({})), "{told}");
    one_type_each(&rows);
    let expected = [
        json!({"name": "click", "arguments": {"at": [1, 2]}}),
        json!({"name": "click", "arguments": {"at": "x"}}),
    ];
    for row in &rows {
        assert_eq!(takes_turns(row), expected);
        let images = row["images"].as_array().unwrap();
        assert_eq!(row["conversations"].to_string().matches("<image>").count(), images.len());
        assert!(!images.is_empty());
    }
    let (rows, _) = exported(&setting, &["sft-chat", "--tool-arguments", "object"]).await;
    let arguments = |row: &Value| row["messages"][1]["tool_calls"][0]["function"]["arguments"].clone();
    assert_eq!(arguments(&rows[0]), json!({"at": [1, 2]}));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_that_were_sampled_are_taken_out_of_the_text() {
    let call = |at: &str| {
        format!("<tool_call>\n{{\"name\": \"click\", \"arguments\": {{\"at\": {at}}}}}\n</tool_call>")
    };
    let answers = [format!("I click.\n{}\n{}", call("[1, 2]"), call("[3]")), call("[4]"), "done".to_owned()];
    let policy = by_text(move |prompt| answers[prompt.matches(": done").count().div_ceil(2).min(2)].clone());
    let server = Scripted::start(Options::new(policy)).await.unwrap();
    let setting = setting(server.url(), "llama-cpp", "tool_parser = \"hermes\"", 0);
    assert_eq!(setting.run().await.state, RunEnd::Finished);
    let (rows, told) = exported(&setting, &["sft-chat"]).await;
    assert_eq!((rows.len(), &told["ids_replaced"], &told["left_out"]), (4, &json!(0), &json!({})), "{told}");
    one_type_each(&rows);
    for row in &rows {
        assert_eq!(all_answered(row), 3);
        let contents: Vec<&str> = (row["messages"].as_array().unwrap().iter())
            .filter(|message| message["role"] == "assistant")
            .map(|message| message["content"].as_str().unwrap())
            .collect();
        assert_eq!(contents, ["I click.", "", "done"]);
    }
    let (rows, _) = exported(&setting, &["sharegpt"]).await;
    let at: Vec<Value> = takes_turns(&rows[0]).iter().map(|call| call["arguments"]["at"].clone()).collect();
    assert_eq!(at, [json!([1, 2]), json!([3]), json!([4])]);
    let first = rows[0]["conversations"][1]["value"].as_str().unwrap();
    assert!(first.starts_with("<think>\nI click.\n</think>\n[{"), "{first}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn results_that_no_call_has_are_left_out_with_the_reason() {
    let server = Scripted::start(Options::vision(by_text(|_| "on".to_owned()))).await.unwrap();
    let setting = setting(server.url(), "openai-chat", "images = true", 1);
    // A harness that makes ids up.
    let text = std::fs::read_to_string(setting.file()).unwrap();
    std::fs::write(setting.file(), text.replacen("\"tools\"", "\"screens\"", 1)).unwrap();
    assert_eq!(setting.run().await.state, RunEnd::Finished);
    for format in ["sft-chat", "sharegpt"] {
        let (rows, told) = exported(&setting, &[format]).await;
        assert_eq!((rows.len(), &told["left_out"]), (0, &json!({"result-without-call": 4})), "{told}");
        let first = told["left_out_first"].as_str().unwrap();
        assert!(first.contains("message 2 is the result of the call \"call-0\""), "{first}");
    }
}

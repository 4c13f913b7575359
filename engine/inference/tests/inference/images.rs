//! Images in conversations: what a server is sent for the last 0, 1 and 3 screenshots, byte for byte; what rows hold of them; models
//! that take none.

use async_trait::async_trait;
use espalier_core::attempt::Owner;
use espalier_core::chat::{CompleteOptions, Message, Part, Role, ToolResult};
use espalier_core::failure::Failure;
use espalier_core::host::{BlobInfo, Blobs, Models};
use espalier_core::ledger::Trainability;
use espalier_core::limits::Limits;
use espalier_core::meter::Meter;
use espalier_core::samples::{Segment, SpanUse};
use espalier_inference::config::{History, ModelConfig, ModelKind};
use espalier_inference::models::{Model, RolloutContext, RolloutModels};
use espalier_scripted::{IMAGE_PAD, Options, Scripted, by_text, decode, tokenizer_json};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;

const PLACEHOLDER: &str = "[an earlier image]";
const ANSWER: &str = "CALL click {\"x\": 1}";

/// Blobs `shot0`, `shot1` ...: a signature and as many bytes more as their number says.
struct Screens;

fn bytes_of(blob: &str) -> Option<Vec<u8>> {
    let number: usize = blob.strip_prefix("shot")?.parse().ok()?;
    Some([b"\x89PNG\r\n\x1a\n".as_slice(), &vec![b'.'; 1 + 3 * number]].concat())
}

#[async_trait]
impl Blobs for Screens {
    async fn put(&self, _: Vec<u8>, _: &str) -> Result<String, Failure> {
        Err(Failure::Invalid("read only".to_owned()))
    }

    async fn stat(&self, blob: &str) -> Result<BlobInfo, Failure> {
        let bytes = bytes_of(blob).ok_or_else(|| Failure::Invalid(format!("no blob {blob}")))?;
        Ok(BlobInfo { length: bytes.len() as u64, media_type: "image/png".to_owned() })
    }

    async fn read(&self, blob: &str, offset: u64, length: u32) -> Result<Vec<u8>, Failure> {
        let bytes = bytes_of(blob).ok_or_else(|| Failure::Invalid(format!("no blob {blob}")))?;
        Ok(bytes.into_iter().skip(offset as usize).take(length as usize).collect())
    }
}

fn url(number: usize) -> String {
    use base64::Engine as _;
    let bytes = bytes_of(&format!("shot{number}")).unwrap();
    format!("data:image/png;base64,{}", base64::engine::general_purpose::STANDARD.encode(bytes))
}

struct Setting {
    server: Scripted,
    models: RolloutModels,
    _folder: tempfile::TempDir,
}

impl Setting {
    async fn vision(kind: ModelKind, history: History) -> Setting {
        let folder = tempfile::tempdir().unwrap();
        let server = Scripted::start(Options::vision(by_text(|_| ANSWER.to_owned()))).await.unwrap();
        let model = open(kind, &server, &folder, |config| config.history = history).await.unwrap();
        Setting { server, models: rollout(model), _folder: folder }
    }

    /// Four turns of an agent that keeps the last `keep` screenshots. Returns how many were left out before each turn.
    async fn play(&self, keep: u32) -> Vec<u32> {
        let mut conversation = self.models.open("policy", opening(), vec![]).await.unwrap();
        let mut elided = Vec::new();
        for turn in 0..4 {
            if turn > 0 {
                conversation.append(vec![observation(turn)]).await.unwrap();
            }
            elided.push(conversation.elide_images(keep).await.unwrap());
            conversation.complete(CompleteOptions::default()).await.unwrap();
        }
        elided
    }

    /// Bodies of the requests that sampled.
    fn requests(&self) -> Vec<Value> {
        self.server.recorded().into_iter().map(|one| one.request).collect()
    }

    fn segments(&self) -> Vec<Segment> {
        self.models.output(Trainability::Trainable).segments
    }
}

/// What a rollout talks to.
fn rollout(model: Arc<Model>) -> RolloutModels {
    let context = RolloutContext {
        policy: "policy".into(),
        owner: Owner::Attempt("t".into()),
        session_id: "s".into(),
        meter: Arc::new(Meter::new(Limits::default())),
        seed: Box::new(|number| number),
        sent: None,
        edges: None,
        blobs: Some(Arc::new(Screens)),
    };
    RolloutModels::new(Arc::new(BTreeMap::from([("policy".to_owned(), model)])), context)
}

async fn open(
    kind: ModelKind,
    server: &Scripted,
    folder: &tempfile::TempDir,
    change: impl FnOnce(&mut ModelConfig),
) -> Result<Arc<Model>, String> {
    let mut config = ModelConfig::at(kind, server.url());
    config.model = Some("scripted".to_owned());
    if kind.is_token_exact() {
        let path = folder.path().join("tokenizer.json");
        std::fs::write(&path, tokenizer_json()).unwrap();
        config.tokenizer = Some(path);
    }
    change(&mut config);
    config.validate().map_err(|error| error.to_string())?;
    Model::open("policy", config, 1, 0).await.map_err(|error| error.to_string())
}

fn opening() -> Vec<Message> {
    let first =
        vec![Part::Text("Find it.\nscreen:".into()), Part::Image("shot0".into()), Part::Text("\n".into())];
    vec![
        Message::text(Role::System, "You see a screen."),
        Message { role: Role::User, parts: first, extra: None },
    ]
}

/// What the tool says, with the screen beside it.
fn observation(number: usize) -> Message {
    let text = format!("clicked {number}\nscreen:");
    let result = ToolResult { call_id: "call-scripted".into(), text, is_error: false };
    Message {
        role: Role::Tool,
        parts: vec![Part::ToolResult(result), Part::Image(format!("shot{number}"))],
        extra: None,
    }
}

/// By turn, the screenshots that the model is shown.
type Shown = [&'static [usize]; 4];

/// By kept screenshots: which ones the model is shown in each of the four turns, and how many are left out before it.
const TABLE: [(u32, Shown, [u32; 4]); 3] = [
    (0, [&[], &[], &[], &[]], [1, 1, 1, 1]),
    (1, [&[0], &[1], &[2], &[3]], [0, 1, 1, 1]),
    (3, [&[0], &[0, 1], &[0, 1, 2], &[1, 2, 3]], [0, 0, 0, 1]),
];

#[tokio::test]
async fn a_chat_server_is_sent_the_last_screens_and_placeholders() {
    for (keep, shown, elided) in TABLE {
        let setting = Setting::vision(ModelKind::OpenAiChat, History::Append).await;
        assert_eq!(setting.play(keep).await, elided, "k = {keep}");
        let image = |number: usize| json!({ "type": "image_url", "image_url": { "url": url(number) } });
        for (turn, request) in setting.requests().iter().enumerate() {
            let first = if shown[turn].contains(&0) {
                let text = |text: &str| json!({ "type": "text", "text": text });
                json!([text("Find it.\nscreen:"), image(0), text("\n")])
            } else {
                json!(format!("Find it.\nscreen:{PLACEHOLDER}\n"))
            };
            let mut expected = vec![
                json!({ "role": "system", "content": "You see a screen." }),
                json!({ "role": "user", "content": first }),
            ];
            for number in 1..=turn {
                let function = json!({ "name": "click", "arguments": "{\"x\": 1}" });
                let call = json!({ "id": "call-scripted", "type": "function", "function": function });
                let screen = match shown[turn].contains(&number) {
                    true => json!([image(number)]),
                    false => json!(PLACEHOLDER),
                };
                expected.extend([
                    json!({ "role": "assistant", "content": "", "tool_calls": [call] }),
                    json!({
                        "role": "tool",
                        "tool_call_id": "call-scripted",
                        "content": format!("clicked {number}\nscreen:"),
                    }),
                    json!({ "role": "user", "content": screen }),
                ]);
            }
            let (sent, expected) = (request["messages"].to_string(), Value::Array(expected).to_string());
            assert_eq!(sent, expected, "k = {keep}, turn {turn}");
        }
        let told: Vec<u32> =
            setting.models.transcript().turns.iter().map(|turn| turn.images_elided).collect();
        let sums: Vec<u32> = (0..4).map(|turn| elided[..=turn].iter().sum()).collect();
        assert_eq!(told, sums, "k = {keep}: the record says what each answer was shown");
    }
}

/// Tokens of an image as the scripted server renders it.
fn pads(number: usize) -> usize {
    1 + url(number).len() % 4
}

#[tokio::test]
async fn a_server_of_token_ids_is_sent_the_same_tokens_again_and_each_elision_opens_a_segment() {
    let both =
        [History::Append, History::Template].into_iter().flat_map(|history| TABLE.map(|row| (history, row)));
    for (history, (keep, shown, elided)) in both {
        let setting = Setting::vision(ModelKind::Vllm, history).await;
        assert_eq!(setting.play(keep).await, elided, "k = {keep}");
        let requests = setting.requests();
        for (turn, request) in requests.iter().enumerate() {
            let image = |number: usize| match shown[turn].contains(&number) {
                true => {
                    format!("<|vision_start|>{}<|vision_end|>", "<|image_pad|>".repeat(pads(number)))
                }
                false => PLACEHOLDER.to_owned(),
            };
            let mut expected = format!(
                "<|im_start|>system\nYou see a screen.<|im_end|>\n<|im_start|>user\nFind it.\nscreen:{}\n<|im_end|>\n",
                image(0)
            );
            for number in 1..=turn {
                expected += &format!(
                    "<|im_start|>assistant\n{ANSWER}<|im_end|>\n<|im_start|>tool\nclicked {number}\nscreen:{}<|im_end|>\n",
                    image(number)
                );
            }
            expected += "<|im_start|>assistant\n";
            let ids: Vec<u32> = serde_json::from_value(request["token_ids"].clone()).unwrap();
            assert_eq!(decode(&ids), expected, "k = {keep}, turn {turn}");
            let sent = request["features"]["kwargs_data"]["image"].as_array().cloned().unwrap_or_default();
            let pixels: Vec<Value> =
                shown[turn].iter().map(|number| json!(format!("pixels of {}", url(*number)))).collect();
            assert_eq!(sent, pixels, "k = {keep}, turn {turn}");
        }
        check_rows(
            &setting.segments(),
            keep,
            shown,
            if history == History::Append { "elide" } else { "template" },
        );
    }
}

/// One row for each prompt whose past was changed, and the last one.
fn check_rows(segments: &[Segment], keep: u32, shown: Shown, kind: &str) {
    let rows: &[&[usize]] = match keep {
        0 => &[&[]],
        1 => &[shown[0], shown[1], shown[2], shown[3]],
        _ => &[shown[2], shown[3]],
    };
    assert_eq!(segments.len(), rows.len(), "k = {keep}");
    let mut sampled = Vec::new();
    for (number, (segment, row)) in segments.iter().zip(rows).enumerate() {
        let place = format!("k = {keep}, row {number}");
        let digests: Vec<String> = row.iter().map(|number| format!("shot{number}")).collect();
        let found: Vec<&str> = segment.images.iter().map(|image| image.digest.as_str()).collect();
        assert_eq!(found, digests, "{place}");
        for image in &segment.images {
            let tokens = &segment.tokens[image.start as usize..(image.start + image.len) as usize];
            assert!(tokens.iter().all(|id| *id == IMAGE_PAD), "{place}");
        }
        let all = segment.tokens.iter().filter(|id| **id == IMAGE_PAD).count();
        assert_eq!(all as u32, segment.images.iter().map(|image| image.len).sum::<u32>(), "{place}");
        assert_eq!(segment.drift_kind.as_deref(), (number > 0).then_some(kind), "{place}");
        let turns = if rows.len() == 4 { number + 1 } else { 3 + number };
        let turns = if keep == 0 { 4 } else { turns };
        assert_eq!(segment.spans.len(), turns, "{place}");
        for span in &segment.spans {
            let ids = &segment.tokens[span.start as usize..(span.start + span.len) as usize];
            assert_eq!(decode(ids), format!("{ANSWER}<|im_end|>"), "{place}");
            if span.usage == SpanUse::Sampled {
                sampled.push(span.call_id.clone());
            }
        }
    }
    assert_eq!(sampled, ["t.0", "t.1", "t.2", "t.3"], "k = {keep}: each answer trains once");
}

#[tokio::test]
async fn forks_answers_side_by_side_and_rewrites_keep_their_images() {
    for kind in [ModelKind::OpenAiChat, ModelKind::Vllm] {
        let setting = Setting::vision(kind, History::Append).await;
        let mut conversation = setting.models.open("policy", opening(), vec![]).await.unwrap();
        let mut branches = conversation.complete_many(2, CompleteOptions::default()).await.unwrap();
        let first = &mut branches[0].conversation;
        first.append(vec![observation(1)]).await.unwrap();
        let mut fork = first.fork().await.unwrap();
        assert_eq!(first.elide_images(1).await.unwrap(), 1);
        first.complete(CompleteOptions::default()).await.unwrap();
        fork.complete(CompleteOptions::default()).await.unwrap();
        fork.rewrite(vec![Message::text(Role::System, "In short."), opening().remove(1)]).await.unwrap();
        let foreign = Message { role: Role::User, parts: vec![Part::Image("foreign".into())], extra: None };
        for refused in [fork.rewrite(vec![foreign.clone()]).await, fork.append(vec![foreign]).await] {
            assert!(refused.unwrap_err().to_string().contains("no blob foreign"), "{kind:?}");
        }
        assert_eq!(fork.elide_images(1).await.unwrap(), 0, "{kind:?}: what is rewritten is shown whole");
        fork.complete(CompleteOptions::default()).await.unwrap();
        let shown = |request: &Value| {
            let text = request.to_string();
            (0..3).filter(|number| text.contains(&format!("{}\"", url(*number)))).collect::<Vec<usize>>()
        };
        let asked: Vec<Vec<usize>> = setting.requests().iter().map(shown).collect();
        assert_eq!(asked, [vec![0], vec![0], vec![1], vec![0, 1], vec![0]], "{kind:?}");
        if kind == ModelKind::Vllm {
            let found: Vec<usize> = setting.segments().iter().map(|segment| segment.images.len()).collect();
            assert_eq!(found.iter().sum::<usize>(), 5, "{found:?}");
        }
    }
}

#[tokio::test]
async fn elisions_before_one_answer_are_one_segment() {
    let setting = Setting::vision(ModelKind::Vllm, History::Append).await;
    let mut conversation = setting.models.open("policy", opening(), vec![]).await.unwrap();
    conversation.complete(CompleteOptions::default()).await.unwrap();
    conversation.append(vec![observation(1)]).await.unwrap();
    conversation.complete(CompleteOptions::default()).await.unwrap();
    let before = conversation.usage().prompt_tokens;
    assert_eq!(conversation.elide_images(1).await.unwrap(), 1);
    assert_eq!(conversation.elide_images(0).await.unwrap(), 1);
    assert_eq!(conversation.elide_images(0).await.unwrap(), 0);
    let changed = conversation.usage().prompt_tokens;
    let placeholders = 2 * PLACEHOLDER.len() as u64;
    let gone = (pads(0) + pads(1)) as u64 + 4;
    // Behind the last answer stands the generation prompt of the next one.
    let behind = "\n<|im_start|>assistant\n".len() as u64 - "<|im_start|>".len() as u64 + 1;
    assert_eq!(changed, before + placeholders + behind - gone);
    conversation.append(vec![observation(2)]).await.unwrap();
    conversation.complete(CompleteOptions::default()).await.unwrap();
    let kinds: Vec<Option<String>> =
        setting.segments().into_iter().map(|segment| segment.drift_kind).collect();
    assert_eq!(kinds, [None, Some("elide".to_owned())]);
}

#[tokio::test]
async fn a_model_that_takes_no_images_says_why() {
    let folder = tempfile::tempdir().unwrap();
    let server = Scripted::start(Options::new(by_text(|_| "x".to_owned()))).await.unwrap();
    let vision = Scripted::start(Options::vision(by_text(|_| "x".to_owned()))).await.unwrap();
    for (kind, images, server, told) in [
        (
            ModelKind::OpenAiChat,
            None,
            &server,
            "the server lists scripted as one of text alone; `images = true`",
        ),
        (ModelKind::OpenAiChat, Some(false), &vision, "takes none: `images = false` is set for it"),
        (
            ModelKind::LlamaCpp,
            None,
            &server,
            "kind llama-cpp takes text alone; kinds \"openai-chat\", \"vllm\" and \"scripted\"",
        ),
        (ModelKind::Vllm, None, &server, "refused the request with 400: "),
        (ModelKind::Vllm, Some(false), &vision, "`images = false` is set for it"),
    ] {
        let model = open(kind, server, &folder, |config| config.images = images).await.unwrap();
        let error = rollout(model).open("policy", opening(), vec![]).await.err().unwrap().to_string();
        let expected = "message 1 contains an image, but model \"policy\" takes none: ";
        assert!(error.contains(expected) && error.contains(told), "{kind:?}: {error}");
    }
    // Before the first rollout.
    let wanted = |config: &mut ModelConfig| config.images = Some(true);
    for (kind, told) in [
        (ModelKind::OpenAiChat, "refused the request with 400: "),
        (ModelKind::Vllm, "scripted is not a multimodal model"),
        (ModelKind::LlamaCpp, "`images` = true is not supported with kind = \"llama-cpp\""),
    ] {
        let error = open(kind, &server, &folder, wanted).await.err().unwrap();
        assert!(error.contains(told), "{kind:?}: {error}");
    }
    for kind in [ModelKind::OpenAiChat, ModelKind::Vllm] {
        assert!(open(kind, &vision, &folder, wanted).await.is_ok(), "{kind:?}");
    }
    // A template that prints nothing for an image.
    let blind = Options {
        template: espalier_scripted::TEMPLATE.to_owned(),
        ..Options::vision(by_text(|_| "x".to_owned()))
    };
    let blind = Scripted::start(blind).await.unwrap();
    let error = open(ModelKind::Vllm, &blind, &folder, wanted).await.err().unwrap();
    assert!(error.contains("which is not what the server renders"), "{error}");
}

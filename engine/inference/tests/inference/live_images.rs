//! Images with token ids against a live vLLM with a small vision model of random weights, which `tests/live/with-vllm` starts: what rows
//! hold is what the server computed with.

use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use espalier_core::attempt::Owner;
use espalier_core::chat::{CompleteOptions, Message, Part, Role};
use espalier_core::failure::Failure;
use espalier_core::host::{BlobInfo, Blobs, Models};
use espalier_core::ledger::Trainability;
use espalier_core::limits::Limits;
use espalier_core::meter::Meter;
use espalier_core::samples::{Segment, SpanUse};
use espalier_inference::config::{ModelConfig, ModelKind};
use espalier_inference::models::{Model, RolloutContext, RolloutModels};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

/// A red, a green and a blue field; the green one is smaller.
const FIELDS: [&str; 3] = [
    "iVBORw0KGgoAAAANSUhEUgAAAHAAAABUCAIAAADVvyQ8AAAAgElEQVR42u3QQQ0AAAgAoetfWks4X2wkoCkOKRAqVChChQpFqFChCBUqVChChQpFqFChCBUqFKFChQpFqFChCBUqFKFChSJUqFChCBUqFKFChSJUqFAUCBUqFKFChSJUqFCEChUqFKFChSJUqFCEChWKUKFChSJUqFCEChWK0EcLSnmdXdUoXwoAAAAASUVORK5CYII=",
    "iVBORw0KGgoAAAANSUhEUgAAAFQAAABUCAIAAACTCYeWAAAAbklEQVR42u3PQQ0AAAgAoeufwqi28CMbBajpL3l5eXl5eXl5eXl5eXl5eXl5eXl5eXl5eXl5eXl5eXl5eXl5eXl5eXl5eXl5eXl5eXl5eXl5eXl5eXl5eXl5eXl5eXl5eXl5eXl5eXl5eXl5+QsLrwE7AO0BovkAAAAASUVORK5CYII=",
    "iVBORw0KGgoAAAANSUhEUgAAAHAAAABUCAIAAADVvyQ8AAAAgElEQVR42u3QQQ0AAAgAoetfWks4X2wkoBpOKRAqVChChQpFqFChCBUqVChChQpFqFChCBUqFKFChQpFqFChCBUqFKFChSJUqFChCBUqFKFChSJUqFAUCBUqFKFChSJUqFCEChUqFKFChSJUqFCEChWKUKFChSJUqFCEChWK0DcLD7KdXVV1RSsAAAAASUVORK5CYII=",
];

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set; run `make test-live`"))
}

/// Blobs `0`, `1`, `2`.
struct Fields;

fn field(blob: &str) -> Vec<u8> {
    STANDARD.decode(FIELDS[blob.parse::<usize>().unwrap()]).unwrap()
}

#[async_trait]
impl Blobs for Fields {
    async fn put(&self, _: Vec<u8>, _: &str) -> Result<String, Failure> {
        Err(Failure::Invalid("read only".to_owned()))
    }

    async fn stat(&self, blob: &str) -> Result<BlobInfo, Failure> {
        Ok(BlobInfo { length: field(blob).len() as u64, media_type: "image/png".to_owned() })
    }

    async fn read(&self, blob: &str, offset: u64, length: u32) -> Result<Vec<u8>, Failure> {
        Ok(field(blob).into_iter().skip(offset as usize).take(length as usize).collect())
    }
}

async fn post(route: &str, body: &Value) -> Value {
    let url = format!("{}{route}", variable("ESPALIER_VISION_URL"));
    let request =
        reqwest::Client::new().post(url).body(body.to_string()).header("content-type", "application/json");
    let response = request.send().await.unwrap();
    let status = response.status();
    let text = response.text().await.unwrap();
    assert!(status.is_success(), "{route}: {status}: {text}");
    serde_json::from_str(&text).unwrap()
}

fn seen(number: usize) -> Message {
    let parts = vec![
        Part::Text(format!("Screen {number}: ")),
        Part::Image(number.to_string()),
        Part::Text(". Well?".into()),
    ];
    Message { role: Role::User, parts, extra: None }
}

fn content(number: usize) -> Value {
    let url = format!("data:image/png;base64,{}", FIELDS[number]);
    json!([
        { "type": "text", "text": format!("Screen {number}: ") },
        { "type": "image_url", "image_url": { "url": url } },
        { "type": "text", "text": ". Well?" },
    ])
}

/// Mean difference between what a row says of its sampled tokens and what the server says of the whole row as a prompt, with `order`
/// saying which image stands in which place.
async fn difference(segment: &Segment, order: impl Fn(usize) -> usize) -> f64 {
    let (mut hashes, mut places, mut data) = (Vec::new(), Vec::new(), Vec::new());
    for image in &segment.images {
        let number = order(image.digest.parse().unwrap());
        let body = json!({ "model": "vision", "messages": [{ "role": "user", "content": content(number) }] });
        let rendered = post("/v1/chat/completions/render", &body).await;
        hashes.push(rendered["features"]["mm_hashes"]["image"][0].clone());
        data.push(rendered["features"]["kwargs_data"]["image"][0].clone());
        places.push(json!({ "offset": image.start, "length": image.len }));
    }
    let features = json!({
        "mm_hashes": { "image": hashes }, "mm_placeholders": { "image": places }, "kwargs_data": { "image": data },
    });
    let body = json!({
        "model": "vision",
        "token_ids": segment.tokens,
        "features": features,
        "sampling_params": { "max_tokens": 1, "temperature": 1.0, "prompt_logprobs": 0 },
    });
    let answer = post("/inference/v1/generate", &body).await;
    let scored = answer["prompt_logprobs"].as_array().unwrap();
    let trained: Vec<usize> = (0..segment.tokens.len()).filter(|at| segment.mask[*at] == 1).collect();
    let differ = |at: &usize| {
        let of_server = scored[*at][segment.tokens[*at].to_string()]["logprob"].as_f64().unwrap();
        (f64::from(segment.logprobs[*at]) - of_server).abs()
    };
    trained.iter().map(differ).sum::<f64>() / trained.len() as f64
}

#[tokio::test]
#[ignore = "needs a live vLLM with a vision model: make test-live"]
async fn live_rows_with_images_are_what_the_server_computed_with() {
    let mut config = ModelConfig::at(ModelKind::Vllm, variable("ESPALIER_VISION_URL"));
    config.tokenizer = Some(PathBuf::from(variable("ESPALIER_VISION_MODEL")).join("tokenizer.json"));
    config.images = Some(true);
    config.sampling.max_tokens = 24;
    let model = Model::open("policy", config, 1, 0).await.unwrap();
    let context = RolloutContext {
        policy: "policy".into(),
        owner: Owner::Attempt("t".into()),
        session_id: "live".into(),
        meter: Arc::new(Meter::new(Limits::default())),
        seed: Box::new(|number| 40 + number),
        sent: None,
        edges: None,
        blobs: Some(Arc::new(Fields)),
    };
    let models = RolloutModels::new(Arc::new(BTreeMap::from([("policy".to_owned(), model)])), context);

    // The first prompt is, token by token, what the server itself makes of the same message.
    let mut conversation = models.open("policy", vec![seen(0)], vec![]).await.unwrap();
    let first =
        conversation.complete(CompleteOptions { temperature: Some(0.0), ..CompleteOptions::default() }).await;
    first.unwrap();
    let chat = json!({
        "model": "vision", "messages": [{ "role": "user", "content": content(0) }], "temperature": 0.0, "max_tokens": 24,
        "return_token_ids": true,
    });
    let by_chat = post("/v1/chat/completions", &chat).await;
    let segment = models.output(Trainability::Trainable).segments.remove(0);
    let ids = |value: &Value| serde_json::from_value::<Vec<u32>>(value.clone()).unwrap();
    let prompt_len = segment.prompt_len as usize;
    assert_eq!(segment.tokens[..prompt_len], ids(&by_chat["prompt_token_ids"]));
    assert_eq!(
        segment.tokens[prompt_len..],
        ids(&by_chat["choices"][0]["token_ids"]),
        "greedy answers agree"
    );

    for number in [1, 2] {
        conversation.append(vec![seen(number)]).await.unwrap();
        conversation.complete(CompleteOptions::default()).await.unwrap();
    }
    assert_eq!(conversation.elide_images(1).await.unwrap(), 2);
    conversation.append(vec![Message::text(Role::User, "And now?")]).await.unwrap();
    conversation.complete(CompleteOptions::default()).await.unwrap();

    let segments = models.output(Trainability::Trainable).segments;
    let [whole, elided] = &segments[..] else { panic!("{} rows", segments.len()) };
    let digests = |segment: &Segment| segment.images.iter().map(|one| one.digest.clone()).collect::<Vec<_>>();
    assert_eq!(
        (digests(whole), digests(elided)),
        (vec!["0".into(), "1".into(), "2".into()], vec!["2".to_owned()])
    );
    let reused = elided.spans.iter().filter(|span| span.usage == SpanUse::Reused).count();
    assert_eq!((elided.drift_kind.as_deref(), reused), (Some("elide"), 3), "no answer is tokenized again");
    for (name, segment) in [("whole", whole), ("elided", elided)] {
        let right = difference(segment, |number| number).await;
        // Red in the place of blue, which has the same size.
        let wrong = difference(segment, |number| if number == 2 { 0 } else { number }).await;
        println!("{name}: mean difference of logprobs {right:.4}, with another image {wrong:.4}");
        assert!(right < 0.05 && wrong > 3.0 * right, "{name}: {right}, with another image {wrong}");
    }
}

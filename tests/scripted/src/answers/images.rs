//! Images as vLLM has them: rendered to tokens and features, which come back with the tokens of a prompt.

use crate::tokens::{IMAGE_PAD, encode};
use serde_json::{Value, json};
use std::hash::{DefaultHasher, Hash, Hasher};

/// What a model of text alone says to an image.
pub(super) const NOT_TAKEN: &str = "scripted is not a multimodal model";

/// Whether a message holds an image.
pub(super) fn are_in(messages: &Value) -> bool {
    let messages = messages.as_array().into_iter().flatten();
    messages.flat_map(|message| message["content"].as_array().into_iter().flatten()).any(is_image)
}

fn is_image(part: &Value) -> bool {
    part["type"] == "image_url"
}

/// `/v1/chat/completions/render`. An image is 1 to 4 tokens, by the length of its URL.
pub(super) fn render(messages: &Value) -> Value {
    let mut ids = Vec::new();
    let (mut hashes, mut places, mut data) = (Vec::new(), Vec::new(), Vec::new());
    for message in messages.as_array().into_iter().flatten() {
        ids.extend(encode(&format!("<|im_start|>{}\n", message["role"].as_str().unwrap_or_default()), true));
        match &message["content"] {
            Value::String(text) => ids.extend(encode(text, true)),
            parts => {
                for part in parts.as_array().into_iter().flatten() {
                    if !is_image(part) {
                        ids.extend(encode(part["text"].as_str().unwrap_or_default(), true));
                        continue;
                    }
                    let url = part["image_url"]["url"].as_str().unwrap_or_default();
                    let length = 1 + url.len() % 4;
                    ids.extend(encode("<|vision_start|>", true));
                    places.push(json!({ "offset": ids.len(), "length": length }));
                    ids.extend(vec![IMAGE_PAD; length]);
                    ids.extend(encode("<|vision_end|>", true));
                    let mut hasher = DefaultHasher::new();
                    url.hash(&mut hasher);
                    hashes.push(format!("{:016x}", hasher.finish()));
                    data.push(format!("pixels of {url}"));
                }
            }
        }
        ids.extend(encode("<|im_end|>\n", true));
    }
    ids.extend(encode("<|im_start|>assistant\n", true));
    let features = json!({
        "mm_hashes": { "image": hashes },
        "mm_placeholders": { "image": places },
        "kwargs_data": { "image": data },
    });
    json!({ "token_ids": ids, "features": if are_in(messages) { features } else { Value::Null } })
}

/// The features of a prompt must say of each run of image tokens what it is, and of nothing else.
pub(super) fn check(prompt: &[u32], features: &Value) -> Result<(), String> {
    let list = |key: &str| features[key]["image"].as_array().map(Vec::as_slice).unwrap_or_default();
    let places = list("mm_placeholders");
    if list("mm_hashes").len() != places.len() || list("kwargs_data").len() != places.len() {
        return Err("mm_hashes, mm_placeholders and kwargs_data must have the same length".to_owned());
    }
    let mut named = vec![false; prompt.len()];
    for place in places {
        let [offset, length] = ["offset", "length"].map(|key| place[key].as_u64().unwrap_or(0) as usize);
        let Some(range) = named.get_mut(offset..offset + length) else {
            return Err(format!("an image at {offset}, +{length}, in {} tokens", prompt.len()));
        };
        range.fill(true);
    }
    match prompt.iter().zip(named).position(|(id, named)| (*id == IMAGE_PAD) != named) {
        Some(at) => Err(format!("token {at} and mm_placeholders disagree about an image")),
        None => Ok(()),
    }
}

//! The byte-level tokenizer and the logprobs.

/// `<|im_start|>`.
pub const IM_START: u32 = 256;
/// `<|im_end|>`: end of turn and of sequence.
pub const EOS: u32 = 257;
/// `<|endoftext|>`.
pub(crate) const END_OF_TEXT: u32 = 258;
/// Ids that are sampled are below this.
pub(crate) const VOCABULARY: u32 = 259;
/// `<|image_pad|>`: stands for a part of an image.
pub const IMAGE_PAD: u32 = 260;

const CONTROL: [(u32, &str); 6] = [
    (IM_START, "<|im_start|>"),
    (EOS, "<|im_end|>"),
    (END_OF_TEXT, "<|endoftext|>"),
    (259, "<|vision_start|>"),
    (IMAGE_PAD, "<|image_pad|>"),
    (261, "<|vision_end|>"),
];

/// ChatML, with tools and tool results, without a default system prompt.
pub const TEMPLATE: &str = "{%- if tools %}<|im_start|>system
Tools: {{ tools | tojson }}<|im_end|>
{% endif -%}
{%- for message in messages -%}
<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}
<|im_start|>assistant
{% endif -%}";

/// ChatML that prints an image as `<|vision_start|><|image_pad|><|vision_end|>`.
pub const VISION_TEMPLATE: &str = "{%- for message in messages -%}
<|im_start|>{{ message.role }}
{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}{% if part.type == 'image' %}\
<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}
<|im_start|>assistant
{% endif -%}";

/// The tokenizer as a `tokenizer.json`.
pub fn tokenizer_json() -> String {
    // The printable stand-ins of byte-level vocabularies: bytes that print stand for themselves, the others follow from U+0100 on.
    let prints = |byte: u32| matches!(byte, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF);
    let mut others = 256..;
    let mut vocabulary = serde_json::Map::new();
    for byte in 0..256 {
        let letter = if prints(byte) { Some(byte) } else { others.next() };
        let letter = letter.and_then(char::from_u32).expect("all are below the surrogates");
        vocabulary.insert(letter.to_string(), byte.into());
    }
    let added = CONTROL.map(|(id, text)| {
        serde_json::json!({ "id": id, "content": text, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true })
    });
    let bytes = serde_json::json!({ "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false });
    let model = serde_json::json!({ "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
        "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
        "vocab": vocabulary, "merges": [] });
    serde_json::json!({ "version": "1.0", "truncation": null, "padding": null, "added_tokens": added, "normalizer": null,
        "pre_tokenizer": bytes, "post_processor": null, "decoder": bytes, "model": model })
    .to_string()
}

/// Ids of a text; with `special`, control-token text becomes control tokens.
pub fn encode(text: &str, special: bool) -> Vec<u32> {
    let mut ids = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.as_bytes().first() {
        let control = CONTROL.iter().find(|(_, word)| special && rest.starts_with(word));
        if let Some((id, word)) = control {
            ids.push(*id);
            rest = &rest[word.len()..];
            continue;
        }
        // A whole character at a time keeps the rest a string.
        let length = rest.chars().next().map_or(1, char::len_utf8);
        debug_assert_eq!(*first, rest.as_bytes()[0]);
        ids.extend(rest.as_bytes()[..length].iter().map(|byte| u32::from(*byte)));
        rest = &rest[length..];
    }
    ids
}

/// Bytes of one token; control tokens are empty unless `special`.
pub(crate) fn bytes(id: u32, special: bool) -> Vec<u8> {
    match u8::try_from(id) {
        Ok(byte) => vec![byte],
        Err(_) if special => CONTROL
            .iter()
            .find(|(control, _)| *control == id)
            .map_or(Vec::new(), |(_, word)| word.as_bytes().to_vec()),
        Err(_) => Vec::new(),
    }
}

/// Text of ids, control tokens written out.
pub fn decode(ids: &[u32]) -> String {
    let mut text = Vec::with_capacity(ids.len());
    for id in ids {
        match u8::try_from(*id) {
            Ok(byte) => text.push(byte),
            Err(_) => text.extend_from_slice(&bytes(*id, true)),
        }
    }
    String::from_utf8(text).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

/// The logprob of token `id` behind `context` tokens: nats, in -2.01..=-0.01.
pub fn logprob(context: usize, id: u32) -> f32 {
    let mixed = (context as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15)
        ^ u64::from(id).wrapping_mul(0xD6E8_FEB8_6659_FD93);
    let mixed = (mixed ^ (mixed >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    -0.01 - ((mixed >> 40) % 2000) as f32 / 1000.0
}

//! Rendered text as token ids, with a small byte-level tokenizer made here: control-token text in messages stays text,
//! only such text is cut out, and an end of turn is never doubled.

use espalier_core::chat::{Message, Role};
use espalier_inference::template::{Rendered, Source, Template, TemplateOptions};
use espalier_inference::tokenizer::local::LocalTokenizer;
use espalier_inference::tokenizer::{Tokenizer, encode_rendered};
use rand::{RngExt as _, SeedableRng as _};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Roles between control tokens, `</think>` cut out of earlier answers.
const CHAT: &str = "{% for message in messages %}<|im_start|>{{ message.role }}\n\
    {% if message.role == 'assistant' %}{{ message.content.split('</think>')[-1] }}{% else %}{{ message.content }}{% endif %}\
    <|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

const CONTROL: [&str; 4] = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "</think>"];

/// A byte-level BPE of 256 letters and some merges, control tokens, and `<tool>` as an added token that is not special.
fn tokenizer() -> LocalTokenizer {
    let letters: Vec<char> = (0..=255u8).map(letter).collect();
    let merges = [
        ("u", "s"),
        ("us", "e"),
        ("use", "r"),
        ("Ċ", "Ċ"),
        ("Ġ", "a"),
        ("i", "m"),
        ("e", "n"),
        ("en", "d"),
        ("<", "|"),
    ];
    let mut vocabulary = serde_json::Map::new();
    let tokens =
        letters.iter().map(|letter| letter.to_string()).chain(merges.iter().map(|(a, b)| format!("{a}{b}")));
    for (id, token) in tokens.enumerate() {
        vocabulary.insert(token, id.into());
    }
    let first = vocabulary.len();
    let added = |offset: usize, text: &str, special: bool| {
        serde_json::json!({"id": first + offset, "content": text, "special": special, "single_word": false,
            "lstrip": false, "rstrip": false, "normalized": false})
    };
    let mut all: Vec<_> =
        CONTROL.iter().enumerate().map(|(offset, text)| added(offset, text, true)).collect();
    all.push(added(CONTROL.len(), "<tool>", false));
    let byte_level = serde_json::json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": false});
    let json = serde_json::json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": all, "normalizer": null,
        "pre_tokenizer": byte_level, "post_processor": null, "decoder": byte_level,
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
            "vocab": vocabulary, "merges": merges.iter().map(|(a, b)| format!("{a} {b}")).collect::<Vec<_>>()},
    });
    LocalTokenizer::from_bytes(json.to_string().as_bytes()).expect("a valid tokenizer")
}

/// The letter that spells a byte in GPT-2's table.
fn letter(byte: u8) -> char {
    let printable = |byte: u8| matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    if printable(byte) {
        return char::from(byte);
    }
    let before = (0..byte).filter(|other| !printable(*other)).count();
    char::from_u32(0x100 + u32::try_from(before).expect("at most 255")).expect("a letter")
}

fn template(tokenizer: &dyn Tokenizer) -> Template {
    let special_tokens = tokenizer.special_tokens().iter().map(|token| token.text.clone()).collect();
    let options = TemplateOptions { special_tokens, ..TemplateOptions::default() };
    Template::new(&Source::Jinja(CHAT.to_owned()), options).expect("a valid template")
}

fn message(role: Role, text: &str) -> Message {
    Message::text(role, text)
}

/// Ids written with the text of each, `·` between them and control tokens in brackets.
async fn shown(tokenizer: &LocalTokenizer, rendered: &Rendered) -> String {
    let ids =
        encode_rendered(tokenizer, rendered, &BTreeMap::new()).await.expect("every text can be encoded").ids;
    let mut shown = Vec::new();
    for id in ids {
        let text = String::from_utf8_lossy(&tokenizer.decode(&[id]).await.expect("an own id")).into_owned();
        shown.push(if tokenizer.special(id).is_some() { format!("[{text}]") } else { text });
    }
    shown.join("·")
}

#[tokio::test]
async fn control_token_text_in_messages_stays_text() {
    let tokenizer = tokenizer();
    let template = template(&tokenizer);
    let rendered =
        template.opening(&[message(Role::User, "a<|im_end|>\n<|im_start|>b")], &[]).expect("it is carried");
    let shown = shown(&tokenizer, &rendered).await;
    assert_eq!(
        shown,
        "[<|im_start|>]·user·\n·a·<|·im·_·end·|·>·\n·<|·im·_·s·t·a·r·t·|·>·b·[<|im_end|>]·\n·[<|im_start|>]·a·s·s·i·s·t·a·n·t·\n"
    );
    // An added token that is not a control token is vocabulary like any other.
    let rendered = template.opening(&[message(Role::User, "<tool>")], &[]).expect("it is carried");
    assert_eq!(rendered.pieces().len(), 1);
}

#[tokio::test]
async fn nothing_else_is_cut() {
    let tokenizer = tokenizer();
    let template = template(&tokenizer);
    // The newline of the markup and those of the content are one token, as in any other rendering of this text.
    let rendered = template.opening(&[message(Role::User, "\nfoo")], &[]).expect("it is carried");
    assert_eq!(rendered.pieces().len(), 1);
    let shown = shown(&tokenizer, &rendered).await;
    assert!(shown.starts_with("[<|im_start|>]·user·\n\n·f·o·o·[<|im_end|>]"), "{shown}");
    let encoded = encode_rendered(&tokenizer, &rendered, &BTreeMap::new()).await.expect("encoded");
    let whole = tokenizer.encode(&rendered.text, true).await.expect("encoded");
    assert_eq!(encoded.ids, whole.ids);
    // The token that holds markup and content counts as content.
    assert_eq!(encoded.content[..7], [false, false, true, true, true, true, false]);
}

#[tokio::test]
async fn text_of_a_control_token_that_only_meets_at_a_seam_is_text() {
    let tokenizer = tokenizer();
    let options =
        TemplateOptions { special_tokens: CONTROL.map(str::to_owned).to_vec(), ..TemplateOptions::default() };
    let plain = Template::new(&Source::Plain, options).expect("nothing to parse");
    let messages = [message(Role::User, "<|im_"), message(Role::User, "end|>")];
    let rendered = plain.opening(&messages, &[]).expect("it is carried");
    assert_eq!(shown(&tokenizer, &rendered).await, "<|·im·_·end·|·>");
    assert_eq!(rendered.contents.len(), 2);
}

#[tokio::test]
async fn what_the_template_looks_for_in_answers_is_left_to_it() {
    let tokenizer = tokenizer();
    let template = template(&tokenizer);
    let conversation = [
        message(Role::User, "</think>"),
        message(Role::Assistant, "hm</think>So <|im_end|>"),
        message(Role::User, "?"),
    ];
    let rendered = template.opening(&conversation, &[]).expect("it is carried");
    assert_eq!(
        rendered.text,
        "<|im_start|>user\n</think><|im_end|>\n<|im_start|>assistant\nSo <|im_end|><|im_end|>\n<|im_start|>user\n?<|im_end|>\n<|im_start|>assistant\n"
    );
    let literals: Vec<&str> = rendered.literals.iter().map(|range| &rendered.text[range.clone()]).collect();
    assert_eq!(literals, ["</think>", "<|im_end|>"]);
}

#[tokio::test]
async fn an_end_of_turn_is_never_doubled() {
    let tokenizer = tokenizer();
    let template = template(&tokenizer);
    let past = [message(Role::User, "?"), message(Role::Assistant, "yes")];
    let suffix = template.suffix(&past, &[message(Role::User, "no <|im_end|>")], &[]).expect("it is carried");
    assert_eq!(&suffix.text[..suffix.end_of_turn], "<|im_end|>\n");
    let ids = encode_rendered(&tokenizer, &suffix, &BTreeMap::new()).await.expect("encoded");
    let id = |text: &str| {
        let token = tokenizer.special_tokens().iter().find(|token| token.text == text);
        Some(token.expect("a control token").id)
    };
    assert_eq!(ids.sampled_already(&suffix, id("<|im_end|>"), &tokenizer), 1);
    assert_eq!(ids.sampled_already(&suffix, id("<|endoftext|>"), &tokenizer), 0);
    assert_eq!(ids.sampled_already(&suffix, None, &tokenizer), 0);
    // A letter that was sampled last is not an end of turn, even where the suffix begins with it.
    let newline = tokenizer.encode("\n", true).await.expect("encoded").ids[0];
    assert_eq!(ids.sampled_already(&suffix, Some(newline), &tokenizer), 0);
}

#[tokio::test]
async fn decoding_gives_bytes_back() {
    let tokenizer = tokenizer();
    for text in ["plain", "é ü 漢字 🦀\r\n\t", "<|im_end|> and <tool>", "\u{0}\u{7f}"] {
        for special in [true, false] {
            let encoded = tokenizer.encode(text, special).await.expect("encoded");
            assert_eq!(tokenizer.decode(&encoded.ids).await.expect("own ids"), text.as_bytes());
            let offsets = encoded.offsets.expect("a local tokenizer tells");
            assert_eq!(offsets.len(), encoded.ids.len());
            assert!(offsets.iter().all(|(from, to)| from < to && *to as usize <= text.len()), "{offsets:?}");
        }
    }
    assert!(tokenizer.decode(&[9_999]).await.is_err());
}

/// Long texts go to another thread: the result is the same.
#[tokio::test]
async fn long_texts() {
    let tokenizer: Arc<dyn Tokenizer> = Arc::new(tokenizer());
    let text = "the user said <|im_end|> ".repeat(4000);
    let whole = tokenizer.encode(&text, false).await.expect("encoded");
    assert_eq!(tokenizer.decode(&whole.ids).await.expect("own ids"), text.as_bytes());
    assert!(whole.ids.iter().all(|id| tokenizer.special(*id).is_none()));
}

/// Random messages of control-token text, fragments of it, spaces and letters: the control tokens are the template's own,
/// and the ids say exactly the text.
#[tokio::test]
async fn no_message_makes_a_control_token() {
    let tokenizer = tokenizer();
    let template = template(&tokenizer);
    let fragments = [
        "<|im_end|>",
        "<|im_start|>",
        "<|endoftext|>",
        "<|im_",
        "end|>",
        "<",
        "|>",
        "\n",
        " ",
        "user",
        "é",
        "\"",
        "Zt0x",
        "Zm0xc000001z",
    ];
    let seed = std::env::var("ESPALIER_TEST_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(7u64);
    eprintln!("ESPALIER_TEST_SEED={seed}");
    let mut random = rand_chacha::ChaCha8Rng::seed_from_u64(seed);
    let mut content = || -> String {
        (0..random.random_range(1..12)).map(|_| fragments[random.random_range(0..fragments.len())]).collect()
    };
    for _ in 0..300 {
        let messages = [
            message(Role::User, &content()),
            message(Role::Assistant, &content()),
            message(Role::User, &content()),
        ];
        let opening = template.opening(&messages, &[]).expect("it is carried");
        let suffix = template.suffix(&messages[..2], &messages[2..], &[]).expect("it is carried");
        for (rendered, own, contents) in [(&opening, 7, 3), (&suffix, 4, 1)] {
            let ids = encode_rendered(&tokenizer, rendered, &BTreeMap::new()).await.expect("encoded").ids;
            let control = ids.iter().filter(|id| tokenizer.special(**id).is_some()).count();
            assert_eq!(control, own, "{messages:?}");
            assert_eq!(
                tokenizer.decode(&ids).await.expect("own ids"),
                rendered.text.as_bytes(),
                "{messages:?}"
            );
            assert_eq!(rendered.contents.len(), contents, "{messages:?}");
            for content in &rendered.contents {
                let text = messages[content.message].joined_text();
                assert_eq!(&rendered.text[content.range.clone()], text, "{messages:?}");
            }
        }
        let laid = [
            template.opening(&messages[..1], &[]).expect("it is carried").text,
            messages[1].joined_text(),
            suffix.text,
        ];
        assert_eq!(laid.concat(), opening.text);
    }
}

//! What a turn costs in the token ledger at turns 1, 50 and 200, and beside it what grows with the context: rendering the
//! conversation, tokenizing, copying the prompt, and bytes on the wire.
//!
//! One conversation of 200 turns, 40 sampled tokens and 80 of observation each. The ledger's part must not depend on how
//! much stands before a turn; the others cannot help it, so they are given for 1,000 tokens of context.

use espalier_benches::{Finding, median};
use espalier_core::chat::{Message, Role};
use espalier_core::ledger::{Ledger, Piece, Trainability};
use espalier_core::samples::{Call, LogprobKind, Origin, Sampling};
use espalier_inference::endpoint;
use espalier_inference::template::{Source, Template, TemplateOptions};
use espalier_inference::tokenizer::Tokenizer;
use espalier_inference::tokenizer::local::LocalTokenizer;
use espalier_inference::tokenizer::remote::RemoteTokenizer;
use espalier_scripted::{Options, Scripted, by_text};
use std::hint::black_box;
use std::path::PathBuf;
use std::time::Instant;

/// Turns of one conversation.
const TURNS: u32 = 200;
/// Sampled in a turn.
const SAMPLED: u32 = 40;
/// Observed in a turn.
const OBSERVED: u32 = 80;
/// How often the conversation is played; the median counts.
const REPEATS: usize = 301;

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let at = [1usize, 50, 200];
    let mut times: Vec<Vec<f64>> = vec![Vec::with_capacity(REPEATS); TURNS as usize];
    let mut copies: Vec<Vec<f64>> = vec![Vec::with_capacity(REPEATS); TURNS as usize];
    let mut bytes_a_token = 0.0;
    let mut finish_us = Vec::new();
    for _ in 0..REPEATS {
        let mut ledger = Ledger::new();
        let prompt: Vec<u32> = (0..400).collect();
        let branch = ledger.open(&[Piece { ids: &prompt, origin: Origin::Prompt }]);
        let observed: Vec<u32> = (1000..1000 + OBSERVED).collect();
        let sampled: Vec<u32> = (2000..2000 + SAMPLED).collect();
        for turn in 0..TURNS {
            let logprobs = vec![-0.5_f32; SAMPLED as usize];
            let call = call(turn, ledger.len(branch));
            let start = Instant::now();
            let index = ledger.record(call, Some(logprobs));
            ledger.place(branch, index, &sampled);
            ledger.extend(branch, &[Piece { ids: &observed, origin: Origin::Environment }]);
            times[turn as usize].push(start.elapsed().as_nanos() as f64 / 1e3);
            let start = Instant::now();
            black_box(ledger.prompt(branch, &[]));
            copies[turn as usize].push(start.elapsed().as_nanos() as f64 / 1e3);
        }
        bytes_a_token = ledger.heap_bytes() as f64 / f64::from(ledger.len(branch));
        let start = Instant::now();
        black_box(ledger.finish(Trainability::Trainable));
        finish_us.push(start.elapsed().as_nanos() as f64 / 1e3);
    }
    // Single turns take fractions of a microsecond: neighbours are taken together, so that a page fault is not a trend.
    let mut around = |turn: usize| {
        let (from, to) = (turn.saturating_sub(5).max(1), (turn + 5).min(TURNS as usize - 1));
        let mut medians: Vec<f64> = times[from..to].iter_mut().map(|values| median(values)).collect();
        median(&mut medians)
    };
    let cost = at.map(&mut around);
    for (turn, us) in at.iter().zip(cost) {
        Finding::new(format!("ledger, one turn at turn {turn}"), us, "us").print();
    }
    let growth = cost.iter().fold(0.0_f64, |most, us| most.max(us / cost[0]));
    Finding::new("ledger, dearest of these turns against turn 1", growth, "x")
        .at_most(1.2)
        .note("medians of ten neighbouring turns, 301 conversations")
        .print();
    Finding::new("ledger, memory", bytes_a_token, "bytes/token").at_most(12.0).print();
    let tokens = f64::from(400 + TURNS * (SAMPLED + OBSERVED)) / 1000.0;
    Finding::new("ledger, finish of 200 turns", median(&mut finish_us) / tokens, "us/1k tokens").print();
    let context = f64::from(400 + (TURNS - 1) * (SAMPLED + OBSERVED)) / 1000.0;
    let copy = median(&mut copies[TURNS as usize - 1]);
    Finding::new("prompt, copied at turn 200", copy / context, "us/1k tokens").print();
    rendering();
    tokenizing().await
}

fn call(turn: u32, n_prompt: u32) -> Call {
    Call {
        call_id: format!("c{turn}"),
        model: "policy".into(),
        turn,
        n_prompt,
        n_sampled: SAMPLED,
        finish: "stop".into(),
        versions: vec![(0, SAMPLED, "base".into(), None)],
        sampling: Sampling {
            temperature: 1.0,
            top_p: 1.0,
            top_k: 0,
            min_p: 0.0,
            repeat_penalty: 1.0,
            seed: 7,
            max_tokens: 256,
        },
        logprob_kind: LogprobKind::Raw,
    }
}

/// The suffix behind the last answer of a long ChatML conversation, and what its prompt weighs as JSON.
fn rendering() {
    let chatml = "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}\
                  {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
    let options = TemplateOptions {
        eos: "<|im_end|>".into(),
        special_tokens: vec!["<|im_start|>".into(), "<|im_end|>".into()],
        ..TemplateOptions::default()
    };
    let template = Template::new(&Source::Jinja(chatml.into()), options).expect("ChatML parses");
    // About 4 bytes a token, as English has.
    let answer = "Thought: go on. Action: craft 4 stick using 2 planks. ".repeat(3);
    let observation = "Got 4 minecraft:stick. Your inventory holds planks and sticks. ".repeat(5);
    let mut past = vec![Message::text(Role::User, "Craft a ladder.".repeat(100))];
    for turn in 0..TURNS {
        past.push(Message::text(Role::Assistant, answer.as_str()));
        if turn + 1 < TURNS {
            past.push(Message::text(Role::User, observation.as_str()));
        }
    }
    let new = [Message::text(Role::User, observation.as_str())];
    let thousands =
        past.iter().map(|message| message.joined_text().len()).sum::<usize>() as f64 / 4.0 / 1000.0;
    let mut times: Vec<f64> = (0..21)
        .map(|_| {
            let start = Instant::now();
            black_box(template.suffix(&past, &new, &[]).expect("ChatML carries users"));
            start.elapsed().as_nanos() as f64 / 1e3
        })
        .collect();
    Finding::new("template, suffix at turn 200", median(&mut times) / thousands, "us/1k tokens")
        .note("4 bytes of text taken as a token")
        .print();
    let ids: Vec<u32> = (0..1000).map(|i| 1000 + i * 37 % 48_000).collect();
    let wire = serde_json::to_string(&ids).expect("numbers are plain").len();
    Finding::new("wire, prompt as ids", wire as f64, "bytes/1k tokens").print();
}

/// Text to token ids: by a `tokenizer.json` of a published model, and by the tokenize route of a server, with the bytes
/// that go over the wire for it. New text each time, so that nothing is found kept.
async fn tokenizing() -> Result<(), Box<dyn std::error::Error>> {
    let text = |number: usize| {
        let sentence = |i: usize| {
            format!("Step {i} of {number}: got 4 minecraft:stick, and {} planks are left. ", i % 7)
        };
        (0..200).map(sentence).collect::<String>()
    };
    match published_tokenizer() {
        Some(path) => {
            let tokenizer = LocalTokenizer::from_file(&path)?;
            let (mut times, mut size) = (Vec::new(), 0.0);
            for number in 0..21 {
                let text = text(number);
                let start = Instant::now();
                let encoded = tokenizer.encode(&text, false).await?;
                let thousands = encoded.ids.len() as f64 / 1000.0;
                times.push(start.elapsed().as_nanos() as f64 / 1e3 / thousands);
                size = text.len() as f64 / encoded.ids.len() as f64;
            }
            Finding::new("tokenizing, tokenizer.json", median(&mut times), "us/1k tokens")
                .note(format!("a published byte-pair encoding of 65,000 tokens; {size:.1} bytes a token"))
                .print();
        }
        None => {
            eprintln!("no tokenizer.json is measured: ESPALIER_PEERS_PYTHON names no Python with litellm");
        }
    }
    let server =
        Scripted::start(Options { record: false, ..Options::new(by_text(|_| String::new())) }).await?;
    let config = serde_json::json!({ "kind": "llama-cpp", "url": server.url() });
    let endpoint = endpoint::open(&serde_json::from_value(config)?, 1).await?;
    let mut times = Vec::new();
    let mut thousands = 0.0;
    for number in 0..21 {
        // One token a byte here; 4 bytes are taken as a token, as English has.
        let text = text(number);
        thousands = text.len() as f64 / 4.0 / 1000.0;
        let start = Instant::now();
        black_box(endpoint.tokenize(&text, false).await?);
        times.push(start.elapsed().as_nanos() as f64 / 1e3 / thousands);
    }
    Finding::new("tokenizing, over a server's route", median(&mut times), "us/1k tokens")
        .note("the server's time included; 4 bytes of text taken as a token, of which the server makes four")
        .print();
    let tokenizer = RemoteTokenizer::with_special_tokens(endpoint, Vec::new());
    let text = text(0);
    tokenizer.encode(&text, false).await?;
    let mut times = Vec::new();
    for _ in 0..21 {
        let start = Instant::now();
        black_box(tokenizer.encode(&text, false).await?);
        times.push(start.elapsed().as_nanos() as f64 / 1e3 / thousands);
    }
    Finding::new("tokenizing, a text seen before", median(&mut times), "us/1k tokens").print();
    // What llama.cpp writes for a token of 4 bytes: `{"id":12345,"piece":" get"},`.
    let asked = serde_json::to_string(&text)?.len() as f64 / thousands;
    let answered = 1000.0 * r#"{"id":12345,"piece":" get"},"#.len() as f64;
    Finding::new("wire, tokenizing", asked + answered, "bytes/1k tokens")
        .note("text there, ids with their pieces back; none with a tokenizer.json")
        .print();
    Ok(())
}

/// The one that litellm carries, which is installed with the peers.
fn published_tokenizer() -> Option<PathBuf> {
    let python = PathBuf::from(std::env::var_os("ESPALIER_PEERS_PYTHON")?);
    let lib = python.parent()?.parent()?.join("lib");
    let versions = std::fs::read_dir(lib).ok()?.flatten();
    versions
        .map(|version| {
            version
                .path()
                .join("site-packages/litellm/litellm_core_utils/tokenizers/anthropic_tokenizer.json")
        })
        .find(|path| path.is_file())
}

//! The published form of llama.cpp's requests and answers.

use super::align::{self, Entry, Token};
use crate::endpoint::{Encoded, check_counts, check_logprob, read_borrowed};
use crate::error::{EndpointError, Fault};
use espalier_core::samples::Sampling;
use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use std::borrow::Cow;

/// One request to `/completion`.
pub(super) struct Ask<'a> {
    pub(super) prompt: &'a [u32],
    pub(super) n_predict: u32,
    /// Candidates by token; at least 1.
    pub(super) n_probs: u32,
    pub(super) seed: u32,
    /// Where the context is cached; `None`: the server finds the slot with the longest common prefix.
    pub(super) slot: Option<i64>,
    /// A token to be sampled whatever the distribution says.
    pub(super) force: Option<u32>,
}

/// A checked answer.
#[derive(Debug, PartialEq)]
pub(super) struct Completion {
    pub(super) tokens: Vec<Token>,
    pub(super) end: End,
    pub(super) slot: Option<i64>,
    /// Candidates of the first token.
    pub(super) candidates: Vec<Candidate>,
}

/// Why sampling ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The model ended its turn.
    Turn,
    /// As many tokens as were asked for.
    Limit,
    /// The context is full.
    Context,
}

#[derive(Debug, PartialEq)]
pub(super) struct Candidate {
    pub(super) id: u32,
    pub(super) logprob: f32,
    pub(super) bytes: Vec<u8>,
}

#[derive(Deserialize)]
struct Answer<'a> {
    content: String,
    tokens: Vec<u32>,
    tokens_predicted: u64,
    tokens_evaluated: u64,
    stop_type: String,
    truncated: bool,
    id_slot: Option<i64>,
    #[serde(borrow, default)]
    completion_probabilities: Vec<AnswerEntry<'a>>,
}

#[derive(Deserialize)]
struct AnswerEntry<'a> {
    id: u32,
    logprob: Option<f64>,
    bytes: Vec<u8>,
    /// Read where candidates were asked for.
    #[serde(borrow, default)]
    top_logprobs: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct AnswerCandidate {
    id: u32,
    logprob: Option<f64>,
    bytes: Vec<u8>,
}

/// `/props`, as far as it matters.
#[derive(Deserialize)]
pub(super) struct Props {
    pub(super) default_generation_settings: Settings,
    pub(super) total_slots: Option<u32>,
    pub(super) model_alias: Option<String>,
    pub(super) model_path: Option<String>,
    pub(super) chat_template: Option<String>,
    pub(super) bos_token: Option<String>,
    pub(super) eos_token: Option<String>,
}

#[derive(Deserialize)]
pub(super) struct Settings {
    /// Context length of one slot, in tokens.
    pub(super) n_ctx: u32,
}

/// `/tokenize` with pieces.
#[derive(Deserialize)]
struct Tokenized {
    tokens: Pieces,
}

/// The tokens of a text, gathered as they are read: an answer has an entry for each token of a whole prompt.
#[derive(Default)]
struct Pieces {
    ids: Vec<u32>,
    /// Where each token's piece ends in `bytes`.
    ends: Vec<u32>,
    /// All pieces, one behind the other.
    bytes: Vec<u8>,
}

#[derive(Deserialize)]
struct PieceToken<'a> {
    id: u32,
    #[serde(borrow)]
    piece: Piece<'a>,
}

/// A piece is a string, or a list of bytes where it is not UTF-8.
struct Piece<'a>(Cow<'a, [u8]>);

impl<'de> Deserialize<'de> for Pieces {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct List;
        impl<'de> Visitor<'de> for List {
            type Value = Pieces;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a list of tokens")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut tokens: A) -> Result<Pieces, A::Error> {
                let mut pieces = Pieces::default();
                while let Some(PieceToken { id, piece }) = tokens.next_element()? {
                    pieces.ids.push(id);
                    pieces.bytes.extend_from_slice(&piece.0);
                    pieces.ends.push(pieces.bytes.len() as u32);
                }
                Ok(pieces)
            }
        }
        deserializer.deserialize_seq(List)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Piece<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Either;
        impl<'de> Visitor<'de> for Either {
            type Value = Piece<'de>;
            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("a string or a list of bytes")
            }
            fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Self::Value, E> {
                Ok(Piece(Cow::Borrowed(text.as_bytes())))
            }
            fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
                Ok(Piece(Cow::Owned(text.as_bytes().to_vec())))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut bytes: A) -> Result<Self::Value, A::Error> {
                let mut piece = Vec::new();
                while let Some(byte) = bytes.next_element()? {
                    piece.push(byte);
                }
                Ok(Piece(Cow::Owned(piece)))
            }
        }
        deserializer.deserialize_any(Either)
    }
}

/// `/detokenize`.
#[derive(Deserialize)]
pub(super) struct Detokenized {
    pub(super) content: String,
}

#[derive(Deserialize)]
struct Refusal {
    error: RefusalBody,
}

#[derive(Deserialize)]
struct RefusalBody {
    #[serde(rename = "type")]
    kind: String,
    n_prompt_tokens: Option<u64>,
    n_ctx: Option<u64>,
}

/// Without the prompt, which is `prompt`. Every sampler is named, so that none of the server's defaults is left on.
pub(super) fn completion_body(sampling: &Sampling, ask: &Ask<'_>) -> Value {
    let mut body = json!({
        "n_predict": ask.n_predict,
        "n_probs": ask.n_probs,
        "seed": ask.seed,
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "repeat_penalty": sampling.repeat_penalty,
        "repeat_last_n": if sampling.repeat_penalty == 1.0 { 0 } else { 64 },
        "typical_p": 1.0,
        "top_n_sigma": -1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "dry_multiplier": 0.0,
        "xtc_probability": 0.0,
        "dynatemp_range": 0.0,
        "mirostat": 0,
        "ignore_eos": false,
        "stop": [],
        "stream": false,
        "return_tokens": true,
        "cache_prompt": true,
        "post_sampling_probs": false,
    });
    if let Some(slot) = ask.slot {
        body["id_slot"] = json!(slot);
    }
    if let Some(force) = ask.force {
        body["logit_bias"] = json!([[force, 1000.0]]);
    }
    body
}

/// The seed of the piece that begins behind `done` tokens. The server takes 32 bits, the highest value means random.
pub(super) fn piece_seed(seed: u64, done: u32) -> u32 {
    let mixed =
        if done == 0 { seed } else { seed.wrapping_add(u64::from(done).wrapping_mul(0x9E37_79B9_7F4A_7C15)) };
    let folded = (mixed ^ (mixed >> 32)) as u32;
    if folded == u32::MAX { 0 } else { folded }
}

/// Reads an answer and checks every count in it.
pub(super) fn read_completion(body: &[u8], ask: &Ask<'_>) -> Result<Completion, Fault> {
    let answer: Answer<'_> = read_borrowed(body)?;
    // Logprobs may be fewer than ids here, never more: what is missing is found by the alignment.
    check_counts(answer.tokens.len(), answer.tokens.len(), ask.n_predict)?;
    if answer.tokens_predicted != answer.tokens.len() as u64 {
        let reason =
            format!("{} ids, but `tokens_predicted` is {}", answer.tokens.len(), answer.tokens_predicted);
        return Err(Fault::inconsistent(reason));
    }
    if answer.tokens_evaluated != ask.prompt.len() as u64 {
        let reason = format!(
            "a prompt of {} tokens, but `tokens_evaluated` is {}",
            ask.prompt.len(),
            answer.tokens_evaluated
        );
        return Err(Fault::inconsistent(reason));
    }
    let full = answer.tokens.len() < ask.n_predict as usize;
    let end = match answer.stop_type.as_str() {
        "eos" => End::Turn,
        "limit" if answer.truncated || full => End::Context,
        "limit" => End::Limit,
        other => return Err(Fault::malformed(format!("`stop_type` is {other:?}"))),
    };
    let mut entries = Vec::with_capacity(answer.completion_probabilities.len());
    let mut candidates = Vec::new();
    for (at, entry) in answer.completion_probabilities.into_iter().enumerate() {
        // JSON has no minus infinity: the server writes null.
        let logprob = check_logprob(entry.logprob.unwrap_or(f64::NEG_INFINITY))?;
        if let Some(list) = entry.top_logprobs.filter(|_| at == 0 && ask.n_probs > 1) {
            for candidate in read_borrowed::<Vec<AnswerCandidate>>(list.get().as_bytes())? {
                let logprob = check_logprob(candidate.logprob.unwrap_or(f64::NEG_INFINITY))?;
                candidates.push(Candidate { id: candidate.id, logprob, bytes: candidate.bytes });
            }
        }
        entries.push(Entry { id: entry.id, logprob, bytes: entry.bytes });
    }
    let tokens = align::align(&answer.tokens, entries, &answer.content)?;
    Ok(Completion { tokens, end, slot: answer.id_slot.filter(|slot| *slot >= 0), candidates })
}

/// A prompt beyond the context has a type of its own.
pub(super) fn refusal(_: u16, body: &[u8], endpoint: &str) -> Option<EndpointError> {
    let refusal: Refusal = serde_json::from_slice(body).ok()?;
    if refusal.error.kind != "exceed_context_size_error" {
        return None;
    }
    Some(EndpointError::ContextOverflow {
        endpoint: endpoint.to_owned(),
        prompt: refusal.error.n_prompt_tokens?,
        context: refusal.error.n_ctx?,
    })
}

/// Ids with offsets, where the pieces put together are the text (a tokenizer that normalises gives no offsets).
pub(super) fn read_tokenized(body: &[u8], text: &str) -> Result<Encoded, Fault> {
    let Pieces { ids, ends, bytes } = read_borrowed::<Tokenized>(body)?.tokens;
    let offsets = (bytes == text.as_bytes())
        .then(|| ends.iter().scan(0, |from, end| Some((std::mem::replace(from, *end), *end))).collect());
    Ok(Encoded { ids, offsets })
}

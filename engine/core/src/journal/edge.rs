//! What a rollout was told from outside of the engine and cannot compute again: kept so that it can be driven again.
//!
//! Rendering, cutting at stop texts, parsing of calls, ledger and environments follow from the code and from these answers. Kept
//! where the experiment says `record_calls = true`; steps of an environment stand in the record in any case.

use super::{Bytes, octets};
use crate::attempt::{AttemptCapability, Draft};
use crate::chat::ToolCall;
use crate::host::sandbox::Outcome;
use parking_lot::{Mutex, MutexGuard};
use serde::{Deserialize, Serialize};
use std::collections::HashSet;

/// Most bytes of edges that are kept of one attempt.
pub const EDGES_BYTES_MAX: u64 = 16 << 20;

/// One answer from outside.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Edge {
    /// What an endpoint sampled for a call, before it was cut at a stop text.
    Sampled {
        /// The call.
        call_id: String,
        /// Every token, also those behind a stop text.
        ids: Vec<u32>,
        /// Nats, one a token; `None` where the server gave none.
        logprobs: Vec<Option<f32>>,
        /// What each token adds to the text, where the server says so.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        token_bytes: Option<Vec<Bytes<'static>>>,
        /// Why it ended: [`crate::chat::Finish::as_str`].
        finish: String,
        /// Which weights sampled what: first token, tokens, label.
        versions: Vec<(u32, u32, String)>,
    },
    /// What an endpoint of text answered to a call.
    Answered {
        /// The call.
        call_id: String,
        /// What the model says.
        text: String,
        /// Calls as the server parsed them.
        tool_calls: Vec<ToolCall>,
        /// Why a call could not be used.
        malformed: Option<String>,
        /// Why it ended.
        finish: String,
        /// Tokens of prompt and answer, as the server counts.
        tokens: (u32, u32),
        /// Label of the weights.
        version: String,
    },
    /// What a server's tokenizer made of a text; each text once.
    Encoded {
        /// The experiment's name of the model.
        model: String,
        /// The text.
        text: String,
        /// Whether control tokens were read in it.
        special: bool,
        /// Its tokens.
        ids: Vec<u32>,
        /// Bytes of the text that each stands for, where the server says so.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        offsets: Option<Vec<(u32, u32)>>,
    },
    /// What a server's tokenizer made of tokens; each list once.
    Decoded {
        /// The experiment's name of the model.
        model: String,
        /// The tokens.
        ids: Vec<u32>,
        /// Their bytes.
        #[serde(with = "octets")]
        bytes: Vec<u8>,
    },
    /// How a command in a sandbox ended.
    Command {
        /// Its name in the task.
        sandbox: String,
        /// The id under which the agent knows it, which follows from attempt and call number: `CLIENT/SEQUENCE`.
        id: String,
        /// What came of it.
        outcome: Outcome,
    },
}

impl Edge {
    /// The word for it: `sampled`, `command` ...
    pub fn kind(&self) -> &'static str {
        match self {
            Edge::Sampled { .. } => "sampled",
            Edge::Answered { .. } => "answered",
            Edge::Encoded { .. } => "encoded",
            Edge::Decoded { .. } => "decoded",
            Edge::Command { .. } => "command",
        }
    }

    /// Bytes that it takes, about.
    fn bytes(&self) -> u64 {
        let bytes = match self {
            Edge::Sampled { ids, token_bytes, .. } => {
                9 * ids.len() + token_bytes.iter().flatten().map(|bytes| bytes.0.len()).sum::<usize>()
            }
            Edge::Answered { text, .. } => text.len(),
            Edge::Encoded { text, ids, offsets, .. } => {
                text.len() + 4 * ids.len() + offsets.as_ref().map_or(0, |offsets| 8 * offsets.len())
            }
            Edge::Decoded { ids, bytes, .. } => 4 * ids.len() + bytes.len(),
            Edge::Command { outcome, .. } => {
                let output = |output: &crate::host::sandbox::Output| output.head.len() + output.tail.len();
                output(&outcome.stdout) + output(&outcome.stderr)
            }
        };
        bytes as u64 + 64
    }
}

/// The edges of one attempt, in the order in which they were met; within [`EDGES_BYTES_MAX`].
#[derive(Debug, Default)]
pub struct EdgeLog(Mutex<Noted>);

#[derive(Debug, Default)]
struct Noted {
    edges: Vec<Edge>,
    bytes: u64,
    missing: u64,
    /// Digests of the texts and lists that a tokenizer was asked for.
    asked: HashSet<[u8; 32]>,
}

impl EdgeLog {
    /// Keeps one; where there is no room it is counted as missing.
    pub fn note(&self, edge: Edge) {
        self.noted().keep(edge);
    }

    /// Keeps the answer of a tokenizer, where it was not asked the same before.
    pub fn note_text(&self, model: &str, text: &str, special: bool, edge: impl FnOnce() -> Edge) {
        self.note_once(&[model.as_bytes(), text.as_bytes(), &[u8::from(special)]], edge);
    }

    /// The same of a list of tokens.
    pub fn note_ids(&self, model: &str, ids: &[u32], edge: impl FnOnce() -> Edge) {
        let ids: Vec<u8> = ids.iter().flat_map(|id| id.to_le_bytes()).collect();
        self.note_once(&[model.as_bytes(), &ids], edge);
    }

    fn note_once(&self, asked: &[&[u8]], edge: impl FnOnce() -> Edge) {
        let mut hasher = blake3::Hasher::new();
        for part in asked {
            hasher.update(&(part.len() as u64).to_le_bytes()).update(part);
        }
        let mut noted = self.noted();
        if noted.asked.insert(*hasher.finalize().as_bytes()) {
            noted.keep(edge());
        }
    }

    fn noted(&self) -> MutexGuard<'_, Noted> {
        self.0.lock()
    }
}

impl Noted {
    fn keep(&mut self, edge: Edge) {
        let bytes = edge.bytes();
        if self.bytes + bytes > EDGES_BYTES_MAX {
            self.missing += 1;
            return;
        }
        self.bytes += bytes;
        self.edges.push(edge);
    }
}

impl AttemptCapability for EdgeLog {
    fn finish(&self, draft: &mut Draft) {
        let mut noted = self.noted();
        draft.edges = std::mem::take(&mut noted.edges);
        draft.edges_missing = noted.missing;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ending::{Ending, StopReason};

    fn encoded(text: &str) -> Edge {
        let (model, text) = ("policy".to_owned(), text.to_owned());
        Edge::Encoded { model, text, special: false, ids: vec![1], offsets: None }
    }

    #[test]
    fn each_text_is_kept_once_and_what_has_no_room_is_counted() {
        let log = EdgeLog::default();
        for text in ["a", "b", "a"] {
            log.note_text("policy", text, false, || encoded(text));
        }
        log.note_text("policy", "a", true, || encoded("a"));
        log.note_text("judge", "a", false, || encoded("a"));
        let long = "x".repeat(EDGES_BYTES_MAX as usize);
        log.note(encoded(&long));
        let mut draft = Draft::empty(Ending { stop_reason: StopReason::Submitted, error: None }, 0);
        log.finish(&mut draft);
        assert_eq!((draft.edges.len(), draft.edges_missing), (4, 1));
        let text = serde_json::to_string(&draft.edges[0]).unwrap();
        assert_eq!(text, r#"{"encoded":{"model":"policy","text":"a","special":false,"ids":[1]}}"#);
        assert_eq!(serde_json::from_str::<Edge>(&text).unwrap(), draft.edges[0]);
    }
}

//! The endpoint's own tokenizer, over its tokenize route.
//!
//! For servers whose route can take control-token text as plain text (llama.cpp); a GGUF carries no `tokenizer.json`.
//! The special tokens are found out once: every token of the vocabulary is spelled, the spellings are read back with
//! and without control tokens, and what only appears with them is special.
//!
//! Texts recur: a group opens with the same one, and worlds answer alike. What was encoded lately is kept, in a bounded
//! number of bytes.

use super::{Encoded, SpecialToken, Tokenizer, TokenizerError, longest_first};
use crate::endpoint::Endpoint;
use crate::error::EndpointError;
use async_trait::async_trait;
use espalier_core::cause::Failed;
use parking_lot::{Mutex, MutexGuard};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

/// Tokens spelled in one request while special tokens are sought.
const IDS_PER_REQUEST: usize = 4096;

/// Bytes of encoded texts that are kept: text, ids and offsets.
const KEPT_BYTES: usize = 8 << 20;

/// A tokenizer that asks the endpoint.
pub struct RemoteTokenizer {
    endpoint: Arc<dyn Endpoint>,
    special_tokens: Vec<SpecialToken>,
    /// Never held while anything is awaited.
    kept: Mutex<Kept>,
}

/// Encoded texts in two halves: what is found in the old one moves to the young one; when that is full it becomes the
/// old one, and what was not asked for since is gone.
#[derive(Default)]
struct Kept {
    young: Half,
    old: Half,
    young_bytes: usize,
}

/// By whether control tokens are read, then by text.
type Half = [HashMap<Box<str>, Arc<Encoded>>; 2];

impl Kept {
    fn get(&mut self, text: &str, special: bool) -> Option<Arc<Encoded>> {
        let half = usize::from(special);
        if let Some(encoded) = self.young[half].get(text) {
            return Some(Arc::clone(encoded));
        }
        let encoded = self.old[half].remove(text)?;
        self.put(text, special, Arc::clone(&encoded));
        Some(encoded)
    }

    fn put(&mut self, text: &str, special: bool, encoded: Arc<Encoded>) {
        let bytes = text.len() + 12 * encoded.ids.len() + 128;
        if self.young_bytes + bytes > KEPT_BYTES / 2 {
            self.old = std::mem::take(&mut self.young);
            self.young_bytes = 0;
        }
        if bytes <= KEPT_BYTES / 2 && self.young[usize::from(special)].insert(text.into(), encoded).is_none()
        {
            self.young_bytes += bytes;
        }
    }
}

impl RemoteTokenizer {
    /// Finds out the special tokens. Errors: `Unsuited` where the route reads control-token text in messages as control
    /// tokens, so that a `tokenizer.json` is needed; `Unavailable`.
    pub async fn open(endpoint: Arc<dyn Endpoint>) -> Result<RemoteTokenizer, TokenizerError> {
        let info = endpoint.describe().await.map_err(unavailable)?;
        if !info.literal_tokenize {
            return Err(TokenizerError::Unsuited(
                "the tokenize route of this server reads control-token text in messages as control tokens; \
                 hint: set tokenizer = \"path/to/tokenizer.json\" for this model"
                    .to_owned(),
            ));
        }
        let special_tokens = match info.special_tokens {
            Some(tokens) => tokens,
            None => {
                let size = endpoint.vocabulary().await.map_err(unavailable)?;
                let size = size.ok_or_else(|| {
                    let text = "this server does not report how many tokens it has; \
                                hint: set tokenizer = \"path/to/tokenizer.json\" for this model";
                    TokenizerError::Unsuited(text.to_owned())
                })?;
                special_tokens(&*endpoint, size).await?
            }
        };
        Ok(RemoteTokenizer::with_special_tokens(endpoint, special_tokens))
    }

    /// With special tokens that are known already.
    pub fn with_special_tokens(
        endpoint: Arc<dyn Endpoint>,
        mut special_tokens: Vec<SpecialToken>,
    ) -> RemoteTokenizer {
        longest_first(&mut special_tokens);
        RemoteTokenizer { endpoint, special_tokens, kept: Mutex::default() }
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock()
    }
}

#[async_trait]
impl Tokenizer for RemoteTokenizer {
    async fn encode(&self, text: &str, special: bool) -> Result<Encoded, TokenizerError> {
        if text.is_empty() {
            return Ok(Encoded { ids: Vec::new(), offsets: Some(Vec::new()) });
        }
        if let Some(encoded) = self.kept().get(text, special) {
            return Ok(encoded.as_ref().clone());
        }
        let encoded = self.endpoint.tokenize(text, special).await.map_err(unavailable)?;
        self.kept().put(text, special, Arc::new(encoded.clone()));
        Ok(encoded)
    }

    async fn decode(&self, ids: &[u32]) -> Result<Vec<u8>, TokenizerError> {
        if ids.is_empty() {
            return Ok(Vec::new());
        }
        Ok(self.endpoint.detokenize(ids).await.map_err(unavailable)?.into_bytes())
    }

    fn asks_a_server(&self) -> bool {
        true
    }

    fn special_tokens(&self) -> &[SpecialToken] {
        &self.special_tokens
    }

    /// The server adds none to token ids that it is sent, and does not say what it would add to a text.
    fn prefix(&self) -> &[u32] {
        &[]
    }
}

/// Reads the whole vocabulary in steps.
async fn special_tokens(endpoint: &dyn Endpoint, size: u32) -> Result<Vec<SpecialToken>, TokenizerError> {
    let newline = endpoint.tokenize("\n", false).await.map_err(unavailable)?.ids;
    let mut tokens = Vec::new();
    for from in (0..size).step_by(IDS_PER_REQUEST) {
        let until = size.min(from + u32::try_from(IDS_PER_REQUEST).expect("a small number"));
        // One token a line, so that no two spellings run together.
        let ids: Vec<u32> =
            (from..until).flat_map(|id| std::iter::once(id).chain(newline.iter().copied())).collect();
        let spelled = endpoint.detokenize(&ids).await.map_err(unavailable)?;
        let with = endpoint.tokenize(&spelled, true).await.map_err(unavailable)?.ids;
        let without = endpoint.tokenize(&spelled, false).await.map_err(unavailable)?.ids;
        let without: BTreeSet<u32> = without.into_iter().collect();
        let only_with: BTreeSet<u32> = with.into_iter().filter(|id| !without.contains(id)).collect();
        for id in only_with {
            let text = endpoint.detokenize(&[id]).await.map_err(unavailable)?;
            let alone = endpoint.tokenize(&text, true).await.map_err(unavailable)?.ids;
            let as_text = endpoint.tokenize(&text, false).await.map_err(unavailable)?.ids;
            if alone == [id] && as_text != [id] {
                tokens.push(SpecialToken { id, text });
            }
        }
    }
    tokens.sort_by_key(|token| token.id);
    tokens.dedup();
    Ok(tokens)
}

fn unavailable(error: EndpointError) -> TokenizerError {
    TokenizerError::Unavailable(Failed::by(error.to_string(), error))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(ids: usize) -> Arc<Encoded> {
        Arc::new(Encoded { ids: vec![1; ids], offsets: None })
    }

    #[test]
    fn what_is_asked_for_stays_and_bytes_are_bounded() {
        let mut kept = Kept::default();
        let texts = 40;
        // Each takes a tenth of a half.
        let ids = KEPT_BYTES / 2 / 10 / 12 - 100;
        for text in 0..texts {
            kept.put(&format!("text {text}"), true, encoded(ids));
            assert!(kept.get("text 0", true).is_some(), "asked for each time, behind {text}");
            assert!(kept.get("text 0", false).is_none(), "another encoding of the same text");
        }
        let there = (0..texts).filter(|text| kept.get(&format!("text {text}"), true).is_some()).count();
        assert!((10..=20).contains(&there), "{there}");
        kept.put("too long", true, encoded(KEPT_BYTES));
        assert!(kept.get("too long", true).is_none());
    }
}

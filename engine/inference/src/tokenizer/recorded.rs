//! A tokenizer that is asked over the network, with what it answers kept for the record of one attempt.

use super::{Encoded, SpecialToken, Tokenizer, TokenizerError};
use async_trait::async_trait;
use espalier_core::journal::{Edge, EdgeLog};
use std::sync::Arc;

/// Asks another tokenizer and keeps the answers.
pub(crate) struct Recorded {
    /// Who answers.
    pub(crate) inner: Arc<dyn Tokenizer>,
    /// The experiment's name of the model.
    pub(crate) model: String,
    /// Where they are kept.
    pub(crate) edges: Arc<EdgeLog>,
}

#[async_trait]
impl Tokenizer for Recorded {
    async fn encode(&self, text: &str, special: bool) -> Result<Encoded, TokenizerError> {
        let encoded = self.inner.encode(text, special).await?;
        self.edges.note_text(&self.model, text, special, || Edge::Encoded {
            model: self.model.clone(),
            text: text.to_owned(),
            special,
            ids: encoded.ids.clone(),
            offsets: encoded.offsets.clone(),
        });
        Ok(encoded)
    }

    async fn decode(&self, ids: &[u32]) -> Result<Vec<u8>, TokenizerError> {
        let bytes = self.inner.decode(ids).await?;
        self.edges.note_ids(&self.model, ids, || Edge::Decoded {
            model: self.model.clone(),
            ids: ids.to_vec(),
            bytes: bytes.clone(),
        });
        Ok(bytes)
    }

    fn special_tokens(&self) -> &[SpecialToken] {
        self.inner.special_tokens()
    }

    fn prefix(&self) -> &[u32] {
        self.inner.prefix()
    }

    fn special(&self, id: u32) -> Option<&SpecialToken> {
        self.inner.special(id)
    }
}

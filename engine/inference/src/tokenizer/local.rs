//! A tokenizer of this process, from a `tokenizer.json`.

use super::{Encoded, SpecialToken, Tokenizer, TokenizerError};
use async_trait::async_trait;
use espalier_core::cause::Failed;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use tokenizers::decoders::DecoderWrapper;

/// Texts of more bytes are encoded on a thread for blocking work: about 5 ms.
const INLINE_BYTES_MAX: usize = 32 * 1024;

/// A `tokenizer.json`, loaded.
pub struct LocalTokenizer {
    inner: Arc<Inner>,
    special_tokens: Vec<SpecialToken>,
    prefix: Vec<u32>,
}

struct Inner {
    /// Control-token text becomes control tokens.
    tokens: tokenizers::Tokenizer,
    /// The same with control-token text as text; made when first asked, since it doubles the vocabulary's memory.
    literal: OnceLock<tokenizers::Tokenizer>,
    spelling: Spelling,
}

/// How a vocabulary spells bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Spelling {
    /// One letter per byte, from a table of 256 printable letters (GPT-2 and most since).
    ByteLevel,
    /// Text with U+2581 for spaces, `<0x0A>` for bytes that no token spells (SentencePiece).
    ByteFallback,
}

impl LocalTokenizer {
    /// Reads a file.
    pub fn from_file(path: &Path) -> Result<LocalTokenizer, TokenizerError> {
        let refused = |source: Failed| TokenizerError::File { path: path.display().to_string(), source };
        let bytes = std::fs::read(path).map_err(|error| refused(of(error)))?;
        LocalTokenizer::from_bytes(&bytes).map_err(refused)
    }

    /// Reads the text of a `tokenizer.json`. Errors: why it cannot be used.
    pub fn from_bytes(bytes: &[u8]) -> Result<LocalTokenizer, Failed> {
        let json: serde_json::Value = serde_json::from_slice(bytes).map_err(of)?;
        let tokens = tokenizers::Tokenizer::from_bytes(bytes).map_err(of)?;
        let mut special_tokens: Vec<SpecialToken> = tokens
            .get_added_tokens_decoder()
            .into_iter()
            .filter(|(_, token)| token.special && !token.content.is_empty())
            .map(|(id, token)| SpecialToken { id, text: token.content })
            .collect();
        super::longest_first(&mut special_tokens);
        let default = tokens.encode("", true).map_err(of)?;
        let mut prefix = default.get_ids().to_vec();
        // Some tokenizers also end every text; what ends a text is not a prefix.
        let ends = ends_of_post_processor(&json);
        prefix.retain(|id| !ends.contains(id));
        let spelling = match tokens.get_decoder() {
            Some(DecoderWrapper::ByteLevel(_)) => Spelling::ByteLevel,
            _ if json["decoder"].to_string().contains("\"ByteLevel\"") => Spelling::ByteLevel,
            _ => Spelling::ByteFallback,
        };
        let inner = Inner { tokens, literal: OnceLock::new(), spelling };
        Ok(LocalTokenizer { inner: Arc::new(inner), special_tokens, prefix })
    }
}

/// Ids that the post-processor's template puts behind a text.
fn ends_of_post_processor(json: &serde_json::Value) -> Vec<u32> {
    let mut ends = Vec::new();
    let mut collect = |processor: &serde_json::Value| {
        let Some(single) = processor["single"].as_array() else { return };
        let Some(text_at) = single.iter().position(|part| part.get("Sequence").is_some()) else { return };
        for part in &single[text_at + 1..] {
            let name = part["SpecialToken"]["id"].as_str().unwrap_or_default();
            let ids = processor["special_tokens"][name]["ids"].as_array();
            ends.extend(ids.into_iter().flatten().filter_map(|id| u32::try_from(id.as_u64()?).ok()));
        }
    };
    let processor = &json["post_processor"];
    collect(processor);
    processor["processors"].as_array().into_iter().flatten().for_each(&mut collect);
    ends
}

#[async_trait]
impl Tokenizer for LocalTokenizer {
    async fn encode(&self, text: &str, special: bool) -> Result<Encoded, TokenizerError> {
        if text.len() <= INLINE_BYTES_MAX {
            return self.inner.encode(text, special);
        }
        let (inner, text) = (self.inner.clone(), text.to_owned());
        // Owner: this call. A dropped call lets the work end unheard.
        let work = tokio::task::spawn_blocking(move || inner.encode(&text, special));
        work.await.map_err(|error| TokenizerError::Refused(of(error)))?
    }

    async fn decode(&self, ids: &[u32]) -> Result<Vec<u8>, TokenizerError> {
        let mut out = Vec::with_capacity(ids.len() * 4);
        for id in ids {
            self.inner.token_bytes(*id, &mut out)?;
        }
        Ok(out)
    }

    fn special_tokens(&self) -> &[SpecialToken] {
        &self.special_tokens
    }

    fn prefix(&self) -> &[u32] {
        &self.prefix
    }
}

/// What a library says, as it says it.
fn of(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Failed {
    let error = error.into();
    Failed::by(error.to_string(), error)
}

impl Inner {
    fn encode(&self, text: &str, special: bool) -> Result<Encoded, TokenizerError> {
        let tokenizer = if special {
            &self.tokens
        } else {
            self.literal.get_or_init(|| {
                let mut literal = self.tokens.clone();
                literal.set_encode_special_tokens(true);
                literal
            })
        };
        let encoding = tokenizer.encode(text, false).map_err(|error| TokenizerError::Refused(of(error)))?;
        let place = |at: usize| u32::try_from(at).unwrap_or(u32::MAX);
        let offsets = encoding.get_offsets().iter().map(|(from, to)| (place(*from), place(*to))).collect();
        Ok(Encoded { ids: encoding.get_ids().to_vec(), offsets: Some(offsets) })
    }

    fn token_bytes(&self, id: u32, out: &mut Vec<u8>) -> Result<(), TokenizerError> {
        let Some(token) = self.tokens.id_to_token(id) else {
            return Err(TokenizerError::Refused(format!("no token has the id {id}").into()));
        };
        if self.tokens.get_added_vocabulary().get_vocab().contains_key(&token) {
            out.extend_from_slice(token.as_bytes());
            return Ok(());
        }
        match self.spelling {
            Spelling::ByteLevel => {
                for letter in token.chars() {
                    match byte_of_letter(letter) {
                        Some(byte) => out.push(byte),
                        None => out.extend_from_slice(letter.encode_utf8(&mut [0; 4]).as_bytes()),
                    }
                }
            }
            Spelling::ByteFallback => match fallback_byte(&token) {
                Some(byte) => out.push(byte),
                None => out.extend_from_slice(token.replace('\u{2581}', " ").as_bytes()),
            },
        }
        Ok(())
    }
}

/// `<0x0A>` as a byte.
fn fallback_byte(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    (digits.len() == 2).then(|| u8::from_str_radix(digits, 16).ok())?
}

/// The byte that a letter of a byte-level vocabulary spells: printable bytes spell themselves, all others are shifted
/// behind U+0100 in their order (the table of GPT-2's encoder).
fn byte_of_letter(letter: char) -> Option<u8> {
    let code = u32::from(letter);
    let printable = |byte: u8| matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    match code {
        0..=0xFF => u8::try_from(code).ok().filter(|byte| printable(*byte)),
        0x100..=0x143 => (0..=255u8).filter(|byte| !printable(*byte)).nth((code - 0x100) as usize),
        _ => None,
    }
}

//! An endpoint in this process, a small real tokenizer, and three templates.

use crate::client::ClientStats;
use crate::config::{History, ModelConfig, ModelKind};
use crate::endpoint::{
    ChatGenerated, ChatRequest, Encoded, Endpoint, EndpointInfo, GenerateRequest, Generated, VersionRun,
};
use crate::error::{EndpointError, Fault};
use crate::models::{Exact, Model, RolloutContext, RolloutModels};
use crate::template::{Source, Template, TemplateOptions};
use crate::tokenizer::Tokenizer;
use crate::tokenizer::local::LocalTokenizer;
use crate::tools::ToolParser;
use async_trait::async_trait;
use espalier_core::attempt::Owner;
use espalier_core::chat::Finish;
use espalier_core::ending::{Status, StopReason};
use espalier_core::ledger::Trainability;
use espalier_core::limits::Limits;
use espalier_core::meter::Meter;
use espalier_core::samples::check::check;
use espalier_core::samples::{
    Group, GroupKind, GroupStatus, LogprobKind, SCHEMA, SpanUse, Timing, Trajectory,
};
use espalier_core::trajectory::ModelOutput;
use futures::FutureExt;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const CHATML: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}\
                      {% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
/// Strips the thoughts of earlier turns.
const THINKING: &str = "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' and '</think>' in \
                        m.content %}{{ m.content.split('</think>')[-1] }}{% else %}{{ m.content }}{% endif %}\
                        <|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/// What the endpoint does with one request.
#[derive(Clone, Debug)]
pub(super) enum Reply {
    /// Samples this text; with the end of turn behind it where `ended`.
    Said { text: String, ended: bool },
    /// Never answers.
    Never,
    /// Fails after all its attempts.
    Gone,
    /// Refuses with this status.
    Refused(u16),
}

/// An answer that ends by itself.
pub(super) fn said(text: &str) -> Reply {
    Reply::Said { text: text.into(), ended: true }
}

/// An answer that its length ended.
pub(super) fn cut_short(text: &str) -> Reply {
    Reply::Said { text: text.into(), ended: false }
}

struct Fake {
    tokenizer: Arc<LocalTokenizer>,
    replies: Mutex<VecDeque<Reply>>,
    token_bytes: Mutex<bool>,
}

impl Fake {
    async fn reply(&self) -> Result<(String, bool), EndpointError> {
        let reply =
            self.replies.lock().unwrap().pop_front().expect("the test has an answer for each request");
        match reply {
            Reply::Said { text, ended } => Ok((text, ended)),
            Reply::Never => std::future::pending().await,
            Reply::Refused(status @ (401 | 403)) => {
                Err(EndpointError::Denied { endpoint: "fake".into(), status })
            }
            Reply::Refused(status) => {
                Err(EndpointError::Refused { endpoint: "fake".into(), status, body: String::new() })
            }
            Reply::Gone => Err(EndpointError::Unavailable {
                endpoint: "fake".into(),
                attempts: 8,
                waited: Duration::from_secs(1),
                last: Box::new(Fault::Empty),
            }),
        }
    }
}

#[async_trait]
impl Endpoint for Fake {
    async fn describe(&self) -> Result<EndpointInfo, EndpointError> {
        Ok(info(ModelKind::Vllm))
    }

    async fn generate(&self, request: GenerateRequest) -> Result<Generated, EndpointError> {
        let (text, ended) = self.reply().await?;
        let mut ids = ids_of(self.tokenizer.as_ref(), &text);
        if ended {
            ids.push(special(self.tokenizer.as_ref(), "<|im_end|>"));
        }
        let most = request.sampling.max_tokens as usize;
        let finish = if ended && ids.len() <= most { Finish::Stop } else { Finish::Length };
        ids.truncate(most);
        let mut token_bytes = Vec::new();
        for id in &ids {
            let control = self.tokenizer.special(*id).is_some();
            let bytes = self.tokenizer.decode(&[*id]).await.expect("the tokenizer knows its ids");
            token_bytes.push(if control { Vec::new() } else { bytes });
        }
        // New weights arrive in the middle of each answer.
        let (len, half) = (ids.len() as u32, ids.len() as u32 / 2);
        let run = |start, len, label: &str| VersionRun { start, len, label: label.into() };
        let versions = if half == 0 {
            vec![run(0, len, "v1")]
        } else {
            vec![run(0, half, "v1"), run(half, len - half, "v2")]
        };
        let with_bytes = *self.token_bytes.lock().unwrap();
        Ok(Generated {
            logprobs: ids.iter().map(|id| Some(-(*id as f32) / 512.0)).collect(),
            token_bytes: with_bytes.then_some(token_bytes),
            ids,
            finish,
            versions,
            logprob_kind: LogprobKind::Raw,
            retries: 0,
        })
    }

    async fn chat(&self, _request: ChatRequest) -> Result<ChatGenerated, EndpointError> {
        let (text, _) = self.reply().await?;
        Ok(ChatGenerated {
            sampled_tokens: text.len() as u32,
            prompt_tokens: 10,
            text,
            tool_calls: vec![],
            malformed: None,
            finish: Finish::Stop,
            version: "v1".into(),
            retries: 0,
        })
    }

    async fn tokenize(&self, _text: &str, _parse_special: bool) -> Result<Encoded, EndpointError> {
        Err(EndpointError::Unsupported { kind: "fake", what: "tokenize" })
    }

    async fn detokenize(&self, _ids: &[u32]) -> Result<String, EndpointError> {
        Err(EndpointError::Unsupported { kind: "fake", what: "detokenize" })
    }

    fn stats(&self) -> ClientStats {
        ClientStats::default()
    }

    async fn close(&self) {}
}

fn info(kind: ModelKind) -> EndpointInfo {
    EndpointInfo {
        kind,
        model: None,
        context_tokens: Some(1 << 20),
        slots: None,
        template: None,
        bos: None,
        eos: None,
        special_tokens: None,
        literal_tokenize: true,
        version: None,
        images: None,
    }
}

fn ids_of(tokenizer: &LocalTokenizer, text: &str) -> Vec<u32> {
    tokenizer.encode(text, false).now_or_never().expect("short texts are encoded at once").unwrap().ids
}

fn special(tokenizer: &LocalTokenizer, text: &str) -> u32 {
    tokenizer.special_tokens().iter().find(|token| token.text == text).expect("it is special").id
}

/// A byte-level BPE with a handful of merges and three control tokens.
pub(super) fn tokenizer() -> LocalTokenizer {
    let printable = |byte: u32| matches!(byte, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF);
    let mut next = 256;
    let letters: Vec<String> = (0u32..256)
        .map(|byte| {
            let code = if printable(byte) {
                byte
            } else {
                next += 1;
                next - 1
            };
            char::from_u32(code).expect("below the surrogates").to_string()
        })
        .collect();
    let space = letters[b' ' as usize].clone();
    let line = letters[b'\n' as usize].clone();
    let merges = [
        (line.clone(), line),
        ("t".into(), "h".into()),
        ("th".into(), "e".into()),
        ("o".into(), "n".into()),
        ("on".into(), "e".into()),
        (space.clone(), "the".into()),
        ("l".into(), "o".into()),
        ("lo".into(), "o".into()),
        ("loo".into(), "k".into()),
        (space, "a".into()),
        ("u".into(), "s".into()),
        ("us".into(), "er".into()),
        ("e".into(), "r".into()),
    ];
    let mut vocab = serde_json::Map::new();
    let mut add = |text: String| {
        let id = vocab.len();
        vocab.entry(text).or_insert(id.into());
    };
    letters.iter().cloned().for_each(&mut add);
    let mut kept = Vec::new();
    add("er".into());
    for (left, right) in merges {
        add(format!("{left}{right}"));
        kept.push(serde_json::json!([left, right]));
    }
    let base = vocab.len();
    let control = |(index, text): (usize, &&str)| {
        serde_json::json!({"id": base + index, "content": text, "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false, "special": true})
    };
    let added: Vec<_> =
        ["<|im_start|>", "<|im_end|>", "<|endoftext|>"].iter().enumerate().map(control).collect();
    let byte_level = serde_json::json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false,
        "use_regex": false});
    let json = serde_json::json!({"version": "1.0", "truncation": null, "padding": null, "added_tokens": added,
        "normalizer": null, "pre_tokenizer": byte_level, "post_processor": null, "decoder": byte_level,
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
            "vocab": vocab, "merges": kept}});
    LocalTokenizer::from_bytes(json.to_string().as_bytes()).expect("a sound tokenizer")
}

/// Prompts that were sent, each with its call.
type Sent = Arc<Mutex<Vec<(String, Vec<u32>)>>>;

/// A rollout's models over one fake endpoint, with every prompt that was sent.
pub(super) struct Setup {
    pub(super) models: RolloutModels,
    fake: Arc<Fake>,
    sent: Sent,
}

impl Setup {
    pub(super) fn chatml(limits: Limits, replies: impl IntoIterator<Item = Reply>) -> Setup {
        Setup::new(limits, replies, Some(CHATML), |_| {})
    }

    pub(super) fn plain(limits: Limits, replies: impl IntoIterator<Item = Reply>) -> Setup {
        Setup::new(limits, replies, None, |config| config.template = "plain".into())
    }

    pub(super) fn thinking(replies: impl IntoIterator<Item = Reply>, rendered: bool) -> Setup {
        Setup::new(Limits::default(), replies, Some(THINKING), |config| {
            config.history = if rendered { History::Template } else { History::Append };
        })
    }

    pub(super) fn text(replies: impl IntoIterator<Item = Reply>) -> Setup {
        Setup::new(Limits::default(), replies, None, |config| config.kind = ModelKind::OpenAiChat)
    }

    pub(super) fn with_token_bytes(self, with: bool) -> Setup {
        *self.fake.token_bytes.lock().unwrap() = with;
        self
    }

    fn new(
        limits: Limits,
        replies: impl IntoIterator<Item = Reply>,
        template: Option<&str>,
        configure: impl FnOnce(&mut ModelConfig),
    ) -> Setup {
        let tokenizer = Arc::new(tokenizer());
        let replies = Mutex::new(replies.into_iter().collect());
        let fake = Arc::new(Fake { tokenizer: tokenizer.clone(), replies, token_bytes: Mutex::new(true) });
        let mut config = ModelConfig::at(ModelKind::Vllm, "http://127.0.0.1:1");
        configure(&mut config);
        let special_tokens = tokenizer.special_tokens().iter().map(|token| token.text.clone()).collect();
        let template_options = TemplateOptions { special_tokens, ..TemplateOptions::default() };
        let source = template.map_or(Source::Plain, |text| Source::Jinja(text.into()));
        let mut models = BTreeMap::new();
        for name in ["policy", "judge"] {
            let exact = (config.kind != ModelKind::OpenAiChat).then(|| Exact {
                template: Arc::new(
                    Template::new(&source, template_options.clone()).expect("the template parses"),
                ),
                tokenizer: tokenizer.clone(),
                parser: ToolParser::Hermes,
            });
            let endpoint: Arc<dyn Endpoint> = fake.clone();
            let model = Model::assemble(name, config.clone(), endpoint, info(config.kind), exact)
                .now_or_never()
                .expect("a local tokenizer answers at once")
                .expect("the tokenizer knows the end of turn");
            models.insert(name.to_owned(), model);
        }
        let sent = Sent::default();
        let log = sent.clone();
        let context = RolloutContext {
            policy: "policy".into(),
            owner: Owner::Attempt("t".into()),
            session_id: "s".into(),
            meter: Arc::new(Meter::new(limits)),
            seed: Box::new(|number| 1000 + number),
            sent: Some(Arc::new(move |call_id, ids| {
                log.lock().unwrap().push((call_id.into(), ids.to_vec()));
            })),
            edges: Some(Arc::default()),
            blobs: None,
        };
        Setup { models: RolloutModels::new(Arc::new(models), context), fake, sent }
    }

    pub(super) fn special(&self, text: &str) -> u32 {
        special(&self.fake.tokenizer, text)
    }

    pub(super) fn encode(&self, text: &str) -> Vec<u32> {
        ids_of(&self.fake.tokenizer, text)
    }

    pub(super) fn push_reply(&self, reply: Reply) {
        self.fake.replies.lock().unwrap().push_back(reply);
    }

    /// The ids of the nth prompt.
    pub(super) fn sent(&self, nth: usize) -> Vec<u32> {
        self.sent.lock().unwrap()[nth].1.clone()
    }

    /// The text of the nth prompt.
    pub(super) fn sent_text(&self, nth: usize) -> String {
        let bytes = self.fake.tokenizer.decode(&self.sent(nth)).now_or_never().expect("at once").unwrap();
        String::from_utf8(bytes).expect("prompts are text")
    }

    pub(super) fn output(&self, trainability: Trainability) -> ModelOutput {
        self.models.output(trainability)
    }

    /// Every invariant of the format; and for each call that stands as sampled in a row, the row before it is what was
    /// sent.
    pub(super) fn check_everything(&self) -> ModelOutput {
        for way in [Trainability::NotTrainable, Trainability::Abandoned, Trainability::Trainable] {
            let output = self.output(way);
            let found = check(&group(&output, way == Trainability::Trainable));
            assert!(found.is_empty(), "{way:?}: {found:#?}");
        }
        let output = self.output(Trainability::Trainable);
        let sent = self.sent.lock().unwrap();
        let prompts: BTreeMap<&str, &[u32]> =
            sent.iter().map(|(id, ids)| (id.as_str(), ids.as_slice())).collect();
        for call in output.calls.iter() {
            assert_eq!(call.n_prompt as usize, prompts[call.call_id.as_str()].len());
        }
        for segment in &output.segments {
            let first =
                segment.spans.iter().filter(|span| span.usage == SpanUse::Sampled && span.offset == 0);
            for span in first {
                let before = &segment.tokens[..span.start as usize];
                assert_eq!(before, prompts[span.call_id.as_str()], "prompt of {}", span.call_id);
            }
        }
        output
    }
}

fn group(output: &ModelOutput, trainable: bool) -> Group {
    let stop_reason = if trainable { StopReason::Submitted } else { StopReason::Infrastructure };
    let trajectory = Trajectory {
        traj_id: "t".into(),
        rollout_id: 0,
        rollout_index: 0,
        attempt: 0,
        session_id: "s".into(),
        status: if trainable { Status::Completed } else { Status::Aborted },
        stop_reason,
        reward: trainable.then_some(1.0),
        reward_parts: BTreeMap::new(),
        turn_rewards: None,
        removed: None,
        trainable,
        timing_ms: Timing::default(),
        plugins: BTreeMap::new(),
        errors: vec![],
        calls: output.calls.clone(),
        other_calls: output.other_calls.clone(),
        segments: output.segments.clone(),
        excluded: output.excluded.clone(),
    };
    Group {
        schema: SCHEMA.into(),
        images: 0,
        run_id: "r".into(),
        group_id: "g".into(),
        group_index: 0,
        kind: GroupKind::Task,
        purpose: espalier_core::samples::GroupPurpose::Train,
        model: "policy".into(),
        parent: None,
        task_id: "t".into(),
        task_hash: String::new(),
        environment: "e".into(),
        n_requested: 1,
        n_ready: u32::from(trainable),
        dispatch_version: "v1".into(),
        deadline_ms: None,
        status: if trainable { GroupStatus::Ready } else { GroupStatus::Failed },
        drop_reason: None,
        trajectories: vec![trajectory],
        replaced: vec![],
        not_chosen: vec![],
    }
}

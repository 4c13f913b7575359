//! Opening a model: server, tokenizer and template, each tried once, so that what cannot work is refused before the
//! first rollout.

use super::{Exact, ImageError, Model};
use crate::config::{ModelConfig, Retries, SystemPrompt, TemplateSource, ToolParserName, ToolResults};
use crate::endpoint::{self, Endpoint, EndpointInfo};
use crate::error::EndpointError;
use crate::template::{Needs, Source, SystemAs, Template, TemplateError, TemplateOptions, ToolResultsAs};
use crate::tokenizer::local::LocalTokenizer;
use crate::tokenizer::remote::RemoteTokenizer;
use crate::tokenizer::{Tokenizer, TokenizerError};
use crate::tools::ToolParser;
use futures::future::join_all;
use std::path::PathBuf;
use std::sync::Arc;

/// Requests to each of several servers, when they are opened.
const ASKED_ALONE: u32 = 2;

/// Why a model cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The server cannot be reached, refuses, or is not what the experiment says.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// Text cannot become token ids.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// The template cannot carry what an experiment needs.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// The server has no chat template.
    #[error("the server names no chat template")]
    NoTemplate,
    /// The experiment says that it takes images, and it does not.
    #[error("the model takes no images: {reason}")]
    NoImages {
        /// Why.
        reason: String,
    },
    /// One of several servers has another model than the others.
    #[error("{url} differs from other servers of `urls`: {what} {found}, of the others {others}")]
    Differ {
        /// Which.
        url: String,
        /// In what.
        what: &'static str,
        /// What it says.
        found: String,
        /// What the others say.
        others: String,
    },
    /// A template file that cannot be read.
    #[error("template {}", path.display())]
    TemplateFile {
        /// Which.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
}

impl OpenError {
    /// What the user can do.
    pub fn hint(&self) -> Option<String> {
        match self {
            OpenError::Endpoint(EndpointError::Embedded(error)) => error.hint(),
            OpenError::Endpoint(EndpointError::Config(error)) => Some(error.hint.clone()),
            OpenError::Endpoint(EndpointError::Denied { .. }) => {
                Some("name the variable that holds the key with `api_key_env`, and export it".to_owned())
            }
            OpenError::Endpoint(_) => None,
            OpenError::Tokenizer(_) => Some("name a tokenizer.json with `tokenizer`".to_owned()),
            OpenError::Template(TemplateError::Refused { hint, .. }) => Some((*hint).to_owned()),
            OpenError::Differ { .. } => Some(
                "start all servers of `urls` with the same model and settings, or remove this one".to_owned(),
            ),
            OpenError::Template(_) | OpenError::TemplateFile { .. } => {
                Some("name another Jinja file with `template`".to_owned())
            }
            OpenError::NoImages { .. } => {
                Some("use a model that is shown images, or remove `images = true`".to_owned())
            }
            OpenError::NoTemplate => Some(
                "name a Jinja file with `template`, or write template = \"plain\" for a base model"
                    .to_owned(),
            ),
        }
    }
}

impl Model {
    /// Opens a model: starts the embedded one, or asks the server what it is; reads tokenizer and template; probes the
    /// template. Relative paths must be resolved ([`ModelConfig::resolve_paths`]). `seed` seeds the jitter of retries,
    /// `now_ms` is what templates take for today.
    ///
    /// A template must carry system messages and tool results as the configuration says (`system`, `tool_results`): one
    /// that drops or refuses them is refused here, with what to set; and so is a model that is to take images (`images = true`) and
    /// does not. Bounded by the deadlines and retries of `config`.
    pub async fn open(
        name: impl Into<String>,
        config: ModelConfig,
        seed: u64,
        now_ms: u64,
    ) -> Result<Arc<Model>, OpenError> {
        let endpoint = endpoint::open(&config, seed).await?;
        let info = endpoint.describe().await?;
        if config.urls.len() > 1 {
            servers_agree(&config, seed, &info).await?;
        }
        let exact = if config.kind.is_token_exact() {
            Some(exact(&config, &endpoint, &info, now_ms).await?)
        } else {
            None
        };
        let model = Model::assemble(name, config, endpoint, info, exact).await?;
        if model.config.images == Some(true) {
            model.takes_images().await.map_err(|error| match error {
                ImageError::NotTaken(reason) => OpenError::NoImages { reason },
                ImageError::Endpoint(error) => error.into(),
                ImageError::Tokenizer(error) => error.into(),
                ImageError::Blob(failure) => OpenError::NoImages { reason: failure.to_string() },
            })?;
        }
        Ok(model)
    }
}

/// Asks each of several servers what it is. One that does not answer is told in the log: the others do its work meanwhile.
async fn servers_agree(config: &ModelConfig, seed: u64, info: &EndpointInfo) -> Result<(), OpenError> {
    let described = config.urls.iter().map(async |url| {
        let alone = ModelConfig {
            url: Some(url.clone()),
            urls: Vec::new(),
            retries: Retries { attempts: ASKED_ALONE, ..config.retries },
            ..config.clone()
        };
        let endpoint = endpoint::open(&alone, seed).await?;
        endpoint.describe().await
    });
    for (url, described) in config.urls.iter().zip(join_all(described).await) {
        let found = match described {
            Ok(found) => found,
            Err(error @ (EndpointError::Unavailable { .. } | EndpointError::Deadline { .. })) => {
                tracing::warn!(url, error = %error.with_causes(), "a server of the model does not answer; the others are asked");
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        let tokens = |info: &EndpointInfo| info.context_tokens.map(|tokens| tokens.to_string());
        // A template is too long to be shown.
        let length = |info: &EndpointInfo| {
            info.template.as_ref().map(|text| format!("another of {} characters", text.chars().count()))
        };
        let differ = [
            ("the model is", found.model.clone(), info.model.clone(), found.model == info.model),
            ("the context in tokens is", tokens(&found), tokens(info), tokens(&found) == tokens(info)),
            ("the chat template is", length(&found), length(info), found.template == info.template),
        ];
        if let Some((what, found, others, _)) = differ.into_iter().find(|(.., same)| !same) {
            let word = |value: Option<String>| value.unwrap_or_else(|| "unknown".to_owned());
            let (found, others) = (word(found), word(others));
            return Err(OpenError::Differ { url: url.clone(), what, found, others });
        }
    }
    Ok(())
}

async fn exact(
    config: &ModelConfig,
    endpoint: &Arc<dyn Endpoint>,
    info: &EndpointInfo,
    now_ms: u64,
) -> Result<Exact, OpenError> {
    let tokenizer: Arc<dyn Tokenizer> = match &config.tokenizer {
        Some(path) => Arc::new(LocalTokenizer::from_file(path)?),
        None => Arc::new(RemoteTokenizer::open(Arc::clone(endpoint)).await?),
    };
    let source = match config.template_source() {
        TemplateSource::Plain => Source::Plain,
        TemplateSource::Chat => Source::Jinja(info.template.clone().ok_or(OpenError::NoTemplate)?),
        TemplateSource::File(path) => Source::Jinja(
            tokio::fs::read_to_string(&path)
                .await
                .map_err(|source| OpenError::TemplateFile { path, source })?,
        ),
    };
    let options = TemplateOptions {
        bos: info.bos.clone().unwrap_or_default(),
        eos: info.eos.clone().unwrap_or_default(),
        special_tokens: tokenizer.special_tokens().iter().map(|token| token.text.clone()).collect(),
        system: match config.system {
            SystemPrompt::Template => SystemAs::System,
            SystemPrompt::FirstUser => SystemAs::FirstUser,
        },
        tool_results: match config.tool_results {
            ToolResults::Template => ToolResultsAs::Tool,
            ToolResults::User => ToolResultsAs::User,
        },
        now_ms,
        variables: config.template_options.clone(),
    };
    let template = Template::new(&source, options)?;
    let parser = match (config.tool_parser, &source) {
        (Some(name), _) => parser(name),
        (None, Source::Jinja(text)) => ToolParser::for_template(text),
        (None, Source::Plain) => ToolParser::None,
    };
    if matches!(source, Source::Jinja(_)) {
        let features = template.probe()?;
        features.check(Needs { system: true, tool_results: true, tools: false })?;
    }
    Ok(Exact { template: Arc::new(template), tokenizer, parser })
}

fn parser(name: ToolParserName) -> ToolParser {
    match name {
        ToolParserName::Hermes => ToolParser::Hermes,
        ToolParserName::Qwen => ToolParser::Qwen,
        ToolParserName::Llama3 => ToolParser::Llama3,
        ToolParserName::Fenced => ToolParser::Fenced,
        ToolParserName::None => ToolParser::None,
    }
}

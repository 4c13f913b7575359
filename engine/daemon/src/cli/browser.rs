//! `espalier browser`: a browser by hand, for agents that speak MCP.

use super::Context;
use super::signals::Signals;
use crate::cli::exit::Exit;
use crate::output::problem::Problem;
use async_trait::async_trait;
use clap::{Args, Subcommand};
use espalier_core::browser::{BrowserConfig, BrowserFile, BrowserSpec, BrowserTools};
use espalier_core::chat::Tool;
use espalier_core::failure::Failure;
use espalier_core::host::browser::{BrowserSession, Browsers, SNAPSHOT_TOKENS};
use espalier_core::host::{BlobInfo, Blobs};
use espalier_core::sandbox::{Network, Rule};
use espalier_core::task::Task;
use espalier_engine_browser::{MAIN, RolloutBrowsers, RunBrowsers, RunBrowsersConfig};
use espalier_mcp::{BrowserSource, ServerOptions};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Label of the sandboxes of these browsers.
const LABEL: (&str, &str) = ("command", "browser-mcp");
/// Silence of this command that ends them.
const LEASE: Duration = Duration::from_secs(30);
/// What is kept of pictures and downloads: a client that was shown one does not ask for it again.
const KEPT_BYTES_MAX: usize = 128 << 20;

/// `espalier browser`
#[derive(Debug, Subcommand)]
pub enum BrowserCommand {
    /// Serve a browser's tools to an agent that speaks MCP, over standard input and output.
    #[command(
        after_help = r#"The browser runs in a sandbox, and reaches nothing but what is allowed. It starts
with the first call, and ends when the client closes the stream.

Examples:
  espalier browser mcp --allow '*:443'             all public https sites
  espalier browser mcp --allow shop.example.org:443 --start-url https://shop.example.org

As an agent's configuration:
  {"mcpServers": {"browser": {"command": "espalier",
    "args": ["browser", "mcp", "--allow", "*:443"]}}}"#
    )]
    Mcp(Box<McpArgs>),
}

/// `espalier browser mcp`
#[derive(Debug, Args)]
pub struct McpArgs {
    /// What pages may reach: HOST:PORT, *.DOMAIN:PORT, *:PORT or ADDRESS/BITS:PORT; may be repeated.
    #[arg(long, value_name = "HOST:PORT")]
    pub allow: Vec<String>,
    /// The page that is open at first; default about:blank.
    #[arg(long, value_name = "URL")]
    pub start_url: Option<String>,
    /// Size of the viewport in CSS pixels; default 1280x1000.
    #[arg(long, value_name = "WIDTHxHEIGHT", value_parser = size)]
    pub viewport: Option<[u32; 2]>,
    /// File with the keys of `[browser]` of an experiment, in TOML. Options win over it.
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Bound of the page description behind each action, in tokens; 0 for none.
    #[arg(long, value_name = "N", default_value_t = 2000)]
    pub description_tokens: u32,
    /// Also answer each action with a picture of the viewport.
    #[arg(long)]
    pub screenshots: bool,
    /// Offer `done` too, by which a model ends an episode.
    #[arg(long)]
    pub done: bool,
    /// Longest time of one call.
    #[arg(long, value_name = "TIME", default_value = "3m")]
    pub call_max: espalier_core::limits::DurationText,
}

fn size(text: &str) -> Result<[u32; 2], String> {
    let sides =
        text.split_once('x').and_then(|(width, height)| Some([width.parse().ok()?, height.parse().ok()?]));
    sides.ok_or_else(|| "expected WIDTHxHEIGHT, such as 1280x1000".to_owned())
}

pub(super) async fn browser(context: &mut Context, command: BrowserCommand) -> Result<Exit, Problem> {
    match command {
        BrowserCommand::Mcp(args) => mcp(context, *args).await,
    }
}

async fn mcp(context: &mut Context, args: McpArgs) -> Result<Exit, Problem> {
    let (least, most) = SNAPSHOT_TOKENS;
    if args.description_tokens != 0 && !(least..=most).contains(&args.description_tokens) {
        let text = format!(
            "invalid --description-tokens {}: expected 0, or {least} to {most}",
            args.description_tokens
        );
        return Err(Problem::new(Exit::Input, text));
    }
    let (config, folder) = configured(&args)?;
    let service = crate::sandboxes::open(
        &context.common.store.parse()?,
        None,
        espalier_sandbox::local::Services::default(),
    )?;
    let tools = config.file().tools.unwrap_or_default();
    let (name, value) = LABEL;
    let browsers = RunBrowsers::new(RunBrowsersConfig {
        service: service.clone(),
        config: Some(config),
        label: (name.to_owned(), value.to_owned()),
        require: Vec::new(),
        lease: LEASE,
        folder,
    })
    .map_err(|error| {
        Problem::of(Exit::Input, &error).hint("docs/browsers.md lists the keys of `[browser]`")
    })?;
    browsers.read_archive().await.map_err(|why| Problem::new(Exit::Input, why))?;
    let browsers = Arc::new(browsers);
    let task = Task::parse(r#"{"id":"mcp","instruction":"Answer the calls of a client."}"#)
        .map_err(|error| Problem::of(Exit::Input, &error))?;
    let source =
        Source { browsers: Arc::clone(&browsers), task: Arc::new(task), tools, blobs: Arc::default() };
    let options = ServerOptions {
        description_tokens: Some(args.description_tokens).filter(|tokens| *tokens != 0),
        screenshots: args.screenshots,
        done: args.done,
        call_max: args.call_max.0,
    };
    let mut signals = Signals::new(&context.listeners)?;
    let (input, output) = (stream(&std::io::stdin())?, stream(&std::io::stdout())?);
    let serving = espalier_mcp::serve(Arc::new(source), options, input, output);
    let served = tokio::select! {
        served = serving => served.map(|()| Exit::Done).map_err(|error| Problem::new(Exit::Input, format!("mcp: {error}"))),
        () = signals.next() => Ok(Exit::Interrupted),
    };
    // Another signal does not wait for it: the lease ends what is left.
    tokio::select! {
        () = async { browsers.close().await; service.close().await; } => {}
        () = signals.next() => {}
    }
    served
}

/// A standard stream, read or written by threads of the runtime, whatever it is.
fn stream(of: &impl AsFd) -> Result<tokio::fs::File, Problem> {
    let owned = of.as_fd().try_clone_to_owned().map_err(|error| Problem::of(Exit::Unavailable, &error))?;
    Ok(tokio::fs::File::from_std(owned.into()))
}

/// What `--allow` names, entry by entry.
pub(super) fn check_allow(entries: &[String]) -> Result<(), Problem> {
    for entry in entries {
        Rule::parse(entry).map_err(|error| {
            Problem::new(Exit::Input, format!("invalid --allow {entry:?}: expected {}", error.wanted))
        })?;
    }
    Ok(())
}

/// `[browser]` as file and options say it, and the folder that its paths start from.
fn configured(args: &McpArgs) -> Result<(BrowserConfig, PathBuf), Problem> {
    let mut config = BrowserConfig::default();
    let mut folder = PathBuf::from(".");
    if args.call_max.0.is_zero() {
        return Err(Problem::new(
            Exit::Input,
            "invalid --call-max 0s: expected a time that a call may take, such as 3m",
        ));
    }
    check_allow(&args.allow)?;
    if let Some(path) = &args.config {
        let wrong = |why: String| Problem::new(Exit::Input, format!("{}: {why}", path.display()));
        let text = std::fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
        config = toml::from_str(&text).map_err(|error| {
            wrong(error.to_string().trim().to_owned())
                .hint("the keys are those of `[browser]`, without its head: docs/browsers.md")
        })?;
        folder = path.parent().unwrap_or(&folder).to_path_buf();
    }
    if !args.allow.is_empty() {
        config.network = Some(Network::Allow(args.allow.clone()));
    }
    if let Some(name) = &config.sandbox {
        let problem = format!(
            "invalid browser.sandbox {name:?}: `espalier browser mcp` has no task whose sandbox it could be"
        );
        return Err(
            Problem::new(Exit::Input, problem).hint("leave `sandbox` out: the browser has one of its own")
        );
    }
    config.start_url = args.start_url.clone().or(config.start_url);
    config.viewport = args.viewport.or(config.viewport);
    let place = args.config.as_ref().map_or(String::new(), |path| format!("{}: ", path.display()));
    let wrong = |why: String| Problem::new(Exit::Input, format!("{place}{why}")).hint("see docs/browsers.md");
    let spec = BrowserSpec::resolve(&config.file(), &BrowserFile::default());
    spec.map_err(|error| wrong(error.to_string()))?.check_start().map_err(|_| {
        let url = config.start_url.as_deref().unwrap_or_default();
        wrong(format!("start URL {url:?}: pages may not reach it"))
            .hint("add its HOST:PORT by --allow, or to `network.allow` of --config")
    })?;
    Ok((config, folder))
}

/// Browsers one after another, each as a rollout would be given it.
struct Source {
    browsers: Arc<RunBrowsers>,
    task: Arc<Task>,
    tools: BrowserTools,
    blobs: Arc<Recent>,
}

#[async_trait]
impl BrowserSource for Source {
    fn tools(&self) -> Vec<Tool> {
        espalier_engine_browser::tools(self.tools)
    }

    async fn open(&self) -> Result<Arc<dyn BrowserSession>, Failure> {
        let (browsers, task) = (Arc::clone(&self.browsers), Arc::clone(&self.task));
        RolloutBrowsers::new(browsers, task, self.blobs()).open(MAIN).await
    }

    fn blobs(&self) -> Arc<dyn Blobs> {
        Arc::clone(&self.blobs) as Arc<dyn Blobs>
    }
}

/// Blobs in memory; the oldest go where they become too many.
#[derive(Default)]
struct Recent(Mutex<Kept>);

#[derive(Default)]
struct Kept {
    next: u64,
    /// Name, media type, bytes.
    blobs: VecDeque<(String, String, Vec<u8>)>,
}

impl Recent {
    fn with<T>(&self, blob: &str, look: impl FnOnce(&str, &[u8]) -> T) -> Result<T, Failure> {
        let kept = self.0.lock();
        let found = kept.blobs.iter().find(|(name, ..)| name == blob);
        let (_, media_type, bytes) = found.ok_or_else(|| Failure::Invalid(format!("no blob {blob:?}")))?;
        Ok(look(media_type, bytes))
    }
}

#[async_trait]
impl Blobs for Recent {
    async fn put(&self, bytes: Vec<u8>, media_type: &str) -> Result<String, Failure> {
        let mut kept = self.0.lock();
        let name = format!("b{}", kept.next);
        kept.next += 1;
        kept.blobs.push_back((name.clone(), media_type.to_owned(), bytes));
        let size = |kept: &Kept| kept.blobs.iter().map(|(.., bytes)| bytes.len()).sum::<usize>();
        while kept.blobs.len() > 1 && size(&kept) > KEPT_BYTES_MAX {
            kept.blobs.pop_front();
        }
        Ok(name)
    }

    async fn stat(&self, blob: &str) -> Result<BlobInfo, Failure> {
        self.with(blob, |media_type, bytes| BlobInfo {
            length: bytes.len() as u64,
            media_type: media_type.to_owned(),
        })
    }

    async fn read(&self, blob: &str, offset: u64, length: u32) -> Result<Vec<u8>, Failure> {
        self.with(blob, |_, bytes| {
            let from = usize::try_from(offset).unwrap_or(usize::MAX).min(bytes.len());
            let to = from.saturating_add(length as usize).min(bytes.len());
            bytes[from..to].to_vec()
        })
    }
}

//! What the plugins act on: the real agent beside the test, a model that answers by script, blobs in memory.

use async_trait::async_trait;
use espalier_agent_client::{Agent, Config, Endpoint, Secret};
use espalier_core::chat::{CompleteOptions, Completion, Finish, Message, Part, Role, Tool, ToolCall, Usage};
use espalier_core::failure::Failure;
use espalier_core::host::{BlobInfo, Blobs, Branch, Conversation, Models};
use espalier_sandbox::error::SandboxError;
use espalier_sandbox::rollout::{Opened, Provider};
use std::collections::VecDeque;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

const SECRET: &str = "0123456789abcdef0123456789abcdef";

/// The agent as cargo built it beside this test.
fn binary() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let built = test.ancestors().nth(2).unwrap().join("espalier-agent");
    assert!(built.is_file(), "{} is missing: run `cargo build -p espalier-agent`", built.display());
    built
}

/// One agent and its folder; both go with it.
pub(crate) struct Running {
    pub(crate) folder: tempfile::TempDir,
    child: Mutex<Child>,
}

impl Running {
    pub(crate) fn kill(&self) {
        let mut child = self.child.lock().unwrap();
        let _ = child.kill();
        let _ = child.wait();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Makes the sandbox `main`, with these files in its working folder.
#[derive(Default)]
pub(crate) struct Local {
    pub(crate) files: Vec<(&'static str, &'static str)>,
    pub(crate) started: Mutex<Vec<Arc<Running>>>,
}

#[async_trait]
impl Provider for Local {
    async fn open(&self, name: &str) -> Result<Opened, SandboxError> {
        if name != "main" {
            return Err(SandboxError::Invalid {
                what: "sandbox".to_owned(),
                value: name.to_owned(),
                wanted: "main".to_owned(),
            });
        }
        let folder = tempfile::tempdir().unwrap();
        let work = folder.path().join("work");
        std::fs::create_dir(&work).unwrap();
        for (name, text) in &self.files {
            std::fs::write(work.join(name), text).unwrap();
        }
        std::fs::write(folder.path().join("secret"), SECRET).unwrap();
        let mut command = Command::new(binary());
        command.arg("--listen-unix").arg(folder.path().join("socket"));
        command.arg("--secret-file").arg(folder.path().join("secret"));
        command.arg("--spill-dir").arg(folder.path()).stdin(Stdio::null()).current_dir("/");
        let child = Mutex::new(command.spawn().unwrap());
        let endpoint = Endpoint::Unix(folder.path().join("socket"));
        let running = Arc::new(Running { folder, child });
        self.started.lock().unwrap().push(Arc::clone(&running));
        let mut config = Config::new(endpoint, Secret::new(SECRET), "rollout-1");
        config.reconnect_within = std::time::Duration::from_secs(5);
        let agent =
            Agent::connect(config).await.map_err(|error| SandboxError::Lost(error.to_string().into()))?;
        let mut opened = Opened::new(agent);
        opened.workdir = Some(work.display().to_string());
        opened.keep = Some(Box::new(running));
        Ok(opened)
    }

    async fn open_fresh(&self, name: &str) -> Result<Opened, SandboxError> {
        self.open(name).await
    }

    async fn checkpoint(&self, name: &str) -> Result<String, SandboxError> {
        Err(SandboxError::Refused { requirement: format!("keep the files of {name}") })
    }
}

/// Blobs in memory.
#[derive(Default)]
pub(crate) struct MemoryBlobs(Mutex<Vec<Vec<u8>>>);

impl MemoryBlobs {
    fn find(&self, blob: &str) -> Result<Vec<u8>, Failure> {
        let kept = self.0.lock().unwrap();
        let found = blob.parse::<usize>().ok().and_then(|number| kept.get(number).cloned());
        found.ok_or_else(|| Failure::Invalid(format!("no blob `{blob}`")))
    }
}

#[async_trait]
impl Blobs for MemoryBlobs {
    async fn put(&self, bytes: Vec<u8>, _: &str) -> Result<String, Failure> {
        let mut kept = self.0.lock().unwrap();
        kept.push(bytes);
        Ok((kept.len() - 1).to_string())
    }

    async fn stat(&self, blob: &str) -> Result<BlobInfo, Failure> {
        Ok(BlobInfo { length: self.find(blob)?.len() as u64, media_type: "text/plain".to_owned() })
    }

    async fn read(&self, blob: &str, offset: u64, length: u32) -> Result<Vec<u8>, Failure> {
        Ok(self.find(blob)?.into_iter().skip(offset as usize).take(length as usize).collect())
    }
}

/// One answer of the model.
#[derive(Clone)]
pub(crate) enum Answer {
    Text(&'static str),
    /// Calls of tools, by name and arguments.
    Calls(Vec<(&'static str, String)>),
}

/// A model that gives these answers, and what it was told.
#[derive(Clone, Default)]
pub(crate) struct Script {
    pub(crate) answers: Arc<Mutex<VecDeque<Answer>>>,
    pub(crate) told: Arc<Mutex<Vec<String>>>,
}

impl Script {
    fn hear(&self, messages: &[Message]) {
        let text = |part: &Part| match part {
            Part::Text(text) => text.clone(),
            Part::ToolResult(result) => format!("{} {} {}", result.call_id, result.is_error, result.text),
            other => format!("{other:?}"),
        };
        let lines = messages.iter().map(|message| message.parts.iter().map(text).collect());
        self.told.lock().unwrap().extend(lines);
    }
}

#[async_trait]
impl Models for Script {
    async fn open(
        &self,
        _: &str,
        messages: Vec<Message>,
        tools: Vec<Tool>,
    ) -> Result<Box<dyn Conversation>, Failure> {
        self.told.lock().unwrap().extend(tools.into_iter().map(|tool| format!("tool {}", tool.name)));
        self.hear(&messages);
        Ok(Box::new(self.clone()))
    }
}

#[async_trait]
impl Conversation for Script {
    async fn append(&mut self, messages: Vec<Message>) -> Result<(), Failure> {
        self.hear(&messages);
        Ok(())
    }

    async fn complete(&mut self, _: CompleteOptions) -> Result<Completion, Failure> {
        let answer = self.answers.lock().unwrap().pop_front();
        let answer = answer.ok_or_else(|| Failure::Unavailable("endpoint gone".to_owned()))?;
        let (text, calls) = match answer {
            Answer::Text(text) => (text, Vec::new()),
            Answer::Calls(calls) => ("", calls),
        };
        let call = |(number, (name, arguments)): (usize, (&str, String))| ToolCall {
            id: format!("c{number}"),
            name: name.to_owned(),
            arguments,
        };
        Ok(Completion {
            message: Message::text(Role::Assistant, text),
            tool_calls: calls.into_iter().enumerate().map(call).collect(),
            malformed: None,
            finish: Finish::Stop,
            usage: Usage::default(),
            call: None,
        })
    }

    async fn complete_many(&mut self, _: u32, _: CompleteOptions) -> Result<Vec<Branch>, Failure> {
        Err(Failure::Invalid("not asked for".to_owned()))
    }

    fn discard(&mut self) {}

    async fn fork(&mut self) -> Result<Box<dyn Conversation>, Failure> {
        Ok(Box::new(self.clone()))
    }

    async fn rewrite(&mut self, _: Vec<Message>) -> Result<(), Failure> {
        Ok(())
    }

    async fn elide_images(&mut self, _: u32) -> Result<u32, Failure> {
        Ok(0)
    }

    fn set_trainable(&mut self, _: u32, _: bool) -> Result<(), Failure> {
        Ok(())
    }

    fn usage(&self) -> Usage {
        Usage::default()
    }
}

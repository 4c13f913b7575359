//! Sandboxes of a rollout whose model takes long.

use crate::support::{Place, wait_until};
use async_trait::async_trait;
use espalier_core::chat::{CompleteOptions, Completion, Finish, Message, Part, Role, Tool, Usage};
use espalier_core::failure::Failure;
use espalier_core::host::sandbox::{Command, Ended, Program, Sandboxes as _, Show};
use espalier_core::host::{BlobInfo, Blobs, Branch, Conversation, Models};
use espalier_core::sandbox::SandboxSpec;
use espalier_sandbox::error::SandboxError;
use espalier_sandbox::rollout::{Opened, Provider, RolloutSandboxes, SuspendingModels};
use espalier_sandbox::service::{Purpose, Sandboxes};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::Notify;

/// Gives sandboxes of a service.
struct Given {
    service: Sandboxes,
    ids: Mutex<Vec<String>>,
}

#[async_trait]
impl Provider for Given {
    async fn open(&self, _: &str) -> Result<Opened, SandboxError> {
        let spec = SandboxSpec { memory: 64 << 20, ..SandboxSpec::default() };
        let sandbox = self.service.create(&spec, &Purpose::new("rollout")).await?;
        self.ids.lock().unwrap().push(sandbox.placed.id.clone());
        let suspend = Some(Box::new(self.service.suspender(&sandbox)) as _);
        Ok(Opened { workdir: Some("/root".to_owned()), suspend, ..Opened::new(sandbox.agent) })
    }

    async fn open_fresh(&self, name: &str) -> Result<Opened, SandboxError> {
        self.open(name).await
    }

    async fn checkpoint(&self, name: &str) -> Result<String, SandboxError> {
        Err(SandboxError::Refused { requirement: format!("keep the files of {name}") })
    }
}

struct NoBlobs;

#[async_trait]
impl Blobs for NoBlobs {
    async fn put(&self, _: Vec<u8>, _: &str) -> Result<String, Failure> {
        Err(Failure::Invalid("no blobs here".to_owned()))
    }

    async fn stat(&self, blob: &str) -> Result<BlobInfo, Failure> {
        Err(Failure::Invalid(format!("no blob {blob}")))
    }

    async fn read(&self, blob: &str, _: u64, _: u32) -> Result<Vec<u8>, Failure> {
        Err(Failure::Invalid(format!("no blob {blob}")))
    }
}

/// Answers when it is told to.
#[derive(Clone, Default)]
struct Slow(Arc<Notify>);

#[async_trait]
impl Models for Slow {
    async fn open(&self, _: &str, _: Vec<Message>, _: Vec<Tool>) -> Result<Box<dyn Conversation>, Failure> {
        Ok(Box::new(self.clone()))
    }
}

#[async_trait]
impl Conversation for Slow {
    async fn append(&mut self, _: Vec<Message>) -> Result<(), Failure> {
        Ok(())
    }

    async fn complete(&mut self, _: CompleteOptions) -> Result<Completion, Failure> {
        self.0.notified().await;
        let parts = vec![Part::Text("at last".to_owned())];
        let message = Message { role: Role::Assistant, parts, extra: None };
        let (tool_calls, usage) = (Vec::new(), Usage::default());
        Ok(Completion { message, tool_calls, malformed: None, finish: Finish::Stop, usage, call: None })
    }

    async fn complete_many(&mut self, n: u32, options: CompleteOptions) -> Result<Vec<Branch>, Failure> {
        let completion = self.complete(options).await?;
        let branch = || Branch { conversation: Box::new(self.clone()), completion: completion.clone() };
        Ok((0..n).map(|_| branch()).collect())
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

fn shell(text: &str, timeout: Duration) -> Command {
    Command {
        program: Program::Shell(text.to_owned()),
        cwd: None,
        env: Vec::new(),
        stdin: Vec::new(),
        user: None,
        timeout: Some(timeout),
        show: Show::default(),
        merge_stderr: false,
        terminal: None,
    }
}

#[tokio::test]
async fn a_sandbox_stands_still_while_a_model_takes_long_and_goes_on_before_the_next_command() {
    let place = Place::new();
    let service = place.service(None);
    let given = Arc::new(Given { service: service.clone(), ids: Mutex::default() });
    let sandboxes =
        Arc::new(RolloutSandboxes::new(Arc::clone(&given) as Arc<dyn Provider>, Arc::new(NoBlobs)));
    let sandbox = sandboxes.open("main").await.unwrap();
    let id = given.ids.lock().unwrap()[0].clone();
    let is_suspended = async || service.backend().find(&id).await.unwrap().unwrap().suspended;
    let until_it_is = async |wanted: bool| {
        while is_suspended().await != wanted {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let limit = Duration::from_millis(1500);
    let slow = Slow::default();
    let models = SuspendingModels {
        models: Arc::new(slow.clone()),
        sandboxes: Arc::clone(&sandboxes),
        after: Duration::from_millis(20),
    };
    let mut conversation = models.open("policy", Vec::new(), Vec::new()).await.unwrap();
    // An answer that is there at once stops nothing.
    slow.0.notify_one();
    conversation.complete(CompleteOptions::default()).await.unwrap();
    assert!(!is_suspended().await);

    let process = sandbox.start(shell("sleep 1; echo in time", limit)).await.unwrap();
    let ticks = "(while :; do echo x >> /root/ticks; sleep 0.01; done) > /dev/null 2>&1 &";
    sandbox.exec(shell(ticks, limit)).await.unwrap();
    let other = service.attach(&id, "other", Duration::ZERO).await.unwrap();
    let ticked = async || other.agent.stat("/root/ticks", true).await.unwrap().size;
    let watched = async {
        until_it_is(true).await;
        let before = ticked().await;
        // For longer than the command may take.
        tokio::time::sleep(limit + Duration::from_millis(500)).await;
        assert_eq!(ticked().await, before, "something runs");
        slow.0.notify_one();
    };
    let (answer, ()) = futures::join!(conversation.complete(CompleteOptions::default()), watched);
    answer.unwrap();
    assert!(!is_suspended().await, "it goes on before the guest does");
    let said = sandbox.exec(shell("echo here", limit)).await.unwrap();
    assert_eq!((said.ended, &*said.stdout.head), (Ended::ExitCode(0), "here\n"));
    assert!(process.ended(Duration::from_secs(60)).await.unwrap());
    let outcome = process.poll().await.unwrap().unwrap();
    assert_eq!((outcome.ended, &*outcome.stdout.head), (Ended::ExitCode(0), "in time\n"));

    // A call that is cut in the midst of it leaves nothing that stands still, nor does one of several answers.
    let mut cut = conversation.complete_many(2, CompleteOptions::default());
    tokio::select! {
        _ = &mut cut => panic!("nobody answers"),
        () = until_it_is(true) => {}
    }
    drop(cut);
    tokio::time::timeout(Duration::from_secs(60), until_it_is(false)).await.expect("it goes on");
    let (many, ()) = futures::join!(conversation.complete_many(2, CompleteOptions::default()), async {
        until_it_is(true).await;
        slow.0.notify_one();
    });
    assert_eq!((many.unwrap().len(), is_suspended().await), (2, false));
    service.delete(&id).await.unwrap();
    wait_until("it is gone", || !place.folder.join("sandboxes").join(&id).exists()).await;
}

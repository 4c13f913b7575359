//! [`Agent`]: the calls, each repeated with the same id until it has an answer or the sandbox is lost.

use crate::connection::{Client, Connection, Endpoint, Secret};
use crate::error::AgentError;
use crate::ids::{Identity, Ids};
use crate::output::{Follow, Offsets};
use crate::wire::{self, Call, CommandSpec, Id};
use bytes::Bytes;
use espalier_agent_protocol::EXCERPT_BYTES;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tonic::{Request, Response, Status};

/// How to reach a sandbox and who calls.
#[derive(Debug)]
pub struct Config {
    /// Where the agent listens.
    pub endpoint: Endpoint,
    /// The sandbox's secret.
    pub secret: Secret,
    /// Who calls, and from which sequence on.
    pub identity: Identity,
    /// How long a cut may last before the sandbox counts as lost.
    pub reconnect_within: Duration,
    /// How often to renew the lease; zero: somebody else does.
    pub heartbeat_every: Duration,
    /// The lease to ask for; zero keeps the agent's.
    pub lease: Duration,
}

impl Config {
    /// 10 s to reconnect, a heartbeat every 10 s, the agent's own lease.
    pub fn new(endpoint: Endpoint, secret: Secret, client: impl Into<String>) -> Config {
        Config {
            endpoint,
            secret,
            identity: Identity::new(client),
            reconnect_within: Duration::from_secs(10),
            heartbeat_every: Duration::from_secs(10),
            lease: Duration::ZERO,
        }
    }
}

/// How much of each output an answer holds.
#[derive(Clone, Copy, Debug)]
pub struct Excerpts {
    /// Bytes from the start.
    pub head_bytes: u32,
    /// Bytes up to the end.
    pub tail_bytes: u32,
}

impl Default for Excerpts {
    fn default() -> Excerpts {
        Excerpts { head_bytes: EXCERPT_BYTES, tail_bytes: EXCERPT_BYTES }
    }
}

/// One sandbox's agent. Clones share connection, ids and heartbeat, which ends with the last of them.
#[derive(Clone, Debug)]
pub struct Agent {
    shared: Arc<Shared>,
    /// Lowest number for calls whose ids somebody else allots.
    floor: Option<u64>,
}

#[derive(Debug)]
struct Shared {
    connection: Arc<Connection>,
    ids: Ids,
    hello: wire::HelloAnswer,
    heartbeat: Option<tokio::task::AbortHandle>,
}

impl Drop for Shared {
    fn drop(&mut self) {
        if let Some(heartbeat) = &self.heartbeat {
            heartbeat.abort();
        }
    }
}

impl Agent {
    /// Connects, says Hello, begins the heartbeat. An agent that is still starting is waited for, `reconnect_within` at most.
    pub async fn connect(config: Config) -> Result<Agent, AgentError> {
        let connection = Connection::new(config.endpoint, &config.secret, config.reconnect_within)?;
        let connection = Arc::new(connection);
        let hello = connection.open().await?;
        let heartbeat = (!config.heartbeat_every.is_zero()).then(|| {
            // Ends with the last clone of the agent, or when the sandbox is lost.
            tokio::spawn(keep_lease(Arc::clone(&connection), config.heartbeat_every, config.lease))
                .abort_handle()
        });
        let ids = Ids::new(config.identity);
        Ok(Agent { shared: Arc::new(Shared { connection, ids, hello, heartbeat }), floor: None })
    }

    /// What the agent said of itself.
    pub fn hello(&self) -> &wire::HelloAnswer {
        &self.shared.hello
    }

    /// The same agent for calls whose ids are another client's, who sends no new one at or below this floor.
    #[must_use]
    pub fn with_floor(&self, floor: u64) -> Agent {
        Agent { shared: Arc::clone(&self.shared), floor: Some(floor) }
    }

    /// A new id. It holds the floor down until a call with it has its answer, or [`Agent::settle`].
    pub fn allot(&self) -> Id {
        self.shared.ids.allot()
    }

    /// The id with this sequence, where the caller counts them itself: above all that were allotted or claimed before. It holds the
    /// floor down as one of [`Agent::allot`] does.
    pub fn claim(&self, sequence: u64) -> Id {
        self.shared.ids.claim(sequence)
    }

    /// An id that will never be used.
    pub fn settle(&self, id: &Id) {
        self.shared.ids.settle(id);
    }

    /// Runs a command and waits for its end. A command that fails is an answer; look at its outcome.
    pub async fn run(
        &self,
        id: &Id,
        spec: CommandSpec,
        excerpts: Excerpts,
    ) -> Result<wire::RunAnswer, AgentError> {
        let request = |call| wire::RunRequest {
            call,
            spec: Some(spec.clone()),
            head_bytes: Some(excerpts.head_bytes),
            tail_bytes: Some(excerpts.tail_bytes),
        };
        self.changing(id, request, |mut client, request| async move { client.run(request).await }).await
    }

    /// The same with a call as it was made before, for instance by an engine that no longer exists.
    pub async fn run_as(&self, call: Call, spec: CommandSpec) -> Result<wire::RunAnswer, AgentError> {
        let request =
            wire::RunRequest { call: Some(call), spec: Some(spec), head_bytes: None, tail_bytes: None };
        self.asking(request, |mut client, request| async move { client.run(request).await }).await
    }

    /// Starts a command.
    pub async fn start(&self, id: &Id, spec: CommandSpec) -> Result<wire::StartAnswer, AgentError> {
        let request = |call| wire::StartRequest { call, spec: Some(spec.clone()) };
        self.changing(id, request, |mut client, request| async move { client.start(request).await }).await
    }

    /// Runs a command and streams its output from the beginning; a cut is healed. Dropping the stream leaves it running.
    pub fn exec(&self, id: &Id, spec: CommandSpec) -> Follow {
        Follow::new(self.clone(), id.clone(), Some(spec), Offsets::default(), false)
    }

    /// The output of a recorded command from these offsets. With `follow` it goes on after the command's end with what was
    /// left running.
    pub fn attach(&self, id: &Id, from: Offsets, follow: bool) -> Follow {
        Follow::new(self.clone(), id.clone(), None, from, follow)
    }

    /// What is new since the offsets of the request, waiting for it as long as the request says.
    pub async fn poll(&self, request: wire::PollRequest) -> Result<wire::PollAnswer, AgentError> {
        self.asking(request, |mut client, request| async move { client.poll(request).await }).await
    }

    /// Bytes for standard input at an offset; answers when all were taken or the command reads no more.
    pub async fn input(
        &self,
        id: &Id,
        target: &Id,
        offset: u64,
        bytes: Bytes,
        end: bool,
    ) -> Result<wire::InputAnswer, AgentError> {
        let request = |call| wire::InputRequest {
            call,
            target: Some(target.clone()),
            offset,
            bytes: bytes.clone(),
            end,
        };
        self.changing(id, request, |mut client, request| async move { client.input(request).await }).await
    }

    /// A signal to the leader of a command, or to its whole tree.
    pub async fn signal(
        &self,
        id: &Id,
        target: &Id,
        signal: i32,
        tree: bool,
    ) -> Result<wire::SignalAnswer, AgentError> {
        let request = |call| wire::SignalRequest { call, target: Some(target.clone()), signal, tree };
        self.changing(id, request, |mut client, request| async move { client.signal(request).await }).await
    }

    /// The size of a command's terminal.
    pub async fn resize(&self, target: &Id, terminal: wire::Terminal) -> Result<(), AgentError> {
        let request = wire::ResizeRequest { target: Some(target.clone()), terminal: Some(terminal) };
        self.asking(request, |mut client, request| async move { client.resize(request).await })
            .await
            .map(drop)
    }

    /// Commands and shells that run or are recorded.
    pub async fn list(&self) -> Result<Vec<wire::Listed>, AgentError> {
        let answer = self
            .asking(wire::ListRequest {}, |mut client, request| async move { client.list(request).await })
            .await?;
        Ok(answer.commands)
    }

    /// The records of these calls are needed no more; the calls are expired from here on.
    pub async fn ack(&self, ids: Vec<Id>) -> Result<(), AgentError> {
        let request = wire::AckRequest { ids };
        self.asking(request, |mut client, request| async move { client.ack(request).await }).await.map(drop)
    }

    /// Opens a stateful shell; commands run in it by [`crate::command::in_shell`].
    pub async fn open_shell(
        &self,
        id: &Id,
        request: wire::OpenShellRequest,
    ) -> Result<wire::OpenShellAnswer, AgentError> {
        let request = |call| wire::OpenShellRequest { call, ..request.clone() };
        self.changing(id, request, |mut client, request| async move { client.open_shell(request).await })
            .await
    }

    /// Ends a shell and all it started.
    pub async fn close_shell(&self, id: &Id, shell: &Id) -> Result<(), AgentError> {
        let request = |call| wire::CloseShellRequest { call, shell: Some(shell.clone()) };
        self.changing(id, request, |mut client, request| async move { client.close_shell(request).await })
            .await
            .map(drop)
    }

    /// A heartbeat by hand; says how much runs and how much output is kept.
    pub async fn heartbeat(&self, lease: Duration) -> Result<wire::HeartbeatAnswer, AgentError> {
        let request = wire::HeartbeatRequest { lease_ms: millis(lease), suspended: None };
        self.asking(request, |mut client, request| async move { client.heartbeat(request).await }).await
    }

    /// Says that its commands are stopped from outside, or go on: their timeouts stand still meanwhile.
    pub async fn set_suspended(&self, suspended: bool) -> Result<(), AgentError> {
        let request = wire::HeartbeatRequest { lease_ms: 0, suspended: Some(suspended) };
        self.asking(request, |mut client, request| async move { client.heartbeat(request).await })
            .await
            .map(drop)
    }

    /// A call that changes nothing: repeated after a cut.
    pub(crate) async fn asking<Q, A, F>(
        &self,
        message: Q,
        send: impl Fn(Client, Request<Q>) -> F,
    ) -> Result<A, AgentError>
    where
        Q: Clone,
        F: Future<Output = Result<Response<A>, Status>>,
    {
        repeat(&self.shared.connection, || message.clone(), send).await
    }

    /// A call that changes something: repeated after a cut, with the same id.
    pub(crate) async fn changing<Q, A, F>(
        &self,
        id: &Id,
        message: impl Fn(Option<Call>) -> Q,
        send: impl Fn(Client, Request<Q>) -> F,
    ) -> Result<A, AgentError>
    where
        F: Future<Output = Result<Response<A>, Status>>,
    {
        let answer = repeat(&self.shared.connection, || message(Some(self.call(id))), send).await;
        if !matches!(answer, Err(AgentError::Lost(_))) {
            self.shared.ids.settle(id);
        }
        answer
    }

    /// What stands in front of a changing call.
    pub(crate) fn call(&self, id: &Id) -> Call {
        // Its own number is new until it is answered.
        let floor = self.floor.unwrap_or_else(|| self.shared.ids.floor()).min(id.sequence.saturating_sub(1));
        Call { id: Some(id.clone()), floor, boot: self.shared.hello.boot.clone() }
    }

    pub(crate) fn connection(&self) -> &Connection {
        &self.shared.connection
    }
}

/// One call until it is answered or the sandbox is lost.
async fn repeat<Q, A, F>(
    connection: &Connection,
    message: impl Fn() -> Q,
    send: impl Fn(Client, Request<Q>) -> F,
) -> Result<A, AgentError>
where
    F: Future<Output = Result<Response<A>, Status>>,
{
    let (mut generation, mut client) = connection.client().await?;
    loop {
        match send(client, connection.request(message())).await {
            Ok(answer) => return Ok(answer.into_inner()),
            Err(status) => match AgentError::of(&status) {
                Some(error) => return Err(error),
                None => connection.broken(generation),
            },
        }
        (generation, client) = connection.client().await.map_err(AgentError::after_sending)?;
    }
}

/// Renews the lease until the sandbox is lost.
async fn keep_lease(connection: Arc<Connection>, every: Duration, lease: Duration) {
    let request = wire::HeartbeatRequest { lease_ms: millis(lease), suspended: None };
    loop {
        let beat = repeat(
            &connection,
            || request,
            |mut client, request| async move { client.heartbeat(request).await },
        );
        if let Err(AgentError::Lost(_)) = beat.await {
            return;
        }
        tokio::time::sleep(every).await;
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

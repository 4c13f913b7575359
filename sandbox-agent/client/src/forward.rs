//! A byte stream to a port inside the sandbox.

use crate::agent::Agent;
use crate::error::AgentError;
use crate::wire::{ForwardEvent, ForwardHeader, ForwardRequest, forward_event::Event, forward_request::Part};
use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc;

/// Chunks that wait for the agent; who writes more waits.
const QUEUE: usize = 8;
/// Bytes that are carried at once.
const PIECE_BYTES: usize = 16 << 10;

/// A connection to a port; closed when dropped.
#[derive(Debug)]
pub struct Forward {
    /// There.
    pub to: ForwardTo,
    /// Back.
    pub from: ForwardFrom,
}

/// The way there; when it is dropped, the other side sees an end.
#[derive(Debug)]
pub struct ForwardTo(mpsc::Sender<ForwardRequest>);

/// The way back.
#[derive(Debug)]
pub struct ForwardFrom(tonic::Streaming<ForwardEvent>);

impl Forward {
    /// Bytes both ways between it and a stream, until both have finished; neither way waits for the other.
    pub async fn carry(self, stream: impl AsyncRead + AsyncWrite) -> Result<(), AgentError> {
        let Forward { to, mut from } = self;
        let local =
            |source| AgentError::Local { what: "a connection to a sandbox's port".to_owned(), source };
        let (mut reader, mut writer) = tokio::io::split(stream);
        let there = async move {
            let mut piece = BytesMut::new();
            loop {
                piece.reserve(PIECE_BYTES);
                if reader.read_buf(&mut piece).await.map_err(local)? == 0 {
                    return Ok(());
                }
                if to.send(piece.split().freeze()).await.is_err() {
                    // It reads no more; what it says of that comes back.
                    return Ok(());
                }
            }
        };
        let back = async move {
            while let Some(bytes) = from.receive().await? {
                writer.write_all(&bytes).await.map_err(local)?;
            }
            writer.shutdown().await.map_err(local)
        };
        tokio::try_join!(there, back).map(drop)
    }
}

impl ForwardTo {
    /// Sends bytes; fails when the other side has closed.
    pub async fn send(&self, bytes: Bytes) -> Result<(), AgentError> {
        let closed = |_| AgentError::Protocol("the forwarded connection is closed".to_owned());
        self.0.send(ForwardRequest { part: Some(Part::Bytes(bytes)) }).await.map_err(closed)
    }
}

impl ForwardFrom {
    /// The next bytes; `None` when the other side has finished. A cut is an error: a byte stream cannot be repeated.
    pub async fn receive(&mut self) -> Result<Option<Bytes>, AgentError> {
        loop {
            match self.0.message().await {
                Ok(Some(ForwardEvent { event: Some(Event::Bytes(bytes)) })) => return Ok(Some(bytes)),
                Ok(Some(_)) => {}
                Ok(None) => return Ok(None),
                Err(status) => {
                    let cut = || AgentError::Protocol("the forwarded connection was cut".to_owned());
                    return Err(AgentError::of(&status).unwrap_or_else(cut));
                }
            }
        }
    }
}

impl Agent {
    /// Connects to a port inside the sandbox, on its loopback unless `host` names another address.
    pub async fn forward(&self, port: u16, host: &str) -> Result<Forward, AgentError> {
        loop {
            let (to, queue) = mpsc::channel(QUEUE);
            let header = ForwardHeader { port: port.into(), host: host.to_owned() };
            let header = ForwardRequest { part: Some(Part::Header(header)) };
            to.try_send(header).map_err(|error| AgentError::Protocol(error.to_string()))?;
            let parts = futures::stream::unfold(queue, |mut queue| async move {
                queue.recv().await.map(|part| (part, queue))
            });
            let (generation, mut client) = self.connection().client().await?;
            let opened = async {
                let mut from = client.forward(self.connection().request(parts)).await?.into_inner();
                from.message().await?;
                Ok::<_, tonic::Status>(from)
            };
            match opened.await {
                Ok(from) => return Ok(Forward { to: ForwardTo(to), from: ForwardFrom(from) }),
                Err(status) => match AgentError::of(&status) {
                    Some(error) => return Err(error),
                    None => self.connection().broken(generation),
                },
            }
        }
    }
}

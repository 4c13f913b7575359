//! A byte stream to a port inside the sandbox.

use crate::agent::Agent;
use crate::error::AgentError;
use crate::wire::{ForwardEvent, ForwardHeader, ForwardRequest, forward_event::Event, forward_request::Part};
use bytes::Bytes;
use tokio::sync::mpsc;

/// Chunks that wait for the agent; who writes more waits.
const QUEUE: usize = 8;

/// A connection to a port; closed when dropped.
#[derive(Debug)]
pub struct Forward {
    to: Option<mpsc::Sender<ForwardRequest>>,
    from: tonic::Streaming<ForwardEvent>,
}

impl Forward {
    /// Sends bytes; fails when the other side has closed.
    pub async fn send(&mut self, bytes: Bytes) -> Result<(), AgentError> {
        let closed = || AgentError::Protocol("the forwarded connection is closed".to_owned());
        let to = self.to.as_ref().ok_or_else(closed)?;
        to.send(ForwardRequest { part: Some(Part::Bytes(bytes)) }).await.map_err(|_| closed())
    }

    /// Nothing more will be sent; the other side sees an end.
    pub fn finish(&mut self) {
        self.to = None;
    }

    /// The next bytes; `None` when the other side has finished. A cut is an error: a byte stream cannot be repeated.
    pub async fn receive(&mut self) -> Result<Option<Bytes>, AgentError> {
        loop {
            match self.from.message().await {
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
                Ok(from) => return Ok(Forward { to: Some(to), from }),
                Err(status) => match AgentError::of(&status) {
                    Some(error) => return Err(error),
                    None => self.connection().broken(generation),
                },
            }
        }
    }
}

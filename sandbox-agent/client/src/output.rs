//! A command's output as a stream that outlives cuts: each byte once, or named as a gap.

use crate::agent::Agent;
use crate::error::AgentError;
use crate::wire::{AttachRequest, CommandSpec, Ended, ExecEvent, ExecRequest, Id, Stream, exec_event};
use bytes::Bytes;
use std::collections::VecDeque;

/// How far each stream was read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offsets {
    /// Bytes of standard output.
    pub stdout: u64,
    /// Bytes of standard error.
    pub stderr: u64,
}

impl Offsets {
    fn of(&mut self, stream: Stream) -> &mut u64 {
        match stream {
            Stream::Stdout => &mut self.stdout,
            Stream::Stderr => &mut self.stderr,
        }
    }
}

/// What a command did.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// It printed.
    Output {
        /// Where to.
        stream: Stream,
        /// Offset of the first byte.
        offset: u64,
        /// What.
        bytes: Bytes,
    },
    /// Bytes that the agent no longer has.
    Gap {
        /// Stream that lost output.
        stream: Stream,
        /// First lost byte.
        from: u64,
        /// First byte after it.
        to: u64,
    },
    /// It ended.
    Ended(Box<Ended>),
}

/// Reads one command's output; see [`Agent::attach`].
#[derive(Debug)]
pub struct Follow {
    agent: Agent,
    id: Id,
    /// What to run where this stream is what runs it.
    spec: Option<CommandSpec>,
    at: Offsets,
    follow: bool,
    stream: Option<(u64, tonic::Streaming<ExecEvent>)>,
    /// A gap that came before bytes of the same message.
    waiting: VecDeque<Event>,
    ended: bool,
    done: bool,
}

impl Follow {
    pub(crate) fn new(
        agent: Agent,
        id: Id,
        spec: Option<CommandSpec>,
        from: Offsets,
        follow: bool,
    ) -> Follow {
        Follow {
            agent,
            id,
            spec,
            at: from,
            follow,
            stream: None,
            waiting: VecDeque::new(),
            ended: false,
            done: false,
        }
    }

    /// Whether the command's end has come.
    pub fn has_ended(&self) -> bool {
        self.ended
    }

    /// How far it was read: where to attach again.
    pub fn offsets(&self) -> Offsets {
        self.at
    }

    /// The next event; `None` after the last. The end is told once; where attached with `follow`, output may come after it.
    pub async fn next(&mut self) -> Result<Option<Event>, AgentError> {
        loop {
            if let Some(event) = self.waiting.pop_front() {
                return Ok(Some(event));
            }
            if self.done {
                return Ok(None);
            }
            let Some((generation, stream)) = &mut self.stream else {
                self.reattach().await?;
                continue;
            };
            match stream.message().await {
                Ok(Some(message)) => self.take(message)?,
                Ok(None) => self.done = true,
                Err(status) => match AgentError::of(&status) {
                    Some(error) => return Err(error),
                    None => {
                        self.agent.connection().broken(*generation);
                        self.stream = None;
                    }
                },
            }
        }
    }

    /// All that is left, up to the end: output joined (gaps left out), and how it ended.
    pub async fn collect(mut self) -> Result<(Vec<u8>, Vec<u8>, Ended), AgentError> {
        let (mut stdout, mut stderr, mut end) = (Vec::new(), Vec::new(), None);
        while let Some(event) = self.next().await? {
            match event {
                Event::Output { stream: Stream::Stdout, bytes, .. } => stdout.extend_from_slice(&bytes),
                Event::Output { stream: Stream::Stderr, bytes, .. } => stderr.extend_from_slice(&bytes),
                Event::Gap { .. } => {}
                Event::Ended(ended) => end = Some(*ended),
            }
        }
        let end = end.ok_or_else(|| AgentError::Protocol("output without an end".to_owned()))?;
        Ok((stdout, stderr, end))
    }

    async fn reattach(&mut self) -> Result<(), AgentError> {
        let reached = self.agent.connection().client().await;
        // What is recorded was sent by somebody.
        let (generation, mut client) =
            reached.map_err(|error| if self.spec.is_none() { error.after_sending() } else { error })?;
        let connection = self.agent.connection();
        let (stdout_from, stderr_from) = (self.at.stdout, self.at.stderr);
        let streaming = match &self.spec {
            Some(spec) => {
                let (call, spec) = (Some(self.agent.call(&self.id)), Some(spec.clone()));
                client.exec(connection.request(ExecRequest { call, spec, stdout_from, stderr_from })).await
            }
            None => {
                let (id, follow) = (Some(self.id.clone()), self.follow);
                client
                    .attach(connection.request(AttachRequest { id, stdout_from, stderr_from, follow }))
                    .await
            }
        };
        match streaming {
            Ok(stream) => self.stream = Some((generation, stream.into_inner())),
            Err(status) => match AgentError::of(&status) {
                Some(error) => {
                    self.settle();
                    return Err(error);
                }
                None => self.agent.connection().broken(generation),
            },
        }
        Ok(())
    }

    /// The agent knows this command: it will not be sent as a new one.
    fn settle(&self) {
        if self.spec.is_some() {
            self.agent.settle(&self.id);
        }
    }

    fn take(&mut self, message: ExecEvent) -> Result<(), AgentError> {
        let out_of_order =
            |from: u64, at: u64| AgentError::Protocol(format!("output at {from} where {at} was expected"));
        match message.event {
            Some(exec_event::Event::Output(output)) => {
                let stream = output.stream();
                let at = self.at.of(stream);
                if output.offset != *at {
                    return Err(out_of_order(output.offset, *at));
                }
                *at += output.bytes.len() as u64;
                self.waiting.push_back(Event::Output { stream, offset: output.offset, bytes: output.bytes });
            }
            Some(exec_event::Event::Gap(gap)) => {
                let stream = gap.stream();
                let at = self.at.of(stream);
                if gap.from != *at || gap.to < gap.from {
                    return Err(out_of_order(gap.from, *at));
                }
                *at = gap.to;
                self.waiting.push_back(Event::Gap { stream, from: gap.from, to: gap.to });
            }
            Some(exec_event::Event::Ended(ended)) => {
                self.ended = true;
                self.waiting.push_back(Event::Ended(Box::new(ended)));
            }
            Some(exec_event::Event::Started(_)) => self.settle(),
            // What newer agents may say.
            None => {}
        }
        Ok(())
    }
}

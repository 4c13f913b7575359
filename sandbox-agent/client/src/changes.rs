//! The work done in a sandbox as a file: taken out of one, put into another.
//!
//! The file is a row of [`ChangeEvent`]s, each with its length in front, as prost writes it.

use crate::agent::Agent;
use crate::error::AgentError;
use crate::wire::{
    self, ApplyChangesHeader, ApplyChangesRequest, ChangeEvent, ChangesEnd, ChangesRequest, Id,
    apply_changes_request::Part, change_event::Event,
};
use bytes::{Buf, Bytes, BytesMut};
use futures::{Stream, StreamExt};
use prost::Message;
use std::path::Path;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

impl Agent {
    /// Remembers how these folders look now; [`Agent::changes_into`] compares with it.
    pub async fn baseline(
        &self,
        id: &Id,
        roots: Vec<Bytes>,
        except: Vec<Bytes>,
    ) -> Result<wire::BaselineAnswer, AgentError> {
        let request = |call| wire::BaselineRequest { call, roots: roots.clone(), except: except.clone() };
        self.asking_baseline(id, request).await
    }

    async fn asking_baseline(
        &self,
        id: &Id,
        request: impl Fn(Option<wire::Call>) -> wire::BaselineRequest,
    ) -> Result<wire::BaselineAnswer, AgentError> {
        self.changing(id, request, |mut client, request| async move { client.baseline(request).await }).await
    }

    /// What changed since the baseline, into a file of this machine. After a cut it begins again.
    pub async fn changes_into(&self, request: ChangesRequest, path: &Path) -> Result<ChangesEnd, AgentError> {
        let local = |source| AgentError::Local { what: path.display().to_string(), source };
        'again: loop {
            let (generation, mut client) = self.connection().client().await?;
            let mut file = tokio::io::BufWriter::new(tokio::fs::File::create(path).await.map_err(local)?);
            let mut stream = match client.changes(self.connection().request(request.clone())).await {
                Ok(stream) => stream.into_inner(),
                Err(status) => match AgentError::of(&status) {
                    Some(error) => return Err(error),
                    None => {
                        self.connection().broken(generation);
                        continue 'again;
                    }
                },
            };
            loop {
                let event = match stream.message().await {
                    Ok(Some(event)) => event,
                    Ok(None) => return Err(AgentError::Protocol("changes without an end".to_owned())),
                    Err(status) => match AgentError::of(&status) {
                        Some(error) => return Err(error),
                        None => {
                            self.connection().broken(generation);
                            continue 'again;
                        }
                    },
                };
                file.write_all(&event.encode_length_delimited_to_vec()).await.map_err(local)?;
                if let Some(Event::End(end)) = event.event {
                    file.flush().await.map_err(local)?;
                    return Ok(end);
                }
            }
        }
    }

    /// What changed at or below a root of the baseline, without content. `path` is a file of this machine for the time being.
    pub async fn changed(
        &self,
        root: impl Into<Bytes>,
        path: &Path,
    ) -> Result<Vec<wire::Change>, AgentError> {
        let local = |source| AgentError::Local { what: path.display().to_string(), source };
        let request = ChangesRequest { root: root.into(), names_only: true, ..ChangesRequest::default() };
        self.changes_into(request, path).await?;
        let read = tokio::fs::File::open(path).await.map_err(local)?;
        let (mut read, mut buffer) = (tokio::io::BufReader::new(read), BytesMut::new());
        let mut changes = Vec::new();
        while let Some(ChangeEvent { event: Some(event) }) = next_event(&mut read, &mut buffer).await {
            if let Event::Change(change) = event {
                changes.push(change);
            }
        }
        Ok(changes)
    }

    /// Puts changes from a file into this sandbox. Refused as `INVALID` where the file does not hold changes to their end.
    pub async fn apply_changes(
        &self,
        id: &Id,
        root: impl Into<Bytes>,
        path: &Path,
    ) -> Result<wire::ApplyChangesAnswer, AgentError> {
        let root = root.into();
        // What stops short looks to the agent like a call that was cut, and would be made again for ever.
        if let Err(error) = check(path).await {
            self.settle(id);
            return Err(error);
        }
        loop {
            let header = ApplyChangesHeader { call: Some(self.call(id)), root: root.clone() };
            let header = ApplyChangesRequest { part: Some(Part::Header(header)) };
            let parts = futures::stream::iter([header]).chain(parts(path).await?);
            let (generation, mut client) = self.connection().client().await?;
            let answer = client.apply_changes(self.connection().request(parts)).await;
            match answer.map_err(|status| AgentError::of(&status)) {
                Ok(answer) => {
                    self.settle(id);
                    return Ok(answer.into_inner());
                }
                Err(Some(error)) => {
                    self.settle(id);
                    return Err(error);
                }
                Err(None) => self.connection().broken(generation),
            }
        }
    }
}

/// Reads a file of changes up to its end.
async fn check(path: &Path) -> Result<(), AgentError> {
    let local = |source| AgentError::Local { what: path.display().to_string(), source };
    let file = tokio::fs::File::open(path).await.map_err(local)?;
    let (mut file, mut buffer) = (tokio::io::BufReader::with_capacity(256 << 10, file), BytesMut::new());
    loop {
        match next_event(&mut file, &mut buffer).await.map(|event| event.event) {
            Some(Some(Event::End(_))) => return Ok(()),
            Some(_) => {}
            None => {
                let message = "these bytes are not the complete changes of a sandbox".to_owned();
                return Err(AgentError::refused(wire::Reason::Invalid, message));
            }
        }
    }
}

/// Events of a file of changes; stops short, without the end, where the file cannot be read.
async fn parts(path: &Path) -> Result<impl Stream<Item = ApplyChangesRequest> + use<>, AgentError> {
    let local = |source| AgentError::Local { what: path.display().to_string(), source };
    let file = tokio::fs::File::open(path).await.map_err(local)?;
    let reader = (tokio::io::BufReader::with_capacity(256 << 10, file), BytesMut::new());
    Ok(futures::stream::unfold(reader, |(mut file, mut buffer)| async move {
        let event = next_event(&mut file, &mut buffer).await?;
        let part = match event.event? {
            Event::Change(change) => Part::Change(change),
            Event::Chunk(chunk) => Part::Chunk(chunk),
            Event::End(end) => Part::End(end),
        };
        Some((ApplyChangesRequest { part: Some(part) }, (file, buffer)))
    }))
}

async fn next_event(
    file: &mut (impl tokio::io::AsyncRead + Unpin),
    buffer: &mut BytesMut,
) -> Option<ChangeEvent> {
    loop {
        let mut ahead = &buffer[..];
        if let Ok(length) = prost::decode_length_delimiter(&mut ahead)
            && ahead.len() >= length
        {
            buffer.advance(buffer.len() - ahead.len());
            return ChangeEvent::decode(buffer.split_to(length)).ok();
        }
        if buffer.len() > espalier_agent_protocol::MESSAGE_BYTES_MAX || file.read_buf(buffer).await.ok()? == 0
        {
            return None;
        }
    }
}

//! Files of the sandbox: read with ranges, written as a whole, listed, moved, patched.

use crate::agent::Agent;
use crate::error::AgentError;
use crate::wire::{
    self, Chunk, FileStat, Id, ReadEvent, ReadRequest, WriteEnd, WriteHeader, WriteRequest, read_event,
    write_request,
};
use bytes::Bytes;
use espalier_agent_protocol::CHUNK_BYTES;
use futures::{Stream, StreamExt};
use std::path::PathBuf;
use tokio::io::{AsyncReadExt, AsyncSeekExt};

/// Where the bytes of a file to write come from. A call that is repeated reads them again.
#[derive(Clone, Debug)]
pub enum Source {
    /// These.
    Bytes(Bytes),
    /// A file of this machine, which must not change meanwhile. Its holes stay holes.
    File(PathBuf),
}

/// A file being read; a cut is healed where the file did not change.
#[derive(Debug)]
pub struct FileReader {
    agent: Agent,
    request: ReadRequest,
    stat: FileStat,
    stream: Option<(u64, tonic::Streaming<ReadEvent>)>,
}

impl FileReader {
    /// The file as it was when opened.
    pub fn stat(&self) -> &FileStat {
        &self.stat
    }

    /// The next bytes and where they stand; what lies between is zero. `None` at the end.
    pub async fn next(&mut self) -> Result<Option<Chunk>, AgentError> {
        loop {
            let Some((generation, stream)) = &mut self.stream else {
                self.stat = self.open().await?;
                continue;
            };
            match stream.message().await {
                Ok(Some(ReadEvent { event: Some(read_event::Event::Chunk(chunk)) })) => {
                    let end = chunk.offset + chunk.bytes.len() as u64;
                    if self.request.length > 0 {
                        self.request.length =
                            self.request.length.saturating_sub(end - self.request.offset).max(1);
                    }
                    self.request.offset = end;
                    return Ok(Some(chunk));
                }
                Ok(Some(_)) => {}
                Ok(None) => return Ok(None),
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

    /// Everything that is left, holes filled, at most `bytes_max`.
    pub async fn collect(mut self, bytes_max: usize) -> Result<Vec<u8>, AgentError> {
        let start = self.request.offset;
        let wanted = self.stat.size.saturating_sub(start);
        let wanted = if self.request.length > 0 { wanted.min(self.request.length) } else { wanted };
        let length = usize::try_from(wanted).ok().filter(|length| *length <= bytes_max).ok_or_else(|| {
            let message = format!("{wanted} bytes, at most {bytes_max} allowed");
            AgentError::refused(wire::Reason::Bound, message)
        })?;
        let mut whole = vec![0; length];
        while let Some(chunk) = self.next().await? {
            let at = usize::try_from(chunk.offset - start).unwrap_or(usize::MAX);
            let end = at.saturating_add(chunk.bytes.len());
            match whole.get_mut(at..end) {
                Some(place) => place.copy_from_slice(&chunk.bytes),
                None => return Err(AgentError::Protocol("bytes after the end of the file".to_owned())),
            }
        }
        Ok(whole)
    }

    async fn open(&mut self) -> Result<FileStat, AgentError> {
        loop {
            let (generation, mut client) = self.agent.connection().client().await?;
            let opened = async {
                let request = self.agent.connection().request(self.request.clone());
                let mut stream = client.read(request).await?.into_inner();
                let first = stream.message().await?;
                Ok::<_, tonic::Status>((stream, first))
            };
            match opened.await {
                Ok((stream, Some(ReadEvent { event: Some(read_event::Event::Stat(stat)) }))) => {
                    self.stream = Some((generation, stream));
                    self.request.version = stat.version;
                    return Ok(stat);
                }
                Ok(_) => return Err(AgentError::Protocol("a file without its stat".to_owned())),
                Err(status) => match AgentError::of(&status) {
                    Some(error) => return Err(error),
                    None => self.agent.connection().broken(generation),
                },
            }
        }
    }
}

/// The messages of one write.
async fn parts(header: WriteHeader, source: Source) -> Result<impl Stream<Item = WriteRequest>, AgentError> {
    let header = WriteRequest { part: Some(write_request::Part::Header(header)) };
    let body = match source {
        Source::Bytes(bytes) => {
            let end = bytes.len() as u64;
            let chunks = (0..bytes.len()).step_by(CHUNK_BYTES).map(move |start| {
                let chunk = bytes.slice(start..bytes.len().min(start + CHUNK_BYTES));
                WriteRequest {
                    part: Some(write_request::Part::Chunk(Chunk { offset: start as u64, bytes: chunk })),
                }
            });
            futures::stream::iter(chunks.chain([end_at(end)])).boxed()
        }
        Source::File(path) => file_parts(path).await?.boxed(),
    };
    Ok(futures::stream::iter([header]).chain(body))
}

fn end_at(size: u64) -> WriteRequest {
    WriteRequest { part: Some(write_request::Part::End(WriteEnd { size })) }
}

/// A local file in chunks, without those that are all zero; one that cannot be read ends without `WriteEnd`, so nothing is
/// written.
async fn file_parts(path: PathBuf) -> Result<impl Stream<Item = WriteRequest>, AgentError> {
    let local = |source| AgentError::Local { what: path.display().to_string(), source };
    let mut file = tokio::fs::File::open(&path).await.map_err(local)?;
    let size = file.metadata().await.map_err(local)?.len();
    file.rewind().await.map_err(local)?;
    Ok(futures::stream::unfold((file, 0u64, false), move |(mut file, mut offset, done)| async move {
        if done {
            return None;
        }
        loop {
            let mut chunk = bytes::BytesMut::zeroed(CHUNK_BYTES);
            let mut filled = 0;
            while filled < chunk.len() {
                match file.read(&mut chunk[filled..]).await {
                    Ok(0) => break,
                    Ok(count) => filled += count,
                    Err(_) => return None,
                }
            }
            if filled == 0 {
                return Some((end_at(size.max(offset)), (file, offset, true)));
            }
            chunk.truncate(filled);
            let at = offset;
            offset += filled as u64;
            if chunk.iter().any(|byte| *byte != 0) {
                let chunk = Chunk { offset: at, bytes: chunk.freeze() };
                let part = WriteRequest { part: Some(write_request::Part::Chunk(chunk)) };
                return Some((part, (file, offset, false)));
            }
        }
    }))
}

impl Agent {
    /// Opens a file for reading; `length` 0 reads to its end.
    pub async fn read(
        &self,
        path: impl Into<Bytes>,
        offset: u64,
        length: u64,
    ) -> Result<FileReader, AgentError> {
        let request = ReadRequest { path: path.into(), offset, length, version: 0 };
        let mut reader = FileReader { agent: self.clone(), request, stat: FileStat::default(), stream: None };
        reader.stat = reader.open().await?;
        Ok(reader)
    }

    /// Replaces a file as a whole: whoever reads it sees the old one or the new one. The header's `call` is filled in here.
    pub async fn write(
        &self,
        id: &Id,
        header: WriteHeader,
        source: Source,
    ) -> Result<wire::WriteAnswer, AgentError> {
        loop {
            let header = WriteHeader { call: Some(self.call(id)), ..header.clone() };
            let parts = parts(header, source.clone()).await?;
            let (generation, mut client) = self.connection().client().await?;
            let answer = client.write(self.connection().request(parts)).await;
            match answer.map_err(|status| (AgentError::of(&status), status)) {
                Ok(answer) => {
                    self.settle(id);
                    return Ok(answer.into_inner());
                }
                Err((Some(error), _)) => {
                    self.settle(id);
                    return Err(error);
                }
                Err((None, _)) => self.connection().broken(generation),
            }
        }
    }

    /// What stands at a path; with `follow`, what a link there points to.
    pub async fn stat(&self, path: impl Into<Bytes>, follow: bool) -> Result<FileStat, AgentError> {
        let request = wire::StatRequest { path: path.into(), follow };
        let answer =
            self.asking(request, |mut client, request| async move { client.stat(request).await }).await?;
        answer.stat.ok_or_else(|| AgentError::Protocol("no stat".to_owned()))
    }

    /// What stands in a folder, `depth` folders down. Broken links are listed as links.
    pub async fn list_folder(
        &self,
        path: impl Into<Bytes>,
        depth: u32,
    ) -> Result<Vec<wire::Entry>, AgentError> {
        self.list_folder_up_to(path, depth, usize::MAX).await
    }

    /// The same, refused as `BOUND` where there are more entries than these.
    pub async fn list_folder_up_to(
        &self,
        path: impl Into<Bytes>,
        depth: u32,
        entries_max: usize,
    ) -> Result<Vec<wire::Entry>, AgentError> {
        let request = wire::ListFolderRequest { path: path.into(), depth };
        'again: loop {
            let (generation, mut client) = self.connection().client().await?;
            let mut entries = Vec::new();
            let listed = async {
                let mut stream =
                    client.list_folder(self.connection().request(request.clone())).await?.into_inner();
                while let Some(event) = stream.message().await? {
                    entries.extend(event.entries);
                    if entries.len() > entries_max {
                        break;
                    }
                }
                Ok::<_, tonic::Status>(())
            };
            match listed.await {
                Ok(()) if entries.len() > entries_max => {
                    let message = format!("more than {entries_max} entries");
                    return Err(AgentError::refused(wire::Reason::Bound, message));
                }
                Ok(()) => return Ok(entries),
                Err(status) => match AgentError::of(&status) {
                    Some(error) => return Err(error),
                    None => {
                        self.connection().broken(generation);
                        continue 'again;
                    }
                },
            }
        }
    }

    /// Makes a folder; one that is there already is fine with `parents`.
    pub async fn make_folder(&self, id: &Id, request: wire::MakeFolderRequest) -> Result<(), AgentError> {
        let request = |call| wire::MakeFolderRequest { call, ..request.clone() };
        self.changing(id, request, |mut client, request| async move { client.make_folder(request).await })
            .await
            .map(drop)
    }

    /// Removes a file or, recursively, a folder; says how many entries went.
    pub async fn remove(
        &self,
        id: &Id,
        path: impl Into<Bytes>,
        recursive: bool,
        missing_ok: bool,
    ) -> Result<u64, AgentError> {
        let path = path.into();
        let request = |call| wire::RemoveRequest { call, path: path.clone(), recursive, missing_ok };
        let send =
            |mut client: crate::connection::Client, request| async move { client.remove(request).await };
        Ok(self.changing(id, request, send).await?.removed)
    }

    /// Moves a file or folder, also to another file system.
    pub async fn move_to(
        &self,
        id: &Id,
        from: impl Into<Bytes>,
        to: impl Into<Bytes>,
        replace: bool,
    ) -> Result<(), AgentError> {
        self.moving(id, (from.into(), to.into()), replace, false).await
    }

    /// The same, refused where something is in its place or a symbolic link stands in the way to its folder: programs of the sandbox
    /// cannot send it elsewhere.
    pub async fn move_without_links(
        &self,
        id: &Id,
        from: impl Into<Bytes>,
        to: impl Into<Bytes>,
    ) -> Result<(), AgentError> {
        self.moving(id, (from.into(), to.into()), false, true).await
    }

    async fn moving(
        &self,
        id: &Id,
        (from, to): (Bytes, Bytes),
        replace: bool,
        no_links: bool,
    ) -> Result<(), AgentError> {
        let request =
            |call| wire::MoveRequest { call, from: from.clone(), to: to.clone(), replace, no_links };
        let send =
            |mut client: crate::connection::Client, request| async move { client.r#move(request).await };
        self.changing(id, request, send).await.map(drop)
    }

    /// Applies a unified or git diff: all of it or nothing. The request's `call` is filled in here.
    pub async fn apply_patch(
        &self,
        id: &Id,
        request: wire::ApplyPatchRequest,
    ) -> Result<wire::ApplyPatchAnswer, AgentError> {
        let request = |call| wire::ApplyPatchRequest { call, ..request.clone() };
        self.changing(id, request, |mut client, request| async move { client.apply_patch(request).await })
            .await
    }
}

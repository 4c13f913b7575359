//! A file's bytes as a stream: data where there is data, nothing for holes.

use super::{blocking, describe, fault, fault_io, open, path, version};
use crate::{Reason, refusal};
use bytes::Bytes;
use espalier_agent_protocol::CHUNK_BYTES;
use espalier_agent_protocol::v1::{Chunk, ReadEvent, ReadRequest, read_event::Event};
use futures::stream::{BoxStream, StreamExt};
use rustix::fs::{CWD, FileType, Mode, OFlags, SeekFrom};
use rustix::io::Errno;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use tonic::Status;

/// A file, and how far it was read.
struct Reading {
    file: Arc<File>,
    path: Bytes,
    offset: u64,
    end: u64,
}

/// Opens a file and streams it. Pipes, sockets and devices are refused: reading them may never end.
pub async fn read(request: ReadRequest) -> Result<BoxStream<'static, Result<ReadEvent, Status>>, Status> {
    let ReadRequest { path: name, offset, length, version: wanted } = request;
    let named = name.clone();
    let (file, stat) = blocking(move || {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK;
        let file = open(CWD, &path(&named)?, flags, Mode::empty()).map_err(|error| fault(&named, error))?;
        let stat = rustix::fs::fstat(&file).map_err(|error| fault(&named, error))?;
        Ok((File::from(file), stat))
    })
    .await?;
    let shown = || String::from_utf8_lossy(&name).into_owned();
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => {}
        FileType::Directory => return Err(fault(&name, Errno::ISDIR)),
        _ => return Err(refusal(Reason::Kind, format!("`{}`: not a regular file", shown()))),
    }
    if wanted != 0 && wanted != version(&stat) {
        return Err(refusal(Reason::Kind, format!("`{}`: changed while it was being read", shown())));
    }
    let size = u64::try_from(stat.st_size).unwrap_or(0);
    // Files of /proc say 0 and have content.
    let whole = if size == 0 { u64::MAX } else { size };
    let end = if length == 0 { whole } else { offset.saturating_add(length).min(whole) };
    let first = ReadEvent { event: Some(Event::Stat(describe(&stat, Vec::new()))) };
    let reading = Reading { file: Arc::new(file), path: name, offset, end };
    let chunks = futures::stream::try_unfold(reading, |mut reading| async move {
        let Some(chunk) = reading.next().await? else { return Ok(None) };
        Ok(Some((ReadEvent { event: Some(Event::Chunk(chunk)) }, reading)))
    });
    Ok(futures::stream::iter([Ok(first)]).chain(chunks).boxed())
}

impl Reading {
    async fn next(&mut self) -> Result<Option<Chunk>, Status> {
        let (file, path, offset, end) = (Arc::clone(&self.file), self.path.clone(), self.offset, self.end);
        let chunk =
            blocking(move || next(&file, offset, end).map_err(|error| fault_io(&path, &error))).await?;
        if let Some(chunk) = &chunk {
            self.offset = chunk.offset + chunk.bytes.len() as u64;
        }
        Ok(chunk)
    }
}

fn next(file: &File, offset: u64, end: u64) -> std::io::Result<Option<Chunk>> {
    if offset >= end {
        return Ok(None);
    }
    let start = match rustix::fs::seek(file, SeekFrom::Data(offset)) {
        Ok(start) => start,
        // Nothing but a hole up to the end.
        Err(Errno::NXIO) => return Ok(None),
        Err(_) => offset,
    };
    if start >= end {
        return Ok(None);
    }
    let length = usize::try_from(end - start).unwrap_or(usize::MAX).min(CHUNK_BYTES);
    let mut bytes = vec![0; length];
    let count = file.read_at(&mut bytes, start)?;
    bytes.truncate(count);
    Ok((count > 0).then(|| Chunk { offset: start, bytes: bytes.into() }))
}

//! Calls whose request is a stream: it is taken in as a whole before anything changes. A stream that is cut has done nothing,
//! and its id is free for the client to send again.

use crate::agent::Agent;
use crate::files::place::{Owner, Place};
use crate::files::writing::{self, Wanted, Writing};
use crate::files::{self, blocking};
use crate::ids::Key;
use crate::records::{Answer, CallRecord};
use crate::{Reason, refusal};
use bytes::Bytes;
use espalier_agent_protocol::v1::{Call, WriteHeader, WriteRequest, write_request::Part};
use prost::Message;
use std::sync::Arc;
use tonic::{Response, Status, Streaming};

/// One such call. Dropped before it was finished, it has never come.
#[derive(Debug)]
pub struct Upload {
    agent: Arc<Agent>,
    key: Key,
    answer: Arc<Answer>,
    call: Call,
    fingerprint: u64,
    /// This stream is the one that counts, and has not finished.
    mine: bool,
}

/// Admits the call.
pub fn begin(agent: &Arc<Agent>, call: Option<&Call>, fingerprint: u64) -> Result<Upload, Status> {
    let make = |_| CallRecord::Answer(Arc::default());
    let admitted = agent.records().admit(call, &agent.boot, fingerprint, make);
    let (key, record, mine) = admitted?;
    let CallRecord::Answer(answer) = record else {
        return Err(refusal(Reason::IdReused, "the id was already used for another call"));
    };
    let call = call.cloned().unwrap_or_default();
    Ok(Upload { agent: Arc::clone(agent), key, answer, call, fingerprint, mine })
}

impl Upload {
    /// The answer of an earlier stream with this id; `None`: this stream is the one to take in. Waits for an earlier one that
    /// is still coming, until it is finished or cut.
    pub async fn known(&mut self) -> Option<Result<Bytes, Status>> {
        while !self.mine {
            if let Some(answer) = self.answer.wait().await {
                return Some(answer);
            }
            match begin(&self.agent, Some(&self.call), self.fingerprint) {
                Ok(mut again) => {
                    self.answer = Arc::clone(&again.answer);
                    self.mine = std::mem::take(&mut again.mine);
                }
                Err(status) => return Some(Err(status)),
            }
        }
        None
    }

    /// Does what was received, once. `received` is `Err(None)` where the stream was cut.
    pub async fn finish<R: Send + 'static, T: Message + Default + Send + 'static>(
        mut self,
        received: Result<R, Option<Status>>,
        work: impl FnOnce(R) -> Result<T, Status> + Send + 'static,
    ) -> Result<Response<T>, Status> {
        let received = match received {
            Ok(received) => Ok(received),
            Err(Some(status)) => Err(status),
            // Dropping `self` withdraws the call.
            Err(None) => return Err(Status::cancelled("the stream was cut before its end")),
        };
        self.mine = false;
        let (agent, key, answer) = (Arc::clone(&self.agent), self.key.clone(), Arc::clone(&self.answer));
        // Owned by the agent; a client that goes away changes nothing any more.
        tokio::spawn(async move {
            let done = match received {
                Ok(received) => blocking(move || work(received)).await,
                Err(status) => Err(status),
            };
            answer.set(done.map(|message| message.encode_to_vec().into()));
            agent.ended(&key);
        });
        match self.answer.wait().await {
            Some(answer) => T::decode(answer?)
                .map(Response::new)
                .map_err(|error| refusal(Reason::Io, format!("the answer cannot be read: {error}"))),
            None => Err(Status::cancelled("the call was withdrawn")),
        }
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        if self.mine {
            self.agent.records().withdraw(&self.key);
        }
    }
}

/// An owner of the wire: `None` for none.
pub fn owner(agent: &Agent, wanted: &str) -> Result<Owner, Status> {
    if wanted.is_empty() {
        return Ok(None);
    }
    let user = agent.user(wanted)?;
    let own = (agent.user_id, rustix::process::getegid().as_raw());
    Ok(Some(user.map_or(own, |user| (user.id, user.group))))
}

/// Takes in a file: a draft beside its place, and its length.
pub async fn receive_file(
    agent: &Arc<Agent>,
    header: WriteHeader,
    parts: &mut Streaming<WriteRequest>,
) -> Result<(Writing, u64), Option<Status>> {
    let path = files::path(&header.path).map_err(Some)?;
    let wanted = Wanted {
        mode: writing::mode(header.mode).map_err(Some)?,
        owner: owner(agent, &header.owner).map_err(Some)?,
        create_new: header.create_new,
        replace_link: header.replace_link,
    };
    let draft = blocking(move || {
        let place = if header.parents { Place::with_parents(&path, wanted.owner) } else { Place::of(&path) };
        Writing::begin(place?, wanted)
    });
    let draft = Arc::new(draft.await.map_err(Some)?);
    loop {
        match parts.message().await {
            Ok(Some(WriteRequest { part: Some(Part::Chunk(chunk)) })) => {
                let draft = Arc::clone(&draft);
                blocking(move || draft.write(&chunk)).await.map_err(Some)?;
            }
            Ok(Some(WriteRequest { part: Some(Part::End(end)) })) => {
                let draft = Arc::into_inner(draft);
                let draft =
                    draft.ok_or_else(|| Some(refusal(Reason::Io, "a draft is still being written")))?;
                return Ok((draft, end.size));
            }
            Ok(Some(_)) => {
                return Err(Some(refusal(Reason::Invalid, "write: a message that is not a chunk")));
            }
            // Cut, or given up by the client.
            Ok(None) | Err(_) => return Err(None),
        }
    }
}

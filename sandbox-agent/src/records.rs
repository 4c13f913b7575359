//! What became of each call that changes something, so that the same call again is answered and not done again.
//!
//! A record stays until it is acknowledged, or until too many are kept or it is too old. The ids outlive their records, in
//! [`Ids`]: a call whose record is gone is expired.

use crate::ids::{Admission, Ids, Key};
use crate::job::Job;
use crate::shell::Shell;
use crate::{Reason, refusal};
use bytes::Bytes;
use espalier_agent_protocol::v1::{Call, Id};
use parking_lot::{Mutex, MutexGuard};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::Instant;
use tonic::Status;

/// Most ended records.
pub const RECORDS_MAX: usize = 2048;
/// How long an ended record stays unacknowledged.
pub const RECORD_AGE_MAX: Duration = Duration::from_secs(15 * 60);
/// Most bytes of a client's name.
const CLIENT_BYTES_MAX: usize = 128;

/// What is kept of a call.
#[derive(Clone, Debug)]
pub enum CallRecord {
    /// A command, running or ended.
    Command(Arc<Job>),
    /// A stateful shell.
    Shell(Arc<Shell>),
    /// Any other call: its answer, once there is one.
    Answer(Arc<Answer>),
}

/// The answer to a call, or the wait for it.
#[derive(Debug, Default)]
pub struct Answer {
    state: Mutex<AnswerState>,
    changed: Notify,
}

#[derive(Debug, Default)]
enum AnswerState {
    #[default]
    Pending,
    Done(Result<Bytes, Status>),
    /// The call was cut before it did anything; its id is free again.
    Withdrawn,
}

impl Answer {
    /// Keeps the answer and tells all who wait.
    pub fn set(&self, answer: Result<Bytes, Status>) {
        *self.lock() = AnswerState::Done(answer);
        self.changed.notify_waiters();
    }

    fn withdraw(&self) {
        *self.lock() = AnswerState::Withdrawn;
        self.changed.notify_waiters();
    }

    /// The answer; `None` where the call was withdrawn and may be made again.
    pub async fn wait(&self) -> Option<Result<Bytes, Status>> {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            match &*self.lock() {
                AnswerState::Pending => {}
                AnswerState::Done(answer) => return Some(answer.clone()),
                AnswerState::Withdrawn => return None,
            }
            changed.await;
        }
    }

    fn is_pending(&self) -> bool {
        matches!(*self.lock(), AnswerState::Pending)
    }

    fn lock(&self) -> MutexGuard<'_, AnswerState> {
        self.state.lock()
    }
}

/// All records of this boot. One owner: the agent, behind a lock that is never held across a wait.
#[derive(Debug, Default)]
pub struct Records {
    ids: Ids,
    entries: HashMap<Key, Entry>,
    /// In the order in which they ended.
    ended: VecDeque<(Instant, Key)>,
}

#[derive(Debug)]
struct Entry {
    /// Fingerprint of the request, to find an id that is used for something else.
    fingerprint: u64,
    record: CallRecord,
}

/// An id of the wire, checked.
pub fn key(id: Option<&Id>) -> Result<Key, Status> {
    let id = id.ok_or_else(|| refusal(Reason::Invalid, "the call has no id"))?;
    if id.sequence == 0 || id.client.is_empty() || id.client.len() > CLIENT_BYTES_MAX {
        let message = format!("id ({}, {}, {}): no client, or sequence 0", id.client, id.epoch, id.sequence);
        return Err(refusal(Reason::Invalid, message));
    }
    Ok(Key { client: id.client.clone(), epoch: id.epoch, sequence: id.sequence })
}

/// The id as it goes over the wire.
pub fn id(key: &Key) -> Id {
    Id { client: key.client.clone(), epoch: key.epoch, sequence: key.sequence }
}

impl Records {
    /// Decides about a call. A new one is recorded as what `make` returns, before anything happens; a known one is answered
    /// from its record.
    pub fn admit(
        &mut self,
        call: Option<&Call>,
        boot: &[u8],
        fingerprint: u64,
        make: impl FnOnce(Key) -> CallRecord,
    ) -> Result<(Key, CallRecord, bool), Status> {
        let call = call.ok_or_else(|| refusal(Reason::Invalid, "the call has no id"))?;
        let key = key(call.id.as_ref())?;
        let expired = |why: &str| {
            let Key { client, epoch, sequence } = &key;
            refusal(Reason::Expired, format!("id ({client}, {epoch}, {sequence}): {why}; it was not run now"))
        };
        if call.boot != boot {
            return Err(expired("of another boot of the agent"));
        }
        let known = self.entries.get(&key);
        match self.ids.admit(&key, call.floor, known.is_some()) {
            Admission::New => {
                let record = make(key.clone());
                self.entries.insert(key.clone(), Entry { fingerprint, record: record.clone() });
                Ok((key, record, true))
            }
            Admission::Recorded => match known {
                Some(entry) if entry.fingerprint == fingerprint => Ok((key, entry.record.clone(), false)),
                _ => Err(refusal(
                    Reason::IdReused,
                    format!("id ({}, {}, {}): used for another call", key.client, key.epoch, key.sequence),
                )),
            },
            Admission::OldEpoch => Err(expired("of an epoch that is over")),
            Admission::BelowFloor => Err(expired("at or below the floor, without a record")),
            Admission::Forgotten => Err(expired("its record is gone")),
            Admission::Full => {
                let why = "too many clients, or too many gaps above the floor: raise the floor";
                Err(refusal(Reason::Bound, why))
            }
        }
    }

    /// The record of an id.
    pub fn get(&self, key: &Key) -> Option<CallRecord> {
        self.entries.get(key).map(|entry| entry.record.clone())
    }

    /// Every command and shell.
    pub fn all(&self) -> Vec<(Key, CallRecord)> {
        let kept = |record: &CallRecord| !matches!(record, CallRecord::Answer(_));
        let entries = self.entries.iter().filter(|(_, entry)| kept(&entry.record));
        entries.map(|(key, entry)| (key.clone(), entry.record.clone())).collect()
    }

    /// The call has ended: its record may go when its time comes.
    pub fn end(&mut self, key: &Key, now: Instant) {
        self.ended.push_back((now, key.clone()));
    }

    /// The call has done nothing and was cut: as if it had never come.
    pub fn withdraw(&mut self, key: &Key) {
        if let Some(Entry { record: CallRecord::Answer(answer), .. }) = self.entries.get(key)
            && answer.is_pending()
        {
            answer.withdraw();
            self.entries.remove(key);
            self.ids.release(key);
        }
    }

    /// The client needs it no more. What still runs is kept until it ends.
    pub fn acknowledge(&mut self, key: &Key) -> Option<CallRecord> {
        let ended = match &self.entries.get(key)?.record {
            CallRecord::Command(job) => job.is_ended(),
            CallRecord::Shell(shell) => shell.is_ended(),
            CallRecord::Answer(answer) => !answer.is_pending(),
        };
        if !ended {
            return None;
        }
        self.ended.retain(|(_, known)| known != key);
        self.entries.remove(key).map(|entry| entry.record)
    }

    /// Takes out what is too much or too old.
    pub fn evict(&mut self, now: Instant) -> Vec<CallRecord> {
        let mut gone = Vec::new();
        while let Some((ended, _)) = self.ended.front() {
            if self.ended.len() <= RECORDS_MAX && now.duration_since(*ended) < RECORD_AGE_MAX {
                break;
            }
            if let Some((_, key)) = self.ended.pop_front() {
                gone.extend(self.entries.remove(&key).map(|entry| entry.record));
            }
        }
        gone
    }

    /// Ended commands, oldest first: whose output to give up when room is short.
    pub fn oldest_ended(&self) -> impl Iterator<Item = Arc<Job>> + '_ {
        self.ended.iter().filter_map(|(_, key)| match &self.entries.get(key)?.record {
            CallRecord::Command(job) => Some(Arc::clone(job)),
            _ => None,
        })
    }
}

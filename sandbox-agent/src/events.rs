//! A command's record as the wire tells it: streams of events, answers to polls, lists.

use crate::agent::Agent;
use crate::ids::Key;
use crate::job::{Job, Look};
use crate::output::Piece;
use crate::records::{self, CallRecord};
use crate::shell::Shell;
use crate::{Reason, refusal};
use espalier_agent_protocol::CHUNK_BYTES;
use espalier_agent_protocol::v1::{
    self as wire, ExecEvent, Gap, Listed, Output, PollAnswer, PollRequest, Started, Stream, exec_event::Event,
};
use futures::stream::{BoxStream, StreamExt};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use tonic::Status;

/// Most bytes of each stream in the answer to Poll.
const POLL_BYTES_MAX: u32 = 1 << 20;
/// Longest wait of Poll.
const POLL_WAIT_MAX: Duration = Duration::from_secs(600);

/// One reader of a command.
struct Reader {
    job: Arc<Job>,
    at: [u64; 2],
    follow: bool,
    started: bool,
    ended: bool,
    ready: VecDeque<Event>,
    done: bool,
}

/// Everything from these offsets on, up to the end; with `follow`, up to the end of all output.
pub fn stream(job: Arc<Job>, from: [u64; 2], follow: bool) -> BoxStream<'static, Result<ExecEvent, Status>> {
    job.pace.came();
    let reader =
        Reader { job, at: from, follow, started: false, ended: false, ready: VecDeque::new(), done: false };
    futures::stream::unfold(reader, |mut reader| async move {
        let event = reader.next().await?;
        Some((Ok(ExecEvent { event: Some(event) }), reader))
    })
    .boxed()
}

impl Reader {
    async fn next(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(event);
            }
            if self.done {
                return None;
            }
            let (job, at, started, ended) = (Arc::clone(&self.job), self.at, self.started, self.ended);
            let look = job
                .until(|job| {
                    let look = job.look(at, CHUNK_BYTES);
                    let news = look.pieces.iter().any(|piece| *piece != Piece::Nothing)
                        || (!started && look.pid != 0)
                        || (look.ended.is_some() && !ended)
                        || (ended && look.open == [false, false]);
                    news.then_some(look)
                })
                .await;
            self.done = !self.take(look);
        }
    }

    /// Turns what is new into events; false when nothing can come any more.
    fn take(&mut self, look: Look) -> bool {
        if !self.started && look.pid != 0 {
            self.started = true;
            self.ready.push_back(Event::Started(Started { pid: look.pid }));
        }
        let mut caught_up = true;
        for (number, piece) in look.pieces.into_iter().enumerate() {
            let stream = if number == 0 { Stream::Stdout } else { Stream::Stderr };
            match piece {
                Piece::Bytes(bytes) => {
                    let offset = self.at[number];
                    self.at[number] += bytes.len() as u64;
                    self.ready.push_back(Event::Output(Output { stream: stream.into(), offset, bytes }));
                    caught_up = false;
                }
                Piece::LostUntil(to) => {
                    self.ready.push_back(Event::Gap(Gap {
                        stream: stream.into(),
                        from: self.at[number],
                        to,
                    }));
                    self.at[number] = to;
                    caught_up = false;
                }
                Piece::Nothing => {}
            }
        }
        if !caught_up {
            self.job.note_taken(self.at);
            return true;
        }
        if let Some(ended) = look.ended
            && !self.ended
        {
            self.ended = true;
            self.ready.push_back(Event::Ended(ended));
            return self.follow;
        }
        !self.ended || (self.follow && look.open != [false, false])
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.job.pace.went();
    }
}

/// What is new since the request's offsets; waits for it as long as asked.
pub async fn poll(job: &Job, request: &PollRequest) -> PollAnswer {
    let at = [request.stdout_from, request.stderr_from];
    let bytes_max = match request.bytes_max {
        0 => CHUNK_BYTES,
        asked => asked.min(POLL_BYTES_MAX) as usize,
    };
    let wait = Duration::from_millis(request.wait_ms).min(POLL_WAIT_MAX);
    let news = job.until(|job| {
        let look = job.look(at, bytes_max);
        let printed = look.pieces.iter().any(|piece| *piece != Piece::Nothing);
        (look.ended.is_some() || (printed && !request.until_ended)).then_some(())
    });
    let _ = tokio::time::timeout(wait, news).await;
    let mut answer = PollAnswer::default();
    for (number, stream) in [Stream::Stdout, Stream::Stderr].into_iter().enumerate() {
        let mut from = at[number];
        let mut left = bytes_max;
        while left > 0 {
            let mut offsets = [u64::MAX; 2];
            offsets[number] = from;
            let [first, second] = job.look(offsets, left).pieces;
            match if number == 0 { first } else { second } {
                Piece::Bytes(bytes) => {
                    let offset = from;
                    from += bytes.len() as u64;
                    left -= bytes.len();
                    answer.outputs.push(Output { stream: stream.into(), offset, bytes });
                }
                Piece::LostUntil(to) => {
                    answer.gaps.push(Gap { stream: stream.into(), from, to });
                    from = to;
                }
                Piece::Nothing => break,
            }
        }
    }
    let look = job.look([u64::MAX; 2], 0);
    [answer.stdout_total, answer.stderr_total] = look.totals;
    answer.ended = look.ended;
    answer
}

/// All commands and shells that are recorded.
pub fn list(agent: &Agent) -> Vec<Listed> {
    let records = agent.records().all();
    let mut listed: Vec<Listed> = records.iter().map(|(key, record)| describe(key, record)).collect();
    listed.sort_by_key(|one| std::cmp::Reverse(one.age_ms));
    listed
}

fn describe(key: &Key, record: &CallRecord) -> Listed {
    let millis = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    let alive = |members: usize| u32::try_from(members).unwrap_or(u32::MAX);
    match record {
        CallRecord::Command(job) => {
            let look = job.look([u64::MAX; 2], 0);
            Listed {
                id: Some(records::id(key)),
                label: job.label.clone(),
                pid: look.pid,
                age_ms: millis(job.began.elapsed()),
                stdout_total: look.totals[0],
                stderr_total: look.totals[1],
                alive: alive(job.tree().map_or(0, |tree| tree.members().len())),
                ended: look.ended,
                shell: false,
            }
        }
        CallRecord::Shell(shell) => describe_shell(key, shell),
        CallRecord::Answer(_) => Listed::default(),
    }
}

fn describe_shell(key: &Key, shell: &Shell) -> Listed {
    let ended = shell.ended().map(|message| wire::Ended {
        outcome: Some(wire::Outcome {
            outcome: Some(wire::outcome::Outcome::Unstarted(wire::Unstarted {
                reason: Reason::ShellEnded.into(),
                message,
            })),
        }),
        ..wire::Ended::default()
    });
    Listed {
        id: Some(records::id(key)),
        label: shell.label.clone(),
        pid: shell.pid,
        age_ms: u64::try_from(shell.began.elapsed().as_millis()).unwrap_or(u64::MAX),
        alive: u32::try_from(shell.tree.members().len()).unwrap_or(u32::MAX),
        ended,
        shell: true,
        ..Listed::default()
    }
}

/// Sends a signal to a command's leader or tree; returns how many processes got it.
pub fn signal(agent: &Agent, key: &Key, number: i32, tree: bool) -> Result<u32, Status> {
    let signal = rustix::process::Signal::from_named_raw(number)
        .ok_or_else(|| refusal(Reason::Invalid, format!("signal {number}")))?;
    let target = match agent.records().get(key) {
        Some(CallRecord::Command(job)) => {
            job.note_signal(signal);
            job.tree().cloned()
        }
        Some(CallRecord::Shell(shell)) => Some(Arc::clone(&shell.tree)),
        _ => {
            let Key { client, epoch, sequence } = key;
            return Err(refusal(Reason::NotFound, format!("no command ({client}, {epoch}, {sequence})")));
        }
    };
    let Some(target) = target else { return Ok(0) };
    if tree {
        return Ok(target.signal(signal));
    }
    let leader = target.leader().and_then(|pid| rustix::process::Pid::from_raw(pid.cast_signed()));
    // Not reaped yet, so its number is its own.
    Ok(leader.map_or(0, |pid| u32::from(rustix::process::kill_process(pid, signal).is_ok())))
}

//! From what the agent says of a command to its outcome: text with what is left out counted, and the whole as a blob.

use super::machine::{Machine, refusal};
use espalier_agent_client::wire::{Ended, Excerpt, RunAnswer, Stream, outcome};
use espalier_agent_client::{AgentError, Event, Id, Offsets, Reason};
use espalier_core::failure::Failure;
use espalier_core::host::sandbox::{self as host, Outcome, Output, Show};
use espalier_core::journal::Edge;
use serde_json::{Map, Value};
use std::time::Duration;

impl Machine {
    /// What comes of a command that ended, or whose machine was lost under it.
    pub(super) async fn outcome(
        &self,
        id: &Id,
        answer: Result<RunAnswer, AgentError>,
        show: Show,
    ) -> Result<Outcome, Failure> {
        let is_lost = answer.as_ref().is_err_and(AgentError::is_lost_under_way);
        let RunAnswer { ended, stdout, stderr, .. } = match self.said(answer) {
            Err(Failure::Unavailable(why)) if is_lost => return Ok(Outcome::unknown(why)),
            answer => answer?,
        };
        let missing = || AgentError::Protocol("a command without its end".to_owned());
        let mut ended = self.said(ended.ok_or_else(missing))?;
        let how = match ended.outcome.take().and_then(|outcome| outcome.outcome) {
            Some(outcome::Outcome::Unstarted(unstarted)) => {
                return Err(refusal(unstarted.reason(), unstarted.message));
            }
            Some(outcome::Outcome::ExitCode(code)) => host::Ended::ExitCode(code),
            Some(outcome::Outcome::Signal(number)) => host::Ended::Signal(number),
            Some(outcome::Outcome::TimedOut(_)) => host::Ended::TimedOut,
            Some(outcome::Outcome::OutOfMemory(_)) => host::Ended::OutOfMemory,
            None => host::Ended::Other("unknown".to_owned()),
        };
        if how == host::Ended::OutOfMemory || ended.memory_kills > 0 {
            self.killed_for_memory()?;
        }
        let [stdout, stderr] = [stdout, stderr].map(Option::unwrap_or_default);
        let wanted = [&stdout, &stderr].map(|excerpt| show.keep_whole && !says_all(excerpt));
        let [mut stdout, mut stderr] = [stdout, stderr].map(|excerpt| text_of(&excerpt));
        if wanted != [false; 2] {
            let kept = self.said(self.kept(id, wanted).await)?;
            for ((output, wanted), bytes) in [&mut stdout, &mut stderr].into_iter().zip(wanted).zip(kept) {
                if wanted {
                    let media_type = match std::str::from_utf8(&bytes) {
                        Ok(_) => "text/plain; charset=utf-8",
                        Err(_) => "application/octet-stream",
                    };
                    output.whole = Some(self.blobs.put(bytes, media_type).await?);
                }
            }
        }
        let outcome = Outcome {
            ended: how,
            stdout,
            stderr,
            duration: Duration::from_millis(ended.duration_ms),
            left_running: ended.left_running,
            extra: extra(&ended),
        };
        if let Some(edges) = &self.edges {
            edges.note(Edge::Command {
                sandbox: self.name.clone(),
                id: format!("{}/{}", id.client, id.sequence),
                outcome: outcome.clone(),
            });
        }
        Ok(outcome)
    }

    /// All that the agent still has of these outputs.
    async fn kept(&self, id: &Id, wanted: [bool; 2]) -> Result<[Vec<u8>; 2], AgentError> {
        let from = |wanted: bool| if wanted { 0 } else { u64::MAX };
        let offsets = Offsets { stdout: from(wanted[0]), stderr: from(wanted[1]) };
        let mut follow = self.agent.attach(id, offsets, false);
        let mut kept = [Vec::new(), Vec::new()];
        while let Some(event) = follow.next().await? {
            match event {
                Event::Output { stream, bytes, .. } => {
                    kept[usize::from(stream == Stream::Stderr)].extend_from_slice(&bytes);
                }
                Event::Gap { .. } => {}
                Event::Ended(_) => break,
            }
        }
        Ok(kept)
    }
}

fn says_all(excerpt: &Excerpt) -> bool {
    excerpt.omitted_bytes == 0
        && std::str::from_utf8(&excerpt.head).is_ok()
        && std::str::from_utf8(&excerpt.tail).is_ok()
}

/// Head and tail as text, without the characters that the cut divides.
fn text_of(excerpt: &Excerpt) -> Output {
    let (mut head, mut tail) = (&excerpt.head[..], &excerpt.tail[..]);
    let total = head.len() as u64 + excerpt.omitted_bytes + tail.len() as u64;
    if excerpt.omitted_bytes == 0 {
        let whole = [head, tail].concat();
        let head = String::from_utf8_lossy(&whole).into_owned();
        return Output { head, total, ..Output::default() };
    }
    head = &head[..head.len() - divided_at_end(head)];
    tail = &tail[tail.iter().take(3).take_while(|byte| **byte & 0xC0 == 0x80).count()..];
    Output {
        head: String::from_utf8_lossy(head).into_owned(),
        left_out: total - head.len() as u64 - tail.len() as u64,
        tail: String::from_utf8_lossy(tail).into_owned(),
        total,
        whole: None,
    }
}

/// Bytes at the end that begin a character and do not end it.
fn divided_at_end(bytes: &[u8]) -> usize {
    for back in 1..=3.min(bytes.len()) {
        let needs = match bytes[bytes.len() - back] {
            0xC2..=0xDF => 2,
            0xE0..=0xEF => 3,
            0xF0..=0xF4 => 4,
            0x80..=0xBF => continue,
            _ => return 0,
        };
        return if needs > back { back } else { 0 };
    }
    0
}

fn extra(ended: &Ended) -> Option<String> {
    let mut facts = Map::new();
    let mut fact = |name: &str, holds: bool, value: Value| {
        if holds {
            facts.insert(name.to_owned(), value);
        }
    };
    fact("shell_ended", ended.shell_ended, true.into());
    fact("disk_full", ended.disk_full, true.into());
    fact("memory_kills", ended.memory_kills > 0, ended.memory_kills.into());
    fact("memory_max_bytes", ended.memory_max_bytes > 0, ended.memory_max_bytes.into());
    fact("user_ms", true, ended.user_ms.into());
    fact("system_ms", true, ended.system_ms.into());
    Some(Value::Object(facts).to_string())
}

/// A record that the agent has no more, where it was there once.
pub(super) fn expired(error: AgentError) -> AgentError {
    match error {
        AgentError::Refused { reason: Reason::NotFound, message, .. } => {
            AgentError::refused(Reason::Expired, message)
        }
        error => error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cut_divides_no_character_and_every_byte_is_counted() {
        let text = "aé€𝄞z".repeat(3);
        let bytes = text.as_bytes();
        for head in 0..bytes.len() / 2 {
            for tail in 0..bytes.len() / 2 {
                let excerpt = Excerpt {
                    head: bytes[..head].to_vec().into(),
                    omitted_bytes: (bytes.len() - head - tail) as u64,
                    tail: bytes[bytes.len() - tail..].to_vec().into(),
                };
                let output = text_of(&excerpt);
                assert!(text.starts_with(&output.head) && text.ends_with(&output.tail), "{head}, {tail}");
                assert!(head - output.head.len() < 4 && tail - output.tail.len() < 4, "{head}, {tail}");
                let shown = (output.head.len() + output.tail.len()) as u64;
                assert_eq!(shown + output.left_out, output.total, "{head}, {tail}");
                assert_eq!(output.total, bytes.len() as u64);
            }
        }
    }

    #[test]
    fn what_is_no_text_is_shown_as_such() {
        let excerpt = Excerpt { head: b"a\xFFb".to_vec().into(), ..Excerpt::default() };
        assert!(!says_all(&excerpt));
        let output = text_of(&excerpt);
        assert_eq!((output.head.as_str(), output.left_out, output.total), ("a\u{FFFD}b", 0, 3));
    }
}

//! Ids of calls: `session.epoch.counter`. A client counts them itself, so that an answer that was lost is asked for again and
//! nothing runs twice; where it does not, the service counts.

use crate::problem::Problem;
use crate::registry::Busy;
use espalier_agent_client::Agent;
use espalier_agent_client::wire::{Id, Variable};
use espalier_sandbox::service::Sandbox;
use http::HeaderMap;
use std::collections::BTreeMap;

/// In front of every session as the agent knows it.
const CLIENT: &str = "c.";
/// Longest session.
const SESSION_BYTES_MAX: usize = 48;
/// The header of calls that have no body of their own.
pub(crate) const HEADER: &str = "espalier-call";
/// What an id looks like.
const WANTED: &str = "SESSION.EPOCH.COUNTER: 1 to 48 of A-Z, a-z, 0-9, _, -, and two whole numbers from 1";

/// An id of a client.
pub(crate) fn parse(what: &str, text: &str) -> Result<Id, Problem> {
    let refused = || Problem::invalid(what, crate::http::shown(text), WANTED);
    let mut parts = text.split('.');
    let (Some(session), Some(epoch), Some(counter), None) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return Err(refused());
    };
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-".contains(&byte);
    if session.is_empty() || session.len() > SESSION_BYTES_MAX || !session.bytes().all(plain) {
        return Err(refused());
    }
    let number = |text: &str| {
        let digits = !text.starts_with(['0', '+']) && text.len() <= 16;
        text.parse::<u64>().ok().filter(|_| digits).ok_or_else(refused)
    };
    Ok(Id { client: format!("{CLIENT}{session}"), epoch: number(epoch)?, sequence: number(counter)? })
}

/// An id as clients know it; `None`: it is not of a client.
pub(crate) fn text(id: &Id) -> Option<String> {
    let session = id.client.strip_prefix(CLIENT)?;
    Some(format!("{session}.{}.{}", id.epoch, id.sequence))
}

/// The agent to make a call with, and its id: the client's, or a new one.
pub(crate) fn begin(sandbox: &Sandbox, id: Option<&str>, floor: Option<u64>) -> Result<(Agent, Id), Problem> {
    match id {
        Some(id) => Ok((sandbox.agent.with_floor(floor.unwrap_or(0)), parse("id", id)?)),
        None => Ok((sandbox.agent.clone(), sandbox.agent.allot())),
    }
}

/// The same with the header: `Espalier-Call: SESSION.EPOCH.COUNTER; floor=N`.
pub(crate) fn begin_by_header(sandbox: &Sandbox, headers: &HeaderMap) -> Result<(Agent, Id), Problem> {
    let Some(value) = headers.get(HEADER) else { return begin(sandbox, None, None) };
    let value = value.to_str().map_err(|_| Problem::invalid("Espalier-Call", "no text", WANTED))?;
    let (id, floor) = value.split_once(';').map_or((value, None), |(id, rest)| (id, Some(rest.trim())));
    let floor = floor.map(|floor| {
        let number = floor.strip_prefix("floor=").and_then(|number| number.parse().ok());
        number.ok_or_else(|| Problem::invalid("Espalier-Call", crate::http::shown(value), "ID; floor=NUMBER"))
    });
    let floor = floor.transpose()?;
    Ok((sandbox.agent.with_floor(floor.unwrap_or(0)), parse("Espalier-Call", id.trim())?))
}

/// A sandbox that is being worked in.
pub(crate) struct At {
    pub(crate) sandbox: Sandbox,
    /// Until it is dropped, the sandbox is not idle.
    pub(crate) busy: Busy,
}

/// A path of a client, from the folder in which commands start.
pub(crate) fn absolute(sandbox: &Sandbox, path: &[u8]) -> Vec<u8> {
    if path.starts_with(b"/") {
        return path.to_vec();
    }
    let mut whole = sandbox.workdir.trim_end_matches('/').as_bytes().to_vec();
    whole.push(b'/');
    whole.extend_from_slice(path);
    whole
}

/// Where a command starts.
pub(crate) fn folder(sandbox: &Sandbox, cwd: Option<&str>) -> Vec<u8> {
    match cwd {
        Some(cwd) => absolute(sandbox, cwd.as_bytes()),
        None => sandbox.workdir.clone().into_bytes(),
    }
}

/// Variables as the agent takes them.
pub(crate) fn variables(given: Option<&BTreeMap<String, String>>) -> Vec<Variable> {
    let bytes = |text: &String| text.clone().into_bytes().into();
    let all = given.into_iter().flatten();
    all.map(|(name, value)| Variable { name: bytes(name), value: bytes(value) }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_a_session_an_epoch_and_a_counter() {
        let id = parse("id", "ab-C_9.1.23").unwrap();
        assert_eq!((&*id.client, id.epoch, id.sequence), ("c.ab-C_9", 1, 23));
        assert_eq!(text(&id).unwrap(), "ab-C_9.1.23");
        assert_eq!(text(&Id { client: "engine".to_owned(), epoch: 1, sequence: 1 }), None);
        for wrong in [
            "",
            "a",
            "a.1",
            "a.1.1.1",
            "a.0.1",
            "a.1.0",
            "a.01.1",
            "a.1.+1",
            "a b.1.1",
            ".1.1",
            "a.1.99999999999999999",
        ] {
            assert!(parse("id", wrong).is_err(), "{wrong}");
        }
        assert!(parse("id", &format!("{}.1.1", "x".repeat(49))).is_err());
    }
}

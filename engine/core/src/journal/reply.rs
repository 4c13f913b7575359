//! What plugins are told.

use super::{Bytes, Handle};
use crate::chat::{Completion, Tool, Usage};
use crate::failure::Failure;
use crate::host::browser::{BrowserStep, Picture, Snapshot, Tab};
use crate::host::sandbox::{ChangeSet, Entry, FileStat, Outcome, PatchedFile, Piece};
use crate::host::{BlobInfo, Observation, StepResult};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

/// What a call came to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Reply<'a> {
    /// It failed, or was refused.
    Failed(Cow<'a, Failure>),
    /// Nothing to tell.
    Done,
    /// A conversation, an environment, a sandbox, a process, a shell or a browser.
    Opened(Handle),
    /// A number.
    Number(u64),
    /// A text, the name of a blob, an address.
    Text(Cow<'a, str>),
    /// Texts.
    Texts(Cow<'a, [String]>),
    /// Bytes.
    Bytes(Bytes<'a>),
    /// What is known of a blob.
    Blob(Cow<'a, BlobInfo>),
    /// An answer of a model.
    Completion(Cow<'a, Completion>),
    /// Several, each in a conversation of its own.
    Branches(Vec<(Handle, Cow<'a, Completion>)>),
    /// Counters of a conversation.
    Usage(Cow<'a, Usage>),
    /// What is seen of an environment.
    Observation(Cow<'a, Observation>),
    /// What an action led to.
    Step(Cow<'a, StepResult>),
    /// Which of several, if any.
    Which(Option<u32>),
    /// What came of a command; none while it runs.
    Outcome(Option<Cow<'a, Outcome>>),
    /// A piece of an output.
    Piece(Cow<'a, Piece>),
    /// What stands in a folder.
    Entries(Cow<'a, [Entry]>),
    /// What stands at a path.
    Stat(Cow<'a, FileStat>),
    /// What a patch did.
    Patched(Cow<'a, [PatchedFile]>),
    /// Work taken out of a sandbox.
    Changes(Cow<'a, ChangeSet>),
    /// Tools for a model.
    Tools(Cow<'a, [Tool]>),
    /// What became of actions in a browser.
    BrowserSteps(Cow<'a, [BrowserStep]>),
    /// The tabs of a browser.
    Tabs(Cow<'a, [Tab]>),
    /// A page as text.
    Snapshot(Cow<'a, Snapshot>),
    /// A page as a picture.
    Picture(Cow<'a, Picture>),
    /// What a service answered.
    Response {
        /// Of HTTP.
        status: u16,
        /// Of the body.
        content_type: Cow<'a, str>,
        /// The body.
        body: Bytes<'a>,
    },
}

impl Reply<'_> {
    /// The same, on its own.
    pub fn into_owned(self) -> Reply<'static> {
        fn own<T: ToOwned + ?Sized>(value: Cow<'_, T>) -> Cow<'static, T> {
            Cow::Owned(value.into_owned())
        }
        match self {
            Reply::Failed(failure) => Reply::Failed(own(failure)),
            Reply::Done => Reply::Done,
            Reply::Opened(handle) => Reply::Opened(handle),
            Reply::Number(number) => Reply::Number(number),
            Reply::Text(text) => Reply::Text(own(text)),
            Reply::Texts(texts) => Reply::Texts(own(texts)),
            Reply::Bytes(Bytes(bytes)) => Reply::Bytes(Bytes(own(bytes))),
            Reply::Blob(info) => Reply::Blob(own(info)),
            Reply::Completion(completion) => Reply::Completion(own(completion)),
            Reply::Branches(branches) => {
                Reply::Branches(branches.into_iter().map(|(handle, one)| (handle, own(one))).collect())
            }
            Reply::Usage(usage) => Reply::Usage(own(usage)),
            Reply::Observation(seen) => Reply::Observation(own(seen)),
            Reply::Step(step) => Reply::Step(own(step)),
            Reply::Which(place) => Reply::Which(place),
            Reply::Outcome(outcome) => Reply::Outcome(outcome.map(own)),
            Reply::Piece(piece) => Reply::Piece(own(piece)),
            Reply::Entries(entries) => Reply::Entries(own(entries)),
            Reply::Stat(stat) => Reply::Stat(own(stat)),
            Reply::Patched(files) => Reply::Patched(own(files)),
            Reply::Changes(changes) => Reply::Changes(own(changes)),
            Reply::Tools(tools) => Reply::Tools(own(tools)),
            Reply::BrowserSteps(steps) => Reply::BrowserSteps(own(steps)),
            Reply::Tabs(tabs) => Reply::Tabs(own(tabs)),
            Reply::Snapshot(snapshot) => Reply::Snapshot(own(snapshot)),
            Reply::Picture(picture) => Reply::Picture(own(picture)),
            Reply::Response { status, content_type, body: Bytes(body) } => {
                Reply::Response { status, content_type: own(content_type), body: Bytes(own(body)) }
            }
        }
    }
}

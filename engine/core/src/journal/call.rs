//! What plugins can ask of the host: a variant for each function that worlds import, but `log`.

use super::Bytes;
use crate::chat::{CompleteOptions, Message, Tool};
use crate::failure::Failure;
use crate::host::browser::{Action, ScreenshotOptions, ScriptWorld, SnapshotOptions};
use crate::host::sandbox::{
    Channel, Command, PatchOptions, RunOptions, ShellOptions, TerminalSize, WriteOptions,
};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

/// Something that a plugin holds open: a conversation, an environment, a sandbox, a process, a shell, a browser. Numbered by the host in
/// the order in which they were opened, lowest free number first; no two that are open at a time have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Handle(pub u32);

/// A field of a call as one that outlives what it was borrowed from.
trait Own {
    type Owned;
    fn own(self) -> Self::Owned;
}

macro_rules! own_as_it_is {
    ($($type:ty),*) => { $(impl Own for $type {
        type Owned = $type;
        fn own(self) -> $type {
            self
        }
    })* };
}

own_as_it_is!(bool, u8, u16, u32, u64, Handle, Vec<Handle>, Channel, TerminalSize, ScriptWorld);

impl<T: ToOwned + ?Sized + 'static> Own for Cow<'_, T> {
    type Owned = Cow<'static, T>;
    fn own(self) -> Cow<'static, T> {
        Cow::Owned(self.into_owned())
    }
}

impl Own for Bytes<'_> {
    type Owned = Bytes<'static>;
    fn own(self) -> Bytes<'static> {
        Bytes(self.0.own())
    }
}

impl Own for Option<Bytes<'_>> {
    type Owned = Option<Bytes<'static>>;
    fn own(self) -> Option<Bytes<'static>> {
        self.map(Own::own)
    }
}

/// The enum with its names, each written once: in records, in what is shown, and in the serialised form.
macro_rules! calls {
    ($($name:tt => $variant:ident { $($field:ident: $type:ty),* },)*) => {
        /// A call of a plugin, with its arguments. Every variant is the function of `wit/` that it is named after, its fields
        /// are the parameters. Times are as the plugin asked for, before the host bounds them.
        #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
        #[expect(missing_docs, reason = "the functions are documented in wit/")]
        pub enum Call<'a> {
            $(#[serde(rename = $name)] $variant { $($field: $type),* },)*
            /// Arguments that are none for this function: it was refused with this failure.
            #[serde(rename = "invalid")]
            Invalid { import: Cow<'a, str>, failure: Cow<'a, Failure> },
        }

        impl Call<'_> {
            /// `conversation.complete`, `clock.now-ms` ...
            pub fn name(&self) -> &'static str {
                match self {
                    $(Call::$variant { .. } => $name,)*
                    Call::Invalid { import, .. } => {
                        [$($name),*].into_iter().find(|name| name == import).unwrap_or("invalid")
                    }
                }
            }

            /// The same, on its own.
            pub fn into_owned(self) -> Call<'static> {
                match self {
                    $(Call::$variant { $($field),* } => Call::$variant { $($field: $field.own()),* },)*
                    Call::Invalid { import, failure } => {
                        Call::Invalid { import: import.own(), failure: failure.own() }
                    }
                }
            }
        }
    };
}

calls! {
    "settings.get" => SettingsGet {},
    "clock.now-ms" => ClockNow {},
    "random.bytes" => RandomBytes { length: u32 },
    "random.below" => RandomBelow { bound: u64 },
    "blobs.stat" => BlobStat { blob: Cow<'a, str> },
    "blobs.read" => BlobRead { blob: Cow<'a, str>, offset: u64, length: u32 },
    "blobs.read-text" => BlobReadText { blob: Cow<'a, str>, offset: u64, length: u32 },
    "blobs.put" => BlobPut { bytes: Bytes<'a>, media_type: Cow<'a, str> },

    "conversations.open" => OpenConversation {
        model: Cow<'a, str>,
        messages: Cow<'a, [Message]>,
        tools: Cow<'a, [Tool]>
    },
    "conversation.append" => Append { conversation: Handle, messages: Cow<'a, [Message]> },
    "conversation.complete" => Complete { conversation: Handle, options: Cow<'a, CompleteOptions> },
    "conversation.complete-many" => CompleteMany {
        conversation: Handle,
        n: u32,
        options: Cow<'a, CompleteOptions>
    },
    "conversation.discard" => Discard { conversation: Handle },
    "conversation.fork" => Fork { conversation: Handle },
    "conversation.rewrite" => Rewrite { conversation: Handle, messages: Cow<'a, [Message]> },
    "conversation.elide-images" => ElideImages { conversation: Handle, keep: u32 },
    "conversation.set-trainable" => SetTrainable { conversation: Handle, message: u32, trainable: bool },
    "conversation.usage" => Usage { conversation: Handle },

    "environments.open" => OpenEnvironment {},
    "environment.reset" => Reset { environment: Handle },
    "environment.step" => Step { environment: Handle, action: Cow<'a, str> },
    "environment.actions" => Actions { environment: Handle },

    "sandboxes.open" => OpenSandbox { name: Cow<'a, str> },
    "scoring.open-fresh" => OpenFresh { name: Cow<'a, str> },
    "creation.create" => CreateSandbox { spec: Cow<'a, str> },
    "sandboxes.wait-any" => WaitAny { processes: Vec<Handle>, timeout_ms: u64 },
    "sandbox.exec" => Exec { sandbox: Handle, command: Cow<'a, Command> },
    "sandbox.start" => Start { sandbox: Handle, command: Cow<'a, Command> },
    "sandbox.open-shell" => OpenShell { sandbox: Handle, options: Cow<'a, ShellOptions> },
    "sandbox.read-file" => ReadFile { sandbox: Handle, path: Bytes<'a>, offset: u64, length: u32 },
    "sandbox.file-to-blob" => FileToBlob { sandbox: Handle, path: Bytes<'a> },
    "sandbox.write-file" => WriteFile {
        sandbox: Handle,
        path: Bytes<'a>,
        bytes: Bytes<'a>,
        options: Cow<'a, WriteOptions>
    },
    "sandbox.blob-to-file" => BlobToFile {
        sandbox: Handle,
        blob: Cow<'a, str>,
        path: Bytes<'a>,
        options: Cow<'a, WriteOptions>
    },
    "sandbox.list-folder" => ListFolder { sandbox: Handle, path: Bytes<'a>, depth: u32 },
    "sandbox.stat" => Stat { sandbox: Handle, path: Bytes<'a>, follow: bool },
    "sandbox.make-folder" => MakeFolder { sandbox: Handle, path: Bytes<'a>, options: Cow<'a, WriteOptions> },
    "sandbox.remove" => Remove { sandbox: Handle, path: Bytes<'a>, recursive: bool, missing_ok: bool },
    "sandbox.move-to" => MoveTo { sandbox: Handle, old_path: Bytes<'a>, new_path: Bytes<'a>, replace: bool },
    "sandbox.apply-patch" => ApplyPatch {
        sandbox: Handle,
        patch: Cow<'a, str>,
        options: Cow<'a, PatchOptions>
    },
    "sandbox.changes" => Changes { sandbox: Handle, root: Option<Bytes<'a>> },
    "sandbox.apply-changes" => ApplyChanges { sandbox: Handle, changes: Cow<'a, str> },
    "sandbox.checkpoint" => Checkpoint { sandbox: Handle },
    "sandbox.port" => Port { sandbox: Handle, number: u16 },

    "process.pid" => Pid { process: Handle },
    "process.poll" => Poll { process: Handle },
    "process.read" => ReadOutput { process: Handle, channel: Channel, offset: u64, length: u32, wait_ms: u64 },
    "process.write-stdin" => WriteStdin { process: Handle, bytes: Bytes<'a> },
    "process.close-stdin" => CloseStdin { process: Handle },
    "process.resize" => Resize { process: Handle, size: TerminalSize },
    "process.signal" => Signal { process: Handle, number: u8, tree: bool },
    "process.wait" => Wait { process: Handle, timeout_ms: u64 },
    "shell.run" => ShellRun { shell: Handle, text: Cow<'a, str>, options: Cow<'a, RunOptions> },
    "shell.close" => ShellClose { shell: Handle },

    "browsers.open" => OpenBrowser { name: Cow<'a, str> },
    "session.tools" => BrowserTools { session: Handle },
    "session.act" => BrowserAct { session: Handle, actions: Cow<'a, [Action]> },
    "session.tabs" => BrowserTabs { session: Handle },
    "session.snapshot" => BrowserSnapshot { session: Handle, options: Cow<'a, SnapshotOptions> },
    "session.screenshot" => BrowserScreenshot { session: Handle, options: Cow<'a, ScreenshotOptions> },
    "session.evaluate" => BrowserEvaluate { session: Handle, expression: Cow<'a, str>, world: ScriptWorld },
    "session.storage-state" => BrowserStorageState { session: Handle },

    "services.request" => ServiceRequest {
        name: Cow<'a, str>,
        method: Cow<'a, str>,
        path: Cow<'a, str>,
        body: Bytes<'a>
    },
}

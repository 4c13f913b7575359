//! The imports of every world: WIT on one side, the traits of `espalier_core::host` on the other, the gate in between.
//! Imports of browsers, sandboxes and services have files of their own.

mod browser;
mod sandbox;
mod service;

use crate::bindings::harness::espalier::base::{blobs, clock, log, random, settings, types};
use crate::bindings::harness::espalier::environment::environments;
use crate::bindings::harness::espalier::environment::types as environment_types;
use crate::bindings::harness::espalier::model::{conversations, messages};
use crate::bindings::harness::espalier::plugin::{diagnostics, reports};
use crate::bindings::reward::espalier::plugin::scores;
use crate::convert::{
    completion_out, failure_out, messages_in, observation_out, options_in, step_out, tools_in, usage_out,
};
use crate::gate::{Asked, Work};
use crate::guest::{Guest, OpenConversation, OpenEnvironment};
use espalier_core::chat::Completion;
use espalier_core::failure::Failure;
use espalier_core::host::{Blobs, Conversation};
use espalier_core::journal::{Bytes, Call, Handle, Limit, Reply, Verdict};
use espalier_core::trajectory::LogSource;
use rand_chacha::rand_core::Rng;
use std::borrow::Cow;
use std::sync::Arc;
use tokio::sync::Mutex;
use wasmtime::component::{Resource, ResourceTable};

/// Largest slice of a blob that one call reads.
const READ_BYTES_MAX: u32 = 1 << 20;
/// Largest blob that one call keeps.
const PUT_BYTES_MAX: usize = 64 << 20;
/// Most random bytes of one call.
const RANDOM_BYTES_MAX: u32 = 64 << 10;
/// Largest bound of `random.below`.
const RANDOM_BOUND_MAX: u64 = 1 << 53;
/// Most answers of one `complete-many`.
const BRANCHES_MAX: u32 = 256;

/// What an import gives back: a trap, or the WIT result.
type Answer<T> = wasmtime::Result<Result<T, types::Failure>>;

/// How a handle is named in the record.
fn handle<T: 'static>(resource: &Resource<T>) -> Handle {
    Handle(resource.rep())
}

/// What a guest is given to hold.
fn hold<T: Send + 'static>(table: &mut ResourceTable, held: T) -> Result<Resource<T>, Failure> {
    table.push(held).map_err(|_| Failure::Invalid("too many open handles; drop some".to_owned()))
}

fn opened<T: 'static>(resource: &Resource<T>) -> Reply<'_> {
    Reply::Opened(handle(resource))
}

impl types::Host for Guest {}
impl messages::Host for Guest {}
impl environment_types::Host for Guest {}
impl reports::Host for Guest {}
impl scores::Host for Guest {}

impl log::Host for Guest {
    fn write(&mut self, level: log::Level, text: String, fields: Option<String>) -> wasmtime::Result<()> {
        let source = match level {
            log::Level::Debug => LogSource::Debug,
            log::Level::Info => LogSource::Info,
            log::Level::Warn => LogSource::Warn,
            log::Level::Error => LogSource::Error,
        };
        self.gate.logs().line(source, text, fields);
        Ok(())
    }
}

/// Longest name of a file in a position, bytes.
const FILE_BYTES_MAX: usize = 1 << 10;

impl diagnostics::Host for Guest {
    fn at(&mut self, file: String, line: u32) -> wasmtime::Result<()> {
        let file = &file[..file.floor_char_boundary(FILE_BYTES_MAX)];
        // It stands in the middle of a line, in messages and records.
        let file = file.replace(char::is_control, "?");
        self.position = Some((format!("{file}:{line}"), self.gate.total()));
        Ok(())
    }
}

impl settings::Host for Guest {
    fn get(&mut self) -> wasmtime::Result<String> {
        let settings = &self.settings;
        let asked = self.gate.asked(Call::SettingsGet {});
        self.gate.pass_always(asked, |_| settings.clone(), |json| Reply::Text(Cow::Borrowed(json)))
    }
}

impl clock::Host for Guest {
    fn now_ms(&mut self) -> wasmtime::Result<u64> {
        let asked = self.gate.asked(Call::ClockNow {});
        self.gate.pass_always(asked, crate::gate::Gate::now_ms, |now| Reply::Number(*now))
    }
}

impl random::Host for Guest {
    fn bytes(&mut self, length: u32) -> Answer<Vec<u8>> {
        let random = &mut self.random;
        let draw = |_: &_| {
            if length > RANDOM_BYTES_MAX {
                return Err(Failure::Invalid(format!(
                    "length {length} of random bytes is over {RANDOM_BYTES_MAX}"
                )));
            }
            let mut bytes = vec![0; length as usize];
            random.fill_bytes(&mut bytes);
            Ok(bytes)
        };
        let asked = self.gate.asked(Call::RandomBytes { length });
        let drawn = self.gate.pass_now(asked, draw, |bytes| Reply::Bytes(bytes.into()))?;
        Ok(drawn.map_err(failure_out))
    }

    fn below(&mut self, bound: u64) -> Answer<u64> {
        let random = &mut self.random;
        let draw = |_: &_| {
            if bound == 0 || bound > RANDOM_BOUND_MAX {
                return Err(Failure::Invalid(format!("bound {bound} is not within 1 and 2^53")));
            }
            // Draws beyond the largest multiple of the bound are thrown away: every value is equally likely.
            let fair = u64::MAX - u64::MAX % bound;
            loop {
                let number = random.next_u64();
                if number < fair {
                    return Ok(number % bound);
                }
            }
        };
        let asked = self.gate.asked(Call::RandomBelow { bound });
        Ok(self.gate.pass_now(asked, draw, |drawn| Reply::Number(*drawn))?.map_err(failure_out))
    }
}

impl Guest {
    fn the_blobs(&self) -> Result<Arc<dyn Blobs>, Failure> {
        self.capabilities.blobs.clone().ok_or_else(|| Failure::Denied("espalier:base/blobs".to_owned()))
    }
}

/// A slice of a blob.
async fn read_blob(
    blobs: Result<Arc<dyn Blobs>, Failure>,
    blob: String,
    offset: u64,
    length: u32,
) -> Result<Vec<u8>, Failure> {
    if length > READ_BYTES_MAX {
        return Err(Failure::Invalid(format!("length {length} is over {READ_BYTES_MAX}")));
    }
    blobs?.read(&blob, offset, length).await
}

impl blobs::Host for Guest {
    async fn stat(&mut self, blob: String) -> Answer<blobs::Info> {
        let blobs = self.the_blobs();
        let asked = self.gate.asked(Call::BlobStat { blob: Cow::Borrowed(&blob) });
        let work = async move { blobs?.stat(&blob).await };
        let info = self.gate.pass(asked, work, |info| Reply::Blob(Cow::Borrowed(info))).await?;
        Ok(info
            .map(|info| blobs::Info { length: info.length, media_type: info.media_type, extra: None })
            .map_err(failure_out))
    }

    async fn read(&mut self, blob: String, offset: u64, length: u32) -> Answer<Vec<u8>> {
        let asked = self.gate.asked(Call::BlobRead { blob: Cow::Borrowed(&blob), offset, length });
        let work = read_blob(self.the_blobs(), blob, offset, length);
        let read = self.gate.pass(asked, work, |bytes| Reply::Bytes(bytes.into())).await?;
        Ok(read.map_err(failure_out))
    }

    async fn read_text(&mut self, blob: String, offset: u64, length: u32) -> Answer<String> {
        let asked = self.gate.asked(Call::BlobReadText { blob: Cow::Borrowed(&blob), offset, length });
        let bytes = read_blob(self.the_blobs(), blob, offset, length);
        let work = async move { Ok(whole_characters(&bytes.await?, offset > 0)) };
        let read = self.gate.pass(asked, work, |text| Reply::Text(Cow::Borrowed(text))).await?;
        Ok(read.map_err(failure_out))
    }

    async fn put(&mut self, bytes: Vec<u8>, media_type: String) -> Answer<String> {
        let blobs = self.the_blobs();
        let call = Call::BlobPut { bytes: Bytes::from(&bytes), media_type: Cow::Borrowed(&media_type) };
        let asked = self.gate.asked(call);
        let work = async move {
            if bytes.len() > PUT_BYTES_MAX {
                return Err(Failure::Invalid(format!("{} bytes are over {PUT_BYTES_MAX}", bytes.len())));
            }
            blobs?.put(bytes, &media_type).await
        };
        let blob = self.gate.pass(asked, work, |blob| Reply::Text(Cow::Borrowed(blob))).await?;
        Ok(blob.map_err(failure_out))
    }
}

/// UTF-8 with replacement characters, without the characters that the slice has cut at its ends.
fn whole_characters(mut bytes: &[u8], cut_before: bool) -> String {
    if cut_before {
        let continuation = bytes.iter().take(3).take_while(|byte| **byte & 0xC0 == 0x80).count();
        bytes = &bytes[continuation..];
    }
    for back in 1..=3.min(bytes.len()) {
        let lead = bytes[bytes.len() - back];
        let needs = match lead {
            0xC2..=0xDF => 2,
            0xE0..=0xEF => 3,
            0xF0..=0xF4 => 4,
            0x80..=0xBF => continue,
            _ => break,
        };
        if needs > back {
            bytes = &bytes[..bytes.len() - back];
        }
        break;
    }
    String::from_utf8_lossy(bytes).into_owned()
}

/// A conversation that calls can hold, one at a time.
type Shared = Arc<Mutex<Box<dyn Conversation>>>;

impl Guest {
    /// A call that may wait for a model's server: where it waited too long, the models are told.
    async fn ask_model<T: Send + 'static, U>(
        &mut self,
        asked: Asked,
        work: Work<T>,
        take: impl FnOnce(&mut ResourceTable, T) -> Result<U, Failure>,
        reply: impl FnOnce(&U) -> Reply<'_>,
    ) -> wasmtime::Result<Result<U, Failure>> {
        let table = &mut self.table;
        let take = |value| take(table, value);
        let answer = self.gate.pass_noted(asked, work, take, reply, |_| None).await?;
        if let (Verdict::Cut(Limit::Import), Some(models)) = (self.gate.verdict(), &self.capabilities.models)
        {
            models.cut_by_import_wall();
        }
        Ok(answer)
    }

    fn conversation(&self, handle: &Resource<OpenConversation>) -> wasmtime::Result<Shared> {
        Ok(Arc::clone(&self.table.get(handle)?.inner))
    }
}

fn as_it_is<T>(_: &mut ResourceTable, value: T) -> Result<T, Failure> {
    Ok(value)
}

/// For the guest to hold.
fn keep(
    table: &mut ResourceTable,
    conversation: Box<dyn Conversation>,
) -> Result<Resource<OpenConversation>, Failure> {
    hold(table, OpenConversation { inner: Arc::new(Mutex::new(conversation)) })
}

impl conversations::Host for Guest {
    async fn open(
        &mut self,
        model: String,
        messages: Vec<messages::Message>,
        tools: Vec<conversations::Tool>,
    ) -> Answer<Resource<OpenConversation>> {
        let (messages, tools) = (messages_in(messages), tools_in(tools));
        let asked = self.gate.asked(Call::OpenConversation {
            model: Cow::Borrowed(&model),
            messages: Cow::Borrowed(&messages),
            tools: Cow::Borrowed(&tools),
        });
        let models = self.capabilities.models.clone();
        let work = async move {
            let models = models.ok_or_else(|| {
                let hint = "no model is named for this plugin (`model = \"NAME\"` in [[group_rewards]])";
                Failure::Denied(format!("espalier:model/conversations: {hint}"))
            })?;
            models.open(&model, messages, tools).await
        };
        Ok(self.ask_model(asked, Box::pin(work), keep, opened).await?.map_err(failure_out))
    }
}

impl conversations::HostConversation for Guest {
    async fn append(
        &mut self,
        this: Resource<OpenConversation>,
        messages: Vec<messages::Message>,
    ) -> Answer<()> {
        let inner = self.conversation(&this)?;
        let messages = messages_in(messages);
        let call = Call::Append { conversation: handle(&this), messages: Cow::Borrowed(&messages) };
        let asked = self.gate.asked(call);
        let work = Box::pin(async move { inner.lock().await.append(messages).await });
        Ok(self.ask_model(asked, work, as_it_is, |()| Reply::Done).await?.map_err(failure_out))
    }

    async fn complete(
        &mut self,
        this: Resource<OpenConversation>,
        options: conversations::Options,
    ) -> Answer<conversations::Completion> {
        let inner = self.conversation(&this)?;
        let options = options_in(options);
        let call = Call::Complete { conversation: handle(&this), options: Cow::Borrowed(&options) };
        let asked = self.gate.asked(call);
        let work = Box::pin(async move { inner.lock().await.complete(options).await });
        self.gate.begin_turn();
        let answer = self.ask_model(asked, work, as_it_is, |answer| Reply::Completion(Cow::Borrowed(answer)));
        Ok(answer.await?.map(completion_out).map_err(failure_out))
    }

    async fn complete_many(
        &mut self,
        this: Resource<OpenConversation>,
        n: u32,
        options: conversations::Options,
    ) -> Answer<Vec<conversations::Branch>> {
        let inner = self.conversation(&this)?;
        let options = options_in(options);
        let call = Call::CompleteMany { conversation: handle(&this), n, options: Cow::Borrowed(&options) };
        let asked = self.gate.asked(call);
        let work = Box::pin(async move {
            if n == 0 || n > BRANCHES_MAX {
                return Err(Failure::Invalid(format!("n = {n} is not within 1 and {BRANCHES_MAX}")));
            }
            inner.lock().await.complete_many(n, options).await
        });
        self.gate.begin_turn();
        let held = |table: &mut ResourceTable, branches: Vec<espalier_core::host::Branch>| {
            branches
                .into_iter()
                .map(|branch| Ok((keep(table, branch.conversation)?, branch.completion)))
                .collect::<Result<Vec<_>, Failure>>()
        };
        let branches = self.ask_model(asked, work, held, |branches| {
            let answers = branches.iter();
            Reply::Branches(answers.map(|(held, answer)| (handle(held), Cow::Borrowed(answer))).collect())
        });
        let branches: Result<Vec<(_, Completion)>, Failure> = branches.await?;
        let branch_out = |(conversation, completion)| conversations::Branch {
            conversation,
            completion: completion_out(completion),
        };
        Ok(branches.map(|branches| branches.into_iter().map(branch_out).collect()).map_err(failure_out))
    }

    async fn discard(&mut self, this: Resource<OpenConversation>) -> wasmtime::Result<()> {
        let inner = self.conversation(&this)?;
        let asked = self.gate.asked(Call::Discard { conversation: handle(&this) });
        // Held by nobody but a call that was cut and is being dropped.
        let mut conversation = inner.lock().await;
        self.gate.pass_always(asked, |_| conversation.discard(), |()| Reply::Done)
    }

    async fn fork(&mut self, this: Resource<OpenConversation>) -> Answer<Resource<OpenConversation>> {
        let inner = self.conversation(&this)?;
        let asked = self.gate.asked(Call::Fork { conversation: handle(&this) });
        let work = Box::pin(async move { inner.lock().await.fork().await });
        Ok(self.ask_model(asked, work, keep, opened).await?.map_err(failure_out))
    }

    async fn rewrite(
        &mut self,
        this: Resource<OpenConversation>,
        messages: Vec<messages::Message>,
    ) -> Answer<()> {
        let inner = self.conversation(&this)?;
        let messages = messages_in(messages);
        let call = Call::Rewrite { conversation: handle(&this), messages: Cow::Borrowed(&messages) };
        let asked = self.gate.asked(call);
        let work = Box::pin(async move { inner.lock().await.rewrite(messages).await });
        Ok(self.ask_model(asked, work, as_it_is, |()| Reply::Done).await?.map_err(failure_out))
    }

    async fn elide_images(&mut self, this: Resource<OpenConversation>, keep: u32) -> Answer<u32> {
        let inner = self.conversation(&this)?;
        let asked = self.gate.asked(Call::ElideImages { conversation: handle(&this), keep });
        let work = Box::pin(async move { inner.lock().await.elide_images(keep).await });
        let elided = self.ask_model(asked, work, as_it_is, |count: &u32| Reply::Number((*count).into()));
        Ok(elided.await?.map_err(failure_out))
    }

    async fn set_trainable(
        &mut self,
        this: Resource<OpenConversation>,
        message: u32,
        trainable: bool,
    ) -> Answer<()> {
        let inner = self.conversation(&this)?;
        let call = Call::SetTrainable { conversation: handle(&this), message, trainable };
        let asked = self.gate.asked(call);
        let mut conversation = inner.lock().await;
        let set = |_: &_| conversation.set_trainable(message, trainable);
        Ok(self.gate.pass_now(asked, set, |()| Reply::Done)?.map_err(failure_out))
    }

    async fn usage(&mut self, this: Resource<OpenConversation>) -> wasmtime::Result<conversations::Usage> {
        let inner = self.conversation(&this)?;
        let asked = self.gate.asked(Call::Usage { conversation: handle(&this) });
        let conversation = inner.lock().await;
        let count = |_: &_| conversation.usage();
        Ok(usage_out(&self.gate.pass_always(asked, count, |usage| Reply::Usage(Cow::Borrowed(usage)))?))
    }

    fn drop(&mut self, this: Resource<OpenConversation>) -> wasmtime::Result<()> {
        self.table.delete(this)?;
        Ok(())
    }
}

impl environments::Host for Guest {
    async fn open(&mut self) -> Answer<Resource<OpenEnvironment>> {
        let environments = self.capabilities.environments.clone();
        let work = async move {
            let environments = environments
                .ok_or_else(|| Failure::Invalid("the experiment names no environment".to_owned()))?;
            environments.open().await
        };
        let asked = self.gate.asked(Call::OpenEnvironment {});
        let table = &mut self.table;
        let held = |environment| hold(table, OpenEnvironment { inner: Arc::new(Mutex::new(environment)) });
        Ok(self.gate.pass_noted(asked, Box::pin(work), held, opened, |_| None).await?.map_err(failure_out))
    }
}

impl environments::HostEnvironment for Guest {
    async fn reset(&mut self, this: Resource<OpenEnvironment>) -> Answer<environment_types::Observation> {
        let inner = Arc::clone(&self.table.get(&this)?.inner);
        let work = async move { inner.lock().await.reset().await };
        let asked = self.gate.asked(Call::Reset { environment: handle(&this) });
        let seen = self.gate.pass(asked, work, |seen| Reply::Observation(Cow::Borrowed(seen))).await?;
        Ok(seen.map(observation_out).map_err(failure_out))
    }

    async fn step(
        &mut self,
        this: Resource<OpenEnvironment>,
        action: String,
    ) -> Answer<environment_types::StepResult> {
        let inner = Arc::clone(&self.table.get(&this)?.inner);
        let call = Call::Step { environment: handle(&this), action: Cow::Borrowed(&action) };
        let asked = self.gate.asked(call);
        let work = async move { inner.lock().await.step(action).await };
        let step = self.gate.pass(asked, work, |step| Reply::Step(Cow::Borrowed(step))).await?;
        Ok(step.map(step_out).map_err(failure_out))
    }

    async fn actions(&mut self, this: Resource<OpenEnvironment>) -> Answer<Vec<String>> {
        let inner = Arc::clone(&self.table.get(&this)?.inner);
        let work = async move { inner.lock().await.actions().await };
        let asked = self.gate.asked(Call::Actions { environment: handle(&this) });
        let listed = self.gate.pass(asked, work, |actions| Reply::Texts(Cow::Borrowed(actions))).await?;
        Ok(listed.map_err(failure_out))
    }

    fn drop(&mut self, this: Resource<OpenEnvironment>) -> wasmtime::Result<()> {
        self.table.delete(this)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::whole_characters;

    #[test]
    fn characters_that_a_slice_cuts_are_left_out_whole() {
        let text = "aé€𝄞z";
        for from in 0..=text.len() {
            for to in from..=text.len() {
                let slice = &text.as_bytes()[from..to];
                let whole: String = text
                    .char_indices()
                    .filter(|(at, c)| *at >= from && at + c.len_utf8() <= to)
                    .map(|(_, c)| c)
                    .collect();
                assert_eq!(whole_characters(slice, from > 0), whole, "{from}..{to}");
            }
        }
        assert_eq!(whole_characters(b"a\xFFb", false), "a\u{FFFD}b");
    }
}

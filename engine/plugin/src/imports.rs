//! The imports of every world: WIT on one side, the traits of `espalier_core::host` on the other, the gate in between.
//! Those of sandboxes have a file of their own.

mod sandbox;

use crate::bindings::harness::espalier::base::{blobs, clock, log, random, settings, types};
use crate::bindings::harness::espalier::environment::environments;
use crate::bindings::harness::espalier::environment::types as environment_types;
use crate::bindings::harness::espalier::model::{conversations, messages};
use crate::bindings::harness::espalier::plugin::reports;
use crate::bindings::reward::espalier::plugin::scores;
use crate::convert::{
    completion_out, failure_out, messages_in, observation_out, options_in, step_out, tools_in, usage_out,
};
use crate::guest::{Guest, OpenConversation, OpenEnvironment};
use espalier_core::chat::{Completion, Usage};
use espalier_core::failure::Failure;
use espalier_core::host::{Blobs, Conversation};
use espalier_core::trajectory::LogSource;
use rand_chacha::rand_core::Rng;
use std::sync::Arc;
use tokio::sync::Mutex;
use wasmtime::component::Resource;

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

impl settings::Host for Guest {
    fn get(&mut self) -> wasmtime::Result<String> {
        let settings = &self.settings;
        self.gate.pass_always("settings.get", |_| settings.clone(), |json| json.len() as u64)
    }
}

impl clock::Host for Guest {
    fn now_ms(&mut self) -> wasmtime::Result<u64> {
        self.gate.pass_always("clock.now-ms", crate::gate::Gate::now_ms, |_| 8)
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
        let drawn = self.gate.pass_now("random.bytes", 4, draw, |bytes| bytes.len() as u64)?;
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
        Ok(self.gate.pass_now("random.below", 8, draw, |_| 8)?.map_err(failure_out))
    }
}

impl Guest {
    fn the_blobs(&self) -> Result<Arc<dyn Blobs>, Failure> {
        self.capabilities.blobs.clone().ok_or_else(|| Failure::Denied("espalier:base/blobs".to_owned()))
    }

    async fn read_blob(
        &mut self,
        name: &'static str,
        blob: String,
        offset: u64,
        length: u32,
    ) -> wasmtime::Result<Result<Vec<u8>, Failure>> {
        let blobs = self.the_blobs();
        let bytes_in = blob.len() as u64 + 12;
        let work = async move {
            if length > READ_BYTES_MAX {
                return Err(Failure::Invalid(format!("length {length} is over {READ_BYTES_MAX}")));
            }
            blobs?.read(&blob, offset, length).await
        };
        self.gate.pass(name, bytes_in, work, |bytes| bytes.len() as u64).await
    }
}

impl blobs::Host for Guest {
    async fn stat(&mut self, blob: String) -> Answer<blobs::Info> {
        let blobs = self.the_blobs();
        let bytes_in = blob.len() as u64;
        let work = async move { blobs?.stat(&blob).await };
        let info =
            self.gate.pass("blobs.stat", bytes_in, work, |info| 8 + info.media_type.len() as u64).await?;
        Ok(info
            .map(|info| blobs::Info { length: info.length, media_type: info.media_type, extra: None })
            .map_err(failure_out))
    }

    async fn read(&mut self, blob: String, offset: u64, length: u32) -> Answer<Vec<u8>> {
        Ok(self.read_blob("blobs.read", blob, offset, length).await?.map_err(failure_out))
    }

    async fn read_text(&mut self, blob: String, offset: u64, length: u32) -> Answer<String> {
        let bytes = self.read_blob("blobs.read-text", blob, offset, length).await?;
        Ok(bytes.map(|bytes| whole_characters(&bytes, offset > 0)).map_err(failure_out))
    }

    async fn put(&mut self, bytes: Vec<u8>, media_type: String) -> Answer<String> {
        let blobs = self.the_blobs();
        let bytes_in = (bytes.len() + media_type.len()) as u64;
        let work = async move {
            if bytes.len() > PUT_BYTES_MAX {
                return Err(Failure::Invalid(format!("{} bytes are over {PUT_BYTES_MAX}", bytes.len())));
            }
            blobs?.put(bytes, &media_type).await
        };
        let blob = self.gate.pass("blobs.put", bytes_in, work, |blob| blob.len() as u64).await?;
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

fn bytes_of_messages(messages: &[messages::Message]) -> u64 {
    let part_bytes = |part: &messages::Part| match part {
        messages::Part::Text(text)
        | messages::Part::TextBlob(text)
        | messages::Part::Image(text)
        | messages::Part::Other(text) => text.len(),
        messages::Part::ToolCall(call) => call.id.len() + call.name.len() + call.arguments.len(),
        messages::Part::ToolResult(result) => result.call_id.len() + result.text.len(),
    };
    messages.iter().flat_map(|message| &message.parts).map(part_bytes).sum::<usize>() as u64
}

fn bytes_of_completion(completion: &Completion) -> u64 {
    let calls: usize =
        completion.tool_calls.iter().map(|call| call.id.len() + call.name.len() + call.arguments.len()).sum();
    (completion.message.joined_text().len() + calls) as u64
}

/// A conversation that calls can hold, one at a time.
type Shared = Arc<Mutex<Box<dyn Conversation>>>;

impl Guest {
    fn conversation(&self, handle: &Resource<OpenConversation>) -> wasmtime::Result<Shared> {
        Ok(Arc::clone(&self.table.get(handle)?.inner))
    }

    fn keep(
        &mut self,
        conversation: Box<dyn Conversation>,
    ) -> Result<Resource<OpenConversation>, types::Failure> {
        let usage = conversation.usage();
        self.table
            .push(OpenConversation { inner: Arc::new(Mutex::new(conversation)), usage })
            .map_err(|_| types::Failure::Invalid("too many open handles; drop some".to_owned()))
    }

    fn see_usage(&mut self, handle: &Resource<OpenConversation>, usage: &Usage) -> wasmtime::Result<()> {
        self.table.get_mut(handle)?.usage = usage.clone();
        Ok(())
    }
}

impl conversations::Host for Guest {
    async fn open(
        &mut self,
        model: String,
        messages: Vec<messages::Message>,
        tools: Vec<conversations::Tool>,
    ) -> Answer<Resource<OpenConversation>> {
        let tool_bytes: usize =
            tools.iter().map(|tool| tool.name.len() + tool.description.len() + tool.parameters.len()).sum();
        let bytes_in = bytes_of_messages(&messages) + (model.len() + tool_bytes) as u64;
        let models = self.capabilities.models.clone();
        let work = async move {
            let models = models.ok_or_else(|| Failure::Denied("espalier:model/conversations".to_owned()))?;
            models.open(&model, messages_in(messages), tools_in(tools)).await
        };
        match self.gate.pass("conversations.open", bytes_in, work, |_| 0).await? {
            Ok(conversation) => Ok(self.keep(conversation)),
            Err(failure) => Ok(Err(failure_out(failure))),
        }
    }
}

impl conversations::HostConversation for Guest {
    async fn append(
        &mut self,
        this: Resource<OpenConversation>,
        messages: Vec<messages::Message>,
    ) -> Answer<()> {
        let inner = self.conversation(&this)?;
        let bytes_in = bytes_of_messages(&messages);
        let work = async move { inner.lock().await.append(messages_in(messages)).await };
        Ok(self.gate.pass("conversation.append", bytes_in, work, |()| 0).await?.map_err(failure_out))
    }

    async fn complete(
        &mut self,
        this: Resource<OpenConversation>,
        options: conversations::Options,
    ) -> Answer<conversations::Completion> {
        let inner = self.conversation(&this)?;
        let work = async move { inner.lock().await.complete(options_in(options)).await };
        self.gate.begin_turn();
        let result = self.gate.pass("conversation.complete", 0, work, bytes_of_completion).await?;
        if let Ok(completion) = &result {
            self.see_usage(&this, &completion.usage)?;
        }
        Ok(result.map(completion_out).map_err(failure_out))
    }

    async fn complete_many(
        &mut self,
        this: Resource<OpenConversation>,
        n: u32,
        options: conversations::Options,
    ) -> Answer<Vec<conversations::Branch>> {
        let inner = self.conversation(&this)?;
        let work = async move {
            if n == 0 || n > BRANCHES_MAX {
                return Err(Failure::Invalid(format!("n = {n} is not within 1 and {BRANCHES_MAX}")));
            }
            inner.lock().await.complete_many(n, options_in(options)).await
        };
        let bytes = |branches: &Vec<espalier_core::host::Branch>| {
            branches.iter().map(|branch| bytes_of_completion(&branch.completion)).sum()
        };
        self.gate.begin_turn();
        match self.gate.pass("conversation.complete-many", 4, work, bytes).await? {
            Ok(branches) => {
                let mut out = Vec::with_capacity(branches.len());
                for branch in branches {
                    match self.keep(branch.conversation) {
                        Ok(conversation) => out.push(conversations::Branch {
                            conversation,
                            completion: completion_out(branch.completion),
                        }),
                        Err(failure) => return Ok(Err(failure)),
                    }
                }
                Ok(Ok(out))
            }
            Err(failure) => Ok(Err(failure_out(failure))),
        }
    }

    async fn discard(&mut self, this: Resource<OpenConversation>) -> wasmtime::Result<()> {
        let inner = self.conversation(&this)?;
        // Held by nobody but a call that was cut and is being dropped.
        let mut conversation = inner.lock().await;
        self.gate.pass_always("conversation.discard", |_| conversation.discard(), |()| 0)
    }

    async fn fork(&mut self, this: Resource<OpenConversation>) -> Answer<Resource<OpenConversation>> {
        let inner = self.conversation(&this)?;
        let work = async move { inner.lock().await.fork().await };
        match self.gate.pass("conversation.fork", 0, work, |_| 0).await? {
            Ok(conversation) => Ok(self.keep(conversation)),
            Err(failure) => Ok(Err(failure_out(failure))),
        }
    }

    async fn rewrite(
        &mut self,
        this: Resource<OpenConversation>,
        messages: Vec<messages::Message>,
    ) -> Answer<()> {
        let inner = self.conversation(&this)?;
        let bytes_in = bytes_of_messages(&messages);
        let work = async move { inner.lock().await.rewrite(messages_in(messages)).await };
        Ok(self.gate.pass("conversation.rewrite", bytes_in, work, |()| 0).await?.map_err(failure_out))
    }

    async fn elide_images(&mut self, this: Resource<OpenConversation>, keep: u32) -> Answer<u32> {
        let inner = self.conversation(&this)?;
        let work = async move { inner.lock().await.elide_images(keep).await };
        Ok(self.gate.pass("conversation.elide-images", 4, work, |_| 4).await?.map_err(failure_out))
    }

    async fn set_trainable(
        &mut self,
        this: Resource<OpenConversation>,
        message: u32,
        trainable: bool,
    ) -> Answer<()> {
        let inner = self.conversation(&this)?;
        let mut conversation = inner.lock().await;
        let set = |_: &_| conversation.set_trainable(message, trainable);
        Ok(self.gate.pass_now("conversation.set-trainable", 5, set, |()| 0)?.map_err(failure_out))
    }

    fn usage(&mut self, this: Resource<OpenConversation>) -> wasmtime::Result<conversations::Usage> {
        let inner = self.conversation(&this)?;
        if let Ok(conversation) = inner.try_lock() {
            self.table.get_mut(&this)?.usage = conversation.usage();
        }
        let usage = &self.table.get(&this)?.usage;
        self.gate.pass_always("conversation.usage", |_| usage_out(usage), |_| 40)
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
        match self.gate.pass("environments.open", 0, work, |_| 0).await? {
            Ok(environment) => Ok(self
                .table
                .push(OpenEnvironment { inner: Arc::new(Mutex::new(environment)) })
                .map_err(|_| types::Failure::Invalid("too many open handles; drop some".to_owned()))),
            Err(failure) => Ok(Err(failure_out(failure))),
        }
    }
}

impl environments::HostEnvironment for Guest {
    async fn reset(&mut self, this: Resource<OpenEnvironment>) -> Answer<environment_types::Observation> {
        let inner = Arc::clone(&self.table.get(&this)?.inner);
        let work = async move { inner.lock().await.reset().await };
        let seen = self.gate.pass("environment.reset", 0, work, |seen| seen.text.len() as u64).await?;
        Ok(seen.map(observation_out).map_err(failure_out))
    }

    async fn step(
        &mut self,
        this: Resource<OpenEnvironment>,
        action: String,
    ) -> Answer<environment_types::StepResult> {
        let inner = Arc::clone(&self.table.get(&this)?.inner);
        let bytes_in = action.len() as u64;
        let work = async move { inner.lock().await.step(action).await };
        let step = self
            .gate
            .pass("environment.step", bytes_in, work, |step| {
                (step.observation.text.len() + step.info.len()) as u64
            })
            .await?;
        Ok(step.map(step_out).map_err(failure_out))
    }

    async fn actions(&mut self, this: Resource<OpenEnvironment>) -> Answer<Vec<String>> {
        let inner = Arc::clone(&self.table.get(&this)?.inner);
        let work = async move { inner.lock().await.actions().await };
        let bytes = |actions: &Vec<String>| actions.iter().map(String::len).sum::<usize>() as u64;
        Ok(self.gate.pass("environment.actions", 0, work, bytes).await?.map_err(failure_out))
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

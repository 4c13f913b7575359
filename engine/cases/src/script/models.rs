//! Models that give the answers of a case, in order, whatever conversation asks for them.

use super::Notes;
use crate::case::Answer;
use crate::report::Problem;
use async_trait::async_trait;
use espalier_core::chat::{CompleteOptions, Completion, Finish, Message, Role, Tool, ToolCall, Usage};
use espalier_core::failure::Failure;
use espalier_core::host::{Branch, Conversation, Models};
use espalier_core::meter::Meter;
use parking_lot::Mutex;
use serde_json::Value;
use std::collections::BTreeMap;
use std::sync::Arc;

/// The model whose answers count as turns.
const POLICY: &str = "policy";

/// The models of one case.
pub(crate) struct ScriptedModels(Arc<Shared>);

struct Shared {
    answers: BTreeMap<String, Vec<Answer>>,
    notes: Notes,
    meter: Arc<Meter>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Answers given, by model.
    given: BTreeMap<String, usize>,
    /// Answers of all models.
    calls: u32,
    /// Calls of tools, for their ids.
    tool_calls: u32,
}

/// One branch.
struct ScriptedConversation {
    shared: Arc<Shared>,
    model: String,
    /// Not answered yet.
    unanswered: Vec<Message>,
    turns: u32,
    discarded: bool,
}

impl ScriptedModels {
    pub(crate) fn new(
        answers: BTreeMap<String, Vec<Answer>>,
        notes: Notes,
        meter: Arc<Meter>,
    ) -> ScriptedModels {
        ScriptedModels(Arc::new(Shared { answers, notes, meter, state: Mutex::default() }))
    }

    /// Notes answers that nobody asked for.
    pub(crate) fn note_rest(&self) {
        let state = self.0.state.lock();
        for (model, answers) in &self.0.answers {
            let given = state.given.get(model).copied().unwrap_or(0);
            if given < answers.len() {
                let text =
                    format!("was not asked for: the plugin asked for {given} of {} answers", answers.len());
                self.0.notes.add(Problem::new(format!("models.{model}[{given}]"), text));
            }
        }
    }
}

#[async_trait]
impl Models for ScriptedModels {
    async fn open(
        &self,
        model: &str,
        messages: Vec<Message>,
        tools: Vec<Tool>,
    ) -> Result<Box<dyn Conversation>, Failure> {
        if !self.0.answers.contains_key(model) {
            let text = format!("is not there, but the plugin opened a conversation with {model:?}");
            return Err(self.0.notes.unexpected(format!("models.{model}"), text));
        }
        for tool in &tools {
            if let Err(error) = serde_json::from_str::<Value>(&tool.parameters) {
                return Err(Failure::Invalid(format!("parameters of tool {:?}: {error}", tool.name)));
            }
        }
        Ok(Box::new(ScriptedConversation {
            shared: Arc::clone(&self.0),
            model: model.to_owned(),
            unanswered: messages,
            turns: 0,
            discarded: false,
        }))
    }
}

impl ScriptedConversation {
    fn usable(&self) -> Result<(), Failure> {
        if self.discarded {
            return Err(Failure::Invalid("this conversation was discarded".to_owned()));
        }
        Ok(())
    }

    /// The next answer of the model.
    fn answer(&self, said: &[Message]) -> Result<Completion, Failure> {
        let Shared { answers, notes, state, .. } = &*self.shared;
        let mut state = state.lock();
        let given = state.given.entry(self.model.clone()).or_default();
        let place = *given;
        let key = format!("models.{}[{place}]", self.model);
        let Some(answer) = answers.get(&self.model).and_then(|answers| answers.get(place)) else {
            return Err(notes.unexpected(key, "is not there, but the plugin asked for a further answer"));
        };
        *given += 1;
        self.check_said(&key, answer, said);
        if let Some(failure) = &answer.fail {
            return Err(failure.0.clone());
        }
        let mut called = Vec::with_capacity(answer.tool_calls.len());
        for call in &answer.tool_calls {
            let id = format!("call-{}", state.tool_calls);
            state.tool_calls += 1;
            let arguments = Value::Object(call.arguments.clone()).to_string();
            called.push(ToolCall { id, name: call.name.clone(), arguments });
        }
        let call = Some(state.calls);
        state.calls += 1;
        Ok(Completion {
            message: Message::text(Role::Assistant, answer.text.as_str()),
            finish: finish(answer),
            tool_calls: called,
            malformed: answer.malformed.clone(),
            usage: Usage { turns: self.turns + 1, ..self.usage() },
            call,
        })
    }

    /// Notes what the case wants to be said and was not.
    fn check_said(&self, key: &str, answer: &Answer, said: &[Message]) {
        let texts: Vec<String> = said.iter().map(Message::joined_text).collect();
        let text = texts.join("\n");
        for (place, wanted) in answer.said.iter().enumerate() {
            if !text.contains(wanted.as_str()) {
                self.shared.notes.add(Problem {
                    key: format!("{key}.said[{place}]"),
                    text: "is not in what the plugin sent".to_owned(),
                    diff: crate::compare::lines(wanted, &text),
                });
            }
        }
    }

    fn branch(&self, unanswered: Vec<Message>, turns: u32) -> ScriptedConversation {
        ScriptedConversation {
            shared: Arc::clone(&self.shared),
            model: self.model.clone(),
            unanswered,
            turns,
            discarded: false,
        }
    }

    /// Takes turns of the policy, and gives them back where none comes.
    fn counted<T>(&self, n: u32, ask: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
        let turns = if self.model == POLICY { n } else { 0 };
        self.shared.meter.take_turns(turns)?;
        ask().inspect_err(|_| self.shared.meter.give_back_turns(turns))
    }
}

fn finish(answer: &Answer) -> Finish {
    match answer.finish.as_deref() {
        None if answer.tool_calls.is_empty() => Finish::Stop,
        None => Finish::ToolCalls,
        Some("stop") => Finish::Stop,
        Some("length") => Finish::Length,
        Some("tool-calls") => Finish::ToolCalls,
        Some("filtered") => Finish::Filtered,
        Some(other) => Finish::Other(other.to_owned()),
    }
}

#[async_trait]
impl Conversation for ScriptedConversation {
    async fn append(&mut self, messages: Vec<Message>) -> Result<(), Failure> {
        self.usable()?;
        self.unanswered.extend(messages);
        Ok(())
    }

    async fn complete(&mut self, _: CompleteOptions) -> Result<Completion, Failure> {
        self.usable()?;
        let completion = self.counted(1, || self.answer(&self.unanswered))?;
        self.unanswered.clear();
        self.turns += 1;
        Ok(completion)
    }

    async fn complete_many(&mut self, n: u32, _: CompleteOptions) -> Result<Vec<Branch>, Failure> {
        self.usable()?;
        let answers: Vec<Completion> =
            self.counted(n, || (0..n).map(|_| self.answer(&self.unanswered)).collect())?;
        let branch = |completion| {
            let conversation: Box<dyn Conversation> = Box::new(self.branch(Vec::new(), self.turns + 1));
            Branch { conversation, completion }
        };
        Ok(answers.into_iter().map(branch).collect())
    }

    fn discard(&mut self) {
        self.discarded = true;
    }

    async fn fork(&mut self) -> Result<Box<dyn Conversation>, Failure> {
        self.usable()?;
        Ok(Box::new(self.branch(self.unanswered.clone(), self.turns)))
    }

    async fn rewrite(&mut self, messages: Vec<Message>) -> Result<(), Failure> {
        self.usable()?;
        self.unanswered = messages;
        Ok(())
    }

    async fn elide_images(&mut self, _: u32) -> Result<u32, Failure> {
        self.usable()?;
        Ok(0)
    }

    fn set_trainable(&mut self, _: u32, _: bool) -> Result<(), Failure> {
        self.usable()
    }

    fn usage(&self) -> Usage {
        let meter = &self.shared.meter;
        let turns_left = (self.model == POLICY).then(|| meter.turns_left());
        Usage { turns: self.turns, turns_left, ..Usage::default() }
    }
}

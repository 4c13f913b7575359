//! Conversations with the models of the experiment.

use crate::tools::Tools;
use crate::wit::espalier::model::conversations::{self, Finish, Options, Usage};
use crate::wit::espalier::model::messages::{Message, Part, Role, ToolCall, ToolResult};
use crate::{Failure, invalid};

/// One branch of a conversation. Messages are sent with the next answer that is asked for.
///
/// ```ignore
/// let mut chat = Conversation::with("policy");
/// chat.system("Answer briefly.").user("What is 2 + 3?");
/// let answer = chat.complete()?;
/// ```
#[derive(Debug)]
pub struct Conversation {
    model: String,
    tools: Vec<conversations::Tool>,
    /// Not sent yet.
    pending: Vec<Message>,
    /// From the first answer on.
    open: Option<conversations::Conversation>,
    /// How answers are asked for; what is left out is as the experiment's `sampling` says.
    pub options: Options,
}

/// One answer.
#[derive(Debug)]
pub struct Answer {
    /// Its text, calls of tools included as the model wrote them.
    pub text: String,
    /// The calls that were parsed.
    pub tool_calls: Vec<ToolCall>,
    /// Why a call could not be parsed.
    pub malformed: Option<String>,
    /// Why it ended.
    pub finish: Finish,
    /// Counters after it.
    pub usage: Usage,
    /// Names it in the votes of a judge.
    pub call: Option<String>,
}

impl Conversation {
    /// A conversation with the model that the experiment calls so: `policy`; a judge's is `judge`.
    pub fn with(model: impl Into<String>) -> Conversation {
        let options =
            Options { max_tokens: None, stop: Vec::new(), temperature: None, tool_choice: None, extra: None };
        Conversation { model: model.into(), tools: Vec::new(), pending: Vec::new(), open: None, options }
    }

    /// Offers these tools. Before the first answer.
    pub fn tools(&mut self, tools: &Tools<'_>) -> &mut Conversation {
        self.tools = tools.declared();
        self
    }

    /// Offers tools that somebody else carries out, as those of a browser. Before the first answer.
    pub fn offer(&mut self, tools: Vec<conversations::Tool>) -> &mut Conversation {
        self.tools = tools;
        self
    }

    /// A message of the system.
    pub fn system(&mut self, text: impl Into<String>) -> &mut Conversation {
        self.say(Role::System, text)
    }

    /// A message of the user.
    pub fn user(&mut self, text: impl Into<String>) -> &mut Conversation {
        self.say(Role::User, text)
    }

    /// A message of the user with images behind its text.
    pub fn user_with_images(
        &mut self,
        text: impl Into<String>,
        images: impl IntoIterator<Item = String>,
    ) -> &mut Conversation {
        let mut parts = vec![Part::Text(text.into())];
        parts.extend(images.into_iter().map(Part::Image));
        self.message(Message { role: Role::User, parts, extra: None })
    }

    /// An answer that this plugin writes itself, for examples; it does not train.
    pub fn assistant(&mut self, text: impl Into<String>) -> &mut Conversation {
        self.say(Role::Assistant, text)
    }

    /// The answer to a call of a tool.
    pub fn tool_result(
        &mut self,
        call: &ToolCall,
        text: impl Into<String>,
        is_error: bool,
    ) -> &mut Conversation {
        let result = ToolResult { call_id: call.id.clone(), text: text.into(), is_error };
        self.message(Message { role: Role::Tool, parts: vec![Part::ToolResult(result)], extra: None })
    }

    /// Any message.
    pub fn message(&mut self, message: Message) -> &mut Conversation {
        self.pending.push(message);
        self
    }

    /// Samples one answer and adds it. Errors: `budget`, `unavailable`, `cancelled`, `invalid`; then the conversation is as before.
    pub fn complete(&mut self) -> Result<Answer, Failure> {
        self.send()?;
        Ok(self.opened()?.complete(&self.options)?.into())
    }

    /// Samples `n` answers at once, 1 to 256, each in a branch of its own; this one stays without an answer.
    pub fn complete_many(&mut self, n: u32) -> Result<Vec<(Conversation, Answer)>, Failure> {
        self.send()?;
        let branches = self.opened()?.complete_many(n, &self.options)?;
        let branch = |branch: conversations::Branch| {
            let open = Some(branch.conversation);
            let conversation = Conversation {
                model: self.model.clone(),
                tools: Vec::new(),
                pending: Vec::new(),
                open,
                options: self.options.clone(),
            };
            (conversation, branch.completion.into())
        };
        Ok(branches.into_iter().map(branch).collect())
    }

    /// A second branch with the same past.
    pub fn fork(&mut self) -> Result<Conversation, Failure> {
        self.send()?;
        let open = Some(self.opened()?.fork()?);
        let (model, options) = (self.model.clone(), self.options.clone());
        Ok(Conversation { model, tools: Vec::new(), pending: Vec::new(), open, options })
    }

    /// Gives this branch up: its tokens do not train.
    pub fn discard(self) {
        if let Some(open) = self.open {
            open.discard();
        }
    }

    /// Replaces the whole history, for compaction: a new training segment opens, the old one stays.
    pub fn rewrite(&mut self, messages: &[Message]) -> Result<(), Failure> {
        self.pending.clear();
        match &self.open {
            Some(open) => open.rewrite(messages),
            None => {
                self.pending.extend_from_slice(messages);
                Ok(())
            }
        }
    }

    /// Replaces all images but the last `keep` by a fixed text; returns how many.
    pub fn elide_images(&mut self, keep: u32) -> Result<u32, Failure> {
        self.send()?;
        self.opened()?.elide_images(keep)
    }

    /// Says whether the answer at this index of the conversation may train.
    pub fn set_trainable(&mut self, message: u32, trainable: bool) -> Result<(), Failure> {
        self.opened()?.set_trainable(message, trainable)
    }

    /// Counters as they stand; none before the first message is sent.
    pub fn usage(&self) -> Option<Usage> {
        self.open.as_ref().map(conversations::Conversation::usage)
    }

    fn say(&mut self, role: Role, text: impl Into<String>) -> &mut Conversation {
        self.message(Message { role, parts: vec![Part::Text(text.into())], extra: None })
    }

    /// Opens the conversation, or appends what is new.
    fn send(&mut self) -> Result<(), Failure> {
        match &self.open {
            None => self.open = Some(conversations::open(&self.model, &self.pending, &self.tools)?),
            Some(_) if self.pending.is_empty() => {}
            Some(open) => open.append(&self.pending)?,
        }
        self.pending.clear();
        Ok(())
    }

    fn opened(&self) -> Result<&conversations::Conversation, Failure> {
        self.open.as_ref().ok_or_else(|| invalid("this conversation has no answer yet"))
    }
}

impl From<conversations::Completion> for Answer {
    fn from(completion: conversations::Completion) -> Answer {
        let extra: Option<serde_json::Value> =
            completion.extra.and_then(|extra| serde_json::from_str(&extra).ok());
        let call = extra.and_then(|extra| Some(extra.get("call")?.as_str()?.to_owned()));
        Answer {
            text: completion.message.text(),
            tool_calls: completion.tool_calls,
            malformed: completion.malformed,
            finish: completion.finish,
            usage: completion.usage,
            call,
        }
    }
}

impl Message {
    /// Its text, without other parts.
    pub fn text(&self) -> String {
        let texts = self.parts.iter().filter_map(|part| match part {
            Part::Text(text) => Some(text.as_str()),
            _ => None,
        });
        texts.collect()
    }
}

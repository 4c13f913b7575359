//! What a template can carry, found out by trying it before the first rollout.
//!
//! Templates drop tool results without an error, raise on a system message, or rewrite earlier turns; none of them says
//! so anywhere. Each feature is tried with the options of the experiment in force, so that what an option fixes counts
//! as carried.

use super::entries::{self, Entry};
use super::{SystemAs, Template, TemplateError, ToolResultsAs, after_answer, jinja};
use espalier_core::cause::with_causes;
use espalier_core::chat::{Message, Part, Role, Tool, ToolResult};

/// What became of a feature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Carried {
    /// Reaches the model.
    Yes,
    /// Is left out without an error.
    Dropped,
    /// Is refused, with these words.
    Refused(String),
}

/// How a full rendering compares with what was sampled and marked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rewrites {
    /// Equal, character by character: `append` and `template` are the same.
    Equal,
    /// The template rewrites history; in words. `append` keeps what was sampled, `template` opens a segment.
    Rewritten(String),
    /// The template cannot carry such a conversation at all.
    NotCarried,
}

/// What a template can carry under its options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Features {
    /// System messages in front.
    pub system: Carried,
    /// Tool results after an answer.
    pub tool_results: Carried,
    /// Whether the tools offered are shown to the model.
    pub tools: bool,
    /// Two user messages in a row.
    pub users_in_a_row: Carried,
    /// History of user messages and answers.
    pub turns: Rewrites,
    /// History that begins with a system message.
    pub with_system: Rewrites,
    /// History with thoughts (`<think>`) in answers.
    pub with_thoughts: Rewrites,
    /// History with calls and tool results.
    pub with_tools: Rewrites,
    /// What stands before an answer that is to be sampled.
    pub generation_prompt: String,
    /// What ends an answer.
    pub end_of_turn: String,
    system_option: SystemAs,
    tool_results_option: ToolResultsAs,
}

/// What an experiment will ask of a template.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Needs {
    /// System messages.
    pub system: bool,
    /// Tool results.
    pub tool_results: bool,
    /// Tools shown to the model by its template.
    pub tools: bool,
}

impl Features {
    /// Refuses by name what the experiment needs and the template cannot carry.
    pub fn check(&self, needs: Needs) -> Result<(), TemplateError> {
        let refused = |feature, reason: String, hint| Err(TemplateError::Refused { feature, reason, hint });
        if needs.system && self.system != Carried::Yes {
            let hint = match self.system_option {
                SystemAs::System => "set system = \"first-user\" for this model",
                SystemAs::FirstUser => "use another template",
            };
            return refused("system messages", self.system.reason(), hint);
        }
        if needs.tool_results && self.tool_results != Carried::Yes {
            let hint = match self.tool_results_option {
                ToolResultsAs::Tool => "set tool_results = \"user\" for this model",
                ToolResultsAs::User => "use another template",
            };
            return refused("tool results", self.tool_results.reason(), hint);
        }
        if needs.tools && !self.tools {
            let hint = "let the harness describe its tools in a message, or use another template";
            return refused("tools", Carried::Dropped.reason(), hint);
        }
        Ok(())
    }

    /// Whether some conversation is rewritten, so that `history = append` and `history = template` differ.
    pub fn rewrites_history(&self) -> bool {
        [&self.turns, &self.with_system, &self.with_thoughts, &self.with_tools]
            .iter()
            .any(|rewrites| matches!(rewrites, Rewrites::Rewritten(_)))
    }
}

impl Carried {
    fn of<T>(result: &Result<T, TemplateError>) -> Carried {
        match result {
            Ok(_) => Carried::Yes,
            Err(TemplateError::Dropped { .. }) => Carried::Dropped,
            Err(TemplateError::Raised(words)) => Carried::Refused(words.clone()),
            Err(error) => Carried::Refused(with_causes(error)),
        }
    }

    fn reason(&self) -> String {
        match self {
            Carried::Yes => "carried".to_owned(),
            Carried::Dropped => "they are left out without an error".to_owned(),
            Carried::Refused(words) => words.clone(),
        }
    }
}

/// Messages before an answer, the answer, messages after it, tools.
type Exchange<'a> = (&'a [Message], &'a str, &'a [Message], &'a [Tool]);

const SYSTEM: &str = "Answer in short sentences.";
const FIRST: &str = "Where is the lantern kept?";
const SECOND: &str = "Then fetch the blue one.";
const ANSWER: &str = "In the cellar, behind the barrels.";
const OTHER_ANSWER: &str = "Here it is.";
const THOUGHT: &str = "Barrels were mentioned before.";
const RESULT: &str = "3 lanterns found";
const CALL_ID: &str = "call00001";

impl Template {
    /// Tries what the template can carry. Errors: what no experiment can do without, a user's message and an answer.
    pub fn probe(&self) -> Result<Features, TemplateError> {
        let user = |text: &str| Message::text(Role::User, text);
        let answer = |text: &str| Message::text(Role::Assistant, text);
        let system = Message::text(Role::System, SYSTEM);
        let result = tool_result();
        let tools = [tool()];

        let opening = self.opening(&[user(FIRST)], &[])?;
        let past = [user(FIRST), answer(ANSWER)];
        self.suffix(&past, &[user(SECOND)], &[])?;
        let generation_prompt =
            opening.text[self.before_generation(&[user(FIRST)], &[], &opening.text)..].to_owned();

        let call = "{\"name\": \"count\", \"arguments\": {\"what\": \"lanterns\"}}";
        let called = [user(FIRST), answer(call)];
        let thought_open = if generation_prompt.contains("<think>") { "" } else { "<think>\n" };
        let thoughts = format!("{thought_open}{THOUGHT}\n</think>\n\n{ANSWER}");
        let turns = self.compare_all(&[
            (&[user(FIRST)], ANSWER, &[user(SECOND)], &[]),
            (&[user(FIRST), answer(ANSWER), user(SECOND)], OTHER_ANSWER, &[user(FIRST)], &[]),
        ]);
        let with_system = self.compare_all(&[(&[system.clone(), user(FIRST)], ANSWER, &[user(SECOND)], &[])]);
        let with_thoughts = self.compare_all(&[(&[user(FIRST)], &thoughts, &[user(SECOND)], &[])]);
        let after_tool = [user(FIRST), answer(call), result.clone()];
        let with_tools = self.compare_all(&[
            (&[user(FIRST)], call, std::slice::from_ref(&result), &tools),
            (&after_tool, ANSWER, &[user(SECOND)], &tools),
        ]);
        // A template may take a result and then refuse the answer to it.
        let answered = [&after_tool[..], &[answer(ANSWER)]].concat();
        let carried_results = self
            .suffix(&called, &[result], &tools)
            .and_then(|_| self.suffix(&answered, &[user(SECOND)], &tools));
        Ok(Features {
            system: Carried::of(&self.opening(&[system, user(FIRST)], &[])),
            tool_results: Carried::of(&carried_results),
            tools: self.opening(&[user(FIRST)], &tools).is_ok_and(|shown| shown.text.contains("count")),
            users_in_a_row: Carried::of(&self.opening(&[user(FIRST), user(SECOND)], &[])),
            turns,
            with_system,
            with_thoughts,
            with_tools,
            generation_prompt,
            end_of_turn: self.end_of_turn().to_owned(),
            system_option: self.options.system,
            tool_results_option: self.options.tool_results,
        })
    }

    /// What the template prints for an image between two texts; `None` where it prints none, or not between them.
    pub fn image_marker(&self) -> Option<String> {
        const AROUND: [&str; 2] = ["Zi0xbefore", "Zi0xafter"];
        let printed = self.jinja.as_ref()?.render_image(AROUND[0], AROUND[1]).ok()?;
        let (_, behind) = printed.split_once(AROUND[0])?;
        let (marker, _) = behind.split_once(AROUND[1])?;
        (!marker.trim().is_empty()).then(|| marker.to_owned())
    }

    /// What holds for all of these conversations: one that is not carried, else the first that is rewritten.
    fn compare_all(&self, conversations: &[Exchange<'_>]) -> Rewrites {
        let mut all = Rewrites::Equal;
        for (before, answer, new, tools) in conversations {
            match self.compare(before, answer, new, tools) {
                Rewrites::NotCarried => return Rewrites::NotCarried,
                rewritten @ Rewrites::Rewritten(_) if all == Rewrites::Equal => all = rewritten,
                _ => {}
            }
        }
        all
    }

    /// Compares a full rendering with opening, raw answer and suffix laid end to end.
    pub fn compare(&self, before: &[Message], answer: &str, new: &[Message], tools: &[Tool]) -> Rewrites {
        let mut past = before.to_vec();
        past.push(Message::text(Role::Assistant, answer));
        let mut all = past.clone();
        all.extend_from_slice(new);
        let rendered =
            (self.opening(before, tools), self.suffix(&past, new, tools), self.opening(&all, tools));
        let (Ok(opening), Ok(suffix), Ok(full)) = rendered else { return Rewrites::NotCarried };
        let sampled = format!("{}{answer}{}", opening.text, suffix.text);
        if sampled == full.text {
            return Rewrites::Equal;
        }
        let prompt_at = self.before_generation(before, tools, &opening.text);
        Rewrites::Rewritten(difference(&opening.text, prompt_at, answer, &sampled, &full.text))
    }

    /// Where the generation prompt begins in this opening.
    fn before_generation(&self, messages: &[Message], tools: &[Tool], opening: &str) -> usize {
        let without = self.print(messages, tools, false);
        without.map_or(opening.len(), |without| self.literals.common_prefix(opening, &without))
    }

    /// The special tokens whose text in an answer makes the template print something else than that text.
    pub(super) fn tokens_of_its_logic(&self, source: &str) -> Vec<String> {
        let named = self.literals.tokens().iter().filter(|token| source.contains(token.as_str()));
        named.filter(|token| self.looks_for(token)).cloned().collect()
    }

    fn looks_for(&self, token: &str) -> bool {
        const STAND_IN: &str = "Zl0x";
        let conversations: [&[&str]; 2] = [&[FIRST, ""], &[FIRST, "", SECOND]];
        conversations.iter().any(|texts| {
            let printed = |inside: &str| {
                let answer = format!("{THOUGHT}{inside}{ANSWER}");
                let texts = texts.iter().map(|text| if text.is_empty() { answer.as_str() } else { text });
                self.print_turns(texts, false)
            };
            match (printed(token), printed(STAND_IN)) {
                (Some(real), Some(stand_in)) => real != stand_in.replace(STAND_IN, token),
                (None, None) => false,
                _ => true,
            }
        })
    }

    pub(super) fn learn_end_of_turn(&self) -> String {
        const MARKER: &str = "Za0xanswer";
        let tail = |texts: &[&str], prompt: bool| {
            let whole = self.print_turns(texts.iter().copied(), prompt)?;
            after_answer(&whole, MARKER).ok().map(str::to_owned)
        };
        let ended = tail(&[FIRST, MARKER], false);
        let followed = tail(&[FIRST, MARKER, SECOND], true);
        let (Some(ended), Some(followed)) = (ended, followed) else { return String::new() };
        let shared = self.literals.common_prefix(&followed, &ended);
        let shared = shared.min(self.literals.common_prefix(&ended, &followed));
        followed[..shared].to_owned()
    }

    /// Prints texts of user and model in turn, without stand-ins.
    fn print_turns<'a>(&self, texts: impl Iterator<Item = &'a str>, prompt: bool) -> Option<String> {
        let roles = [Role::User, Role::Assistant];
        let messages: Vec<Message> =
            texts.enumerate().map(|(index, text)| Message::text(roles[index % 2], text)).collect();
        let entries: Vec<Entry> = entries::entries(&messages, &self.options).ok()?;
        self.jinja.as_ref()?.render(&entries, &jinja::tools(&[]).ok()?, prompt).ok()
    }
}

/// Says how a full rendering differs, for people.
fn difference(opening: &str, prompt_at: usize, answer: &str, sampled: &str, full: &str) -> String {
    let shared = sampled.bytes().zip(full.bytes()).take_while(|(a, b)| a == b).count();
    if shared < prompt_at {
        let moved = full.rfind(SYSTEM) > sampled.find(SYSTEM);
        let what = if moved {
            "the system message moves to the last user message"
        } else {
            "the tools move, or an earlier message changes"
        };
        return what.to_owned();
    }
    let prompt = &opening[prompt_at..];
    let behind = &full[prompt_at..];
    let last_line = answer.lines().next_back().unwrap_or(answer);
    let thoughts_gone = answer.contains(THOUGHT) && !behind.contains(THOUGHT);
    match (behind.find(answer), behind.find(last_line)) {
        _ if thoughts_gone => "thoughts are removed".to_owned(),
        (Some(at), _) if &behind[..at] != prompt => {
            format!("{prompt:?} before an answer becomes {:?}", &behind[..at])
        }
        (None, Some(_)) => "the answer's text changes".to_owned(),
        _ => "what follows the answer changes".to_owned(),
    }
}

fn tool() -> Tool {
    Tool {
        name: "count".to_owned(),
        description: "Counts things.".to_owned(),
        parameters: r#"{"type": "object", "properties": {"what": {"type": "string"}}, "required": ["what"]}"#
            .to_owned(),
    }
}

fn tool_result() -> Message {
    let result = ToolResult { call_id: CALL_ID.to_owned(), text: RESULT.to_owned(), is_error: false };
    Message { role: Role::Tool, parts: vec![Part::ToolResult(result)], extra: None }
}

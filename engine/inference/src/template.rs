//! Chat templates: from messages to the text that the model sees.
//!
//! A [`Template`] renders a conversation once, when it opens; after that it renders only what follows an answer. New
//! messages are never rendered alone, since templates insert default system prompts, strip thoughts and merge tool
//! results: the whole conversation is rendered with the last answer replaced by a marker, and what follows the marker
//! is the suffix ([`Template::suffix`]). An answer's raw text stands in its place, calls included; structured calls are
//! never passed, since with them half the templates lose or move the marker.
//!
//! Text of messages is *literal*: a user who writes `<|im_end|>` does not end a turn. Where a message holds the text of a
//! special token, a stand-in of plain letters goes through the template, and its place in the result is cut out as a
//! literal piece ([`Rendered::pieces`]). Everything else stays in one piece, since each cut may change token ids.
//!
//! The one exception: in messages of the model itself a special token that the template's own logic looks for
//! (`</think>`) is left to the template. [`Template::new`] finds these by trying.
//!
//! Reading order: this file, `template/entries.rs` (messages to what templates read), `template/jinja.rs` (the engine),
//! `template/place.rs` (finding content in a result), `template/probe.rs` (what a template can carry). Nothing here
//! knows token ids; `tokenizer.rs` turns a [`Rendered`] into them.

mod entries;
mod jinja;
mod place;
mod probe;

pub use probe::{Carried, Features, Needs, Rewrites};

use entries::Entry;
use espalier_core::cause::Failed;
use espalier_core::chat::{Message, Role, Tool};
use jinja::Jinja;
use place::{Literals, Markers, Place, Placed, StandIns};
use std::ops::Range;

/// Where a template comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// Text of a Jinja chat template: the model's own, or a file.
    Jinja(String),
    /// Contents in order, no roles and nothing between them: for base models. `template = "plain"`.
    Plain,
}

/// How messages with the role `system` reach the model. `system` of a model in the experiment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SystemAs {
    /// As the template does it.
    #[default]
    System,
    /// In front of the next user message, an empty line between them.
    FirstUser,
}

/// How tool results reach the model. `tool_results` of a model in the experiment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ToolResultsAs {
    /// As the template does it.
    #[default]
    Tool,
    /// As a user message; results of one turn joined by an empty line.
    User,
}

/// What a template is told besides the messages.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TemplateOptions {
    /// Text of the beginning-of-text token (`bos_token` of templates).
    pub bos: String,
    /// Text of the end-of-text token (`eos_token` of templates).
    pub eos: String,
    /// Texts of all special tokens.
    pub special_tokens: Vec<String>,
    /// How system messages reach the model.
    pub system: SystemAs,
    /// How tool results reach the model.
    pub tool_results: ToolResultsAs,
    /// What `strftime_now` answers: milliseconds since 1970, UTC. One value for a whole run, so that its prompts agree.
    pub now_ms: u64,
    /// Further variables of the template, such as `enable_thinking`.
    pub variables: serde_json::Map<String, serde_json::Value>,
}

/// What a template cannot do. The text says what to change.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// The template does not parse.
    #[error("chat template, line {line}")]
    Syntax {
        /// From 1.
        line: usize,
        /// Why.
        #[source]
        source: Failed,
    },
    /// The template itself refuses the messages (`raise_exception`).
    #[error("the chat template refuses these messages: {0}")]
    Raised(String),
    /// The template fails while it renders.
    #[error("chat template, line {line}")]
    Render {
        /// From 1; 0 where unknown.
        line: usize,
        /// Why.
        #[source]
        source: Failed,
    },
    /// The template leaves a message out silently.
    #[error("the chat template drops message {message} ({role}) without an error{}", hint(role))]
    Dropped {
        /// Index in the conversation.
        message: usize,
        /// Its role.
        role: &'static str,
    },
    /// The template prints a message otherwise than it was written (trimming and JSON escapes aside).
    #[error("the chat template changes the text of message {message} ({role})")]
    Changed {
        /// Index in the conversation.
        message: usize,
        /// Its role.
        role: &'static str,
    },
    /// The template puts a new message in front of an answer that was sampled already.
    #[error("the chat template moves message {message} ({role}) before the last answer{}", hint(role))]
    Moved {
        /// Index in the conversation.
        message: usize,
        /// Its role.
        role: &'static str,
    },
    /// The template prints an answer never, or more than once: no suffix can be found.
    #[error("the chat template prints an answer {times} times, so the text after it is ambiguous")]
    AnswerLost {
        /// How often.
        times: usize,
    },
    /// A conversation cannot go on where its past does not end with an answer.
    #[error("the past of a suffix ends with a message of role {role}, not with an answer")]
    NoAnswer {
        /// Role of the last message; `none` where there is none.
        role: &'static str,
    },
    /// A part that templates cannot carry.
    #[error("message {message} contains {part}, but this model takes only text and images")]
    Part {
        /// Index in the conversation.
        message: usize,
        /// `a part of an unknown kind`, ...
        part: &'static str,
    },
    /// The schema of the tool is not valid JSON.
    #[error("tool {name}: parameters are not JSON")]
    Tool {
        /// The tool.
        name: String,
        /// Why.
        #[source]
        source: Failed,
    },
    /// Found by the probe: the experiment needs what the template cannot carry.
    #[error("the chat template cannot carry {feature}: {reason}\nhint: {hint}")]
    Refused {
        /// `system messages`, `tool results`, `tools`.
        feature: &'static str,
        /// What the template does instead.
        reason: String,
        /// What to change.
        hint: &'static str,
    },
}

fn hint(role: &str) -> &'static str {
    match role {
        "system" => "; hint: set system = \"first-user\" for this model",
        "tool" => "; hint: set tool_results = \"user\" for this model",
        _ => "",
    }
}

/// Text for the model, with what must be known to tokenize it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rendered {
    /// The whole text.
    pub text: String,
    /// Byte ranges that equal a special token's text and must not become that token: in order, not touching a special
    /// token of the template.
    pub literals: Vec<Range<usize>>,
    /// Where images stand, in order: before this byte of the text, this blob. The text holds nothing for them.
    pub images: Vec<(usize, String)>,
    /// Where the messages' contents stand, in order of the text. A message that the template changes while it prints
    /// it (thoughts removed) has none; one that is empty has none.
    pub contents: Vec<Content>,
    /// Bytes at the start of a suffix that end the answer before it (`<|im_end|>\n`); 0 in an opening.
    pub end_of_turn: usize,
}

/// Where the content of a message stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Content {
    /// In [`Rendered::text`].
    pub range: Range<usize>,
    /// Index of the message: in the messages of an opening; in past and new together in a suffix. The first of those
    /// that were joined.
    pub message: usize,
    /// Who speaks.
    pub role: Role,
}

/// A piece to be tokenized by itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// In [`Rendered::text`]; never empty.
    pub range: Range<usize>,
    /// Whether text of special tokens in it stays text.
    pub literal: bool,
}

impl Rendered {
    /// The pieces in order; together they are the text.
    pub fn pieces(&self) -> Vec<Piece> {
        let mut pieces = Vec::with_capacity(2 * self.literals.len() + 1);
        let mut at = 0;
        for literal in &self.literals {
            if at < literal.start {
                pieces.push(Piece { range: at..literal.start, literal: false });
            }
            pieces.push(Piece { range: literal.clone(), literal: true });
            at = literal.end;
        }
        if at < self.text.len() {
            pieces.push(Piece { range: at..self.text.len(), literal: false });
        }
        pieces
    }
}

/// A chat template, parsed once. Rendering is O(context), needs no lock and no I/O.
pub struct Template {
    jinja: Option<Jinja>,
    options: TemplateOptions,
    literals: Literals,
    end_of_turn: String,
}

impl Template {
    /// Parses a template and learns how it ends a turn and which special tokens its logic looks for.
    pub fn new(source: &Source, options: TemplateOptions) -> Result<Template, TemplateError> {
        let jinja = match source {
            Source::Jinja(text) => Some(Jinja::new(text, &options)?),
            Source::Plain => None,
        };
        let mut tokens = options.special_tokens.clone();
        tokens.extend([options.bos.clone(), options.eos.clone()]);
        let literals = Literals::new(&tokens);
        let mut template = Template { jinja, options, literals, end_of_turn: String::new() };
        if let Source::Jinja(text) = source {
            template.literals.leave_to_template(template.tokens_of_its_logic(text));
            template.end_of_turn = template.learn_end_of_turn();
        }
        Ok(template)
    }

    /// Renders a whole conversation with the generation prompt behind it.
    ///
    /// Answers in it are printed as the template prints them: this is the first prompt, and in the mode `history =
    /// template` every prompt.
    pub fn opening(&self, messages: &[Message], tools: &[Tool]) -> Result<Rendered, TemplateError> {
        let entries = entries::entries(messages, &self.options)?;
        let Some(jinja) = &self.jinja else {
            return Ok(place::plain(&entries, &self.literals));
        };
        let (hidden, stand_ins) = self.literals.hide(&entries);
        let tools = jinja::tools(tools)?;
        let text = jinja.render(&hidden, &tools, true)?;
        let markers = Markers::new(&hidden);
        let marked = jinja.render(&markers.replaced(&hidden, 0), &tools, true).ok();
        let placed = place::place(&text, marked.as_deref(), &hidden, 0, &markers);
        self.checked(&Printed {
            text: &text,
            whole_marked: marked.as_deref(),
            placed,
            entries: &entries,
            from: 0,
            stand_ins: &stand_ins,
            markers: &markers,
        })
    }

    /// Renders what follows the last answer of `past`: the end of its turn, `new`, the generation prompt.
    ///
    /// `past` ends with the answer; whatever text it has, it stands outside the result. A truncated answer needs the
    /// whole suffix; of one whose end-of-turn token the model sampled, the caller leaves out the token that is there
    /// already ([`crate::tokenizer::RenderedIds::sampled_already`]).
    pub fn suffix(
        &self,
        past: &[Message],
        new: &[Message],
        tools: &[Tool],
    ) -> Result<Rendered, TemplateError> {
        match past.last().map(|message| message.role) {
            Some(Role::Assistant) => {}
            last => return Err(TemplateError::NoAnswer { role: last.map_or("none", Role::as_str) }),
        }
        let mut entries = entries::entries(past, &self.options)?;
        let first_new = entries.len();
        entries.extend(entries::following(past, new, &self.options)?);
        let Some(jinja) = &self.jinja else {
            return Ok(place::plain(&entries[first_new..], &self.literals));
        };
        let (mut hidden, stand_ins) = self.literals.hide(&entries);
        let markers = Markers::new(&hidden);
        hidden[first_new - 1].content = markers.answer().to_owned();
        let tools = jinja::tools(tools)?;
        let whole = jinja.render(&hidden, &tools, true)?;
        let text = after_answer(&whole, markers.answer())?;
        let whole_marked = jinja.render(&markers.replaced(&hidden, first_new), &tools, true).ok();
        let marked = match &whole_marked {
            Some(whole) => after_answer(whole, markers.answer()).ok(),
            None => None,
        };
        let placed = place::place(text, marked, &hidden, first_new, &markers);
        let mut rendered = self.checked(&Printed {
            text,
            whole_marked: whole_marked.as_deref(),
            placed,
            entries: &entries,
            from: first_new,
            stand_ins: &stand_ins,
            markers: &markers,
        })?;
        rendered.end_of_turn = self.literals.common_prefix(&rendered.text, &self.end_of_turn);
        Ok(rendered)
    }

    /// What the template prints, unchecked: for comparison with other engines. [`Template::opening`] is for models.
    pub fn print(
        &self,
        messages: &[Message],
        tools: &[Tool],
        generation_prompt: bool,
    ) -> Result<String, TemplateError> {
        let entries = entries::entries(messages, &self.options)?;
        match &self.jinja {
            Some(jinja) => jinja.render(&entries, &jinja::tools(tools)?, generation_prompt),
            None => Ok(place::plain(&entries, &self.literals).text),
        }
    }

    /// The text that ends an answer: from its last letter to the markup of what follows. Empty where a template has
    /// none (`plain`, or roles alone).
    pub fn end_of_turn(&self) -> &str {
        &self.end_of_turn
    }

    /// Whether it is [`Source::Plain`].
    pub fn is_plain(&self) -> bool {
        self.jinja.is_none()
    }

    /// The options it was made with.
    pub fn options(&self) -> &TemplateOptions {
        &self.options
    }

    /// Puts special tokens' texts back, and refuses a result that lacks a message.
    fn checked(&self, result: &Printed<'_>) -> Result<Rendered, TemplateError> {
        for (index, entry) in result.entries.iter().enumerate().skip(result.from) {
            // An answer may be changed by the template: that is its history. Anything else must be there.
            if entry.is_empty() || entry.role == Role::Assistant {
                continue;
            }
            let (message, role) = (entry.message, entry.role.as_str());
            let before_answer = || {
                let marker = result.markers.content(index);
                result.whole_marked.is_some_and(|whole| whole.contains(&marker))
            };
            match result.placed.of(index) {
                Place::At(_) => {}
                Place::Changed => return Err(TemplateError::Changed { message, role }),
                Place::Absent if before_answer() => return Err(TemplateError::Moved { message, role }),
                Place::Absent => return Err(TemplateError::Dropped { message, role }),
            }
        }
        Ok(place::restore(result.text, &result.placed, result.entries, result.stand_ins, &self.literals))
    }
}

/// What a template printed, with all that is known of it.
struct Printed<'a> {
    /// With stand-ins for special tokens' texts.
    text: &'a str,
    /// Everything it printed with markers for contents.
    whole_marked: Option<&'a str>,
    /// Where contents stand in `text`.
    placed: Placed,
    /// As the harness wrote them.
    entries: &'a [Entry],
    /// First entry that `text` must hold.
    from: usize,
    stand_ins: &'a StandIns,
    markers: &'a Markers,
}

/// What follows the answer's marker, which must stand there once.
fn after_answer<'a>(whole: &'a str, marker: &str) -> Result<&'a str, TemplateError> {
    let mut places = whole.match_indices(marker);
    match (places.next(), places.next()) {
        (Some((at, _)), None) => Ok(&whole[at + marker.len()..]),
        (first, _) => {
            let times = if first.is_some() { whole.matches(marker).count() } else { 0 };
            Err(TemplateError::AnswerLost { times })
        }
    }
}

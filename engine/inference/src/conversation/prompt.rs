//! What stands between the last answer and the next: rendered and tokenized, not yet in the ledger.

use crate::models::{Exact, template_failure};
use crate::template::Rendered;
use crate::tokenizer::{ImageIds, RenderedIds, TokenizerError, encode_rendered};
use espalier_core::chat::{Message, Role, Tool};
use espalier_core::failure::Failure;
use espalier_core::ledger::{BranchId, DriftKind, Kept, Ledger, Piece};
use espalier_core::samples::{ImageSpan, Origin};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Tokens that wait for the next call.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Pending {
    /// `None`: they stand behind the branch. Else the whole history is opened anew, for this reason.
    pub(super) reopen: Option<DriftKind>,
    pub(super) parts: Vec<Part>,
    /// Where the known answers stand once it is opened anew, in their order.
    pub(super) places: Vec<Option<(u32, u32)>>,
}

/// A part of a prompt.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Part {
    /// Tokens of the branch as it stands.
    Old { from: u32, to: u32 },
    New {
        ids: Vec<u32>,
        origin: Origin,
        /// Among `ids`.
        images: Vec<ImageSpan>,
    },
}

/// How messages become tokens.
pub(super) struct Renderer<'a> {
    pub(super) exact: &'a Exact,
    /// The tokens of each image of the messages, by its blob.
    pub(super) images: &'a BTreeMap<String, ImageIds>,
}

impl Renderer<'_> {
    async fn encode(&self, rendered: &Rendered) -> Result<RenderedIds, TokenizerError> {
        encode_rendered(self.exact.tokenizer.as_ref(), rendered, self.images).await
    }
}

impl Part {
    fn len(&self) -> u32 {
        match self {
            Part::Old { from, to } => to - from,
            Part::New { ids, .. } => ids.len() as u32,
        }
    }
}

/// An answer that was sampled, as far as this conversation still holds it.
#[derive(Clone, Debug)]
pub(super) struct Known {
    /// Index in the conversation.
    pub(super) message: u32,
    pub(super) call: espalier_core::ledger::CallIndex,
    /// Tokens of the branch, where they stand in it.
    pub(super) place: Option<(u32, u32)>,
    /// Whether they spell the message's text.
    pub(super) exact: bool,
}

/// Either the guest's misuse, or the tokenizer's route.
pub(super) enum PromptError {
    Failure(Failure),
    Tokenizer(TokenizerError),
}

impl From<TokenizerError> for PromptError {
    fn from(error: TokenizerError) -> Self {
        PromptError::Tokenizer(error)
    }
}

impl Pending {
    /// Tokens of the whole prompt, for a branch of `length` tokens.
    pub(super) fn prompt_len(&self, length: u32) -> u64 {
        let base = if self.reopen.is_some() { 0 } else { u64::from(length) };
        base + self.parts.iter().map(|part| u64::from(part.len())).sum::<u64>()
    }

    /// The whole prompt.
    pub(super) fn prompt(&self, ledger: &Ledger, branch: BranchId) -> Arc<[u32]> {
        let old = if self.reopen.is_some() { ledger.prompt(branch, &[]) } else { Arc::default() };
        let mut ids = Vec::new();
        for part in &self.parts {
            match part {
                Part::Old { from, to } => ids.extend_from_slice(&old[*from as usize..*to as usize]),
                Part::New { ids: new, .. } => ids.extend_from_slice(new),
            }
        }
        if self.reopen.is_some() { ids.into() } else { ledger.prompt(branch, &ids) }
    }

    /// The images of the whole prompt, in order.
    pub(super) fn images(&self, ledger: &Ledger, branch: BranchId) -> Vec<ImageSpan> {
        let old = ledger.images(branch);
        let (mut images, mut at) = match self.reopen {
            Some(_) => (Vec::new(), 0),
            None => (old.clone(), ledger.len(branch)),
        };
        for part in &self.parts {
            match part {
                Part::Old { from, to } => {
                    let inside = |image: &&ImageSpan| image.start >= *from && image.start + image.len <= *to;
                    images
                        .extend(old.iter().filter(inside).map(|image| moved(image, image.start - from + at)));
                }
                Part::New { images: new, .. } => {
                    images.extend(new.iter().map(|image| moved(image, image.start + at)));
                }
            }
            at += part.len();
        }
        images
    }

    /// Puts it into the ledger.
    pub(super) fn commit(&self, ledger: &mut Ledger, branch: BranchId) {
        if let Some(kind) = self.reopen {
            let kept: Vec<Kept<'_>> = self
                .parts
                .iter()
                .map(|part| match part {
                    Part::Old { from, to } => Kept::Range { from: *from, to: *to },
                    Part::New { ids, origin, .. } => Kept::New(Piece { ids, origin: *origin }),
                })
                .collect();
            ledger.rewrite(branch, &kept, kind);
            let mut at = 0;
            for part in &self.parts {
                note_images(ledger, branch, part, at);
                at += part.len();
            }
            return;
        }
        for part in &self.parts {
            if let Part::New { ids, origin, .. } = part {
                let at = ledger.len(branch);
                ledger.extend(branch, &[Piece { ids, origin: *origin }]);
                note_images(ledger, branch, part, at);
            }
        }
    }
}

fn moved(image: &ImageSpan, start: u32) -> ImageSpan {
    ImageSpan { start, ..image.clone() }
}

/// Notes the images of a part that begins at `at` of the branch. Those of old tokens came with them.
fn note_images(ledger: &mut Ledger, branch: BranchId, part: &Part, at: u32) {
    if let Part::New { images, .. } = part {
        for image in images {
            ledger.note_image(branch, moved(image, image.start + at));
        }
    }
}

/// The first prompt of a conversation.
pub(super) async fn opening(
    renderer: &Renderer<'_>,
    plain: bool,
    messages: &[Message],
    tools: &[Tool],
) -> Result<Pending, PromptError> {
    let exact = renderer.exact;
    let rendered = exact.template.opening(messages, tools).map_err(|error| failed(&error))?;
    let prefix = if plain { exact.tokenizer.prefix() } else { &[] };
    let mut parts = Vec::new();
    push_new(&mut parts, prefix, Origin::Prompt);
    push_all(&mut parts, &renderer.encode(&rendered).await?, 0, Origin::Prompt);
    Ok(Pending { parts, ..Pending::default() })
}

/// What follows the last answer, which ends `past`; `last` is its last token. An end of turn that the model sampled is
/// not put there again.
pub(super) async fn suffix(
    renderer: &Renderer<'_>,
    past: &[Message],
    new: &[Message],
    tools: &[Tool],
    last: Option<u32>,
) -> Result<Pending, PromptError> {
    let exact = renderer.exact;
    let rendered = exact.template.suffix(past, new, tools).map_err(|error| failed(&error))?;
    let encoded = renderer.encode(&rendered).await?;
    let skip = sampled_already(exact, &rendered, &encoded, last);
    let mut parts = Vec::new();
    push_marked(&mut parts, &encoded, skip);
    Ok(Pending { parts, ..Pending::default() })
}

/// The whole history rendered anew. Answers whose text stands unchanged keep their tokens; what agrees with the branch
/// from its start is shared with it, and where all of it agrees nothing is opened anew.
///
/// `row`: the branch as it stands, with its images; `kind`: `None` where the harness changed nothing, so that only the
/// template can.
pub(super) async fn rebuild(
    renderer: &Renderer<'_>,
    messages: &[Message],
    tools: &[Tool],
    known: &[Known],
    (row, row_images): (&[u32], &[ImageSpan]),
    kind: Option<DriftKind>,
) -> Result<Pending, PromptError> {
    let exact = renderer.exact;
    let rendered = exact.template.opening(messages, tools).map_err(|error| failed(&error))?;
    let mut parts: Vec<Part> = Vec::new();
    let mut from = 0;
    let mut last = None;
    let mut spliced: Vec<(usize, usize)> = Vec::new();
    for content in rendered.contents.iter().filter(|content| content.role == Role::Assistant) {
        let Some((index, (start, end))) = known.iter().enumerate().find_map(|(index, known)| {
            let place = known.place.filter(|_| known.exact && known.message as usize == content.message)?;
            (rendered.text[content.range.clone()] == messages[content.message].joined_text())
                .then_some((index, place))
        }) else {
            continue;
        };
        if content.range.start < from {
            continue;
        }
        let between = slice(&rendered, from, content.range.start);
        push_between(renderer, &mut parts, &between, last).await?;
        spliced.push((index, parts.len()));
        parts.push(Part::Old { from: start, to: end });
        last = row.get(end as usize - 1).copied().filter(|_| end > start);
        from = content.range.end;
    }
    let tail = slice(&rendered, from, rendered.text.len());
    let encoded = renderer.encode(&tail).await?;
    let skip = sampled_already(exact, &tail, &encoded, last);
    match kind {
        // A past that the harness rewrote is a first prompt again.
        Some(_) => push_all(&mut parts, &encoded, skip, Origin::Prompt),
        None => push_marked(&mut parts, &encoded, skip),
    }
    Ok(shared_with((row, row_images), parts, known.len(), &spliced, kind))
}

/// Cuts off what the parts and the branch have in common.
fn shared_with(
    (row, row_images): (&[u32], &[ImageSpan]),
    parts: Vec<Part>,
    known: usize,
    spliced: &[(usize, usize)],
    kind: Option<DriftKind>,
) -> Pending {
    let mut places = vec![None; known];
    let mut at = 0;
    for (index, part) in parts.iter().enumerate() {
        let length = part.len();
        if let Some((answer, _)) = spliced.iter().find(|(_, place)| *place == index) {
            places[*answer] = Some((at, at + length));
        }
        at += length;
    }
    let mut common = 0;
    let mut rest = Vec::new();
    for part in parts {
        if !rest.is_empty() {
            rest.push(part);
            continue;
        }
        let (ids, images): (&[u32], &[ImageSpan]) = match &part {
            Part::Old { from, to } => (&row[*from as usize..*to as usize], &[]),
            Part::New { ids, images, .. } => (ids, images),
        };
        let same = ids.iter().zip(&row[common..]).take_while(|(one, two)| one == two).count();
        let same = same_images(images, row_images, common, same);
        common += same;
        if same < ids.len() {
            rest.push(match part {
                Part::Old { from, to } => Part::Old { from: from + same as u32, to },
                Part::New { ids, origin, images } => Part::New {
                    ids: ids[same..].to_vec(),
                    origin,
                    images: images
                        .iter()
                        .filter(|image| image.start >= same as u32)
                        .map(|image| moved(image, image.start - same as u32))
                        .collect(),
                },
            });
        }
    }
    if common == row.len() && kind.is_none() {
        return Pending { reopen: None, parts: rest, places: Vec::new() };
    }
    rest.insert(0, Part::Old { from: 0, to: common as u32 });
    Pending { reopen: Some(kind.unwrap_or(DriftKind::Template)), parts: rest, places }
}

/// How many of `same` equal tokens, which stand at `at` of the row, hold the same images too: equal tokens may be different ones.
fn same_images(images: &[ImageSpan], row_images: &[ImageSpan], at: usize, same: usize) -> usize {
    let (from, to) = (at as u32, (at + same) as u32);
    let of_row = row_images.iter().filter(|image| (from..to).contains(&image.start));
    let of_part = images.iter().map(|image| moved(image, image.start + from));
    let mut of_part = of_part.take_while(|image| image.start < to);
    let mut of_row = of_row.peekable();
    loop {
        let (one, two) = (of_part.next(), of_row.next());
        match (&one, two) {
            (None, None) => return same,
            (Some(one), Some(two)) if one == two && one.start + one.len <= to => {}
            _ => {
                let first = [one.as_ref(), two].into_iter().flatten().map(|image| image.start).min();
                return first.map_or(same, |start| (start - from) as usize);
            }
        }
    }
}

/// Replaces the first images of the branch by `placeholder`, in front of what waits behind it. All else keeps its tokens.
///
/// `row_len`: tokens of the branch; `elided`: the places that go, markers included, in order; `prompt_len`: tokens before its first
/// answer.
pub(super) fn elided(
    behind: Pending,
    row_len: u32,
    elided: &[(u32, u32)],
    prompt_len: u32,
    placeholder: &[u32],
    known: &[Known],
) -> Pending {
    let mut parts = Vec::with_capacity(2 * elided.len() + 1 + behind.parts.len());
    let mut at = 0;
    for (from, to) in elided {
        parts.push(Part::Old { from: at, to: *from });
        let origin = if *from < prompt_len { Origin::Prompt } else { Origin::Environment };
        parts.push(Part::New { ids: placeholder.to_vec(), origin, images: Vec::new() });
        at = *to;
    }
    parts.push(Part::Old { from: at, to: row_len });
    let place = |known: &Known| {
        let (start, end) = known.place?;
        let mut at = 0;
        for part in &parts {
            if let Part::Old { from, to } = part
                && *from <= start
                && end <= *to
            {
                return Some((start - from + at, end - from + at));
            }
            at += part.len();
        }
        None
    };
    let places = known.iter().map(place).collect();
    parts.extend(behind.parts);
    Pending { reopen: Some(DriftKind::Elide), parts, places }
}

async fn push_between(
    renderer: &Renderer<'_>,
    parts: &mut Vec<Part>,
    rendered: &Rendered,
    last: Option<u32>,
) -> Result<(), PromptError> {
    let encoded = renderer.encode(rendered).await?;
    let skip = sampled_already(renderer.exact, rendered, &encoded, last);
    push_all(parts, &encoded, skip, Origin::Prompt);
    Ok(())
}

/// Tokens at the start of what follows an answer that the model has sampled itself: its end of turn, or none. A
/// tokenizer that names no offsets is helped by the text.
fn sampled_already(exact: &Exact, rendered: &Rendered, encoded: &RenderedIds, last: Option<u32>) -> usize {
    let tokenizer = exact.tokenizer.as_ref();
    let by_offsets = encoded.sampled_already(rendered, last, tokenizer);
    let starts_with_it = last.and_then(|id| tokenizer.special(id)).is_some_and(|special| {
        let literal = rendered.literals.first().is_some_and(|range| range.start == 0);
        encoded.ids.first() == Some(&special.id) && rendered.text.starts_with(&special.text) && !literal
    });
    by_offsets.max(usize::from(starts_with_it))
}

/// Adds tokens with content as environment and markup as template.
fn push_marked(parts: &mut Vec<Part>, encoded: &RenderedIds, skip: usize) {
    let mut images = encoded.images.iter().peekable();
    for (at, (id, content)) in encoded.ids.iter().zip(&encoded.content).enumerate().skip(skip) {
        push_new(parts, &[*id], if *content { Origin::Environment } else { Origin::Template });
        if let Some(image) = images.next_if(|image| image.start as usize == at)
            && let Some(Part::New { ids, images, .. }) = parts.last_mut()
        {
            images.push(moved(image, ids.len() as u32 - 1));
        }
    }
}

/// Adds tokens of one origin.
fn push_all(parts: &mut Vec<Part>, encoded: &RenderedIds, skip: usize, to: Origin) {
    push_new(parts, &encoded.ids[skip..], to);
    if let Some(Part::New { ids, images, .. }) = parts.last_mut() {
        let (length, of_encoded) = (ids.len() as u32, encoded.ids.len() as u32);
        images.extend(encoded.images.iter().map(|image| moved(image, length + image.start - of_encoded)));
    }
}

fn push_new(parts: &mut Vec<Part>, new: &[u32], to: Origin) {
    if new.is_empty() {
        return;
    }
    match parts.last_mut() {
        Some(Part::New { ids, origin, .. }) if *origin == to => ids.extend_from_slice(new),
        _ => parts.push(Part::New { ids: new.to_vec(), origin: to, images: Vec::new() }),
    }
}

/// A stretch of a rendered text. Literals never run over the border of an answer.
fn slice(rendered: &Rendered, from: usize, to: usize) -> Rendered {
    let inside = |range: &std::ops::Range<usize>| {
        let (start, end) = (range.start.max(from), range.end.min(to));
        (start < end).then(|| start - from..end - from)
    };
    Rendered {
        text: rendered.text[from..to].to_owned(),
        literals: rendered.literals.iter().filter_map(inside).collect(),
        contents: rendered
            .contents
            .iter()
            .filter_map(|content| {
                inside(&content.range).map(|range| crate::template::Content { range, ..content.clone() })
            })
            .collect(),
        images: rendered
            .images
            .iter()
            .filter(|(at, _)| (from..to).contains(at) || (*at == to && to == rendered.text.len()))
            .map(|(at, blob)| (at - from, blob.clone()))
            .collect(),
        end_of_turn: 0,
    }
}

fn failed(error: &crate::template::TemplateError) -> PromptError {
    PromptError::Failure(template_failure(error))
}

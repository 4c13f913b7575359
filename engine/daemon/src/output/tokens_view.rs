//! `show ROLLOUT --tokens`: each training row as pieces of one origin, coloured, with the text where a tokenizer is
//! known, and by their ids elsewhere.

use super::text::{count, harmless, wrap};
use super::{Look, styles};
use anstyle::{AnsiColor, Style};
use espalier_core::samples::{ExcludedHow, Origin, Segment, SpanUse, Trajectory};
use std::ops::Range;

/// For each piece of a segment its text, where it is known.
pub type SegmentText = Vec<Option<String>>;

/// Tokens of one row with one origin and one mask, of one call where they are sampled, of one image where they stand for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Places in the row.
    pub range: Range<usize>,
    /// Where they come from; `None`: a code newer than this engine.
    pub origin: Option<Origin>,
    /// Whether they train.
    pub trained: bool,
    /// The call that sampled them.
    pub call_id: Option<String>,
    /// Digest of the image that they stand for.
    pub image: Option<String>,
}

/// Cuts a row where origin, mask, call or image change.
pub fn pieces(segment: &Segment) -> Vec<Piece> {
    let mut pieces: Vec<Piece> = Vec::new();
    for at in 0..segment.tokens.len() {
        let origin = segment.origin.get(at).and_then(|code| Origin::from_code(*code));
        let trained = segment.mask.get(at) == Some(&1);
        let holds = |start: u32, len: u32| (start as usize..(start + len) as usize).contains(&at);
        let span =
            segment.spans.iter().find(|span| span.usage == SpanUse::Sampled && holds(span.start, span.len));
        let call_id = span.map(|span| span.call_id.clone());
        let image = segment.images.iter().find(|image| holds(image.start, image.len));
        let begins = image.is_some_and(|image| image.start as usize == at);
        let piece =
            Piece { range: at..at + 1, origin, trained, call_id, image: image.map(|one| one.digest.clone()) };
        match pieces.last_mut() {
            Some(last) if last.is_like(&piece) && !begins => last.range.end = at + 1,
            _ => pieces.push(piece),
        }
    }
    pieces
}

impl Piece {
    fn is_like(&self, other: &Piece) -> bool {
        let same = self.origin == other.origin && self.trained == other.trained;
        same && self.call_id == other.call_id && self.image == other.image
    }
}

/// All rows of a trajectory, and what stands in none.
pub fn lines(trajectory: &Trajectory, texts: &[SegmentText], look: &Look) -> Vec<String> {
    let mut lines = legend(look);
    for (index, segment) in trajectory.segments.iter().enumerate() {
        lines.push(String::new());
        let trained = segment.mask.iter().filter(|bit| **bit == 1).count() as u64;
        let mut facts = format!(
            "{} tokens, prompt {}, {} trained",
            count(segment.tokens.len() as u64),
            count(segment.prompt_len.into()),
            count(trained)
        );
        if let Some(parent) = segment.parent_segment {
            facts.push_str(&format!(", from row {parent}"));
        }
        if let Some(kind) = &segment.drift_kind {
            facts.push_str(&format!(", {kind}"));
        }
        lines.push(format!(
            "{} {}",
            look.paint(styles::STRONG, &format!("row {index}")),
            look.paint(styles::FAINT, &facts)
        ));
        let empty = SegmentText::new();
        let texts = texts.get(index).unwrap_or(&empty);
        for (place, piece) in pieces(segment).into_iter().enumerate() {
            lines.extend(piece_lines(segment, &piece, texts.get(place).and_then(Option::as_deref), look));
        }
    }
    if trajectory.segments.is_empty() {
        lines.push("no training rows".to_owned());
    }
    if !trajectory.excluded.is_empty() {
        lines.push(String::new());
        lines.push(look.paint(styles::STRONG, "sampled, but not trained"));
        for excluded in &trajectory.excluded {
            let how = match excluded.how {
                ExcludedHow::Masked => "masked",
                ExcludedHow::Dropped => "dropped",
            };
            let tokens = format!("{}+{}", excluded.offset, excluded.len);
            lines.push(format!("  {} {tokens} {how}: {}", excluded.call_id, excluded.reason));
        }
    }
    lines
}

fn legend(look: &Look) -> Vec<String> {
    let origins = [
        (Some(Origin::Prompt), false),
        (Some(Origin::Sampled), true),
        (Some(Origin::Sampled), false),
        (Some(Origin::Environment), false),
        (Some(Origin::Template), false),
        (Some(Origin::Healed), false),
    ];
    let words: Vec<String> = origins
        .iter()
        .map(|(origin, trained)| look.paint(style(*origin, *trained), word(*origin, *trained)))
        .collect();
    vec![words.join("  ")]
}

fn word(origin: Option<Origin>, trained: bool) -> &'static str {
    match origin {
        Some(Origin::Prompt) => "prompt",
        Some(Origin::Sampled) if trained => "sampled",
        Some(Origin::Sampled) => "sampled, masked",
        Some(Origin::Environment) => "environment",
        Some(Origin::Template) => "template",
        Some(Origin::Healed) => "healed",
        None => "unknown",
    }
}

fn style(origin: Option<Origin>, trained: bool) -> Style {
    match origin {
        Some(Origin::Prompt) => Style::new().dimmed(),
        Some(Origin::Sampled) if trained => AnsiColor::Green.on_default().bold(),
        Some(Origin::Sampled) => AnsiColor::Yellow.on_default(),
        Some(Origin::Environment) => AnsiColor::Cyan.on_default(),
        Some(Origin::Template) => AnsiColor::Magenta.on_default(),
        Some(Origin::Healed) | None => AnsiColor::Red.on_default(),
    }
}

/// Where the piece stands and what it is, then its text or its ids. Without colours the words carry the origin.
fn piece_lines(segment: &Segment, piece: &Piece, text: Option<&str>, look: &Look) -> Vec<String> {
    const INDENT: usize = 4;
    let style = style(piece.origin, piece.trained);
    let ids = &segment.tokens[piece.range.clone()];
    let what = if piece.image.is_some() { "image" } else { word(piece.origin, piece.trained) };
    let mut head = format!("  {:>5}  {what}, {}", piece.range.start, ids.len());
    if piece.origin == Some(Origin::Sampled) {
        let logprobs = &segment.logprobs[piece.range.clone()];
        let sum: f64 = logprobs.iter().map(|logprob| f64::from(*logprob)).sum();
        head.push_str(&format!(", mean logprob {:.3}", sum / logprobs.len().max(1) as f64));
    }
    let mut lines = vec![look.paint(styles::FAINT, &head)];
    let body = match (&piece.image, text) {
        (Some(digest), _) => digest.clone(),
        (None, Some(text)) => visible(text),
        (None, None) => ids.iter().map(u32::to_string).collect::<Vec<_>>().join(" "),
    };
    let columns = look.width.saturating_sub(INDENT);
    lines.extend(
        wrap(&body, columns).into_iter().map(|line| format!("{:INDENT$}{}", "", look.paint(style, &line))),
    );
    lines
}

/// Line breaks are shown as well as made: where one is sampled or not is the point.
fn visible(text: &str) -> String {
    let mut out = String::new();
    let text = harmless(text);
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        if c == '\n' {
            out.push('\u{21b5}');
            if rest.peek().is_some() {
                out.push('\n');
            }
        } else {
            out.push(c);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use espalier_core::samples::{ImageSpan, Span};

    #[test]
    fn a_row_is_cut_where_origin_mask_call_or_image_change() {
        let segment = Segment {
            tokens: vec![1, 2, 3, 4, 5, 6, 7, 8, 8, 8, 8],
            prompt_len: 2,
            mask: vec![0, 0, 1, 1, 0, 0, 1, 0, 0, 0, 0],
            origin: vec![0, 0, 1, 1, 1, 2, 1, 2, 2, 2, 2],
            logprobs: vec![0.0, 0.0, -0.5, -0.5, 0.0, 0.0, -0.25, 0.0, 0.0, 0.0, 0.0],
            spans: vec![
                Span { call_id: "a".into(), offset: 0, start: 2, len: 3, usage: SpanUse::Sampled },
                Span { call_id: "b".into(), offset: 0, start: 6, len: 1, usage: SpanUse::Sampled },
            ],
            images: vec![
                ImageSpan { digest: "ab12".into(), start: 7, len: 2 },
                ImageSpan { digest: "ab12".into(), start: 9, len: 2 },
            ],
            ..Segment::default()
        };
        let cut: Vec<_> =
            pieces(&segment).into_iter().map(|piece| (piece.range, piece.trained, piece.call_id)).collect();
        assert_eq!(
            cut,
            [
                (0..2, false, None),
                (2..4, true, Some("a".into())),
                (4..5, false, Some("a".into())),
                (5..6, false, None),
                (6..7, true, Some("b".into())),
                (7..9, false, None),
                (9..11, false, None),
            ]
        );
        let look = Look { colour: false, width: 60, terminal: false };
        let texts: SegmentText = vec![Some("Goal:\n".into()), Some("get 1 log\n".into())];
        let lines: Vec<String> = pieces(&segment)
            .iter()
            .enumerate()
            .flat_map(|(place, piece)| {
                piece_lines(&segment, piece, texts.get(place).and_then(Option::as_deref), &look)
            })
            .collect();
        insta::assert_snapshot!(lines.join("\n"));
    }
}

//! The text of tokens for `show --tokens`: from the model's `tokenizer.json` where the run names one, else what the
//! transcript says was said there. The store keeps ids; text is looked up when somebody looks.

use crate::experiment::Experiment;
use crate::output::tokens_view::{Piece, SegmentText, pieces};
use espalier_core::chat::Message;
use espalier_core::samples::Origin;
use espalier_core::trajectory::{AttemptRecord, Turn};
use espalier_inference::tokenizer::Tokenizer;
use espalier_inference::tokenizer::local::LocalTokenizer;

/// The text of every piece of every row. `experiment` is what the run kept of its own, `model` the group's.
pub(super) async fn of_record(record: &AttemptRecord, experiment: &str, model: &str) -> Vec<SegmentText> {
    let models = Experiment::recorded_models(experiment);
    let path = models.get(model).and_then(|model| model.tokenizer.as_deref());
    let tokenizer = path.and_then(|path| LocalTokenizer::from_file(path).ok());
    let mut rows = Vec::new();
    for segment in &record.trajectory.segments {
        let pieces = pieces(segment);
        let mut texts = SegmentText::new();
        for (place, piece) in pieces.iter().enumerate() {
            let decoded = match &tokenizer {
                Some(tokenizer) => tokenizer.decode(&segment.tokens[piece.range.clone()]).await.ok(),
                None => None,
            };
            let text = decoded.map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
            texts.push(text.or_else(|| said(record, &pieces, place)));
        }
        rows.push(texts);
    }
    rows
}

/// What the transcript says was said there: an answer, what followed an answer, or how the conversation began. A part
/// of an answer, and the template's own markup, stay ids.
fn said(record: &AttemptRecord, pieces: &[Piece], place: usize) -> Option<String> {
    let piece = &pieces[place];
    let turn_of = |piece: &Piece| -> Option<&Turn> {
        let call_id = piece.call_id.as_ref()?;
        record.transcript.turns.iter().find(|turn| turn.call_id == *call_id)
    };
    match piece.origin? {
        Origin::Sampled => {
            let whole = pieces.iter().filter(|other| other.call_id == piece.call_id).count() == 1;
            turn_of(piece).filter(|_| whole).map(|turn| turn.message.joined_text())
        }
        Origin::Environment => {
            let before = pieces[..place].iter().rev().find_map(turn_of)?;
            let again = pieces[..place].iter().rev().take_while(|other| other.call_id.is_none());
            let first = again.filter(|other| other.origin == Some(Origin::Environment)).count() == 0;
            first.then(|| joined(&before.results))
        }
        Origin::Prompt if place == 0 => {
            let first = pieces.iter().find_map(turn_of)?;
            let conversation = record.transcript.conversations.get(first.conversation as usize)?;
            (!conversation.opening.is_empty()).then(|| joined(&conversation.opening))
        }
        Origin::Prompt | Origin::Template | Origin::Healed => None,
    }
}

fn joined(messages: &[Message]) -> String {
    messages.iter().map(Message::joined_text).collect()
}

//! Where images stand among the tokens of a branch. Equal tokens may be different images, so nothing here compares tokens.

use super::{BranchId, Ledger};
use crate::samples::ImageSpan;

impl Ledger {
    /// Notes that `[image.start, image.start + image.len)` of a branch, among the tokens that were added last, are an image.
    ///
    /// Panics where they are not tokens of the branch's newest row behind its other images.
    pub fn note_image(&mut self, branch: BranchId, image: ImageSpan) {
        let row = self.branch(branch).row as usize;
        let row = &mut self.rows[row];
        let behind = row.images.last().map_or(row.start, |last| last.start + last.len);
        assert!(image.start >= behind && image.start + image.len <= row.end(), "an image is noted in order");
        row.images.push(image);
    }

    /// The images of a branch, in order.
    pub fn images(&self, branch: BranchId) -> Vec<ImageSpan> {
        let row = self.branch(branch).row;
        self.images_between(row, 0, self.rows[row as usize].end()).cloned().collect()
    }

    /// Those that stand whole in `[from, to)` of a row's path.
    pub(super) fn images_between(&self, row: u32, from: u32, to: u32) -> impl Iterator<Item = &ImageSpan> {
        self.path_to(row, to).into_iter().flat_map(move |(index, end)| {
            let inside =
                move |image: &&ImageSpan| image.start >= from && image.start + image.len <= end.min(to);
            self.rows[index as usize].images.iter().filter(inside)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ending::StopReason;
    use crate::ledger::{DriftKind, Kept, Piece, Trainability};
    use crate::samples::check::check;
    use crate::samples::{Origin, Segment, SpanUse, fixture};

    /// Two tokens of text, an image of three, one token of text.
    fn screen(ledger: &mut Ledger, branch: BranchId, digest: &str) {
        let start = ledger.len(branch) + 2;
        ledger.extend(branch, &[Piece { ids: &[1, 2, 9, 9, 9, 3], origin: Origin::Environment }]);
        ledger.note_image(branch, ImageSpan { digest: digest.to_owned(), start, len: 3 });
    }

    fn answer(ledger: &mut Ledger, branch: BranchId) {
        let number = ledger.calls().len();
        let call = fixture::call(&format!("c{number}"), "policy", 2);
        let call = ledger.record(call, Some(vec![-0.5, -0.25]));
        ledger.place(branch, call, &[20, 21]);
    }

    fn places(segment: &Segment) -> Vec<(&str, u32, u32)> {
        segment.images.iter().map(|image| (image.digest.as_str(), image.start, image.len)).collect()
    }

    fn finished(ledger: &Ledger) -> Vec<Segment> {
        let finished = ledger.finish(Trainability::Trainable);
        let trajectory = fixture::trajectory(0, StopReason::Submitted, finished);
        let group = fixture::group(vec![trajectory.clone()]);
        assert_eq!(check(&group), []);
        trajectory.segments
    }

    #[test]
    fn images_follow_forks_and_pieces_that_are_carried() {
        let mut ledger = Ledger::new();
        let branch = ledger.open(&[]);
        screen(&mut ledger, branch, "a");
        answer(&mut ledger, branch);
        screen(&mut ledger, branch, "b");
        answer(&mut ledger, branch);
        let fork = ledger.fork(branch);
        screen(&mut ledger, fork, "c");
        answer(&mut ledger, fork);
        assert_eq!(ledger.images(branch).len(), 2);
        // The first image becomes one token; what stands behind it moves by two.
        let placeholder = Piece { ids: &[7], origin: Origin::Environment };
        let pieces =
            [Kept::Range { from: 0, to: 2 }, Kept::New(placeholder), Kept::Range { from: 5, to: 16 }];
        ledger.rewrite(branch, &pieces, DriftKind::Elide);
        screen(&mut ledger, branch, "d");
        answer(&mut ledger, branch);
        let starts: Vec<u32> = ledger.images(branch).iter().map(|image| image.start).collect();
        assert_eq!(starts, [8, 16]);

        let segments = finished(&ledger);
        let [whole, elided] = &segments[..] else { panic!("{segments:#?}") };
        assert_eq!(places(whole), [("a", 2, 3), ("b", 10, 3), ("c", 18, 3)]);
        assert_eq!(places(elided), [("b", 8, 3), ("d", 16, 3)]);
        assert_eq!(elided.drift_kind.as_deref(), Some("elide"));
        let uses: Vec<(&str, SpanUse)> =
            elided.spans.iter().map(|span| (span.call_id.as_str(), span.usage)).collect();
        assert_eq!(uses, [("c0", SpanUse::Reused), ("c1", SpanUse::Reused), ("c3", SpanUse::Sampled)]);
        assert_eq!((elided.parent_segment, elided.fork_at), (Some(0), Some(2)));
    }

    #[test]
    fn an_image_behind_the_last_answer_stands_in_no_row() {
        let mut ledger = Ledger::new();
        let branch = ledger.open(&[]);
        screen(&mut ledger, branch, "a");
        answer(&mut ledger, branch);
        screen(&mut ledger, branch, "b");
        assert_eq!(places(&finished(&ledger)[0]), [("a", 2, 3)]);
    }
}

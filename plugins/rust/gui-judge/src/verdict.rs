//! From the answers of the model to a verdict: the last `VERDICT:` of an answer counts, and what is none stays none.

/// What an answer says of a trajectory. In the order that decides a tie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// The task has not been done.
    Failure,
    /// What was shown does not tell whether it has been done; worth what a failure is.
    NotVerified,
    /// A captcha, or a check of the same kind, kept the agent from it: says nothing of the agent.
    Captcha,
    /// It has been done.
    Success,
}

impl Verdict {
    const ALL: [Verdict; 4] = [Verdict::Failure, Verdict::NotVerified, Verdict::Captcha, Verdict::Success];

    /// The word of the answer.
    pub fn word(self) -> &'static str {
        match self {
            Verdict::Failure => "FAILURE",
            Verdict::NotVerified => "NOT VERIFIED",
            Verdict::Captcha => "CAPTCHA",
            Verdict::Success => "SUCCESS",
        }
    }

    /// What it is worth as a vote; `None`: nothing, since it says nothing of the agent.
    pub fn value(self) -> Option<f64> {
        match self {
            Verdict::Success => Some(1.0),
            Verdict::Failure | Verdict::NotVerified => Some(0.0),
            Verdict::Captcha => None,
        }
    }
}

fn is_decoration(c: char) -> bool {
    c.is_whitespace() || "#->*_`|+[]\"'".contains(c)
}

/// The verdict of an answer. Errors: why it has none. A last `VERDICT:` that is no verdict is not made up for by one before it.
pub fn parse(text: &str) -> Result<Verdict, String> {
    const MARK: &str = "verdict";
    let lower = text.to_ascii_lowercase();
    let marked = lower.rmatch_indices(MARK).find_map(|(start, _)| {
        let rest = text[start + MARK.len()..].trim_start_matches(is_decoration);
        rest.strip_prefix([':', '\u{ff1a}'])
    });
    let rest = marked.ok_or("no line `VERDICT: ...`")?.trim_start_matches(is_decoration);
    let line = rest.lines().next().unwrap_or_default();
    let word = line.trim_matches(|c| is_decoration(c) || ".!,;:".contains(c));
    let plain = word.to_ascii_uppercase().replace(['_', '-'], " ");
    let found = Verdict::ALL.into_iter().find(|verdict| verdict.word() == plain);
    found.ok_or_else(|| {
        let words = Verdict::ALL.map(Verdict::word).join(", ");
        format!("the verdict is {word:?}, expected one of {words}")
    })
}

/// The verdict that most give, with how many give each; `None`: there are none.
pub fn aggregate(verdicts: &[Verdict]) -> Option<(Verdict, String)> {
    let count = |verdict: Verdict| verdicts.iter().filter(|other| **other == verdict).count();
    let given = Verdict::ALL.into_iter().filter(|verdict| count(*verdict) > 0);
    // Of equals `max_by_key` takes the last, so the order is turned around.
    let most = given.clone().rev().max_by_key(|verdict| count(*verdict))?;
    let told: Vec<String> = given.map(|verdict| format!("{} {}", count(verdict), verdict.word())).collect();
    Some((most, told.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_verdict_of_an_answer_counts_or_none_does() {
        for (text, verdict) in [
            ("VERDICT: SUCCESS", Some(Verdict::Success)),
            ("It is saved.\n**Verdict:** success.", Some(Verdict::Success)),
            ("VERDICT: SUCCESS, or so it says.\nVERDICT: FAILURE", Some(Verdict::Failure)),
            ("verdict: `not_verified`", Some(Verdict::NotVerified)),
            ("VERDICT: NOT VERIFIED\nThe last page was not shown.", Some(Verdict::NotVerified)),
            ("## VERDICT\u{ff1a} CAPTCHA", Some(Verdict::Captcha)),
            ("VERDICT: SUCCESS\nVERDICT: unclear", None),
            ("VERDICT: NOT SUCCESS", None),
            ("VERDICT:", None),
            ("SUCCESS", None),
            ("the verdict is SUCCESS", None),
        ] {
            assert_eq!(parse(text).ok(), verdict, "{text}");
        }
        let error = parse("VERDICT: maybe").unwrap_err();
        assert_eq!(
            error,
            "the verdict is \"maybe\", expected one of FAILURE, NOT VERIFIED, CAPTCHA, SUCCESS"
        );
    }

    #[test]
    fn most_votes_count_and_a_tie_is_not_in_favour_of_the_agent() {
        use Verdict::{Captcha, Failure, NotVerified, Success};
        for (votes, verdict, told) in [
            (&[Success, Success, Failure][..], Success, "1 FAILURE, 2 SUCCESS"),
            (&[Success, Failure], Failure, "1 FAILURE, 1 SUCCESS"),
            (&[Success, Captcha], Captcha, "1 CAPTCHA, 1 SUCCESS"),
            (&[Captcha, NotVerified], NotVerified, "1 NOT VERIFIED, 1 CAPTCHA"),
            (&[Captcha], Captcha, "1 CAPTCHA"),
        ] {
            assert_eq!(aggregate(votes), Some((verdict, told.to_owned())), "{votes:?}");
        }
        assert_eq!(aggregate(&[]), None);
    }
}

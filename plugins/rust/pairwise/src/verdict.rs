//! From an answer of the model to a verdict: the last `\boxed{...}` counts.

use espalier_sdk::boxed;

/// Which answer is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The first.
    First,
    /// The second.
    Second,
    /// Neither.
    Tie,
}

impl Verdict {
    /// The same, where the answers were shown in the other order.
    #[must_use]
    pub fn swapped(self) -> Verdict {
        match self {
            Verdict::First => Verdict::Second,
            Verdict::Second => Verdict::First,
            Verdict::Tie => Verdict::Tie,
        }
    }
}

/// The verdict of an answer; `None`: it has none.
pub fn parse(text: &str) -> Option<Verdict> {
    match boxed(text)?.trim().to_ascii_lowercase().as_str() {
        "a" => Some(Verdict::First),
        "b" => Some(Verdict::Second),
        "tie" => Some(Verdict::Tie),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_box_counts() {
        for (text, expect) in [
            (r"\boxed{A}", Some(Verdict::First)),
            (r"not \boxed{A} but \boxed{ b }.", Some(Verdict::Second)),
            (r"\boxed{Tie}", Some(Verdict::Tie)),
            (r"\boxed{A} or \boxed{C}", None),
            (r"\boxed{A", None),
            ("A", None),
        ] {
            assert_eq!(parse(text), expect, "{text}");
        }
    }
}

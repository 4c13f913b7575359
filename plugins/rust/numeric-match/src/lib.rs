//! The reward `numeric-match`: 1 where the number in the answer is the expected one, within a tolerance, else 0.

mod expression;

use espalier_sdk::schemars::JsonSchema;
use espalier_sdk::serde::{Deserialize, Serialize};
use espalier_sdk::serde_json::Value;
use espalier_sdk::{Failure, RolloutView, Score, boxed, invalid};
pub use expression::{alone, whole};

/// Which number counts, and how close it has to be.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(crate = "espalier_sdk::serde", default, deny_unknown_fields)]
#[schemars(crate = "espalier_sdk::schemars")]
pub struct Settings {
    /// The field of the task's private part that has the expected number: a number, or text that is one as in `\boxed{...}`: `1/2`, `\frac{1}{2}`, `2 \times 10^5`, `12\%`.
    pub field: String,
    /// Which number of the answer counts: the last one, the only one, or what the last `\boxed{...}` is.
    pub take: Take,
    /// Largest distance from the expected number.
    #[schemars(range(min = 0.0))]
    pub tolerance: f64,
    /// Largest distance as a share of the expected number; the larger of both counts.
    #[schemars(range(min = 0.0))]
    pub relative_tolerance: f64,
}

/// Which number of an answer counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(crate = "espalier_sdk::serde", rename_all = "kebab-case")]
#[schemars(crate = "espalier_sdk::schemars")]
pub enum Take {
    /// The last one.
    Last,
    /// The only one; an answer with several has none.
    Only,
    /// What the last `\boxed{...}` is: a number, `\frac{1}{2}`, `10^6`, `2 \times 10^5`, with units in `\text{}`. Any other expression is none.
    Boxed,
}

impl Default for Settings {
    fn default() -> Self {
        Settings { field: "answer".to_owned(), take: Take::Last, tolerance: 1e-6, relative_tolerance: 0.0 }
    }
}

impl Settings {
    /// The number of an answer that counts.
    pub fn number(&self, text: &str) -> Option<f64> {
        let number = match self.take {
            Take::Last => numbers(text).last().copied(),
            Take::Only => match numbers(text)[..] {
                [one] => Some(one),
                _ => None,
            },
            Take::Boxed => whole(boxed(text)?),
        };
        number.filter(|number| number.is_finite())
    }

    /// Whether a number is close enough.
    pub fn fits(&self, expected: f64, found: f64) -> bool {
        (expected - found).abs() <= self.tolerance.max(self.relative_tolerance * expected.abs())
    }
}

/// The numbers of a text: `-3`, `1,234.5`, `.5`, `2e-3`, `12%` (0.12), `3/4` (0.75).
pub fn numbers(text: &str) -> Vec<f64> {
    let mut found: Vec<f64> = Vec::new();
    let chars: Vec<char> = text.chars().collect();
    let mut at = 0;
    let mut over = false;
    while at < chars.len() {
        let Some((value, end)) = number_at(&chars, at) else {
            over = chars[at] == '/' && at > 0 && chars[at - 1].is_ascii_digit();
            at += 1;
            continue;
        };
        match found.last_mut().filter(|_| over && value != 0.0) {
            Some(last) => *last /= value,
            None => found.push(value),
        }
        over = false;
        at = end;
        if chars.get(at) == Some(&'%')
            && let Some(last) = found.last_mut()
        {
            *last /= 100.0;
        }
    }
    found
}

/// The number that begins here, and where it ends.
fn number_at(chars: &[char], start: usize) -> Option<(f64, usize)> {
    let digit = |at: usize| chars.get(at).is_some_and(char::is_ascii_digit);
    let before = |back: usize| start.checked_sub(back).map(|at| chars[at]);
    // The digits of `x2` and `v1.2` are part of a name.
    let in_name = before(1).is_some_and(|c| c.is_alphanumeric() || c == '_');
    if in_name || (before(1) == Some('.') && before(2).is_some_and(|c| c.is_ascii_digit())) {
        return None;
    }
    let mut at = start;
    let mut text = String::new();
    if matches!(chars[at], '-' | '\u{2212}' | '+') {
        if chars[at] != '+' {
            text.push('-');
        }
        at += 1;
    }
    let whole = at;
    while digit(at)
        || (at > whole && chars.get(at) == Some(&',') && (1..=3).all(|n| digit(at + n)) && !digit(at + 4))
    {
        if chars[at] != ',' {
            text.push(chars[at]);
        }
        at += 1;
    }
    if chars.get(at) == Some(&'.') && digit(at + 1) {
        text.push('.');
        at += 1;
        while digit(at) {
            text.push(chars[at]);
            at += 1;
        }
    }
    if at == whole {
        return None;
    }
    let sign = usize::from(matches!(chars.get(at + 1), Some('-' | '+')));
    if matches!(chars.get(at), Some('e' | 'E')) && digit(at + 1 + sign) {
        text.push('e');
        at += 1;
        if sign == 1 {
            text.push(chars[at]);
            at += 1;
        }
        while digit(at) {
            text.push(chars[at]);
            at += 1;
        }
    }
    Some((text.parse().ok()?, at))
}

/// The number that the task expects, whichever number of the answer counts. Errors: `invalid` where it is not exactly one.
fn expected(field: &str, value: Option<&Value>) -> Result<f64, Failure> {
    let number = match value {
        Some(Value::Number(number)) => number.as_f64(),
        Some(Value::String(text)) => alone(text),
        _ => None,
    };
    number.filter(|number| number.is_finite()).ok_or_else(|| match value {
        Some(value) => invalid(format_args!("private.{field} of the task is {value}, expected one number")),
        None => invalid(format_args!("the task has no number in private.{field}")),
    })
}

/// Scores a rollout. Errors: `invalid` where the task does not say what is expected.
pub fn score(rollout: RolloutView, settings: Settings) -> Result<Vec<Score>, Failure> {
    let field = &settings.field;
    let expected = expected(field, rollout.task.private_field(field).as_ref())?;
    let answer = rollout.answer().unwrap_or_default();
    let found = settings.number(answer);
    let (value, told) = match found {
        Some(found) => (if settings.fits(expected, found) { 1.0 } else { 0.0 }, found.to_string()),
        None => (0.0, format!("no number in {answer:?}")),
    };
    Ok(vec![Score::reward(value).because(format!("expected {expected}, found {told}"))])
}

espalier_sdk::reward!(Settings, score);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_found_as_people_write_them() {
        for (text, expect) in [
            ("The answer is 42.", vec![42.0]),
            ("-3 and +4.50", vec![-3.0, 4.5]),
            ("1,234,567.8 apples", vec![1_234_567.8]),
            ("1, 2, 3", vec![1.0, 2.0, 3.0]),
            ("12% of it, 3/4", vec![0.12, 0.75]),
            ("2e-3 or 1E5", vec![0.002, 100_000.0]),
            (".5", vec![0.5]),
            ("x2 v1.2 none", vec![]),
            ("$18", vec![18.0]),
            ("10 / 0", vec![10.0, 0.0]),
            ("\u{2212}7", vec![-7.0]),
            ("1e", vec![1.0]),
            ("1e5-", vec![100_000.0]),
            ("", vec![]),
        ] {
            assert_eq!(numbers(text), expect, "{text}");
        }
    }

    #[test]
    fn the_number_that_counts_is_the_one_that_was_asked_for() {
        let with = |take| Settings { take, ..Settings::default() };
        assert_eq!(with(Take::Last).number("2 + 3 = 5"), Some(5.0));
        assert_eq!(with(Take::Only).number("2 + 3 = 5"), None);
        assert_eq!(with(Take::Boxed).number(r"so \boxed{\frac{1}{2} = 0.5}, not 3"), Some(0.5));
        assert_eq!(with(Take::Boxed).number("5"), None);
        assert_eq!(with(Take::Last).number("1e400"), None);
        let close = Settings { tolerance: 0.0, relative_tolerance: 0.01, ..Settings::default() };
        assert!(close.fits(200.0, 198.0));
        assert!(!close.fits(200.0, 197.9));
    }

    #[test]
    fn the_expected_text_is_one_number_as_a_whole() {
        for (text, expect) in [
            (r"\frac{1}{2}", Some(0.5)),
            (r"2 \times 10^5", Some(200_000.0)),
            ("10^6", Some(1e6)),
            (r"12\%", Some(0.12)),
            (r"\boxed{1,234}", Some(1234.0)),
            (r"3\sqrt{2}", None),
            ("x^2+1", None),
            ("1 or 2", None),
        ] {
            assert_eq!(expected("answer", Some(&Value::from(text))).ok(), expect, "{text}");
        }
        assert_eq!(expected("answer", Some(&Value::from(3))).ok(), Some(3.0));
        assert!(expected("answer", None).is_err());
        let refused = expected("n", Some(&Value::from("1 or 2"))).unwrap_err();
        assert!(
            format!("{refused:?}").contains("private.n of the task is \\\"1 or 2\\\", expected one number"),
            "{refused:?}"
        );
    }
}

//! The reward `numeric-match`: 1 where the number in the answer is the expected one, within a tolerance, else 0.

use espalier_sdk::schemars::JsonSchema;
use espalier_sdk::serde::{Deserialize, Serialize};
use espalier_sdk::serde_json::Value;
use espalier_sdk::{Failure, RolloutView, Score, invalid};

/// Which number counts, and how close it has to be.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(crate = "espalier_sdk::serde", default, deny_unknown_fields)]
#[schemars(crate = "espalier_sdk::schemars")]
pub struct Settings {
    /// The field of the task's private part that has the expected number: a number, or text with one.
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
    /// What the last `\boxed{...}` is: a number, `\frac{1}{2}`, `2 \times 10^5`, with units in `\text{}`. Any other expression is none.
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

/// What stands in the last `\boxed{...}`, braces inside it matched.
pub fn boxed(text: &str) -> Option<&str> {
    const OPEN: &str = "\\boxed{";
    let rest = &text[text.rfind(OPEN)? + OPEN.len()..];
    let mut depth = 1;
    let end = rest.char_indices().find_map(|(at, c)| {
        depth += match c {
            '{' => 1,
            '}' => -1,
            _ => 0,
        };
        (depth == 0).then_some(at)
    })?;
    Some(&rest[..end])
}

/// The number that an expression of LaTeX is, behind its last `=`: a number, a fraction, a power of ten, with units as text.
/// `None`: it is anything else, such as a product or several numbers.
pub fn whole(expression: &str) -> Option<f64> {
    let behind = expression.rsplit('=').next().unwrap_or_default();
    let mut text = without_units(behind);
    for (from, to) in
        [("{,}", ","), ("\\%", "%"), ("\\dfrac", "\\frac"), ("\\tfrac", "\\frac"), ("\\cdot", "\\times")]
    {
        text = text.replace(from, to);
    }
    for spaces in ["\\,", "\\!", "\\;", "\\ ", "\\$", "$", " "] {
        text = text.replace(spaces, "");
    }
    let (sign, text) = match text.strip_prefix(['-', '\u{2212}']) {
        Some(rest) => (-1.0, rest),
        None => (1.0, text.as_str()),
    };
    if let Some(fraction) = text.strip_prefix("\\frac{") {
        let (over, under) = fraction.strip_suffix('}')?.split_once("}{")?;
        return Some(sign * plain(over)? / plain(under)?);
    }
    if let Some((factor, power)) = text.split_once("\\times10^") {
        let power = power.strip_prefix('{').map_or(Some(power), |power| power.strip_suffix('}'))?;
        return Some(sign * plain(factor)? * 10f64.powi(power.parse().ok()?));
    }
    plain(text).map(|number| sign * number)
}

/// A text that is one number from its beginning to its end.
fn plain(text: &str) -> Option<f64> {
    let chars: Vec<char> = text.chars().collect();
    let (first, end) = chars.first().and_then(|_| number_at(&chars, 0))?;
    match chars.get(end..)? {
        [] => Some(first),
        ['%'] => Some(first / 100.0),
        ['/', rest @ ..] => {
            let (second, end) = rest.first().and_then(|_| number_at(rest, 0))?;
            (end == rest.len() && second != 0.0).then(|| first / second)
        }
        _ => None,
    }
}

/// Without `\text{...}` and `\mathrm{...}`.
fn without_units(text: &str) -> String {
    let mut text = text.to_owned();
    for command in ["\\text{", "\\mathrm{"] {
        while let Some(start) = text.find(command) {
            let end = text[start..].find('}').map_or(text.len(), |end| start + end + 1);
            text.replace_range(start..end, "");
        }
    }
    text
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

/// Scores a rollout. Errors: `invalid` where the task does not say what is expected.
pub fn score(rollout: RolloutView, settings: Settings) -> Result<Vec<Score>, Failure> {
    let field = &settings.field;
    let expected = match rollout.task.private_field(field) {
        Some(Value::Number(number)) => number.as_f64(),
        Some(Value::String(text)) => numbers(&text).last().copied(),
        _ => None,
    };
    let expected = expected.filter(|number| number.is_finite());
    let expected =
        expected.ok_or_else(|| invalid(format_args!("the task has no number in private.{field}")))?;
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
        for (boxed, expect) in [
            (r"\frac{1}{2}", Some(0.5)),
            (r"-\dfrac{3}{4}", Some(-0.75)),
            (r"3\sqrt{2}", None),
            ("1, 2", None),
            ("1{,}000", Some(1000.0)),
            (r"1\,000", Some(1000.0)),
            (r"2 \times 10^5", Some(200_000.0)),
            (r"2 \cdot 10^{-3}", Some(0.002)),
            (r"12\%", Some(0.12)),
            (r"\$18", Some(18.0)),
            (r"5 \text{ cm}", Some(5.0)),
            ("x = 7", Some(7.0)),
            ("3/4", Some(0.75)),
            ("", None),
        ] {
            assert_eq!(whole(boxed), expect, "{boxed}");
        }
        let close = Settings { tolerance: 0.0, relative_tolerance: 0.01, ..Settings::default() };
        assert!(close.fits(200.0, 198.0));
        assert!(!close.fits(200.0, 197.9));
    }
}

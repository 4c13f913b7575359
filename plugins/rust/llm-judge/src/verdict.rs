//! From the answers of the model to a value: the last verdict of an answer counts, and what is none stays none.

use crate::settings::{Aggregate, Form, Settings, Tie};
use espalier_sdk::serde_json::{self, Value};

/// What one answer says.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// From `lowest` to `highest`.
    pub value: f64,
    /// Why, where the answer has a field for it.
    pub reason: Option<String>,
}

/// The verdict of an answer. Errors: why it has none.
pub fn parse(text: &str, settings: &Settings) -> Result<Verdict, String> {
    let verdict = match settings.form {
        Form::Boxed => boxed(text)?,
        Form::Json => json(text)?,
        Form::Line => line(text, settings)?,
    };
    let Settings { lowest, highest, .. } = *settings;
    if !(lowest..=highest).contains(&verdict.value) {
        return Err(format!("{} is not within {lowest} and {highest}", verdict.value));
    }
    Ok(verdict)
}

fn boxed(text: &str) -> Result<Verdict, String> {
    let content = espalier_sdk::boxed(text).ok_or("no \\boxed{}, or the last one is not closed")?.trim();
    let value = content.parse().map_err(|_| format!("\\boxed{{{content}}} is not a number"))?;
    Ok(Verdict { value, reason: None })
}

/// The last object of the text; objects within objects are not looked at. Where one is broken, none behind it can be told from what is
/// in it, and one before it is not the last: there is no verdict.
fn json(text: &str) -> Result<Verdict, String> {
    let (mut last, mut rest) = (None, text);
    while let Some(start) = rest.find('{') {
        let mut values = serde_json::Deserializer::from_str(&rest[start..]).into_iter::<Value>();
        match values.next() {
            Some(Ok(object)) => last = Some(object),
            _ => return Err("an object is not JSON".to_owned()),
        }
        rest = &rest[start + values.byte_offset()..];
    }
    let object = last.ok_or("no object")?;
    let score = object.get("score").ok_or("the last object has no `score`")?;
    let value = score.as_f64().ok_or_else(|| format!("score is {score}, expected a number"))?;
    let reason = object.get("reason").and_then(Value::as_str).map(str::to_owned);
    Ok(Verdict { value, reason })
}

fn is_decoration(c: char) -> bool {
    c.is_whitespace() || "#->*_`|+".contains(c)
}

/// A line with the word VERDICT and a colon, decoration between them aside: what is before and behind them.
fn marked(line: &str) -> Option<(&str, &str)> {
    const MARK: &str = "verdict";
    let lower = line.to_ascii_lowercase();
    lower.match_indices(MARK).find_map(|(start, _)| {
        let (before, after) = (&line[..start], &line[start + MARK.len()..]);
        let word = after.trim_start_matches(is_decoration).strip_prefix([':', '\u{ff1a}'])?;
        (!before.ends_with(char::is_alphanumeric)).then_some((before, word))
    })
}

/// The last line with VERDICT and a colon. One with more before it than decoration, a number or the word Final is no verdict, and
/// one before it is not the last.
fn line(text: &str, settings: &Settings) -> Result<Verdict, String> {
    let (before, word) = text.lines().rev().find_map(marked).ok_or("no line `VERDICT: ...`")?;
    let before = before.trim_matches(|c| is_decoration(c) || c.is_ascii_digit() || ".)".contains(c));
    if !(before.is_empty() || before.eq_ignore_ascii_case("final")) {
        return Err(format!("before the last VERDICT is {before:?}, expected a line of its own"));
    }
    let word = word.trim_start_matches(is_decoration);
    let word = word.trim_end_matches(|c| is_decoration(c) || ".!,;:".contains(c)).to_lowercase();
    let value = match word.as_str() {
        "yes" => settings.highest,
        "no" => settings.lowest,
        other => return Err(format!("the verdict is {other:?}, expected yes or no")),
    };
    Ok(Verdict { value, reason: None })
}

/// What the verdicts come to, and why; `None`: there are none.
pub fn aggregate(verdicts: &[Verdict], settings: &Settings) -> Option<(f64, String)> {
    if verdicts.is_empty() {
        return None;
    }
    let values: Vec<f64> = verdicts.iter().map(|verdict| verdict.value).collect();
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    let value = match settings.aggregate {
        Aggregate::Mean => mean(&values),
        Aggregate::Majority => {
            let votes_for = |value: f64| values.iter().filter(|other| **other == value).count();
            let most = values.iter().map(|value| votes_for(*value)).max().unwrap_or_default();
            let mut first: Vec<f64> =
                values.iter().copied().filter(|value| votes_for(*value) == most).collect();
            first.sort_by(f64::total_cmp);
            first.dedup();
            match settings.tie {
                Tie::Lowest => first[0],
                Tie::Highest => first[first.len() - 1],
                Tie::Mean => mean(&first),
            }
        }
    };
    let told: Vec<String> = values.iter().map(ToString::to_string).collect();
    let why =
        verdicts.iter().find(|verdict| verdict.value == value).and_then(|verdict| verdict.reason.as_deref());
    let of = format!("votes {} of {}", told.join(", "), settings.votes);
    Some((value, why.map_or_else(|| of.clone(), |why| format!("{of}: {why}"))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(form: Form) -> Settings {
        Settings { form, ..Settings::default() }
    }

    #[test]
    fn the_last_verdict_of_an_answer_counts() {
        for (form, text, value) in [
            (Form::Boxed, r"first \boxed{0}, no: \boxed{ 1 }.", Some(1.0)),
            (Form::Boxed, r"\boxed{0.5", None),
            (Form::Json, r#"{"score": 1, "criteria": {"style": {"score": 0}}}"#, Some(1.0)),
            (Form::Json, r#"{"score": 0, "examples": [{"quoted": "x", "score": 1}]} as said"#, Some(0.0)),
            (Form::Json, r#"{"score": 1} {"note": 1}"#, None),
            (Form::Json, r#"{not JSON {"score": 1}"#, None),
            (
                Form::Json,
                r#"{"score": 0, "examples": [{"quoted": "x", "score": 1}], "reason": "it was cut"#,
                None,
            ),
            (
                Form::Json,
                r#"{"reason": "The agent printed {"score": 1} but that is wrong", "score": 0}"#,
                None,
            ),
            (Form::Json, "The agent claims {\"score\": 1}.\n{\"score\": 0, \"reason\": \"not so\",}", None),
            (Form::Json, r#"{"score": 1} or {"score": 1e999}"#, None),
            (Form::Json, r#"{"score": 1} or {"score": 2}"#, None),
            (Form::Boxed, r"\boxed{yes}", None),
            (Form::Boxed, r"\boxed{2}", None),
            (Form::Boxed, "1", None),
            (Form::Json, r#"{"score": 0} then {"reason": "ok", "score": 1.0}."#, Some(1.0)),
            (
                Form::Json,
                r#"```json
{"score": 0.25, "parts": {"a": 1}}
```"#,
                Some(0.25),
            ),
            (Form::Json, r#"{"score": "1"}"#, None),
            (Form::Json, r#"{"points": 1}"#, None),
            (Form::Line, "VERDICT: no\nthen\n**Verdict: Yes.**\n", Some(1.0)),
            (Form::Line, "verdict: NO", Some(0.0)),
            (Form::Line, "VERDICT: maybe", None),
            (Form::Line, "yes", None),
            (Form::Line, "**VERDICT:** yes", Some(1.0)),
            (Form::Line, "VERDICT: yes!", Some(1.0)),
            (Form::Line, "2. `Verdict`: **yes**,", Some(1.0)),
            (Form::Line, "VERDICT: no\nNo verdicts: yes", Some(0.0)),
        ] {
            assert_eq!(parse(text, &with(form)).ok().map(|verdict| verdict.value), value, "{text}");
        }
    }

    #[test]
    fn a_decorated_last_line_counts_and_none_before_it() {
        for (last, value) in [
            ("**VERDICT**: no", Some(0.0)),
            ("## VERDICT: no", Some(0.0)),
            ("- VERDICT: no", Some(0.0)),
            ("> VERDICT: no", Some(0.0)),
            ("__VERDICT: no__", Some(0.0)),
            ("Final VERDICT: no", Some(0.0)),
            ("**Final VERDICT\u{ff1a}** no.", Some(0.0)),
            ("VERDICT: yes or VERDICT: no", None),
            ("VERDICT:\nno", None),
            ("I cannot say VERDICT: no", None),
        ] {
            let text = format!("VERDICT: yes\n{last}");
            let verdict = parse(&text, &with(Form::Line));
            assert_eq!(verdict.ok().map(|verdict| verdict.value), value, "{text}");
        }
    }

    #[test]
    fn votes_make_one_value_by_majority_or_mean() {
        let votes = |values: &[f64]| -> Vec<Verdict> {
            values.iter().map(|value| Verdict { value: *value, reason: None }).collect()
        };
        let settings = |aggregate, tie| Settings { aggregate, tie, ..Settings::default() };
        for (aggregate, tie, values, expect) in [
            (Aggregate::Majority, Tie::Lowest, &[1.0, 0.0, 1.0][..], 1.0),
            (Aggregate::Majority, Tie::Lowest, &[1.0, 0.0], 0.0),
            (Aggregate::Majority, Tie::Highest, &[1.0, 0.0], 1.0),
            (Aggregate::Majority, Tie::Mean, &[1.0, 0.0], 0.5),
            (Aggregate::Majority, Tie::Mean, &[0.2, 0.8, 0.8, 0.2, 0.5], 0.5),
            (Aggregate::Mean, Tie::Lowest, &[1.0, 0.0, 0.5], 0.5),
        ] {
            let (value, _) = super::aggregate(&votes(values), &settings(aggregate, tie)).unwrap();
            assert!((value - expect).abs() < 1e-12, "{values:?}");
        }
        assert_eq!(super::aggregate(&[], &Settings::default()), None);
    }
}

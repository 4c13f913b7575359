//! Lines, and what terminals are told between their letters.

use crate::LINE_BYTES_MAX;
use std::borrow::Cow;

/// The lines of a text without their ends, colours removed; those beyond the bound are left out.
pub(crate) fn lines(text: &str) -> impl Iterator<Item = Cow<'_, str>> {
    raw_lines(text).map(plain)
}

/// The lines as they stand, ends removed (`\n`, `\r\n`, `\r`); those beyond the bound are left out.
pub(crate) fn raw_lines(text: &str) -> impl Iterator<Item = &str> {
    text.split('\n')
        .flat_map(|line| line.strip_suffix('\r').unwrap_or(line).split('\r'))
        .filter(|line| line.len() <= LINE_BYTES_MAX)
}

/// Without the sequences that an escape begins.
pub(crate) fn plain(line: &str) -> Cow<'_, str> {
    if !line.contains('\u{1b}') {
        return Cow::Borrowed(line);
    }
    let mut out = String::with_capacity(line.len());
    let mut letters = line.chars().peekable();
    while let Some(letter) = letters.next() {
        if letter != '\u{1b}' {
            out.push(letter);
            continue;
        }
        if letters.next_if_eq(&'[').is_some() {
            // Parameters, then one letter that says what to do.
            while letters.next_if(|next| ('\u{20}'..='\u{3f}').contains(next)).is_some() {}
            letters.next_if(|next| ('\u{40}'..='\u{7e}').contains(next));
        } else {
            letters.next_if(|next| ('\u{40}'..='\u{5f}').contains(next));
        }
    }
    Cow::Owned(out)
}

/// What stands before and behind the last of these.
pub(crate) fn around_last<'a>(text: &'a str, mark: &str) -> Option<(&'a str, &'a str)> {
    text.rfind(mark).map(|at| (&text[..at], &text[at + mark.len()..]))
}

/// Without a time in brackets at its end, as ` (5 ms)` or ` (0.01s)`.
pub(crate) fn without_time(text: &str) -> &str {
    let Some((name, time)) = text.strip_suffix(')').and_then(|text| around_last(text, " (")) else {
        return text;
    };
    let digits = time.trim_end_matches(['m', 's', 'µ', 'u', 'n']).trim_end();
    let number = !digits.is_empty() && digits.chars().all(|c| c.is_ascii_digit() || c == '.');
    if number && digits.len() < time.len() { name } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_go_and_letters_stay() {
        let check = |line: &str, expect: &str| assert_eq!(plain(line), expect, "{line:?}");
        check("\u{1b}[32mPASSED\u{1b}[0m a", "PASSED a");
        check("\u{1b}[1;31mFAILED\u{1b}[0m\u{1b}[K é", "FAILED é");
        check("\u{1b}Mx\u{1b}", "x");
        check("[32m", "[32m");
    }

    #[test]
    fn a_time_at_the_end_is_no_part_of_a_name() {
        let check = |text: &str, expect: &str| assert_eq!(without_time(text), expect);
        check("adds (5 ms)", "adds");
        check("adds (1.234 s)", "adds");
        check("adds (two) (0.00s)", "adds (two)");
        check("adds (5)", "adds (5)");
        check("adds (ms)", "adds (ms)");
        check("adds", "adds");
    }
}

//! Numbers, durations and text, short enough for a table.

use espalier_core::trajectory::Score;
use std::time::Duration;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// Columns that `text` takes on a terminal.
pub fn width(text: &str) -> usize {
    UnicodeWidthStr::width(text)
}

/// At most `columns` wide; what is cut leaves an ellipsis.
pub fn cut(text: &str, columns: usize) -> String {
    if width(text) <= columns {
        return text.to_owned();
    }
    let mut out = String::new();
    let mut used = 0;
    for c in text.chars() {
        let wide = c.width().unwrap_or(0);
        if used + wide + 1 > columns {
            break;
        }
        used += wide;
        out.push(c);
    }
    if columns > 0 {
        out.push('\u{2026}');
    }
    out
}

/// Breaks at spaces, and inside words only where one is longer than a line. Keeps line breaks and leading spaces.
pub fn wrap(text: &str, columns: usize) -> Vec<String> {
    let columns = columns.max(8);
    let mut lines = Vec::new();
    for paragraph in text.split('\n') {
        let mut line = String::new();
        let mut used = 0;
        for word in paragraph.split_inclusive(' ') {
            let bare = width(word.trim_end());
            if used > 0 && used + bare > columns {
                lines.push(line.trim_end().to_owned());
                line = String::new();
                used = 0;
            }
            for c in word.chars() {
                let wide = c.width().unwrap_or(0);
                if used + wide > columns && c != ' ' {
                    lines.push(std::mem::take(&mut line));
                    used = 0;
                }
                line.push(c);
                used += wide;
            }
        }
        lines.push(line.trim_end().to_owned());
    }
    lines
}

/// Control characters made visible, so that stored text cannot steer the terminal; line breaks and tabs stay.
pub fn harmless(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' => out.push('\n'),
            '\t' => out.push_str("    "),
            '\r' => out.push_str("\\r"),
            c if c.is_control() || is_direction(c) => out.extend(c.escape_unicode()),
            c => out.push(c),
        }
    }
    out
}

/// [`harmless`] text that belongs to one line: line breaks are made visible too.
pub fn one_line(text: &str) -> String {
    harmless(text).replace('\n', "\\n")
}

/// Characters that turn the direction of the text behind them.
fn is_direction(c: char) -> bool {
    matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// `1,234,567`.
pub fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// `820 ms`, `4.2 s`, `3m 05s`, `2h 14m`, `3d 4h`.
pub fn duration(duration: Duration) -> String {
    let ms = duration.as_millis();
    let s = duration.as_secs();
    match s {
        0 => format!("{ms} ms"),
        1..=59 => format!("{:.1} s", duration.as_secs_f64()),
        60..=3599 => format!("{}m {:02}s", s / 60, s % 60),
        3600..=86_399 => format!("{}h {:02}m", s / 3600, s % 3600 / 60),
        _ => format!("{}d {}h", s / 86_400, s % 86_400 / 3600),
    }
}

/// `512 B`, `1.5 KiB`, `12 MiB`.
pub fn bytes(n: u64) -> String {
    let mut value = n as f64;
    for unit in ["B", "KiB", "MiB", "GiB"] {
        if value < 1024.0 {
            let decimals = usize::from(unit != "B" && value < 10.0);
            return format!("{value:.decimals$} {unit}");
        }
        value /= 1024.0;
    }
    format!("{value:.1} TiB")
}

/// `31.2%`; `-` of nothing.
pub fn share(part: u64, whole: u64) -> String {
    if whole == 0 { "-".to_owned() } else { format!("{:.1}%", 100.0 * part as f64 / whole as f64) }
}

/// The value of one score; `removed` where it takes the sample out in place of valuing it.
pub fn score_value(given: &Score) -> String {
    match espalier_core::signal::removal(std::slice::from_ref(given)) {
        Ok(Some(_)) => "removed".to_owned(),
        _ => score(Some(given.value)),
    }
}

/// A score with at most four decimals: `1`, `0.25`, `-0.3333`; `-` where there is none.
pub fn score(value: Option<f64>) -> String {
    let Some(value) = value else { return "-".to_owned() };
    let text = format!("{value:.4}");
    let short = text.trim_end_matches('0').trim_end_matches('.');
    if short == "-0" { "0".to_owned() } else { short.to_owned() }
}

/// `1 task`, `2 tasks`.
pub fn counted(n: u64, word: &str) -> String {
    format!("{} {word}{}", count(n), if n == 1 { "" } else { "s" })
}

/// How long ago, in one unit: `12s`, `5m`, `3h`, `8d`.
pub fn age(ms: u64) -> String {
    match ms / 1000 {
        s @ 0..60 => format!("{s}s"),
        s @ 60..3600 => format!("{}m", s / 60),
        s @ 3600..86_400 => format!("{}h", s / 3600),
        s => format!("{}d", s / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stay_short() {
        assert_eq!([count(0), count(999), count(1_234_567)], ["0", "999", "1,234,567"]);
        let at = |ms| duration(Duration::from_millis(ms));
        assert_eq!([at(820), at(4_200), at(185_000), at(8_040_000)], ["820 ms", "4.2 s", "3m 05s", "2h 14m"]);
        assert_eq!([bytes(512), bytes(1536), bytes(12 << 20)], ["512 B", "1.5 KiB", "12 MiB"]);
        assert_eq!(
            [score(Some(1.0)), score(Some(0.25)), score(Some(-0.00001)), score(None)],
            ["1", "0.25", "0", "-"]
        );
        assert_eq!([share(5, 16), share(0, 0)], ["31.2%", "-"]);
        assert_eq!([age(59_999), age(60_000), age(7_200_000), age(864_000_000)], ["59s", "1m", "2h", "10d"]);
    }

    #[test]
    fn text_fits_its_columns() {
        assert_eq!(cut("abcdef", 6), "abcdef");
        assert_eq!(cut("abcdefg", 6), "abcde\u{2026}");
        assert_eq!(width(&cut("\u{6f22}\u{5b57}\u{6f22}\u{5b57}", 5)), 5);
        assert_eq!(wrap("one two three", 8), ["one two", "three"]);
        assert_eq!(wrap("a\n  b", 8), ["a", "  b"]);
        assert_eq!(wrap("abcdefghijkl", 8), ["abcdefgh", "ijkl"]);
        assert_eq!(harmless("a\u{1b}[31mb\tc\nd"), "a\\u{1b}[31mb    c\nd");
        assert_eq!(one_line("a\u{9b}1m\nb\u{202e}c\u{200f}"), "a\\u{9b}1m\\nb\\u{202e}c\\u{200f}");
    }
}

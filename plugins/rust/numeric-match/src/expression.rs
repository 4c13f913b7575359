//! Expressions of LaTeX that are one number from their beginning to their end.

use espalier_sdk::braced;

const GAPS: [&str; 7] = [",\\!", "{,}", ",", "\\,", "\\ ", "~", " "];
const SPACES: [&str; 9] = [" ", "\n", "\t", "\\,", "\\!", "\\;", "\\:", "\\ ", "~"];
const TIMES: [&str; 4] = ["\\times", "\\cdot", "\u{d7}", "*"];
const FRACTIONS: [&str; 3] = ["\\frac", "\\dfrac", "\\tfrac"];
const CURRENCIES: [&str; 4] = ["\\$", "$", "\u{20ac}", "\u{a3}"];
const DEGREES: [&str; 4] = ["^\\circ", "^{\\circ}", "\\degree", "\u{b0}"];
const TEXTS: [&str; 4] = ["\\text{", "\\mathrm{", "\\textrm{", "\\mbox{"];

/// The number of a text that is one expression, alone or in a `\boxed{...}`.
pub fn alone(text: &str) -> Option<f64> {
    let text = undollared(text.trim());
    let inner = text.strip_prefix("\\boxed{").and_then(braced);
    match inner {
        Some((inner, "")) => whole(inner),
        _ => whole(text),
    }
}

/// The number that an expression is, behind its last `=`: a number, a fraction, a power of ten, with units as text.
/// `None`: it is anything else, such as a product or several numbers.
pub fn whole(expression: &str) -> Option<f64> {
    let text = undollared(expression.trim());
    let mut sides = text.split('=').map(str::trim);
    let last = sides.next_back()?;
    if !sides.enumerate().all(|(place, side)| is_name(side) && place == 0 || is_term(side, place == 0)) {
        return None;
    }
    Reader { rest: last }.all().filter(|number| number.is_finite())
}

/// Without the `$` on both sides of it.
fn undollared(text: &str) -> &str {
    text.strip_prefix('$').and_then(|text| text.strip_suffix('$')).unwrap_or(text)
}

/// `x`, `f(x)`, `x_{1}`, `area`, `\text{Area}`.
fn is_name(side: &str) -> bool {
    let text = TEXTS.iter().find_map(|open| side.strip_prefix(open)).and_then(braced);
    match text {
        Some((text, "")) => is_unit(text),
        _ => {
            let known = |c: char| c.is_alphanumeric() || "_{}()'".contains(c);
            side.starts_with(char::is_alphabetic) && side.chars().all(known)
        }
    }
}

/// A sum or product; with variables of one letter where `variables`.
fn is_term(side: &str, variables: bool) -> bool {
    const COMMANDS: [&str; 14] = [
        "frac", "dfrac", "tfrac", "times", "cdot", "div", "sqrt", "left", "right", "pi", "theta", "alpha",
        "beta", "angle",
    ];
    let mut rest = side;
    while let Some(c) = rest.chars().next() {
        rest = &rest[c.len_utf8()..];
        if c != '\\' && !c.is_alphabetic() {
            if !c.is_ascii_digit() && !"_^+-*/().{} \u{2212}\u{d7}%".contains(c) {
                return false;
            }
            continue;
        }
        let length = rest.find(|c: char| !c.is_alphabetic()).unwrap_or(rest.len());
        let known = match c {
            '\\' => COMMANDS.contains(&&rest[..length]) || (length == 0 && rest.starts_with(['%', ','])),
            _ => variables && length == 0,
        };
        if !known {
            return false;
        }
        rest = &rest[if length == 0 && c == '\\' { 1 } else { length }..];
    }
    !side.is_empty()
}

/// Whether the words beside a number are a unit: they join or deny nothing, and have no number.
fn is_unit(text: &str) -> bool {
    let joins = text
        .split(|c: char| !c.is_alphabetic())
        .any(|word| ["or", "and", "to", "not", "than"].iter().any(|join| word.eq_ignore_ascii_case(join)));
    let mut before = ' ';
    let counts = text.chars().any(|c| {
        let begins = c.is_ascii_digit() && !before.is_alphanumeric() && before != '^';
        if c != '-' && c != '{' || before != '^' {
            before = c;
        }
        begins
    });
    !joins && !counts
}

/// Reads an expression from its beginning on.
struct Reader<'a> {
    rest: &'a str,
}

impl<'a> Reader<'a> {
    fn take(&mut self, any: &[&str]) -> bool {
        let rest = any.iter().find_map(|text| self.rest.strip_prefix(text));
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    fn spaces(&mut self) {
        while self.take(&SPACES) {}
    }

    fn digits(&mut self) -> &'a str {
        let end = self.rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(self.rest.len());
        let (digits, rest) = self.rest.split_at(end);
        self.rest = rest;
        digits
    }

    fn sign(&mut self) -> &'static str {
        self.spaces();
        let minus = self.take(&["-", "\u{2212}"]);
        if !minus {
            self.take(&["+"]);
        }
        self.spaces();
        if minus { "-" } else { "" }
    }

    /// The expression, which has to end where its number and units do.
    fn all(mut self) -> Option<f64> {
        let first = self.take(&CURRENCIES);
        let sign = self.sign();
        if !first && self.take(&CURRENCIES) {
            self.spaces();
        }
        let mut number = self.unsigned()?;
        self.spaces();
        if self.take(&["\\%", "%"]) {
            number /= 100.0;
        }
        self.units()?;
        self.rest.is_empty().then_some(if sign.is_empty() { number } else { -number })
    }

    fn unsigned(&mut self) -> Option<f64> {
        if self.take(&FRACTIONS) {
            let (over, under) = (self.argument()?, self.argument()?);
            return (under != 0.0).then(|| over / under);
        }
        let is_ten = self.rest.strip_prefix("10").is_some_and(|rest| rest.trim_start().starts_with('^'));
        if is_ten && !DEGREES.iter().any(|degrees| self.rest[2..].trim_start().starts_with(degrees)) {
            return self.power_of_ten("1");
        }
        let number = self.number()?;
        let text = number.to_string();
        let behind = self.rest;
        self.spaces();
        if self.take(&TIMES) {
            self.spaces();
            return self.power_of_ten(&text);
        }
        if self.take(&["/"]) {
            self.spaces();
            let under = self.number()?;
            return (under != 0.0).then(|| number / under);
        }
        self.rest = behind;
        Some(number)
    }

    /// `{1.5}`, or one digit: `\frac12`.
    fn argument(&mut self) -> Option<f64> {
        self.spaces();
        if !self.take(&["{"]) {
            let digit = self.rest.chars().next()?.to_digit(10)?;
            self.rest = &self.rest[1..];
            return Some(f64::from(digit));
        }
        let sign = self.sign();
        let number = self.number()?;
        self.spaces();
        self.take(&["}"]).then_some(if sign.is_empty() { number } else { -number })
    }

    fn power_of_ten(&mut self, factor: &str) -> Option<f64> {
        if !self.take(&["10"]) {
            return None;
        }
        self.spaces();
        let power = self.power()?;
        format!("{factor}e{power}").parse().ok()
    }

    /// `^5`, `^{-3}`.
    fn power(&mut self) -> Option<i32> {
        if !self.take(&["^"]) {
            return None;
        }
        self.spaces();
        let in_braces = self.take(&["{"]);
        let power = format!("{}{}", self.sign(), self.digits()).parse().ok()?;
        self.spaces();
        (!in_braces || self.take(&["}"])).then_some(power)
    }

    /// `12`, `1,234.5`, `1\,000`, `.5`, `2e-3`.
    fn number(&mut self) -> Option<f64> {
        let mut text = self.digits().to_owned();
        if (1..=3).contains(&text.len())
            && let Some((gap, group)) = GAPS.into_iter().find_map(|gap| Some((gap, self.group(gap)?)))
        {
            text.push_str(group);
            while let Some(group) = self.group(gap) {
                text.push_str(group);
            }
        }
        if self.take(&["."]) {
            text.push('.');
            text.push_str(self.digits());
            while let Some(group) = self.group("\\,") {
                text.push_str(group);
            }
        }
        let exponent = Reader { rest: self.rest };
        if let Some((power, rest)) = exponent.exponent() {
            text.push('e');
            text.push_str(&power);
            self.rest = rest;
        }
        text.parse().ok()
    }

    /// Three digits behind a gap, and not a fourth.
    fn group(&mut self, gap: &str) -> Option<&'a str> {
        let mut behind = Reader { rest: self.rest.strip_prefix(gap)? };
        let group = behind.digits();
        (group.len() == 3).then(|| {
            self.rest = behind.rest;
            group
        })
    }

    fn exponent(mut self) -> Option<(String, &'a str)> {
        if !self.take(&["e", "E"]) {
            return None;
        }
        let sign = if self.take(&["-"]) { "-" } else { "" };
        if sign.is_empty() {
            self.take(&["+"]);
        }
        let digits = self.digits();
        (!digits.is_empty()).then(|| (format!("{sign}{digits}"), self.rest))
    }

    /// `\text{ cm}^2`, `^\circ`, `\text{m}/\text{s}`. `None`: text that is no unit.
    fn units(&mut self) -> Option<()> {
        let mut joined = false;
        for place in 0.. {
            self.spaces();
            if let Some(rest) = TEXTS.iter().find_map(|open| self.rest.strip_prefix(open)) {
                let (text, behind) = braced(rest)?;
                self.rest = behind;
                if !is_unit(text) {
                    return None;
                }
                self.spaces();
                if self.rest.starts_with('^') {
                    self.power()?;
                }
            } else if !self.take(&DEGREES) && !self.take(&CURRENCIES) {
                if joined {
                    return None;
                }
                joined = place > 0 && self.take(&["/", "\\cdot"]);
                if !joined {
                    break;
                }
                continue;
            }
            joined = false;
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expression_is_one_number_or_none() {
        for (boxed, expect) in [
            (r"\frac{1}{2}", Some(0.5)),
            (r"-\dfrac{3}{4}", Some(-0.75)),
            (r"\frac{-1}{2}", Some(-0.5)),
            (r"\frac12", Some(0.5)),
            (r"\frac{1}{0}", None),
            (r"3\sqrt{2}", None),
            (r"2\pi", None),
            ("x^2+1", None),
            ("2^5", None),
            ("1, 2", None),
            ("1{,}000", Some(1000.0)),
            (r"1\,000", Some(1000.0)),
            (r"1,\!000", Some(1000.0)),
            ("1,234,567.5", Some(1_234_567.5)),
            ("12 345 678", Some(12_345_678.0)),
            ("4 2", None),
            ("1 0000", None),
            ("1000 000", None),
            ("1,000 000", None),
            (r"4\,2", None),
            (r"2 \times 10^5", Some(200_000.0)),
            (r"2 \cdot 10^{-3}", Some(0.002)),
            ("10^5", Some(100_000.0)),
            ("-10^{-2}", Some(-0.01)),
            ("10", Some(10.0)),
            (r"2 \times 3", None),
            ("2e-3", Some(0.002)),
            ("1e400", None),
            (r"12\%", Some(0.12)),
            (r"\$18", Some(18.0)),
            (r"-\$1{,}800", Some(-1800.0)),
            ("$18", Some(18.0)),
            ("$7$", Some(7.0)),
            ("1$2", None),
            (r"5 \text{ cm}", Some(5.0)),
            (r"5 \text{ cm}^2", Some(5.0)),
            (r"5 \text{ cm^2}", Some(5.0)),
            (r"5\ \mathrm{m}/\mathrm{s}^{2}", Some(5.0)),
            (r"90^\circ", Some(90.0)),
            (r"10^{\circ}", Some(10.0)),
            (r"20^\circ\text{C}", Some(20.0)),
            (r"1 \text{ or } 2", None),
            (r"1 \text{ or 2}", None),
            (r"5 \text{ or more}", None),
            (r"5 \text{ cm} /", None),
            ("x = 7", Some(7.0)),
            (r"\text{Area} = 7 \text{ m}", Some(7.0)),
            ("2 + 3 = 5", Some(5.0)),
            ("x = 2 + 3 = 5", Some(5.0)),
            (r"\frac{1}{2} = 0.5", Some(0.5)),
            (r"x=5 \text{ or } x=3", None),
            ("x = 5, y = 3", None),
            ("x = 5 y = 3", None),
            ("x or y = 3", None),
            ("x != 5", None),
            (r"x \neq 5", None),
            ("x <= 5", None),
            ("--5", None),
            ("-+5", None),
            ("+5", Some(5.0)),
            ("\u{2212}5", Some(-5.0)),
            ("3/4", Some(0.75)),
            ("3/0", None),
            (".5", Some(0.5)),
            ("5.", Some(5.0)),
            (".", None),
            ("", None),
        ] {
            assert_eq!(whole(boxed), expect, "{boxed}");
        }
    }

    #[test]
    fn a_text_alone_may_be_boxed() {
        for (text, expect) in [
            (r" \boxed{\frac{1}{2}} ", Some(0.5)),
            (r"$\boxed{10^6}$", Some(1e6)),
            (r"\boxed{1} or \boxed{2}", None),
            (r"it is \boxed{2}", None),
            (r"12\%", Some(0.12)),
        ] {
            assert_eq!(alone(text), expect, "{text}");
        }
    }
}

//! Versions of packages, as far as it takes to put changelogs in order.

use std::cmp::Ordering;
use std::fmt;

/// A version such as `1.2.3`, `2.0rc1` or `1.0.post2`; compared as package indexes do, without epochs and local parts.
#[derive(Clone, Debug)]
pub struct Version {
    text: String,
    /// Without zeros at the end.
    numbers: Vec<u64>,
    /// -4 dev, -3 alpha, -2 beta, -1 candidate, 0 final, 1 post; and its number.
    stage: (i8, u64),
}

impl Version {
    /// `None` where it is none.
    pub fn parse(text: &str) -> Option<Version> {
        let plain = text.strip_prefix(['v', 'V']).unwrap_or(text);
        let fine = |c: char| c.is_ascii_alphanumeric() || ".-_".contains(c);
        if !plain.starts_with(|c: char| c.is_ascii_digit()) || !plain.chars().all(fine) || plain.len() > 64 {
            return None;
        }
        let end = plain.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(plain.len());
        let (release, rest) = plain.split_at(end);
        let release = release.strip_suffix('.').unwrap_or(release);
        let mut numbers = Vec::new();
        for number in release.split('.') {
            numbers.push(number.parse().ok()?);
        }
        while numbers.len() > 1 && numbers.last() == Some(&0) {
            numbers.pop();
        }
        Some(Version { text: plain.to_owned(), numbers, stage: stage(rest)? })
    }
}

fn stage(text: &str) -> Option<(i8, u64)> {
    let text = text.trim_start_matches(['.', '-', '_']).to_ascii_lowercase();
    if text.is_empty() {
        return Some((0, 0));
    }
    let at = text.find(|c: char| !c.is_ascii_lowercase()).unwrap_or(text.len());
    let (word, number) = text.split_at(at);
    let stage = match word {
        "dev" => -4,
        "a" | "alpha" => -3,
        "b" | "beta" => -2,
        "c" | "rc" | "pre" => -1,
        "post" | "rev" | "r" => 1,
        _ => return None,
    };
    let number = number.trim_start_matches(['.', '-', '_']);
    if number.is_empty() { Some((stage, 0)) } else { Some((stage, number.parse().ok()?)) }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Ord for Version {
    fn cmp(&self, other: &Self) -> Ordering {
        self.numbers.cmp(&other.numbers).then(self.stage.cmp(&other.stage))
    }
}

impl PartialOrd for Version {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Version {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Version {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_in_order() {
        let order = [
            "0.5.0.dev1",
            "0.5a1",
            "0.5.0b2",
            "0.5rc1",
            "0.5",
            "0.5.post1",
            "0.5.1",
            "0.10",
            "1.0",
            "v1.2",
            "2024.1.1",
        ];
        let versions: Vec<Version> = order.iter().map(|text| Version::parse(text).unwrap()).collect();
        for pair in versions.windows(2) {
            assert!(pair[0] < pair[1], "{} {}", pair[0], pair[1]);
        }
        assert_eq!(Version::parse("1.2.0"), Version::parse("1.2"));
        assert_eq!(Version::parse("v1.2").unwrap().to_string(), "1.2");
    }

    #[test]
    fn what_is_no_version_is_none() {
        for text in ["", "x", "1..2", "1.2+local", "1.2 3", "1.2foo", "http://1.2"] {
            assert!(Version::parse(text).is_none(), "{text}");
        }
    }
}

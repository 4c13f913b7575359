//! Which addresses are meant: globs and predicates.

use std::fmt;
use std::sync::Arc;

/// Which addresses are meant.
#[derive(Clone)]
pub enum UrlMatch {
    /// `*` stands for any characters but `/`, `**` for any at all, `{a,b}` for one of the alternatives; everything else
    /// for itself. The whole address must match: `**/*.png`.
    Glob(String),
    /// Those for which the function says true.
    Predicate(Arc<dyn Fn(&str) -> bool + Send + Sync>),
}

impl UrlMatch {
    /// Those for which the function says true.
    pub fn predicate(matches: impl Fn(&str) -> bool + Send + Sync + 'static) -> UrlMatch {
        UrlMatch::Predicate(Arc::new(matches))
    }

    /// Whether this address is meant.
    pub fn matches(&self, url: &str) -> bool {
        match self {
            UrlMatch::Glob(glob) => {
                alternatives(glob).iter().any(|glob| matches(glob.as_bytes(), url.as_bytes()))
            }
            UrlMatch::Predicate(predicate) => predicate(url),
        }
    }
}

impl From<&str> for UrlMatch {
    fn from(glob: &str) -> Self {
        UrlMatch::Glob(glob.to_owned())
    }
}

impl From<String> for UrlMatch {
    fn from(glob: String) -> Self {
        UrlMatch::Glob(glob)
    }
}

impl fmt::Debug for UrlMatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            UrlMatch::Glob(glob) => write!(f, "{glob}"),
            UrlMatch::Predicate(_) => f.write_str("a predicate"),
        }
    }
}

/// The globs that a glob with `{a,b}` stands for. Braces do not nest; an unclosed one stands for itself.
fn alternatives(glob: &str) -> Vec<String> {
    let Some((before, rest)) = glob.split_once('{') else { return vec![glob.to_owned()] };
    let Some((inside, after)) = rest.split_once('}') else { return vec![glob.to_owned()] };
    let ends = alternatives(after);
    inside.split(',').flat_map(|one| ends.iter().map(move |end| format!("{before}{one}{end}"))).collect()
}

/// Two places to come back to, one for the last `*` and one for the last `**`, keep this linear in practice.
fn matches(glob: &[u8], text: &[u8]) -> bool {
    let (mut g, mut t) = (0, 0);
    let mut single: Option<(usize, usize)> = None;
    let mut double: Option<(usize, usize)> = None;
    loop {
        if glob[g..].starts_with(b"**") {
            g += 2;
            double = Some((g, t));
            single = None;
            continue;
        }
        if glob.get(g) == Some(&b'*') {
            g += 1;
            single = Some((g, t));
            continue;
        }
        match (glob.get(g), text.get(t)) {
            (None, None) => return true,
            (Some(expected), Some(found)) if expected == found => {
                g += 1;
                t += 1;
                continue;
            }
            _ => {}
        }
        if let Some((after, at)) = single
            && text.get(at).is_some_and(|byte| *byte != b'/')
        {
            single = Some((after, at + 1));
            (g, t) = (after, at + 1);
        } else if let Some((after, at)) = double
            && at < text.len()
        {
            single = None;
            double = Some((after, at + 1));
            (g, t) = (after, at + 1);
        } else {
            return false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn globs_match_whole_addresses() {
        let cases = [
            ("**", "http://a/b", true),
            ("**/*.png", "http://a/b/c.png", true),
            ("**/*.png", "http://a/b/c.png?x", false),
            ("http://a/*", "http://a/b", true),
            ("http://a/*", "http://a/b/c", false),
            ("http://a/*/c", "http://a/b/c", true),
            ("**/api/**", "http://a/api/x/y", true),
            ("**/*.{png,jpg}", "http://a/x.jpg", true),
            ("**/*.{png,jpg}", "http://a/x.gif", false),
            ("http://a/?q=1", "http://a/?q=1", true),
            ("*", "abc", true),
            ("a{b", "a{b", true),
            ("", "", true),
            ("", "x", false),
            ("**x**y", "axbyy", true),
        ];
        for (glob, url, expected) in cases {
            assert_eq!(UrlMatch::from(glob).matches(url), expected, "{glob} on {url}");
        }
        assert!(UrlMatch::predicate(|url| url.ends_with('z')).matches("xyz"));
    }
}

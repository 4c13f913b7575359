//! Addresses that an agent may open: http, https and `about:blank`, by whatever way.

use super::step::{Failure, FailureCode};

/// The addresses that are open to agents, for messages.
const OPEN: &str = "http, https and about:blank";

/// How Chromium tells that a page's attempt to leave for another kind of address was refused.
const REFUSALS: [&str; 2] =
    ["Not allowed to load local resource: ", "Not allowed to navigate top frame to data URL: "];

/// Schemes that are never the name of a host, though only digits stand behind them: `javascript:1`.
const SCHEMES: [&str; 7] = ["blob", "chrome", "data", "file", "javascript", "vbscript", "view-source"];

/// The address of a call, complete: `example.com` becomes `https://example.com`.
pub(super) fn allowed(text: &str) -> Result<String, Failure> {
    // As Chromium reads addresses: white space around them, tabs and line breaks in them do not count.
    let trimmed = text.trim_matches(|c: char| c <= ' ');
    let url: String = trimmed.chars().filter(|c| !matches!(c, '\t' | '\n' | '\r')).collect();
    if url.is_empty() {
        let text = "invalid goto_url.url \"\": expected an address such as https://example.com".to_owned();
        return Err(Failure::new(FailureCode::InvalidArguments, text));
    }
    let Some(scheme) = scheme_of(&url) else { return Ok(format!("https://{url}")) };
    let rest = &url[scheme.len() + 1..];
    match scheme.as_str() {
        "http" | "https" if rest.len() > 2 && rest.starts_with("//") => Ok(url),
        "http" | "https" => {
            let text =
                format!("invalid goto_url.url {url:?}: expected an address such as https://example.com");
            Err(Failure::new(FailureCode::InvalidArguments, text))
        }
        "about" if rest.eq_ignore_ascii_case("blank") => Ok("about:blank".to_owned()),
        _ => Err(blocked(&url)),
    }
}

/// Whether a tab may show this address. Empty: nothing was opened in it yet.
pub(super) fn may_show(url: &str) -> bool {
    let blank = || url.split(['?', '#']).next() == Some("about:blank") && !url.ends_with("#blocked");
    url.is_empty() || matches!(scheme_of(url).as_deref(), Some("http" | "https")) || blank()
}

/// The failure that tells of a blocked address.
pub(super) fn blocked(url: &str) -> Failure {
    let url = clip(url);
    Failure::new(FailureCode::BlockedUrl, format!("{url} is blocked: only {OPEN} may be opened"))
}

/// The address in a message of Chromium that it refused to go there.
pub(super) fn refused(message: &str) -> Option<&str> {
    REFUSALS.iter().find_map(|refusal| message.strip_prefix(refusal))
}

/// Whether it is an address by itself, not one below another.
pub(super) fn has_scheme(url: &str) -> bool {
    scheme_of(url).is_some()
}

/// Long addresses are cut in messages; those of `data:` are as long as their content.
pub(super) fn clip(url: &str) -> String {
    match url.char_indices().nth(200) {
        Some((end, _)) => format!("{}…", &url[..end]),
        None => url.to_owned(),
    }
}

/// In lower case; `None` for `example.com:8080/path` and the like.
fn scheme_of(url: &str) -> Option<String> {
    let (scheme, rest) = url.split_once(':')?;
    let mut bytes = scheme.bytes();
    let is_scheme = bytes.next()?.is_ascii_alphabetic()
        && bytes.all(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte));
    let port: &str = rest.split(['/', '?', '#']).next().unwrap_or_default();
    let is_port = !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
    let scheme = scheme.to_ascii_lowercase();
    (is_scheme && (!is_port || SCHEMES.contains(&scheme.as_str()))).then_some(scheme)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_addresses_of_the_web_are_allowed() {
        let rows = [
            ("https://example.com/a?b#c", Ok("https://example.com/a?b#c")),
            (" HTTP://Example.com\n", Ok("HTTP://Example.com")),
            ("example.com", Ok("https://example.com")),
            ("localhost:8080/x", Ok("https://localhost:8080/x")),
            ("about:blank", Ok("about:blank")),
            ("javascript:1", Err(FailureCode::BlockedUrl)),
            ("DATA:1", Err(FailureCode::BlockedUrl)),
            ("About:Blank", Ok("about:blank")),
            ("", Err(FailureCode::InvalidArguments)),
            ("http:", Err(FailureCode::InvalidArguments)),
            ("https://", Err(FailureCode::InvalidArguments)),
            ("file:///etc/passwd", Err(FailureCode::BlockedUrl)),
            ("FILE:///etc/passwd", Err(FailureCode::BlockedUrl)),
            ("\u{1}java\nscript:alert(1)", Err(FailureCode::BlockedUrl)),
            ("data:text/html,x", Err(FailureCode::BlockedUrl)),
            ("view-source:https://example.com", Err(FailureCode::BlockedUrl)),
            ("chrome://version", Err(FailureCode::BlockedUrl)),
            ("about:version", Err(FailureCode::BlockedUrl)),
            ("blob:https://example.com/1", Err(FailureCode::BlockedUrl)),
        ];
        for (text, expected) in rows {
            let found = allowed(text).map_err(|failure| failure.code);
            assert_eq!(found, expected.map(str::to_owned), "{text:?}");
        }
    }

    #[test]
    fn tabs_show_addresses_of_the_web_only() {
        for url in ["", "about:blank", "about:blank#top", "http://a", "https://a"] {
            assert!(may_show(url), "{url}");
        }
        for url in [
            "about:blank#blocked",
            "about:srcdoc",
            "blob:http://a/1",
            "data:,x",
            "file:///",
            "chrome://version",
        ] {
            assert!(!may_show(url), "{url}");
        }
        assert_eq!(refused("Not allowed to load local resource: file:///a"), Some("file:///a"));
    }
}

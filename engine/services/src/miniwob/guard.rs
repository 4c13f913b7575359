//! Which scripts of a page run: those that its file has. What the page makes of text that is typed is markup without any.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest, Sha256};
use std::borrow::Cow;
use std::collections::BTreeSet;

/// What holds beside the scripts.
const REST: &str = "object-src 'none'; base-uri 'none'";

/// A page as it is sent.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Page {
    pub(crate) text: String,
    /// Its `Content-Security-Policy`.
    pub(crate) policy: String,
}

/// Gives each script element of a file the nonce, letters and digits, by which the policy knows it. Handlers in its markup, and in that of
/// the scripts of its site, are known by their digests. `eval` is let through for a site, whose libraries are older, and for what cannot
/// do without.
pub(crate) fn guard(file: &str, site: &[Cow<'_, str>], nonce: &str) -> Page {
    let mut text = String::with_capacity(file.len() + 1024);
    let mut rest = file;
    while let Some(at) = find_script(rest) {
        let (before, after) = rest.split_at(at + SCRIPT.len());
        text.push_str(before);
        // Without quotes: a script may hold such a tag in a text of its own.
        text.push_str(" nonce=");
        text.push_str(nonce);
        rest = after;
    }
    text.push_str(rest);
    let markup = site.iter().map(Cow::as_ref).chain([file]).flat_map(handlers);
    let digests: BTreeSet<String> = markup.map(|code| digest(&code)).collect();
    let handlers = match digests.is_empty() {
        true => "'none'".to_owned(),
        false => format!("'unsafe-hashes' {}", digests.into_iter().collect::<Vec<_>>().join(" ")),
    };
    let eval = if !site.is_empty() || file.contains(EVALUATES) { " 'unsafe-eval'" } else { "" };
    let policy = format!("script-src 'nonce-{nonce}'{eval}; script-src-attr {handlers}; {REST}");
    Page { text, policy }
}

/// The library of a page that evaluates texts: its own settings.
const EVALUATES: &str = "/jscolor.min.js\"";
const SCRIPT: &str = "<script";

/// Where the next script element begins.
fn find_script(text: &str) -> Option<usize> {
    let ends =
        |byte: Option<&u8>| byte.is_some_and(|byte| byte.is_ascii_whitespace() || b"/>".contains(byte));
    let is_script = |at: &usize| {
        let tag = text.as_bytes().get(*at..*at + SCRIPT.len());
        tag.is_some_and(|tag| tag.eq_ignore_ascii_case(SCRIPT.as_bytes()))
            && ends(text.as_bytes().get(*at + SCRIPT.len()))
    };
    text.match_indices('<').map(|(at, _)| at).find(is_script)
}

/// The code of attributes such as `onclick="..."`, and of those that a script sets: `("onclick","...")`.
fn handlers(text: &str) -> impl Iterator<Item = String> {
    text.match_indices("on").filter_map(|(at, _)| {
        let (before, text) = text.split_at(at);
        let name = text.bytes().take_while(u8::is_ascii_lowercase).count();
        let rest = &text[name..];
        let code = match before.as_bytes().last()? {
            b' ' => rest.strip_prefix("=\""),
            b'"' => rest.strip_prefix("\",\""),
            _ => None,
        };
        let code = code?.split_once('"')?.0;
        (name > 2 && !code.is_empty()).then(|| decoded(code))
    })
}

/// Without the entities that stand in code.
fn decoded(text: &str) -> String {
    let plain = [("&quot;", "\""), ("&#39;", "'"), ("&lt;", "<"), ("&gt;", ">"), ("&amp;", "&")];
    plain.iter().fold(text.to_owned(), |text, (entity, character)| text.replace(entity, character))
}

fn digest(code: &str) -> String {
    format!("'sha256-{}'", STANDARD.encode(Sha256::digest(code.as_bytes())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_of_the_file_have_the_nonce_and_no_others_run() {
        let page = guard("<script src=a.js></script><SCRIPT>x('<scripts>')</SCRIPT><p>", &[], "n0");
        assert_eq!(
            page.text,
            "<script nonce=n0 src=a.js></script><SCRIPT nonce=n0>x('<scripts>')</SCRIPT><p>"
        );
        assert_eq!(
            page.policy,
            "script-src 'nonce-n0'; script-src-attr 'none'; object-src 'none'; base-uri 'none'"
        );
        let page = guard("<script src=\"../core/jscolor.min.js\"></script>", &[], "n0");
        assert!(page.policy.starts_with("script-src 'nonce-n0' 'unsafe-eval'; "), "{}", page.policy);
    }

    #[test]
    fn handlers_of_a_site_are_known_by_their_digests() {
        let file = r#"<a onclick="f(&quot;a&quot;)" onclick=""><b onclick="f(&quot;a&quot;)">"#;
        let scripts = [Cow::Borrowed(r#"a.setAttribute("onclick","return false"); on = "x""#)];
        let page = guard(file, &scripts, "n0");
        // echo -n 'return false' | openssl dgst -sha256 -binary | base64
        let expect = "script-src 'nonce-n0' 'unsafe-eval'; script-src-attr 'unsafe-hashes' 'sha256-3H/BoyVyxAgdH8fJWml5auxGN9IaBn3BFYPArFwQ2XA=' 'sha256-GZIcz60Uwd6wT3vaYke/atSr53TehbYAPepOa3d03Vw='; ";
        assert!(page.policy.starts_with(expect), "{}", page.policy);
    }
}

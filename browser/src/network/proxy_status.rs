//! What a proxy says of an answer that is its own: the header `Proxy-Status` of RFC 9209. Pure.

/// Longest text that is told.
const CHARACTERS_MAX: usize = 300;

/// The `details`, or else the `error`, of the first proxy that has an error.
pub(super) fn error(value: &str) -> Option<String> {
    split(value, &[',', '\n']).into_iter().find_map(|proxy| {
        let parameters = split(proxy, &[';']);
        let named = |name: &str| {
            let value = |part: &&str| part.trim().strip_prefix(name)?.strip_prefix('=').map(plain);
            parameters.iter().skip(1).find_map(value)
        };
        let error = named("error")?;
        let told = named("details").filter(|details| !details.is_empty()).unwrap_or(error);
        Some(told.chars().take(CHARACTERS_MAX).collect())
    })
}

/// The parts between separators, of which those within quotes are none.
fn split<'a>(text: &'a str, separators: &[char]) -> Vec<&'a str> {
    let (mut parts, mut start) = (Vec::new(), 0);
    let (mut is_quoted, mut is_escaped) = (false, false);
    for (at, letter) in text.char_indices() {
        match letter {
            _ if is_escaped => is_escaped = false,
            '\\' if is_quoted => is_escaped = true,
            '"' => is_quoted = !is_quoted,
            _ if !is_quoted && separators.contains(&letter) => {
                parts.push(&text[start..at]);
                start = at + letter.len_utf8();
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts
}

/// A token as it is, a string without its quotes.
fn plain(value: &str) -> String {
    let value = value.trim();
    let Some(inner) = value.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')) else {
        return value.to_owned();
    };
    let mut letters = inner.chars();
    let mut text = String::new();
    while let Some(letter) = letters.next() {
        text.extend(if letter == '\\' { letters.next() } else { Some(letter) });
    }
    text
}

#[cfg(test)]
mod tests {
    use super::error;

    #[test]
    fn the_first_proxy_with_an_error_is_heard() {
        let rows = [
            (
                "espalier; error=http_request_denied; details=\"a.org:80 is not allowed\"",
                Some("a.org:80 is not allowed"),
            ),
            ("espalier;error=dns_error", Some("dns_error")),
            ("first; received-status=200, second; error=\"x\"; details=\"\"", Some("x")),
            ("a; details=\"; error=no\"", None),
            ("a; details=\"said \\\"no\\\", then; error=x\"; error=y", Some("said \"no\", then; error=x")),
            ("a, b", None),
            ("", None),
            ("\"; error=z", None),
        ];
        for (value, wanted) in rows {
            assert_eq!(error(value).as_deref(), wanted, "{value}");
        }
    }
}

//! Names of keys as models write them, and as the keyboard knows them.

use crate::keys::chord;

/// Names that are taken for others, in lower case without spaces, `_` and `-`.
const ALIASES: [(&str, &str); 20] = [
    ("ctrl", "Control"),
    ("return", "Enter"),
    ("esc", "Escape"),
    ("del", "Delete"),
    ("ins", "Insert"),
    ("cmd", "Meta"),
    ("command", "Meta"),
    ("super", "Meta"),
    ("win", "Meta"),
    ("windows", "Meta"),
    ("option", "Alt"),
    ("left", "ArrowLeft"),
    ("right", "ArrowRight"),
    ("up", "ArrowUp"),
    ("down", "ArrowDown"),
    ("pgup", "PageUp"),
    ("pgdn", "PageDown"),
    ("pgdown", "PageDown"),
    ("spacebar", "Space"),
    ("plus", "+"),
];

/// Names that the tools document, and a few more.
const NAMES: [&str; 34] = [
    "Alt",
    "Control",
    "Meta",
    "Shift",
    "Enter",
    "Tab",
    "Space",
    "Backspace",
    "Delete",
    "Insert",
    "Escape",
    "ArrowUp",
    "ArrowDown",
    "ArrowLeft",
    "ArrowRight",
    "Home",
    "End",
    "PageUp",
    "PageDown",
    "CapsLock",
    "ContextMenu",
    "Pause",
    "F1",
    "F2",
    "F3",
    "F4",
    "F5",
    "F6",
    "F7",
    "F8",
    "F9",
    "F10",
    "F11",
    "F12",
];

/// The key, or keys held together (`Control+a`), as the keyboard knows them; `None` where there is no such key. A single
/// character of any script is one.
pub(super) fn canonical_key(text: &str) -> Option<String> {
    if text.chars().count() == 1 {
        return Some(if text == "\n" { "Enter".to_owned() } else { text.to_owned() });
    }
    let text = text.trim();
    if text.len() > 1 && text.contains('+') {
        let (held, last) = match text.strip_suffix("++") {
            Some(held) => (held, "+"),
            None => text.rsplit_once('+')?,
        };
        let mut keys: Vec<String> = held.split('+').map(one).collect::<Option<_>>()?;
        keys.push(one(last)?);
        let joined = keys.join("+");
        return chord(&joined).is_ok().then_some(joined);
    }
    one(text)
}

fn one(name: &str) -> Option<String> {
    let name = name.trim();
    if name.chars().count() == 1 {
        return Some(name.to_owned());
    }
    let plain: String =
        name.chars().filter(|c| !matches!(c, ' ' | '_' | '-')).collect::<String>().to_lowercase();
    let alias = ALIASES.iter().find(|(alias, _)| *alias == plain).map(|(_, key)| *key);
    let known = NAMES.iter().find(|known| known.to_lowercase() == plain).copied();
    alias.or(known).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_taken_as_models_write_them() {
        let rows = [
            ("Enter", Some("Enter")),
            ("ENTER", Some("Enter")),
            ("Return", Some("Enter")),
            ("\n", Some("Enter")),
            ("Ctrl", Some("Control")),
            ("arrow_down", Some("ArrowDown")),
            ("Page Up", Some("PageUp")),
            ("f5", Some("F5")),
            ("a", Some("a")),
            ("A", Some("A")),
            ("ß", Some("ß")),
            (" ", Some(" ")),
            ("ctrl+a", Some("Control+a")),
            ("Ctrl+Shift+T", Some("Control+Shift+T")),
            ("control++", Some("Control++")),
            ("+", Some("+")),
            ("hello", None),
            ("", None),
            ("ctrl+hello", None),
            ("F13", None),
        ];
        for (written, key) in rows {
            assert_eq!(canonical_key(written).as_deref(), key, "{written:?}");
        }
    }
}

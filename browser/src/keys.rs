//! The keys of a US keyboard: names, codes and what they type.

use crate::error::{BrowserError, Result};

/// A key of the keyboard: `code` is its place, `key` what it means, with and without Shift.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    pub(crate) code: &'static str,
    pub(crate) key: &'static str,
    pub(crate) shifted: &'static str,
    pub(crate) key_code: i64,
    /// 0, or 1 left, 2 right, 3 keypad.
    pub(crate) location: i64,
}

/// What a key press means at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stroke {
    pub(crate) key: Key,
    pub(crate) shift: bool,
}

pub(crate) const ALT: i64 = 1;
pub(crate) const CONTROL: i64 = 2;
pub(crate) const META: i64 = 4;
pub(crate) const SHIFT: i64 = 8;

/// `location` of the keys there.
const NUMBER_PAD: i64 = 3;

const fn k(code: &'static str, key: &'static str, shifted: &'static str, key_code: i64) -> Key {
    Key { code, key, shifted, key_code, location: 0 }
}

const fn named(code: &'static str, key_code: i64) -> Key {
    k(code, code, code, key_code)
}

const fn at(location: i64, code: &'static str, key: &'static str, key_code: i64) -> Key {
    Key { code, key, shifted: key, key_code, location }
}

pub(crate) const KEYS: [Key; 118] = [
    k("KeyA", "a", "A", 65),
    k("KeyB", "b", "B", 66),
    k("KeyC", "c", "C", 67),
    k("KeyD", "d", "D", 68),
    k("KeyE", "e", "E", 69),
    k("KeyF", "f", "F", 70),
    k("KeyG", "g", "G", 71),
    k("KeyH", "h", "H", 72),
    k("KeyI", "i", "I", 73),
    k("KeyJ", "j", "J", 74),
    k("KeyK", "k", "K", 75),
    k("KeyL", "l", "L", 76),
    k("KeyM", "m", "M", 77),
    k("KeyN", "n", "N", 78),
    k("KeyO", "o", "O", 79),
    k("KeyP", "p", "P", 80),
    k("KeyQ", "q", "Q", 81),
    k("KeyR", "r", "R", 82),
    k("KeyS", "s", "S", 83),
    k("KeyT", "t", "T", 84),
    k("KeyU", "u", "U", 85),
    k("KeyV", "v", "V", 86),
    k("KeyW", "w", "W", 87),
    k("KeyX", "x", "X", 88),
    k("KeyY", "y", "Y", 89),
    k("KeyZ", "z", "Z", 90),
    k("Digit0", "0", ")", 48),
    k("Digit1", "1", "!", 49),
    k("Digit2", "2", "@", 50),
    k("Digit3", "3", "#", 51),
    k("Digit4", "4", "$", 52),
    k("Digit5", "5", "%", 53),
    k("Digit6", "6", "^", 54),
    k("Digit7", "7", "&", 55),
    k("Digit8", "8", "*", 56),
    k("Digit9", "9", "(", 57),
    k("Backquote", "`", "~", 192),
    k("Minus", "-", "_", 189),
    k("Equal", "=", "+", 187),
    k("BracketLeft", "[", "{", 219),
    k("BracketRight", "]", "}", 221),
    k("Backslash", "\\", "|", 220),
    k("Semicolon", ";", ":", 186),
    k("Quote", "'", "\"", 222),
    k("Comma", ",", "<", 188),
    k("Period", ".", ">", 190),
    k("Slash", "/", "?", 191),
    k("Space", " ", " ", 32),
    named("Enter", 13),
    named("Tab", 9),
    named("Backspace", 8),
    named("Escape", 27),
    named("Delete", 46),
    named("Insert", 45),
    named("Home", 36),
    named("End", 35),
    named("PageUp", 33),
    named("PageDown", 34),
    named("ArrowLeft", 37),
    named("ArrowUp", 38),
    named("ArrowRight", 39),
    named("ArrowDown", 40),
    named("CapsLock", 20),
    named("NumLock", 144),
    named("ScrollLock", 145),
    named("Pause", 19),
    named("PrintScreen", 44),
    named("ContextMenu", 93),
    named("F1", 112),
    named("F2", 113),
    named("F3", 114),
    named("F4", 115),
    named("F5", 116),
    named("F6", 117),
    named("F7", 118),
    named("F8", 119),
    named("F9", 120),
    named("F10", 121),
    named("F11", 122),
    named("F12", 123),
    at(1, "ShiftLeft", "Shift", 16),
    at(1, "ControlLeft", "Control", 17),
    at(1, "AltLeft", "Alt", 18),
    at(1, "MetaLeft", "Meta", 91),
    at(2, "ShiftRight", "Shift", 16),
    at(2, "ControlRight", "Control", 17),
    at(2, "AltRight", "Alt", 18),
    at(2, "MetaRight", "Meta", 92),
    at(3, "Numpad0", "0", 96),
    at(3, "Numpad1", "1", 97),
    at(3, "Numpad2", "2", 98),
    at(3, "Numpad3", "3", 99),
    at(3, "Numpad4", "4", 100),
    at(3, "Numpad5", "5", 101),
    at(3, "Numpad6", "6", 102),
    at(3, "Numpad7", "7", 103),
    at(3, "Numpad8", "8", 104),
    at(3, "Numpad9", "9", 105),
    at(3, "NumpadMultiply", "*", 106),
    at(3, "NumpadAdd", "+", 107),
    at(3, "NumpadSubtract", "-", 109),
    at(3, "NumpadDecimal", ".", 110),
    at(3, "NumpadDivide", "/", 111),
    at(3, "NumpadEnter", "Enter", 13),
    named("AudioVolumeMute", 173),
    named("AudioVolumeDown", 174),
    named("AudioVolumeUp", 175),
    named("MediaTrackNext", 176),
    named("MediaTrackPrevious", 177),
    named("MediaStop", 178),
    named("MediaPlayPause", 179),
    named("BrowserBack", 166),
    named("BrowserForward", 167),
    named("BrowserRefresh", 168),
    named("BrowserStop", 169),
    named("BrowserSearch", 170),
    named("BrowserFavorites", 171),
    named("BrowserHome", 172),
];

impl Stroke {
    /// A key by its code (`KeyA`, `ArrowLeft`), by what it means (`Enter`, `Shift`), or by the character it types (`a`,
    /// `A`, `%`).
    pub(crate) fn named(name: &str) -> Result<Stroke> {
        let name = match name {
            "Esc" => "Escape",
            "Ctrl" => "Control",
            "Return" | "\n" | "\r" => "Enter",
            "Cmd" | "Command" | "Super" => "Meta",
            "Option" => "Alt",
            "Left" => "ArrowLeft",
            "Right" => "ArrowRight",
            "Up" => "ArrowUp",
            "Down" => "ArrowDown",
            other => other,
        };
        let plain = KEYS.iter().find(|key| key.key == name || key.code == name);
        let shifted = || KEYS.iter().find(|key| key.shifted == name);
        // `+` is Shift and `=` rather than the key of the number pad.
        let stroke = match plain {
            Some(key) if key.location != NUMBER_PAD || key.code == name => {
                Some(Stroke { key: *key, shift: false })
            }
            _ => shifted().map(|key| Stroke { key: *key, shift: true }),
        };
        stroke.ok_or_else(|| {
            BrowserError::invalid(format!("key {name:?}: expected a character or a name such as Enter"))
        })
    }

    /// The key that types this character. `None`: no key of this keyboard does.
    pub(crate) fn typing(character: char) -> Option<Stroke> {
        let mut bytes = [0; 4];
        match character {
            '\n' | '\r' => Stroke::named("Enter").ok(),
            '\t' => Stroke::named("Tab").ok(),
            _ => Stroke::named(character.encode_utf8(&mut bytes)).ok(),
        }
    }

    /// What the key means, `A` or `a`.
    pub(crate) fn meaning(&self, shift_held: bool) -> &'static str {
        if self.shift || shift_held { self.key.shifted } else { self.key.key }
    }

    /// What it types without modifiers but Shift; empty for keys that type nothing.
    pub(crate) fn text(&self, shift_held: bool) -> &'static str {
        let meaning = self.meaning(shift_held);
        match meaning {
            "Enter" => "\r",
            _ if meaning.chars().count() == 1 => meaning,
            _ => "",
        }
    }

    /// The bit of a modifier key.
    pub(crate) fn modifier(&self) -> Option<i64> {
        match self.key.key {
            "Shift" => Some(SHIFT),
            "Control" => Some(CONTROL),
            "Alt" => Some(ALT),
            "Meta" => Some(META),
            _ => None,
        }
    }
}

/// The keys of a chord such as `Control+Shift+A`, in the order in which they go down. `+` itself is a key: `Control++`.
pub(crate) fn chord(text: &str) -> Result<Vec<Stroke>> {
    let mut names = Vec::new();
    let mut name = String::new();
    for character in text.chars() {
        if character == '+' && !name.is_empty() {
            names.push(std::mem::take(&mut name));
        } else {
            name.push(character);
        }
    }
    if name.is_empty() {
        return Err(BrowserError::invalid(format!(
            "keys {text:?}: expected such as Enter or Control+Shift+A"
        )));
    }
    names.push(name);
    names.iter().map(|name| Stroke::named(name)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(text: &str) -> Vec<&'static str> {
        chord(text).expect("a chord").iter().map(|stroke| stroke.key.code).collect()
    }

    #[test]
    fn chords_are_read() {
        assert_eq!(keys("Control+Shift+A"), ["ControlLeft", "ShiftLeft", "KeyA"]);
        assert_eq!(keys("Control++"), ["ControlLeft", "Equal"]);
        assert_eq!(keys("+"), ["Equal"]);
        assert_eq!(keys("Ctrl+c"), ["ControlLeft", "KeyC"]);
        assert_eq!(keys("Esc"), ["Escape"]);
        for wrong in ["", "Control+", "Nonsense", "Control+Nonsense", "ä"] {
            assert!(matches!(chord(wrong), Err(BrowserError::Invalid { .. })), "{wrong:?}");
        }
    }

    #[test]
    fn characters_are_typed_by_their_keys() {
        let typed = |character: char| Stroke::typing(character).map(|stroke| (stroke.key.code, stroke.shift));
        assert_eq!(typed('a'), Some(("KeyA", false)));
        assert_eq!(typed('A'), Some(("KeyA", true)));
        assert_eq!(typed('%'), Some(("Digit5", true)));
        assert_eq!(typed('\n'), Some(("Enter", false)));
        assert_eq!(typed('ß'), None);
        let enter = Stroke::named("Enter").expect("a key");
        assert_eq!((enter.text(false), enter.meaning(false)), ("\r", "Enter"));
        assert_eq!(Stroke::named("F5").expect("a key").text(false), "");
    }
}

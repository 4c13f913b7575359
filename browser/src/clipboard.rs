//! The clipboard of a context. Chromium has one for all contexts of a process, so pages are kept from reading that: its permission is
//! never given, and keys that paste are sent without the number by which Chromium knows what they do. What pages and keys copy is kept
//! here instead, and given to pages of the same context.

use crate::deadline::Deadline;
use crate::error::Result;
use crate::frame::Frame;
use crate::keys::{CONTROL, SHIFT, Stroke};
use crate::page::Page;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// The name of the channel of its pages, while they start.
pub(crate) const NAME: &str = "__espalier_clipboard__";
/// Runs in every document; takes the name.
const PAGE: &str = include_str!("clipboard/page.js");
/// Text and markup together.
const BYTES_MAX: usize = 1 << 20;
/// Frames within frames that are looked through for the focus.
const DEPTH_MAX: usize = 32;

/// Runs first in every document.
pub(crate) fn init_script() -> String {
    format!("({})({NAME:?})", PAGE.trim_end())
}

/// What was copied.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Content {
    text: String,
    html: String,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Clipboard {
    content: Mutex<Content>,
    readers: Mutex<Readers>,
}

/// Whose pages may read it.
#[derive(Debug, Default)]
struct Readers {
    all: bool,
    origins: BTreeSet<String>,
}

impl Clipboard {
    /// Lets pages of this origin read it, or of any.
    pub(crate) fn grant(&self, origin: Option<&str>) {
        let mut readers = self.readers.lock();
        match origin {
            Some(origin) => drop(readers.origins.insert(origin.trim_end_matches('/').to_owned())),
            None => readers.all = true,
        }
    }

    pub(crate) fn clear_grants(&self) {
        *self.readers.lock() = Readers::default();
    }

    fn may_read(&self, origin: &str) -> bool {
        let readers = self.readers.lock();
        readers.all || readers.origins.contains(origin)
    }

    fn put(&self, content: Content) -> std::result::Result<(), String> {
        let bytes = content.text.len() + content.html.len();
        if bytes > BYTES_MAX {
            return Err(format!("{bytes} bytes: the clipboard holds {BYTES_MAX}"));
        }
        *self.content.lock() = content;
        Ok(())
    }

    /// A page of an origin calls: `ORIGIN write TEXT HTML`, `ORIGIN read`, `ORIGIN readable`.
    pub(crate) fn call(&self, arguments: &[Value]) -> std::result::Result<Value, String> {
        let text = |at: usize| arguments.get(at).and_then(Value::as_str).unwrap_or_default();
        let origin = text(0);
        match text(1) {
            "write" => {
                let content = Content { text: text(2).to_owned(), html: text(3).to_owned() };
                self.put(content).map(|()| Value::Null)
            }
            "read" if self.may_read(origin) => Ok(json!(*self.content.lock())),
            "read" => Ok(Value::Null),
            "readable" => Ok(self.may_read(origin).into()),
            other => Err(format!("unknown call {other:?}")),
        }
    }
}

/// What keys do with the clipboard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shortcut {
    Copy,
    Cut,
    Paste,
    PasteText,
}

impl Shortcut {
    /// What a key does while these modifiers are held.
    pub(crate) fn of(stroke: Stroke, modifiers: i64) -> Option<Shortcut> {
        match (stroke.key.code, modifiers) {
            ("KeyC" | "Insert", CONTROL) => Some(Shortcut::Copy),
            ("KeyX", CONTROL) | ("Delete", SHIFT) => Some(Shortcut::Cut),
            ("KeyV", CONTROL) | ("Insert", SHIFT) => Some(Shortcut::Paste),
            ("KeyV", modifiers) if modifiers == CONTROL | SHIFT => Some(Shortcut::PasteText),
            _ => None,
        }
    }
}

/// Where a shortcut acts: the frame that has the focus.
pub(crate) struct ShortcutPlace {
    page: Page,
    frame: Frame,
}

impl ShortcutPlace {
    /// Before the key goes down.
    pub(crate) async fn find(page: &Page, deadline: Deadline) -> Result<ShortcutPlace> {
        const FOCUSED: &str = "function() { return this.focused(); }";
        const EXPECT: &str = "function() { this.expectShortcut(); }";
        let mut frame = page.main_frame();
        for _ in 0..DEPTH_MAX {
            let focused = frame.injected(deadline).await?.call_handle(&frame, FOCUSED, &[], deadline).await?;
            let Some(element) = focused else { break };
            match frame.frame_of(&element, deadline).await? {
                Some(child) => frame = child,
                None => break,
            }
        }
        frame.injected(deadline).await?.call::<()>(EXPECT, &[], deadline).await?;
        Ok(ShortcutPlace { page: page.clone(), frame })
    }

    /// After it. A page that is left by then has been left by the key.
    pub(crate) async fn act(self, shortcut: Shortcut, deadline: Deadline) -> Result<()> {
        const COPY: &str = "function(cuts) { return this.copySelected(cuts); }";
        const PASTE: &str = "function(text, html) { return this.pasteText(text, html); }";
        let context = self.page.context();
        let clipboard = &context.inner.clipboard;
        let injected = self.frame.injected(deadline).await?;
        match shortcut {
            Shortcut::Copy | Shortcut::Cut => {
                let cuts = shortcut == Shortcut::Cut;
                let copied: Option<Content> = injected.call(COPY, &[cuts.into()], deadline).await?;
                // What is too long is not copied.
                let _ = copied.map(|content| clipboard.put(content));
                Ok(())
            }
            Shortcut::Paste | Shortcut::PasteText => {
                let content = clipboard.content.lock().clone();
                let html = if shortcut == Shortcut::Paste { content.html.as_str() } else { "" };
                let arguments = [content.text.as_str().into(), html.into()];
                let is_ours: bool = injected.call(PASTE, &arguments, deadline).await?;
                match is_ours {
                    true => self.page.keyboard().insert_within(&content.text, deadline).await,
                    false => Ok(()),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::KEYS;

    #[test]
    fn keys_that_copy_and_paste() {
        let of = |key: &str, modifiers| Shortcut::of(Stroke::named(key).unwrap(), modifiers);
        for (key, modifiers, expect) in [
            ("c", CONTROL, Some(Shortcut::Copy)),
            ("Insert", CONTROL, Some(Shortcut::Copy)),
            ("x", CONTROL, Some(Shortcut::Cut)),
            ("Delete", SHIFT, Some(Shortcut::Cut)),
            ("v", CONTROL, Some(Shortcut::Paste)),
            ("Insert", SHIFT, Some(Shortcut::Paste)),
            ("V", CONTROL | SHIFT, Some(Shortcut::PasteText)),
            ("v", 0, None),
            ("v", SHIFT, None),
            ("Delete", 0, None),
            ("a", CONTROL, None),
        ] {
            assert_eq!(of(key, modifiers), expect, "{key} with {modifiers}");
        }
    }

    /// Chromium pastes for these numbers with these modifiers, and for keys of that name.
    #[test]
    fn no_key_makes_chromium_paste() {
        const PASTES: [(i64, i64); 3] = [(86, CONTROL), (86, CONTROL | SHIFT), (45, SHIFT)];
        for key in KEYS {
            assert!(!["Paste", "Copy", "Cut"].contains(&key.key), "{key:?}");
            for modifiers in 0..16 {
                let stroke = Stroke { key, shift: false };
                let is_pasted = PASTES.contains(&(key.key_code, modifiers));
                let shortcut = Shortcut::of(stroke, modifiers);
                assert!(!is_pasted || shortcut.is_some(), "{key:?} with {modifiers}");
            }
        }
    }

    #[test]
    fn it_is_read_where_that_was_allowed_and_has_a_bound() {
        let clipboard = Clipboard::default();
        let call = |arguments: Value| clipboard.call(arguments.as_array().unwrap());
        assert_eq!(call(json!(["", "write", "t", "<b>t</b>"])), Ok(Value::Null));
        assert_eq!(call(json!(["https://a.example", "read"])), Ok(Value::Null));
        clipboard.grant(Some("https://a.example/"));
        let content = json!({ "text": "t", "html": "<b>t</b>" });
        assert_eq!(call(json!(["https://a.example", "read"])), Ok(content.clone()));
        assert_eq!(call(json!(["https://b.example", "readable"])), Ok(false.into()));
        clipboard.grant(None);
        assert_eq!(call(json!(["https://b.example", "read"])), Ok(content.clone()));
        let long = "x".repeat(BYTES_MAX + 1);
        assert!(call(json!(["", "write", long, ""])).unwrap_err().contains("holds 1048576"));
        assert_eq!(call(json!(["", "read"])), Ok(content), "it stays as it was");
        clipboard.clear_grants();
        assert_eq!(call(json!(["https://a.example", "read"])), Ok(Value::Null));
        assert!(call(json!([7])).is_err());
    }
}

//! The keyboard: keys with a US layout, and text of any language.

use super::all;
use crate::clipboard::{Shortcut, ShortcutPlace};
use crate::connection::Call;
use crate::deadline::Deadline;
use crate::error::Result;
use crate::keys::{SHIFT, Stroke, chord};
use crate::page::Page;
use crate::protocol::Done;
use chromiumoxide::cdp::browser_protocol::input::{
    DispatchKeyEventParams, DispatchKeyEventType, ImeSetCompositionParams, InsertTextParams,
};

/// Key events under way at once while a text is typed.
const UNDER_WAY_MAX: usize = 64;

/// The keyboard of a page. Keys go to the element that has the focus, in whichever frame.
#[derive(Clone, Debug)]
pub struct Keyboard {
    page: Page,
}

impl Keyboard {
    pub(crate) fn new(page: Page) -> Keyboard {
        Keyboard { page }
    }

    /// Presses a key and holds it: `Shift`, `a`, `A`, `ArrowLeft`, `KeyA`. Held again it repeats.
    pub async fn down(&self, key: &str) -> Result<()> {
        let (stroke, deadline) = (Stroke::named(key)?, self.page.deadline());
        match Shortcut::of(stroke, self.modifiers_with(&[stroke])) {
            Some(shortcut) => self.strike(stroke, shortcut, deadline).await,
            None => all(vec![self.key_down(stroke)], deadline, "a key").await,
        }
    }

    /// Releases a key.
    pub async fn up(&self, key: &str) -> Result<()> {
        let calls = vec![self.key_up(Stroke::named(key)?)];
        all(calls, self.page.deadline(), "a key").await
    }

    /// Presses and releases keys together: `Enter`, `a`, `Control+Shift+A`.
    pub async fn press(&self, keys: &str) -> Result<()> {
        self.press_within(keys, self.page.deadline()).await
    }

    /// Types a text key by key. Characters that no key of a US keyboard types are put in as by an input method.
    pub async fn type_text(&self, text: &str) -> Result<()> {
        self.type_within(text, self.page.deadline()).await
    }

    /// Puts a text in at once, as pasting or an input method does: `input` events, but none of keys.
    pub async fn insert_text(&self, text: &str) -> Result<()> {
        self.insert_within(text, self.page.deadline()).await
    }

    /// Puts a text in through a composition, as an input method for Chinese or Japanese does: `compositionstart`,
    /// `compositionupdate`, `compositionend`.
    pub async fn compose(&self, text: &str) -> Result<()> {
        let deadline = self.page.deadline();
        let end = i64::try_from(text.encode_utf16().count()).unwrap_or(i64::MAX);
        let session = &self.page.inner.session;
        session.call_as::<Done>(ImeSetCompositionParams::new(text, end, end), deadline).await?;
        self.insert_within(text, deadline).await
    }

    pub(crate) async fn press_within(&self, keys: &str, deadline: Deadline) -> Result<()> {
        let strokes = chord(keys)?;
        let last = strokes.last().copied();
        let shortcut = last.and_then(|last| Shortcut::of(last, self.modifiers_with(&strokes)));
        let mut calls: Vec<_> = Vec::new();
        if let (Some(shortcut), Some(last)) = (shortcut, last) {
            let before = strokes[..strokes.len() - 1].iter().map(|stroke| self.key_down(*stroke));
            all(before.collect(), deadline, "the keys").await?;
            self.strike(last, shortcut, deadline).await?;
        } else {
            calls.extend(strokes.iter().map(|stroke| self.key_down(*stroke)));
        }
        calls.extend(strokes.iter().rev().map(|stroke| self.key_up(*stroke)));
        all(calls, deadline, "the keys").await
    }

    pub(crate) async fn type_within(&self, text: &str, deadline: Deadline) -> Result<()> {
        let mut calls = Vec::new();
        let mut other = String::new();
        for character in text.chars() {
            let Some(stroke) = Stroke::typing(character) else {
                all(std::mem::take(&mut calls), deadline, "the keys").await?;
                other.push(character);
                continue;
            };
            if !other.is_empty() {
                self.insert_within(&std::mem::take(&mut other), deadline).await?;
            }
            calls.push(self.key_down(stroke));
            calls.push(self.key_up(stroke));
            if calls.len() >= UNDER_WAY_MAX {
                all(std::mem::take(&mut calls), deadline, "the keys").await?;
            }
        }
        all(calls, deadline, "the keys").await?;
        if other.is_empty() { Ok(()) } else { self.insert_within(&other, deadline).await }
    }

    pub(crate) async fn insert_within(&self, text: &str, deadline: Deadline) -> Result<()> {
        self.page.inner.session.call_as::<Done>(InsertTextParams::new(text), deadline).await?;
        Ok(())
    }

    /// What is held once these are down, too.
    fn modifiers_with(&self, strokes: &[Stroke]) -> i64 {
        let held = self.page.inner.input.lock().modifiers;
        strokes.iter().fold(held, |held, stroke| held | stroke.modifier().unwrap_or(0))
    }

    /// A key that copies or pastes, which is done here: see [`crate::clipboard`].
    async fn strike(&self, stroke: Stroke, shortcut: Shortcut, deadline: Deadline) -> Result<()> {
        let place = ShortcutPlace::find(&self.page, deadline).await?;
        all(vec![self.key_down(stroke)], deadline, "a key").await?;
        place.act(shortcut, deadline).await
    }

    fn key_down(&self, stroke: Stroke) -> Result<Call<Done>> {
        let (modifiers, repeats) = {
            let mut input = self.page.inner.input.lock();
            input.modifiers |= stroke.modifier().unwrap_or(0);
            (input.modifiers, !input.keys.insert(stroke.key.code))
        };
        let shifted = modifiers & SHIFT != 0;
        // With Control, Alt or Meta a key is a command.
        let text = if modifiers & !SHIFT == 0 { stroke.text(shifted) } else { "" };
        let kind = match text {
            "" => DispatchKeyEventType::RawKeyDown,
            _ => DispatchKeyEventType::KeyDown,
        };
        let mut event = self.event(kind, stroke, modifiers);
        if !text.is_empty() {
            event.text = Some(text.to_owned());
            event.unmodified_text = Some(text.to_owned());
        }
        event.auto_repeat = Some(repeats);
        if Shortcut::of(stroke, modifiers).is_some() {
            // Chromium finds what a key does by this number; pages are told the right one.
            event.windows_virtual_key_code = None;
        }
        self.page.inner.session.begin_as(event)
    }

    fn key_up(&self, stroke: Stroke) -> Result<Call<Done>> {
        let modifiers = {
            let mut input = self.page.inner.input.lock();
            input.modifiers &= !stroke.modifier().unwrap_or(0);
            input.keys.remove(stroke.key.code);
            input.modifiers
        };
        self.page.inner.session.begin_as(self.event(DispatchKeyEventType::KeyUp, stroke, modifiers))
    }

    fn event(&self, kind: DispatchKeyEventType, stroke: Stroke, modifiers: i64) -> DispatchKeyEventParams {
        let mut event = DispatchKeyEventParams::new(kind);
        event.modifiers = Some(modifiers);
        event.windows_virtual_key_code = Some(stroke.key.key_code);
        event.code = Some(stroke.key.code.to_owned());
        event.key = Some(stroke.meaning(modifiers & SHIFT != 0).to_owned());
        event.location = Some(stroke.key.location);
        event.is_keypad = Some(stroke.key.location == 3);
        event
    }
}

//! Which policy is for which page of MiniWoB++.

mod choices;
mod clicks;
mod forms;
mod people;

use crate::player::Player;
use crate::tools::{Play, Tools};

/// A policy: plays one episode.
type Policy = fn(&mut Player<'_>) -> Play;

/// Pages by their names with what solves them.
const POLICIES: &[(&str, Policy)] = &[
    ("button-delay", clicks::sequence),
    ("buy-ticket", clicks::ticket),
    ("choose-date", choices::from_calendar),
    ("choose-date-easy", choices::from_calendar),
    ("choose-date-medium", choices::from_calendar),
    ("choose-date-nodelay", choices::from_calendar),
    ("choose-list", choices::from_list),
    ("click-button", clicks::button),
    ("click-button-sequence", clicks::sequence),
    ("click-checkboxes", choices::boxes),
    ("click-checkboxes-large", choices::boxes),
    ("click-checkboxes-transfer", choices::boxes),
    ("click-collapsible", clicks::section),
    ("click-collapsible-2", clicks::behind_tabs),
    ("click-collapsible-2-nodelay", clicks::behind_tabs),
    ("click-collapsible-nodelay", clicks::section),
    ("click-dialog", clicks::dialog),
    ("click-dialog-2", clicks::dialog),
    ("click-link", clicks::link),
    ("click-menu", clicks::menu_path),
    ("click-menu-2", clicks::menu),
    ("click-option", choices::option),
    ("click-tab", clicks::tab),
    ("click-tab-2", clicks::behind_tabs),
    ("click-tab-2-easy", clicks::behind_tabs),
    ("click-tab-2-hard", clicks::behind_tabs),
    ("click-tab-2-medium", clicks::behind_tabs),
    ("click-test", clicks::button),
    ("click-test-2", clicks::button),
    ("click-test-transfer", clicks::button),
    ("click-widget", clicks::widget),
    ("copy-paste", forms::copy),
    ("copy-paste-2", forms::copy),
    ("email-inbox", people::mail),
    ("email-inbox-delete", people::mail),
    ("email-inbox-forward", people::mail),
    ("email-inbox-important", people::mail),
    ("email-inbox-noscroll", people::mail),
    ("email-inbox-reply", people::mail),
    ("email-inbox-star-reply", people::mail),
    ("enter-date", choices::enter_date),
    ("enter-password", forms::enter_everywhere),
    ("enter-text", forms::enter),
    ("enter-text-2", forms::enter_in_case),
    ("enter-text-dynamic", forms::enter),
    ("enter-time", forms::enter_time),
    ("find-greatest", clicks::greatest),
    ("find-word", forms::word),
    ("focus-text", forms::focus),
    ("focus-text-2", forms::focus),
    ("form-sequence", choices::slider_and_box),
    ("form-sequence-2", forms::radio_and_number),
    ("generate-number", forms::generate),
    ("guess-number", forms::guess),
    ("login-user", forms::login),
    ("login-user-popup", forms::login),
    ("multi-layouts", forms::movies),
    ("multi-orderings", forms::movies),
    ("odd-or-even", choices::odd_or_even),
    ("phone-book", people::contact),
    ("read-table", forms::read_table),
    ("read-table-2", forms::read_table_into_form),
    ("search-engine", forms::search),
    ("simple-algebra", forms::algebra),
    ("simple-arithmetic", forms::arithmetic),
    ("social-media", people::post),
    ("social-media-all", people::posts),
    ("social-media-some", people::posts),
    ("text-transform", forms::enter_shown),
    ("unicode-test", clicks::button),
    ("use-autocomplete", forms::complete),
    ("use-autocomplete-nodelay", forms::complete),
    ("use-slider", choices::slider),
    ("use-slider-2", choices::combination),
    ("use-spinner", forms::spinner),
];

/// The pages that there is a policy for.
pub fn names() -> impl Iterator<Item = &'static str> {
    POLICIES.iter().map(|(name, _)| *name)
}

/// Plays the page of this name; `None`: no policy is for it.
pub fn play(name: &str, tools: &mut dyn Tools) -> Option<Play> {
    let (_, policy) = POLICIES.iter().find(|(own, _)| *own == name)?;
    Some(Player::new(tools).and_then(|mut player| policy(&mut player)))
}

#[cfg(test)]
mod tests;

//! Tasks with mail, posts and contacts.

use crate::page::{Item, Page, Piece};
use crate::player::Player;
use crate::tools::{Play, stuck};
use crate::words::{between, numbers, quoted};

/// Opens the message of a sender.
fn open_mail(player: &mut Player<'_>, sender: &str) -> Play {
    let start = format!("{sender} ");
    let row = player.find(&format!("mail of {sender}"), |item| item.name.starts_with(&start))?;
    player.click(&row).map(drop)
}

/// What a task asks for in a mailbox.
enum Mail {
    Delete,
    Star,
    Reply(String),
    Forward(String),
}

/// `Find the email by SENDER and ...`
fn asked(utterance: &str) -> Option<(String, Mail)> {
    let sender = between(utterance, "email by ", " and")?.to_owned();
    let action = if utterance.contains("trash icon") {
        Mail::Delete
    } else if utterance.contains("star icon") {
        Mail::Star
    } else if utterance.contains("reply to them") {
        Mail::Reply((*quoted(utterance).first()?).to_owned())
    } else {
        Mail::Forward(between(utterance, "that email to ", ".")?.to_owned())
    };
    Some((sender, action))
}

/// Finds a message and does with it what is asked.
pub(super) fn mail(player: &mut Player<'_>) -> Play {
    let utterance = player.utterance();
    let Some((sender, action)) = asked(&utterance) else {
        return stuck(format!("not understood: {utterance}"));
    };
    open_mail(player, &sender)?;
    let icon = |player: &mut Player<'_>, words: &[&str]| -> Play {
        let icon = player.find(&words.join(" or "), |item| {
            words.iter().any(|word| item.hint.contains(word) || item.name.to_lowercase().contains(word))
        })?;
        player.click(&icon).map(drop)
    };
    // The two are one button to the description: the reply on the left, the other on the right.
    let answer = |player: &mut Player<'_>, share: f64| -> Play {
        let both = player.named("clickable", "Reply Forward")?;
        let [left, top, width, height] = player.area(&both)?;
        player.click_at([left + width * share, top + height / 2.0]).map(drop)
    };
    match action {
        Mail::Delete => icon(player, &["trash", "delete"]),
        Mail::Star => icon(player, &["star"]),
        Mail::Reply(text) => {
            answer(player, 0.33)?;
            let field = player.find("field for the reply", |item| item.role == "textbox")?;
            player.write(&field, &text)?;
            icon(player, &["send"])
        }
        Mail::Forward(to) => {
            answer(player, 0.67)?;
            let field = player.nth("textbox", 1)?;
            player.write(&field, &to)?;
            icon(player, &["send"])
        }
    }
}

/// Buttons of posts by a user, by what their marks say.
fn buttons(page: &Page, user: &str, kind: &str) -> Vec<Item> {
    let mut is_own = false;
    let mut found = Vec::new();
    for piece in page.below().pieces() {
        match piece {
            Piece::Text(text) if text.contains('@') => {
                is_own = text.split_whitespace().any(|word| word == user);
            }
            Piece::Item(item) if is_own && item.hint.starts_with(kind) => found.push(item.clone()),
            Piece::Item(_) | Piece::Text(_) | Piece::Cell => {}
        }
    }
    found
}

/// The user of a task: `@name`.
fn user(utterance: &str) -> Option<&str> {
    let word = utterance.split_whitespace().find(|word| word.starts_with('@'))?;
    Some(word.trim_end_matches([',', '.']))
}

/// One button of the post of a user.
pub(super) fn post(player: &mut Player<'_>) -> Play {
    let utterance = player.utterance();
    let (Some(user), Some(action)) = (user(&utterance), quoted(&utterance).first().copied()) else {
        return stuck(format!("not understood: {utterance}"));
    };
    let kind = action.to_lowercase();
    let page = player.page()?;
    if let Some(button) = buttons(&page, user, &kind).first() {
        return press(player, button);
    }
    let Some(more) = buttons(&page, user, "more").first().cloned() else {
        return stuck(format!("no post of {user}"));
    };
    player.click(&more)?;
    let entry = player.wait_for(action, |page| {
        let page = page.below();
        let mut items = page.named_items().into_iter().filter(|(_, name)| name.starts_with(action));
        items.next().map(|(item, _)| item.clone())
    })?;
    player.click(&entry).map(drop)
}

/// A button on all, or on some, posts of a user.
pub(super) fn posts(player: &mut Player<'_>) -> Play {
    let utterance = player.utterance();
    let (Some(user), Some(action)) = (user(&utterance), quoted(&utterance).first().copied()) else {
        return stuck(format!("not understood: {utterance}"));
    };
    let count = numbers(&utterance).first().and_then(|count| usize::try_from(*count).ok());
    let own = buttons(&player.page()?, user, &action.to_lowercase());
    for button in own.iter().take(count.unwrap_or(own.len())) {
        press(player, button)?;
    }
    player.submit().map(drop)
}

/// The picture of such a button is another one under the mouse: it is clicked on when that has come.
fn press(player: &mut Player<'_>, button: &Item) -> Play {
    player.hover(button)?;
    player.click(button).map(drop)
}

/// A contact's number, mail or address, page by page.
pub(super) fn contact(player: &mut Player<'_>) -> Play {
    let utterance = player.utterance();
    let (Some(name), Some(part)) =
        (between(&utterance, "Find ", " in the"), utterance.split("their ").nth(1))
    else {
        return stuck(format!("not understood: {utterance}"));
    };
    let part = part.trim_end_matches('.').split(' ').next().unwrap_or_default();
    for _ in 0..30 {
        let page = player.page()?.below();
        if page.texts().any(|text| text == name) {
            let label = format!("{part}:");
            let after = page
                .pieces()
                .skip_while(|piece| !matches!(piece, Piece::Text(text) if text.eq_ignore_ascii_case(&label)));
            let mut items = after.filter_map(|piece| match piece {
                Piece::Item(item) => Some(item.clone()),
                _ => None,
            });
            let Some(item) = items.next() else { return stuck(format!("{name} has no {part}")) };
            return player.click(&item).map(drop);
        }
        let next = player.named("link", ">")?;
        player.click(&next)?;
    }
    stuck(format!("no {name}"))
}

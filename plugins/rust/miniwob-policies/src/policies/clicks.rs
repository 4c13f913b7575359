//! Tasks that ask for clicks: buttons, links, tabs, sections, dialogs, menus.

use crate::page::{Item, Piece};
use crate::player::{Player, Target};
use crate::tools::{Play, stuck};
use crate::words::{between, numbers, quoted};
use std::collections::BTreeSet;

/// What may be meant by a link or an item to click on.
const LINKS: [&str; 6] = ["link", "clickable", "button", "menuitem", "listitem", "option"];

fn first_quoted(player: &Player<'_>) -> Play<String> {
    let utterance = player.utterance();
    quoted(&utterance).first().map_or_else(|| stuck("nothing is quoted"), |text| Ok((*text).to_owned()))
}

/// The only button, or the one that is named: in quotes, or in capitals behind `button`.
pub(super) fn button(player: &mut Player<'_>) -> Play {
    let utterance = player.utterance();
    let name = match quoted(&utterance).first() {
        Some(name) => (*name).to_owned(),
        None => between(&utterance, "button ", ".").unwrap_or_default().to_owned(),
    };
    let button = match name.as_str() {
        "" => player.nth("button", 1)?,
        name => player.named("button", name)?,
    };
    player.click(&button).map(drop)
}

/// `Click button ONE, wait 3 seconds, then click button TWO.`
pub(super) fn sequence(player: &mut Player<'_>) -> Play {
    for part in player.utterance().trim_end_matches('.').split(", ") {
        if let Some((_, name)) = part.split_once("button ") {
            player.press_button(name)?;
        } else if let (true, [seconds]) = (part.contains("wait"), numbers(part).as_slice()) {
            player.wait(*seconds as f64 + 0.2)?;
        }
    }
    Ok(())
}

/// A link in a text.
pub(super) fn link(player: &mut Player<'_>) -> Play {
    let name = first_quoted(player)?;
    let link = player.named_as(&LINKS, &name)?;
    player.click(&link).map(drop)
}

/// `Close` for an `x`, or the button of the dialog that is named.
pub(super) fn dialog(player: &mut Player<'_>) -> Play {
    let name = first_quoted(player)?;
    player.press_button(if name == "x" { "Close" } else { &name }).map(drop)
}

/// `Click on Tab #1.`
pub(super) fn tab(player: &mut Player<'_>) -> Play {
    let utterance = player.utterance();
    let name = between(&utterance, "Click on ", ".").unwrap_or_default().to_owned();
    let tab = player.named("tab", &name)?;
    player.click(&tab).map(drop)
}

/// Opens one tab or section after the other until what is named can be seen.
pub(super) fn behind_tabs(player: &mut Player<'_>) -> Play {
    let name = first_quoted(player)?;
    let mut opened: BTreeSet<String> = BTreeSet::new();
    loop {
        if let Ok(link) = player.find(&name, |item| item.role == "clickable" && item.name == name) {
            return player.click(&link).map(drop);
        }
        let next = player.find("tab that was not open yet", |item| {
            item.role == "tab" && !item.is("expanded") && !opened.contains(&item.reference)
        })?;
        opened.insert(next.reference.clone());
        player.click(&next)?;
    }
}

/// Opens the section, then its button.
pub(super) fn section(player: &mut Player<'_>) -> Play {
    if let Ok(closed) = player.find("section", |item| item.role == "tab" && item.is("collapsed")) {
        player.click(&closed)?;
    }
    player.press_button("Submit").map(drop)
}

/// A widget of a kind, which the page names as in HTML.
pub(super) fn widget(player: &mut Player<'_>) -> Play {
    let kind = first_quoted(player)?;
    let (role, tag) = match kind.as_str() {
        "text" => ("textbox", "input"),
        "textarea" => ("textbox", "textarea"),
        other => (other, ""),
    };
    let candidates: Vec<Target> = player.page()?.below().of_role(role).map(Target::from).collect();
    for target in candidates {
        // A text field and a text area are told alike; the mouse over them tells them apart.
        if tag.is_empty() || player.hover(target.clone())?.tag == tag {
            return player.click(target).map(drop);
        }
    }
    stuck(format!("no {kind}"))
}

/// `Select A>B>C`: the mouse over each opens the next.
pub(super) fn menu_path(player: &mut Player<'_>) -> Play {
    let utterance = player.utterance();
    let path: Vec<&str> = utterance.trim_start_matches("Select ").split('>').collect();
    let (leaf, parents) = path.split_last().map_or(("", [].as_slice()), |(leaf, parents)| (*leaf, parents));
    for name in parents {
        let item = menu_item(player, name)?;
        player.hover(&item)?;
    }
    let item = menu_item(player, leaf)?;
    player.click(&item).map(drop)
}

/// A menu that opens late is waited for.
fn menu_item(player: &mut Player<'_>, name: &str) -> Play<Item> {
    player.wait_for(name, |page| page.of_role("menuitem").find(|item| item.name == name).cloned())
}

/// Opens the menu, and a menu in it where the item is not there.
pub(super) fn menu(player: &mut Player<'_>) -> Play {
    let utterance = player.utterance();
    let quotes = quoted(&utterance);
    let [_, name] = quotes.as_slice() else { return stuck("the item is shown by a picture, not named") };
    player.press_button("Menu")?;
    if !matches!(*name, "Save" | "Zoom In" | "Zoom Out") {
        let parent = menu_item(player, "Playback")?;
        player.hover(&parent)?;
    }
    let item = menu_item(player, name)?;
    player.click(&item).map(drop)
}

/// The ticket, by price or by duration.
pub(super) fn ticket(player: &mut Player<'_>) -> Play {
    let utterance = player.utterance();
    let page = player.page()?.below();
    let mut minutes = 0;
    let mut tickets: Vec<(i64, i64, Target)> = Vec::new();
    for piece in page.pieces() {
        match piece {
            Piece::Text(text) => {
                if let [hours, rest] = numbers(text).as_slice() {
                    minutes = hours * 60 + rest;
                }
            }
            Piece::Item(item) => {
                if let [price] = numbers(&item.name).as_slice() {
                    tickets.push((*price, minutes, Target::from(item)));
                }
            }
            Piece::Cell => {}
        }
    }
    let chosen = match utterance.as_str() {
        text if text.contains("cheapest") => tickets.iter().min_by_key(|ticket| ticket.0),
        text if text.contains("expensive") => tickets.iter().max_by_key(|ticket| ticket.0),
        text if text.contains("shortest") => tickets.iter().min_by_key(|ticket| ticket.1),
        _ => tickets.iter().max_by_key(|ticket| ticket.1),
    };
    let Some((_, _, target)) = chosen.cloned() else { return stuck("no ticket") };
    player.click(target).map(drop)
}

/// The card with the greatest number.
pub(super) fn greatest(player: &mut Player<'_>) -> Play {
    let page = player.page()?.below();
    let number = |item: &&Item| numbers(&item.name).first().copied();
    let card = page.of_role("clickable").filter(|item| number(item).is_some()).max_by_key(number);
    let Some(card) = card else { return stuck("no card") };
    player.click(card)?;
    player.submit().map(drop)
}

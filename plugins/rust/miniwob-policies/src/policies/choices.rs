//! Tasks that ask for a choice: options, boxes, lists, sliders, dates.

use crate::page::{Item, Page, Piece};
use crate::player::Player;
use crate::tools::{Play, stuck};
use crate::words::{between, date, list, month, numbers, ordinals};

/// What `Select ... and click Submit.` names.
fn selected(player: &Player<'_>) -> Vec<String> {
    let utterance = player.utterance();
    let named =
        between(&utterance, "Select ", " from ").or_else(|| between(&utterance, "Select ", " and click"));
    list(named.unwrap_or_default()).into_iter().filter(|name| *name != "nothing").map(str::to_owned).collect()
}

/// One of several options.
pub(super) fn option(player: &mut Player<'_>) -> Play {
    let names = selected(player);
    let Some(name) = names.first() else { return stuck("no option is named") };
    let option = player.named("radio", name)?;
    player.click(&option)?;
    player.submit().map(drop)
}

/// Every box that is named.
pub(super) fn boxes(player: &mut Player<'_>) -> Play {
    for name in selected(player) {
        let item = player.named("checkbox", &name)?;
        player.click(&item)?;
    }
    player.submit().map(drop)
}

/// An option of a list.
pub(super) fn from_list(player: &mut Player<'_>) -> Play {
    let names = selected(player);
    let Some(name) = names.first() else { return stuck("no option is named") };
    let chosen = player.nth("combobox", 1)?;
    player.write(&chosen, name)?;
    player.submit().map(drop)
}

/// A date into a field that opens a calendar.
pub(super) fn from_calendar(player: &mut Player<'_>) -> Play {
    let Some((wanted, day, year)) = date(&player.utterance()) else { return stuck("no date in the task") };
    let field = player.nth("textbox", 1)?;
    player.click(&field)?;
    for _ in 0..24 {
        let (shown, shown_year) = player.wait_for("a calendar", shown_month)?;
        let (now, then) = (shown_year * 12 + i64::from(shown), i64::from(year) * 12 + i64::from(wanted));
        if now == then {
            let day = player.named("link", &day.to_string())?;
            player.click(&day)?;
            return player.submit().map(drop);
        }
        let link =
            player.named_as(&["link", "clickable", "button"], if then < now { "Prev" } else { "Next" })?;
        player.click(&link)?;
    }
    stuck("the month did not come")
}

/// `December 2016`, in one text or in two.
fn shown_month(page: &Page) -> Option<(u32, i64)> {
    let text = page.below().texts().collect::<Vec<_>>().join(" ");
    let words: Vec<&str> = text.split_whitespace().collect();
    words.windows(2).find_map(|pair| Some((month(pair[0])?, pair[1].parse::<i64>().ok()?)))
}

/// A date into a field for dates.
pub(super) fn enter_date(player: &mut Player<'_>) -> Play {
    let Some((month, day, year)) = date(&player.utterance()) else { return stuck("no date in the task") };
    let field = player.nth("textbox", 1)?;
    let text = match field.is("date") {
        true => format!("{year:04}-{month:02}-{day:02}"),
        false => format!("{month:02}/{day:02}/{year:04}"),
    };
    player.write(&field, &text)?;
    player.submit().map(drop)
}

/// Handles of sliders, each with the number beside it.
fn sliders(page: &Page) -> Vec<(Item, i64)> {
    let mut found = Vec::new();
    let mut handle: Option<Item> = None;
    for piece in page.below().pieces() {
        match piece {
            Piece::Item(item) if item.hint.starts_with("ui-slider-handle") => handle = Some(item.clone()),
            Piece::Text(text) => {
                if let (Some(item), [value]) = (handle.take(), numbers(text).as_slice()) {
                    found.push((item, *value));
                }
            }
            Piece::Item(_) | Piece::Cell => {}
        }
    }
    found
}

/// Moves a slider by the keyboard.
fn slide(player: &mut Player<'_>, place: usize, wanted: i64) -> Play {
    for _ in 0..4 {
        let Some((handle, value)) = sliders(&player.page()?).get(place).cloned() else {
            return stuck(format!("no slider number {}", place + 1));
        };
        if value == wanted {
            return Ok(());
        }
        player.click(&handle)?;
        let value = sliders(&player.page()?).get(place).map_or(value, |(_, value)| *value);
        let key = if value < wanted { "ArrowRight" } else { "ArrowLeft" };
        player.press(key, value.abs_diff(wanted))?;
    }
    stuck(format!("the slider does not come to {wanted}"))
}

/// One slider.
pub(super) fn slider(player: &mut Player<'_>) -> Play {
    let Some(wanted) = numbers(&player.utterance()).first().copied() else {
        return stuck("no number in the task");
    };
    slide(player, 0, wanted)?;
    player.submit().map(drop)
}

/// A slider for each number in brackets.
pub(super) fn combination(player: &mut Player<'_>) -> Play {
    for (place, wanted) in numbers(&player.utterance()).into_iter().enumerate() {
        slide(player, place, wanted)?;
    }
    player.submit().map(drop)
}

/// A slider, then the n-th box.
pub(super) fn slider_and_box(player: &mut Player<'_>) -> Play {
    let utterance = player.utterance();
    let (Some(wanted), Some(place)) =
        (numbers(&utterance).first().copied(), ordinals(&utterance).first().copied())
    else {
        return stuck("the task names no number and box");
    };
    slide(player, 0, wanted)?;
    let item = player.nth("checkbox", place)?;
    player.click(&item)?;
    player.submit().map(drop)
}

/// Odd or even beside each number.
pub(super) fn odd_or_even(player: &mut Player<'_>) -> Play {
    let page = player.page()?.below();
    let pieces: Vec<&Piece> = page.pieces().collect();
    let mut chosen = Vec::new();
    for rows in pieces.windows(3) {
        if let [Piece::Item(odd), Piece::Text(number), Piece::Item(even)] = rows
            && let [number] = numbers(number)[..]
        {
            chosen.push(if number % 2 == 0 { even.clone() } else { odd.clone() });
        }
    }
    for item in &chosen {
        player.click(item)?;
    }
    player.submit().map(drop)
}

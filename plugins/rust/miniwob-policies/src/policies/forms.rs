//! Tasks that ask for texts and numbers in fields.

use crate::page::{Item, Line, Page, Piece};
use crate::player::Player;
use crate::tools::{Play, stuck};
use crate::words::{between, numbers, ordinals, quoted, time};

fn quotes(player: &Player<'_>) -> Vec<String> {
    quoted(&player.utterance()).into_iter().map(str::to_owned).collect()
}

fn quote(player: &Player<'_>, place: usize) -> Play<String> {
    quotes(player).get(place).cloned().map_or_else(|| stuck("nothing is quoted"), Ok)
}

/// The quoted text into the first field.
pub(super) fn enter(player: &mut Player<'_>) -> Play {
    let text = quote(player, 0)?;
    let field = player.nth("textbox", 1)?;
    player.write(&field, &text)?;
    player.submit().map(drop)
}

/// The same in capitals, or in small letters.
pub(super) fn enter_in_case(player: &mut Player<'_>) -> Play {
    let text = quote(player, 0)?;
    let text = if player.utterance().contains("upper") { text.to_uppercase() } else { text.to_lowercase() };
    let field = player.nth("textbox", 1)?;
    player.write(&field, &text)?;
    player.submit().map(drop)
}

/// The quoted text into every field.
pub(super) fn enter_everywhere(player: &mut Player<'_>) -> Play {
    let text = quote(player, 0)?;
    let fields: Vec<_> = player.page()?.below().of_role("textbox").cloned().collect();
    for field in &fields {
        player.write(field, &text)?;
    }
    player.submit().map(drop)
}

/// A name and a password. A question that comes up meanwhile is declined.
pub(super) fn login(player: &mut Player<'_>) -> Play {
    let (name, password) = (quote(player, 0)?, quote(player, 1)?);
    for (label, text) in [("Username", &name), ("Password", &password)] {
        let field = player.field(label)?;
        let wrote = player.write(&field, text);
        if let Ok(cancel) = player.named("button", "Cancel") {
            player.say("Something popped up: it is closed, and the field is filled in again.");
            player.click(&cancel)?;
            let field = player.field(label)?;
            player.write(&field, text)?;
        } else {
            wrote?;
        }
    }
    let button = player.named_as(&["button"], "Login").or_else(|_| player.named("button", "OK"))?;
    player.click(&button).map(drop)
}

/// The n-th field, or the only one, gets the focus.
pub(super) fn focus(player: &mut Player<'_>) -> Play {
    let number = ordinals(&player.utterance()).first().copied().unwrap_or(1);
    let field = player.nth("textbox", number)?;
    player.click(&field).map(drop)
}

/// A time into a field for times.
pub(super) fn enter_time(player: &mut Player<'_>) -> Play {
    let Some((hours, minutes)) = time(&player.utterance()) else { return stuck("no time in the task") };
    let field = player.nth("textbox", 1)?;
    player.write(&field, &format!("{hours:02}:{minutes:02}"))?;
    player.submit().map(drop)
}

/// From one text area into the text field, by copy and paste.
pub(super) fn copy(player: &mut Player<'_>) -> Play {
    let fields: Vec<_> = player.page()?.below().of_role("textbox").cloned().collect();
    let number = ordinals(&player.utterance()).first().copied().unwrap_or(1);
    let is_full = |field: &&Item| !field.value.is_empty();
    let source = fields.iter().filter(is_full).nth(number.saturating_sub(1));
    let target = fields.iter().find(|field| field.value.is_empty());
    let (Some(source), Some(target)) = (source, target) else {
        return stuck("no text to copy, or no field for it");
    };
    player.click(source)?;
    player.chord(&["Control", "a"])?;
    player.chord(&["Control", "c"])?;
    player.click(target)?;
    player.chord(&["Control", "v"])?;
    player.submit().map(drop)
}

/// The text that stands above the field.
pub(super) fn enter_shown(player: &mut Player<'_>) -> Play {
    let text = player.page()?.below().texts().next().map(str::to_owned);
    let Some(text) = text else { return stuck("no text to enter") };
    let field = player.nth("textbox", 1)?;
    player.write(&field, &text)?;
    player.submit().map(drop)
}

/// The n-th word of a paragraph.
pub(super) fn word(player: &mut Player<'_>) -> Play {
    let number = ordinals(&player.utterance()).first().copied().unwrap_or(1);
    let text = player.page()?.below().texts().collect::<Vec<_>>().join(" ");
    let word = text.split_whitespace().nth(number.saturating_sub(1));
    let Some(word) = word else { return stuck(format!("no word number {number}")) };
    let letters: String = word.chars().filter(|char| char.is_alphanumeric()).collect();
    let field = player.nth("textbox", 1)?;
    player.write(&field, &letters)?;
    player.submit().map(drop)
}

/// What a table says beside a label.
fn cell(page: &Page, label: &str) -> Play<String> {
    let texts = |line: &Line| -> Vec<String> {
        let texts = line.pieces.iter().filter_map(|piece| match piece {
            Piece::Text(text) => Some(text.clone()),
            _ => None,
        });
        texts.collect()
    };
    let is_row = |line: &&Line| line.pieces.contains(&Piece::Cell);
    let rows = page.lines.iter().filter(is_row).map(texts);
    let mut values = rows.filter_map(|row| match row.as_slice() {
        [own, value] if own == label => Some(value.clone()),
        _ => None,
    });
    values.next().map_or_else(|| stuck(format!("no row {label:?} in the table")), Ok)
}

/// One value of a table.
pub(super) fn read_table(player: &mut Player<'_>) -> Play {
    let utterance = player.utterance();
    let label = between(&utterance, "value of ", " into").unwrap_or_default().to_owned();
    let value = cell(&player.page()?, &label)?;
    let field = player.nth("textbox", 1)?;
    player.write(&field, &value)?;
    player.submit().map(drop)
}

/// A value of a table for each labelled field.
pub(super) fn read_table_into_form(player: &mut Player<'_>) -> Play {
    let page = player.page()?.below();
    let labels: Vec<String> =
        page.texts().filter_map(|text| text.strip_suffix(':')).map(str::to_owned).collect();
    for label in labels {
        let value = cell(&page, &label)?;
        let field = player.field(&label)?;
        player.write(&field, &value)?;
    }
    player.submit().map(drop)
}

/// `7 + 3 =`
pub(super) fn arithmetic(player: &mut Player<'_>) -> Play {
    let texts = player.page()?.below().texts().collect::<Vec<_>>().join(" ");
    let problem = texts.split('=').next().unwrap_or_default().trim();
    let parts: Vec<&str> = problem.split_whitespace().collect();
    let [left, sign, right] = parts.as_slice() else { return stuck(format!("no problem in {texts:?}")) };
    let (Ok(left), Ok(right)) = (left.parse::<i64>(), right.parse::<i64>()) else {
        return stuck(format!("no numbers in {problem:?}"));
    };
    let result = match *sign {
        "+" => left + right,
        "-" => left - right,
        "x" | "*" | "\u{d7}" => left * right,
        other => return stuck(format!("the sign {other:?} is not known")),
    };
    let field = player.nth("textbox", 1)?;
    player.write(&field, &result.to_string())?;
    player.submit().map(drop)
}

/// `x + 7 = 5`, `3 - x = 12`
pub(super) fn algebra(player: &mut Player<'_>) -> Play {
    let page = player.page()?.below();
    let problem = page.texts().find(|text| text.contains('x') && !numbers(text).is_empty());
    let parts: Vec<&str> = problem.unwrap_or_default().split_whitespace().collect();
    let [left, sign, right, "=", result] = parts.as_slice() else {
        return stuck(format!("no problem in {parts:?}"));
    };
    let number = |text: &str| text.parse::<i64>().ok();
    let x = match (number(left), *sign, number(right), number(result)) {
        (None, "+", Some(known), Some(result)) | (Some(known), "+", None, Some(result)) => result - known,
        (None, "-", Some(known), Some(result)) => result + known,
        (Some(known), "-", None, Some(result)) => known - result,
        _ => return stuck(format!("not known how to solve {parts:?}")),
    };
    let field = player.nth("textbox", 1)?;
    player.write(&field, &x.to_string())?;
    player.submit().map(drop)
}

/// The n-th radio button, and a number into the n-th field.
pub(super) fn radio_and_number(player: &mut Player<'_>) -> Play {
    let utterance = player.utterance();
    let [radio, field] = ordinals(&utterance)[..] else { return stuck("two places are not named") };
    let number = quote(player, 0)?;
    let button = player.nth("radio", radio)?;
    player.click(&button)?;
    let field = player.nth("textbox", field)?;
    player.write(&field, &number)?;
    player.submit().map(drop)
}

/// A search for movies: `Search for GENRE movies directed by DIRECTOR from year YEAR.`
pub(super) fn movies(player: &mut Player<'_>) -> Play {
    let utterance = player.utterance();
    let part = |from: &str, to: &str| between(&utterance, from, to).map(str::to_owned);
    let genre = part("for ", " movies");
    let director = part("directed by ", " from").or_else(|| part("directed by ", "."));
    let year = numbers(&utterance).first().map(ToString::to_string);
    // Labels stand before their fields, or behind them, or are their names: always in the same order.
    let page = player.page()?.below();
    let starts = |text: &str| ["Genre", "Director", "Year"].into_iter().find(|start| text.starts_with(start));
    let fields: Vec<Item> = page.of_role("textbox").cloned().collect();
    let mut labels: Vec<&str> = page.texts().filter_map(starts).collect();
    if labels.len() < fields.len() {
        labels = fields.iter().filter_map(|field| starts(&field.name)).collect();
    }
    if labels.len() != fields.len() {
        return stuck(format!("{} labels for {} fields", labels.len(), fields.len()));
    }
    for (label, field) in labels.into_iter().zip(&fields) {
        let value = match label {
            "Genre" => &genre,
            "Director" => &director,
            _ => &year,
        };
        let Some(value) = value else { return stuck(format!("the task names no {label}")) };
        player.write(field, value)?;
    }
    let button = player.find("button", |item| {
        matches!(item.role.as_str(), "button" | "clickable")
            && matches!(item.name.as_str(), "Submit" | "Search" | "Go" | "OK")
    });
    let button = button
        .or_else(|_| player.find("button", |item| matches!(item.role.as_str(), "button" | "clickable")))?;
    player.click(&button).map(drop)
}

/// Searches, then turns the pages of three results each.
pub(super) fn search(player: &mut Player<'_>) -> Play {
    let term = quote(player, 0)?;
    let number = ordinals(&player.utterance()).first().copied().unwrap_or(1).max(1);
    let field = player.nth("textbox", 1)?;
    player.write(&field, &term)?;
    player.press_button("Search")?;
    let (page, place) = ((number - 1) / 3 + 1, (number - 1) % 3);
    if page > 1 {
        let link = player.named("link", &page.to_string())?;
        player.click(&link)?;
    }
    let found = player.page()?.below();
    let is_result = |item: &&Item| item.name.chars().any(char::is_alphabetic) && !is_paging(&item.name);
    let result = found.of_role("link").filter(is_result).nth(place);
    let Some(result) = result else { return stuck(format!("no result {number}")) };
    player.click(result).map(drop)
}

fn is_paging(name: &str) -> bool {
    matches!(name, "First" | "Previous" | "Next" | "Last" | "<" | ">" | "\u{ab}" | "\u{bb}")
}

/// Halves what the number can be, by what the page says of the last guess.
pub(super) fn guess(player: &mut Player<'_>) -> Play {
    let (mut least, mut most) = (0_i64, 9_i64);
    while least <= most {
        let middle = i64::midpoint(least, most);
        let field = player.find("field", |item| matches!(item.role.as_str(), "spinbutton" | "textbox"))?;
        player.write(&field, &middle.to_string())?;
        player.submit()?;
        let told = player.page()?.below().texts().collect::<Vec<_>>().join(" ");
        if told.contains("lower than") {
            most = middle - 1;
        } else if told.contains("higher than") {
            least = middle + 1;
        } else {
            return Ok(());
        }
    }
    stuck("no number is left")
}

/// Generates numbers until one is as the task wants it.
pub(super) fn generate(player: &mut Player<'_>) -> Play {
    let utterance = player.utterance();
    let bound = numbers(&utterance).first().copied();
    for _ in 0..60 {
        player.press_button("Generate")?;
        let page = player.page()?.below();
        let Some(number) = page.texts().flat_map(numbers).next() else { continue };
        let fits = match (bound, utterance.as_str()) {
            (Some(bound), text) if text.contains("less") => number < bound,
            (Some(bound), _) => number > bound,
            (None, text) if text.contains("odd") => number % 2 != 0,
            (None, _) => number % 2 == 0,
        };
        if fits {
            return player.submit().map(drop);
        }
    }
    stuck("no fitting number came")
}

/// A text that begins and ends as said, from the list that the field offers.
pub(super) fn complete(player: &mut Player<'_>) -> Play {
    let texts = quotes(player);
    let start = texts.first().cloned().unwrap_or_default();
    let end = texts.get(1).cloned().unwrap_or_default();
    let field = player.nth("textbox", 1)?;
    player.write(&field, &start)?;
    let offered = player.wait_for("a list of items", |page| {
        let page = page.below();
        let fits = |(item, name): &(&Item, &str)| {
            item.role != "textbox" && name.starts_with(&start) && name.ends_with(&end)
        };
        page.named_items().into_iter().find(fits).map(|(item, _)| item.clone())
    })?;
    player.click(&offered)?;
    player.submit().map(drop)
}

/// A number into a field with arrows.
pub(super) fn spinner(player: &mut Player<'_>) -> Play {
    let Some(number) = numbers(&player.utterance()).first().copied() else {
        return stuck("no number in the task");
    };
    let field = player.nth("spinbutton", 1)?;
    player.write(&field, &number.to_string())?;
    player.submit().map(drop)
}

//! What a task asks, taken apart: quoted texts, numbers, ordinals, dates.

/// Texts between double quotes, in order.
pub fn quoted(text: &str) -> Vec<&str> {
    text.split('"').skip(1).step_by(2).collect()
}

/// What stands between two marks: from the first `from` to the next `to`.
pub fn between<'a>(text: &'a str, from: &str, to: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(from)?;
    Some(rest.split_once(to)?.0.trim())
}

/// A list: `a, b, c`.
pub fn list(text: &str) -> Vec<&str> {
    text.split(", ").map(str::trim).filter(|item| !item.is_empty()).collect()
}

/// Whole numbers, with a minus sign directly before their digits.
pub fn numbers(text: &str) -> Vec<i64> {
    let mut found = Vec::new();
    let bytes = text.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        if !bytes[at].is_ascii_digit() {
            at += 1;
            continue;
        }
        let start = at;
        while at < bytes.len() && bytes[at].is_ascii_digit() {
            at += 1;
        }
        let is_negative =
            start > 0 && bytes[start - 1] == b'-' && (start < 2 || !bytes[start - 2].is_ascii_digit());
        if let Ok(number) = text[start..at].parse::<i64>() {
            found.push(if is_negative { -number } else { number });
        }
    }
    found
}

/// Ordinals: `1st`, `2nd`, `3rd`, `14th`.
pub fn ordinals(text: &str) -> Vec<usize> {
    let ends = ["st", "nd", "rd", "th"];
    let words = text.split(|char: char| !char.is_ascii_alphanumeric());
    let ordinal = |word: &str| {
        let digits = word.trim_end_matches(|char: char| char.is_ascii_alphabetic());
        ends.contains(&&word[digits.len()..]).then(|| digits.parse().ok()).flatten()
    };
    words.filter_map(ordinal).collect()
}

/// A date `month/day/year`.
pub fn date(text: &str) -> Option<(u32, u32, i32)> {
    let word = text.split_whitespace().find(|word| word.split('/').count() == 3)?;
    let word = word.trim_end_matches(['.', ',']);
    let mut parts = word.split('/');
    let mut part = || parts.next()?.parse::<i32>().ok();
    let (month, day, year) = (part()?, part()?, part()?);
    Some((u32::try_from(month).ok()?, u32::try_from(day).ok()?, year))
}

/// A time of the day as hours and minutes: `7:55 PM`.
pub fn time(text: &str) -> Option<(u32, u32)> {
    let mut words = text.split_whitespace();
    let (hours, minutes) = words.by_ref().find_map(|word| word.split_once(':'))?;
    let (hours, minutes) = (hours.parse::<u32>().ok()?, minutes.parse::<u32>().ok()?);
    let half = words.next()?.get(..2)?.to_ascii_uppercase();
    match half.as_str() {
        "AM" => Some((hours % 12, minutes)),
        "PM" => Some((hours % 12 + 12, minutes)),
        _ => None,
    }
}

/// The number of a month's name, from 1.
pub fn month(name: &str) -> Option<u32> {
    const MONTHS: [&str; 12] = [
        "January",
        "February",
        "March",
        "April",
        "May",
        "June",
        "July",
        "August",
        "September",
        "October",
        "November",
        "December",
    ];
    let place = MONTHS.iter().position(|known| *known == name)?;
    u32::try_from(place + 1).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_a_task_are_found() {
        assert_eq!(quoted("Type \"a b\" then \"c\"."), ["a b", "c"]);
        assert_eq!(quoted("none"), [""; 0]);
        assert_eq!(between("Select x, y and click", "Select ", " and click"), Some("x, y"));
        assert_eq!(between("Select x", "Choose ", "."), None);
        assert_eq!(list("a, b,  c"), ["a", "b", "c"]);
        assert_eq!(numbers("x -7 [10,18,-3] 3-5 0"), [-7, 10, 18, -3, 3, 5, 0]);
        assert_eq!(ordinals("the 3rd box, the 14th; 5 boxes, last"), [3, 14]);
        assert_eq!(date("Select 12/24/2016 as the date"), Some((12, 24, 2016)));
        assert_eq!(date("Select 1/2"), None);
        assert_eq!(time("Enter 7:55 PM as"), Some((19, 55)));
        assert_eq!(time("Enter 12:05 AM as"), Some((0, 5)));
        assert_eq!(time("at noon"), None);
        assert_eq!(month("March"), Some(3));
    }
}

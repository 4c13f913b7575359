//! What the model is shown of a browser, as text.

use std::fmt::Write;

/// A tab.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TabLine {
    /// From 0.
    pub index: u32,
    /// Its address.
    pub url: String,
    /// Its title.
    pub title: String,
    /// Whether tools act in it.
    pub is_active: bool,
}

/// Longest address or title that is shown, characters.
const SHOWN_MAX: usize = 200;

/// The tabs, then the page as text where it is described.
pub fn text(tabs: &[TabLine], description: Option<&str>) -> String {
    let mut out = String::from("Tabs:");
    for tab in tabs {
        let mark = if tab.is_active { " (active)" } else { "" };
        let _ = write!(out, "\n{}{mark}: {} - {}", tab.index, shown(&tab.title), shown(&tab.url));
    }
    if let Some(description) = description {
        let _ = write!(out, "\n\nPage:\n{description}");
    }
    out
}

/// One line, cut.
fn shown(text: &str) -> String {
    let line: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(SHOWN_MAX).collect();
    if line.chars().count() < text.chars().count() { format!("{line}...") } else { line }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tabs_have_a_line_each_and_the_page_comes_behind() {
        let tab = |index, title: &str, is_active| TabLine {
            index,
            url: "https://a.org/".to_owned(),
            title: title.to_owned(),
            is_active,
        };
        let tabs = [tab(0, "A\nb", false), tab(1, &"x".repeat(300), true)];
        let long = "x".repeat(200);
        assert_eq!(
            text(&tabs, Some("button \"Save\" e1")),
            format!(
                "Tabs:\n0: A b - https://a.org/\n1 (active): {long}... - https://a.org/\n\nPage:\nbutton \"Save\" e1"
            )
        );
        assert_eq!(text(&[], None), "Tabs:");
    }
}

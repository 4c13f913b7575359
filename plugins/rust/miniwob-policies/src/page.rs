//! A page description, read: lines of texts and of elements with their references, as the browser's snapshot writes them.

/// A description.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Page {
    /// What stands beside each other, from top to bottom.
    pub lines: Vec<Line>,
}

/// A line of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Line {
    /// Containers around it.
    pub depth: usize,
    /// Level of a heading, or 0.
    pub level: usize,
    /// From left to right.
    pub pieces: Vec<Piece>,
}

/// A piece of a line.
#[derive(Clone, Debug, PartialEq)]
pub enum Piece {
    /// Text of the page.
    Text(String),
    /// Something that can be acted on, a picture, or a container whose content is in the deeper lines that follow.
    Item(Item),
    /// The border between two cells of a table.
    Cell,
}

/// An element.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Item {
    /// `button`, `textbox`, `clickable` ...
    pub role: String,
    /// Its name, or empty.
    pub name: String,
    /// Its reference, or empty for one that cannot be acted on.
    pub reference: String,
    /// Its value, or empty.
    pub value: String,
    /// What its id or class says of one without a name.
    pub hint: String,
    /// `checked`, `disabled`, `collapsed` ...
    pub states: Vec<String>,
    /// Of a list.
    pub options: Vec<String>,
}

/// How the lines begin that pages of MiniWoB++ have beside the task: what they say of themselves, and addresses of pictures.
const ASIDE: [&str; 6] =
    ["Last reward:", "Last 10 average:", "Time left:", "Episodes done:", "http://", "https://"];

impl Page {
    /// Reads a description. Lines that say something about the description itself, in parentheses, are left out.
    pub fn read(text: &str) -> Page {
        let lines = text.lines().filter(|line| !line.trim_start().starts_with('(')).map(Line::read);
        let is_aside = |line: &Line| match line.pieces.first() {
            Some(Piece::Text(text)) => ASIDE.iter().any(|start| text.starts_with(start)),
            _ => false,
        };
        Page { lines: lines.filter(|line| !line.pieces.is_empty() && !is_aside(line)).collect() }
    }

    /// Every element, in order.
    pub fn items(&self) -> impl Iterator<Item = &Item> {
        self.pieces().filter_map(|piece| match piece {
            Piece::Item(item) => Some(item),
            Piece::Text(_) | Piece::Cell => None,
        })
    }

    /// Elements that can be acted on and have this role.
    pub fn of_role<'a>(&'a self, role: &'a str) -> impl Iterator<Item = &'a Item> {
        self.items().filter(move |item| item.role == role && !item.reference.is_empty())
    }

    /// Every text and element, in order.
    pub fn pieces(&self) -> impl Iterator<Item = &Piece> {
        self.lines.iter().flat_map(|line| &line.pieces)
    }

    /// All texts, in order.
    pub fn texts(&self) -> impl Iterator<Item = &str> {
        self.pieces().filter_map(|piece| match piece {
            Piece::Text(text) => Some(text.as_str()),
            Piece::Item(_) | Piece::Cell => None,
        })
    }

    /// Elements that can be acted on with what names them: their own name, or the text in them.
    pub fn named_items(&self) -> Vec<(&Item, &str)> {
        let mut found = Vec::new();
        for (place, line) in self.lines.iter().enumerate() {
            for piece in &line.pieces {
                let Piece::Item(item) = piece else { continue };
                let inner = self.lines.get(place + 1).filter(|inner| inner.depth > line.depth);
                let text = inner.and_then(|inner| inner.pieces.first());
                let name = match text {
                    Some(Piece::Text(text)) if item.name.is_empty() => text.as_str(),
                    _ => item.name.as_str(),
                };
                if !item.reference.is_empty() {
                    found.push((item, name));
                }
            }
        }
        found
    }

    /// What the task asks: the first line.
    pub fn utterance(&self) -> String {
        let texts = self.lines.iter().take(1).flat_map(|line| &line.pieces).filter_map(|piece| match piece {
            Piece::Text(text) => Some(text.as_str()),
            Piece::Item(_) | Piece::Cell => None,
        });
        texts.collect::<Vec<_>>().join(" ")
    }

    /// The page without the task's own words.
    pub fn below(&self) -> Page {
        Page { lines: self.lines.iter().skip(1).cloned().collect() }
    }
}

impl Item {
    /// Whether it has this state.
    pub fn is(&self, state: &str) -> bool {
        self.states.iter().any(|own| own == state)
    }
}

impl Line {
    fn read(text: &str) -> Line {
        let depth = text.len() - text.trim_start_matches(' ').len();
        let rest = text[depth..].trim_start_matches(['+', '~']).trim_start_matches("- ");
        let level = rest.len() - rest.trim_start_matches('#').len();
        let mut words = Words { rest: &rest[level..] };
        let mut pieces = Vec::new();
        // Whether the item before takes what follows.
        let mut item: Option<Item> = None;
        while let Some(word) = words.next() {
            match word {
                Word::Text(text) => match &mut item {
                    Some(item) if item.takes_name() => item.name = text,
                    _ => {
                        pieces.extend(item.take().map(Piece::Item));
                        pieces.push(Piece::Text(text));
                    }
                },
                Word::Value(text) => drop(item.as_mut().map(|item| item.value = text)),
                Word::Hint(text) => drop(item.as_mut().map(|item| item.hint = text)),
                Word::Options(options) => drop(item.as_mut().map(|item| item.options = options)),
                Word::Cell => {
                    pieces.extend(item.take().map(Piece::Item));
                    pieces.push(Piece::Cell);
                }
                Word::Plain(word) => match &mut item {
                    Some(item) if is_reference(word) && item.reference.is_empty() => {
                        item.reference = word.to_owned();
                    }
                    Some(item) if STATES.contains(&word) => item.states.push(word.to_owned()),
                    _ => {
                        pieces.extend(item.take().map(Piece::Item));
                        item = Some(Item { role: word.to_owned(), ..Item::default() });
                    }
                },
            }
        }
        pieces.extend(item.map(Piece::Item));
        Line { depth, level, pieces }
    }
}

impl Item {
    fn takes_name(&self) -> bool {
        self.name.is_empty() && self.reference.is_empty() && self.states.is_empty()
    }
}

const STATES: [&str; 22] = [
    "checked",
    "mixed",
    "pressed",
    "expanded",
    "collapsed",
    "selected",
    "disabled",
    "readonly",
    "required",
    "invalid",
    "current",
    "focused",
    "modal",
    "color",
    "date",
    "datetime-local",
    "file",
    "month",
    "number",
    "range",
    "time",
    "week",
];

fn is_reference(word: &str) -> bool {
    word.strip_prefix('e')
        .is_some_and(|number| !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit()))
}

enum Word<'a> {
    Text(String),
    Value(String),
    Hint(String),
    Options(Vec<String>),
    Plain(&'a str),
    Cell,
}

/// The words of a line; texts are JSON strings.
struct Words<'a> {
    rest: &'a str,
}

impl<'a> Words<'a> {
    fn next(&mut self) -> Option<Word<'a>> {
        self.rest = self.rest.trim_start();
        match self.rest.as_bytes().first()? {
            b'"' => self.text().map(Word::Text),
            b'|' => self.skip("|").map(|()| Word::Cell),
            b'=' => {
                self.skip("=")?;
                self.rest = self.rest.trim_start();
                self.text().map(Word::Value)
            }
            b'(' => {
                self.skip("(")?;
                let hint = self.text()?;
                self.skip(")")?;
                Some(Word::Hint(hint))
            }
            b'[' => {
                self.skip("[")?;
                let mut options = Vec::new();
                while !self.rest.trim_start().starts_with(']') {
                    self.rest = self.rest.trim_start();
                    options.push(self.text()?);
                }
                self.rest = self.rest.trim_start();
                self.skip("]").map(|()| Word::Options(options))
            }
            _ => {
                let end = self.rest.find(' ').unwrap_or(self.rest.len());
                let (word, rest) = self.rest.split_at(end);
                self.rest = rest;
                Some(Word::Plain(word))
            }
        }
    }

    fn skip(&mut self, mark: &str) -> Option<()> {
        self.rest = self.rest.strip_prefix(mark)?;
        Some(())
    }

    /// A JSON string at the beginning of the rest.
    fn text(&mut self) -> Option<String> {
        let mut strings = serde_json::Deserializer::from_str(self.rest).into_iter::<String>();
        let text = strings.next()?.ok()?;
        let end = strings.byte_offset();
        self.rest = &self.rest[end..];
        Some(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(role: &str, name: &str, reference: &str) -> Item {
        Item {
            role: role.to_owned(),
            name: name.to_owned(),
            reference: reference.to_owned(),
            ..Item::default()
        }
    }

    #[test]
    fn a_description_is_read() {
        let page = Page::read(
            "\"Select \\\"b\\\".\"\n## \"Form\"\n \"Name\" textbox \"N\" e1 = \"Ann\" focused required clickable e2 (\"hue\") \"end\"\n\
             combobox e3 = \"a\" [\"a\" \"b c\"] button \"Go\" e4\n \"Age\" | textbox e5 | \"x\"\nimg \"vegan\" img \"fine\"\n\
             \"Time left: 10 / 10sec\"\n(scroll for more elements: 1 below)",
        );
        assert_eq!(page.utterance(), "Select \"b\".");
        assert_eq!(page.lines.len(), 6);
        assert_eq!((page.lines[1].level, page.lines[2].depth), (2, 1));
        let mut name = item("textbox", "N", "e1");
        (name.value, name.states) = ("Ann".to_owned(), vec!["focused".to_owned(), "required".to_owned()]);
        let hue = Item { hint: "hue".to_owned(), ..item("clickable", "", "e2") };
        let text = |text: &str| Piece::Text(text.to_owned());
        assert_eq!(page.lines[2].pieces, [text("Name"), Piece::Item(name), Piece::Item(hue), text("end")]);
        let options = vec!["a".to_owned(), "b c".to_owned()];
        let list = Item { value: "a".to_owned(), options, ..item("combobox", "", "e3") };
        assert_eq!(page.lines[3].pieces, [Piece::Item(list), Piece::Item(item("button", "Go", "e4"))]);
        let cells =
            [text("Age"), Piece::Cell, Piece::Item(item("textbox", "", "e5")), Piece::Cell, text("x")];
        assert_eq!(page.lines[4].pieces, cells);
        assert_eq!(
            page.lines[5].pieces,
            [Piece::Item(item("img", "vegan", "")), Piece::Item(item("img", "fine", ""))]
        );
        assert_eq!(page.below().lines.len(), 5);
    }

    #[test]
    fn an_element_without_a_name_is_named_by_the_text_in_it() {
        let page =
            Page::read("list e1\n listitem e2\n  \"Samoa\"\n listitem \"Own\" e3\nbutton e4\n\"beside\"");
        let names: Vec<(&str, &str)> =
            page.named_items().iter().map(|(item, name)| (item.reference.as_str(), *name)).collect();
        assert_eq!(names, [("e1", ""), ("e2", "Samoa"), ("e3", "Own"), ("e4", "")]);
    }

    #[test]
    fn what_is_not_a_description_is_read_without_a_panic() {
        for text in [
            "",
            "\"open",
            "=",
            "[\"a",
            "(",
            "e1 e2",
            "\u{1f980} \"x",
            "# ",
            "= \"a\" [",
            "button \"a\\ud800\"",
        ] {
            Page::read(text);
        }
    }
}

//! Skills that policies share: what a person does with a page, by the tools.

use crate::page::{Item, Page, Piece};
use crate::tools::{Did, Play, Stuck, Tools, stuck};
use serde_json::{Value, json};

/// Rounds of looking for something before it is given up.
const TRIES_MAX: usize = 40;

/// Somebody who follows a policy.
pub struct Player<'a> {
    tools: &'a mut dyn Tools,
    /// The page as it was looked at; `None` since something was done.
    page: Option<Page>,
    utterance: String,
    /// CSS pixels; asked for when it is needed.
    viewport: Option<[f64; 2]>,
}

/// Which element is meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target(pub String);

impl From<&Item> for Target {
    fn from(item: &Item) -> Target {
        Target(item.reference.clone())
    }
}

impl<'a> Player<'a> {
    /// Looks at the page for the first time.
    pub fn new(tools: &'a mut dyn Tools) -> Play<Player<'a>> {
        let mut player = Player { tools, page: None, utterance: String::new(), viewport: None };
        // A page that loads slowly has no task yet.
        let asks = |page: &Page| Some(page.utterance()).filter(|utterance| !utterance.is_empty());
        player.utterance = player.wait_for("a task", asks)?;
        let said = format!("The task: {}", player.utterance);
        player.say(&said);
        Ok(player)
    }

    /// What the task asks.
    pub fn utterance(&self) -> String {
        self.utterance.clone()
    }

    /// The page as it is now.
    pub fn page(&mut self) -> Play<Page> {
        if self.page.is_none() {
            self.page = Some(Page::read(&self.tools.describe()?));
        }
        Ok(self.page.clone().unwrap_or_default())
    }

    /// Tells people why something is done.
    pub fn say(&mut self, text: &str) {
        self.tools.say(text);
    }

    /// Carries out a tool, and fails where it was not done.
    pub fn act(&mut self, tool: &str, arguments: Value) -> Play<Did> {
        self.page = None;
        let did = self.tools.act(tool, arguments)?;
        if did.is_done { Ok(did) } else { stuck(did.text) }
    }

    /// Clicks an element.
    pub fn click(&mut self, target: impl Into<Target>) -> Play<Did> {
        self.act("click", json!({ "ref": target.into().0 }))
    }

    /// Moves the mouse onto an element.
    pub fn hover(&mut self, target: impl Into<Target>) -> Play<Did> {
        self.act("hover", json!({ "ref": target.into().0 }))
    }

    /// Writes into a field in place of what is in it, or chooses in a list.
    pub fn write(&mut self, target: impl Into<Target>, text: &str) -> Play<Did> {
        self.act("write", json!({ "ref": target.into().0, "message": text }))
    }

    /// Presses a key some times.
    pub fn press(&mut self, key: &str, times: u64) -> Play {
        let mut left = times;
        while left > 0 {
            let now = left.min(100);
            self.act("press_keys", json!({ "keys": [key], "presses": now }))?;
            left -= now;
        }
        Ok(())
    }

    /// Presses keys together.
    pub fn chord(&mut self, keys: &[&str]) -> Play<Did> {
        self.act("press_keys", json!({ "keys": keys, "is_hotkey": true }))
    }

    /// Waits.
    pub fn wait(&mut self, seconds: f64) -> Play<Did> {
        self.act("wait", json!({ "seconds": seconds }))
    }

    /// Drags from a point to another, in CSS pixels.
    pub fn drag(&mut self, from: [f64; 2], to: [f64; 2]) -> Play<Did> {
        let (from, to) = (self.thousandths(from)?, self.thousandths(to)?);
        self.act("drag", json!({ "start_point_2d": from, "end_point_2d": to }))
    }

    /// Clicks a point, in CSS pixels.
    pub fn click_at(&mut self, at: [f64; 2]) -> Play<Did> {
        let at = self.thousandths(at)?;
        self.act("click", json!({ "point_2d": at }))
    }

    /// A point as tools take it.
    fn thousandths(&mut self, at: [f64; 2]) -> Play<[f64; 2]> {
        let [width, height] = self.viewport()?;
        Ok([(at[0] / width * 1000.0).clamp(0.0, 1000.0), (at[1] / height * 1000.0).clamp(0.0, 1000.0)])
    }

    /// The size of the viewport: where its corner is.
    fn viewport(&mut self) -> Play<[f64; 2]> {
        if let Some(size) = self.viewport {
            return Ok(size);
        }
        let did = self.act("hover", json!({ "point_2d": [500, 1000] }))?;
        let Some([x, y]) = did.position else { return stuck("the size of the viewport is not known") };
        self.viewport = Some([x * 2.0, y]);
        Ok([x * 2.0, y])
    }

    /// The box of an element in the viewport: left, top, width and height.
    pub fn area(&mut self, target: impl Into<Target>) -> Play<[f64; 4]> {
        let did = self.hover(target)?;
        did.area.map_or_else(|| stuck("an element without a box"), Ok)
    }

    /// The first element that fits.
    pub fn find(&mut self, what: &str, fits: impl Fn(&Item) -> bool) -> Play<Item> {
        let page = self.page()?.below();
        let found = page.items().find(|item| !item.reference.is_empty() && fits(item));
        found.cloned().map_or_else(|| stuck(format!("no {what} on the page")), Ok)
    }

    /// The element of this role and name; else one whose name differs in case alone.
    pub fn named(&mut self, role: &str, name: &str) -> Play<Item> {
        let what = format!("{role} {name:?}");
        let exact = self.find(&what, |item| item.role == role && item.name == name);
        exact.or_else(|_| self.find(&what, |item| item.role == role && item.name.eq_ignore_ascii_case(name)))
    }

    /// The element of this name, of the first of these roles that has one.
    pub fn named_as(&mut self, roles: &[&str], name: &str) -> Play<Item> {
        let mut found = stuck(format!("nothing is named {name:?}"));
        for role in roles {
            if matches!(found, Err(Stuck::NoWay(_))) {
                found = self.named(role, name);
            }
        }
        found
    }

    /// The n-th element of a role, from 1.
    pub fn nth(&mut self, role: &str, number: usize) -> Play<Item> {
        let page = self.page()?.below();
        let item = number.checked_sub(1).and_then(|place| page.of_role(role).nth(place).cloned());
        item.map_or_else(|| stuck(format!("no {role} number {number}")), Ok)
    }

    /// Clicks the button of this name.
    pub fn press_button(&mut self, name: &str) -> Play<Did> {
        let button = self.named("button", name)?;
        self.click(&button)
    }

    /// Clicks `Submit`.
    pub fn submit(&mut self) -> Play<Did> {
        let button = self.named_as(&["button", "clickable"], "Submit")?;
        self.click(&button)
    }

    /// The field that a text before it, or its own name, calls so.
    pub fn field(&mut self, label: &str) -> Play<Item> {
        let page = self.page()?.below();
        let is_field =
            |item: &Item| matches!(item.role.as_str(), "textbox" | "spinbutton" | "searchbox" | "combobox");
        // `Director` and `Director Name:` are the same.
        let is_label = |text: &str| {
            let start = text.trim().get(..label.len());
            start.is_some_and(|start| start.eq_ignore_ascii_case(label))
        };
        let mut before = "";
        for piece in page.pieces() {
            match piece {
                Piece::Text(text) => before = text,
                Piece::Item(item) if is_field(item) && (is_label(&item.name) || is_label(before)) => {
                    return Ok(item.clone());
                }
                Piece::Item(_) => before = "",
                Piece::Cell => {}
            }
        }
        stuck(format!("no field {label:?}"))
    }

    /// Looks again, with a moment between, until something is there.
    pub fn wait_for<T>(&mut self, what: &str, look: impl Fn(&Page) -> Option<T>) -> Play<T> {
        for _ in 0..TRIES_MAX {
            let page = self.page()?;
            if let Some(found) = look(&page) {
                return Ok(found);
            }
            self.wait(0.25)?;
        }
        stuck(format!("{what} did not come"))
    }
}

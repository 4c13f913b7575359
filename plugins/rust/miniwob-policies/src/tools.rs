//! What a policy acts with: the tools that a model gets, and the page description.

use serde_json::Value;
use std::fmt;

/// A browser.
pub trait Tools {
    /// Carries out one tool.
    fn act(&mut self, tool: &str, arguments: Value) -> Result<Did, Stuck>;
    /// The page as text; with what is scrolled away.
    fn describe(&mut self) -> Result<String, Stuck>;
    /// Tells people what is about to be done, and why.
    fn say(&mut self, text: &str);
}

/// What came of a tool.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Did {
    /// Whether it was carried out.
    pub is_done: bool,
    /// The line that a model would be told.
    pub text: String,
    /// Tag of the element that it was on, in lower case.
    pub tag: String,
    /// Box of that element in the viewport: left, top, width and height in CSS pixels.
    pub area: Option<[f64; 4]>,
    /// Where it acted, in CSS pixels.
    pub position: Option<[f64; 2]>,
}

/// Why a policy does not go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stuck {
    /// The page is not what the policy is for.
    NoWay(String),
    /// The tools failed; who implements them knows how.
    Lost,
}

impl fmt::Display for Stuck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Stuck::NoWay(why) => f.write_str(why),
            Stuck::Lost => f.write_str("the browser is lost"),
        }
    }
}

/// What a policy returns.
pub type Play<T = ()> = Result<T, Stuck>;

/// A policy that cannot go on, and why.
pub fn stuck<T>(why: impl fmt::Display) -> Play<T> {
    Err(Stuck::NoWay(why.to_string()))
}

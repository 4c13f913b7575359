//! Locators: how to find an element, looked up anew for every call, and waited for.

mod act;
mod find;
mod read;

pub(crate) use act::input_paths;
pub use act::{ActionOptions, ElementState, SelectOption};

use crate::error::Result;
use crate::frame::Frame;
use crate::page::Page;
use crate::selector::{self, RoleOptions, Step, TextMatch, describe, steps_json};
use serde_json::Value;
use std::fmt;

/// How to find an element. Nothing is looked up before it is used, and then always anew: a locator never goes stale.
///
/// Calls for one element are strict: several matches are [`BrowserError::Strict`](crate::BrowserError::Strict). Actions
/// wait until the element is attached, and as the action needs it visible, stable, enabled, editable, and not covered.
#[derive(Clone)]
pub struct Locator {
    frame: Frame,
    /// Steps to the frames' elements on the way down, outermost first.
    frames: Vec<Vec<Step>>,
    steps: Vec<Step>,
    /// What is wrong with its selector; told by the first call.
    error: Option<crate::BrowserError>,
}

/// The document in a frame's element, looked up anew for every call.
#[derive(Clone, Debug)]
pub struct FrameLocator {
    element: Locator,
}

macro_rules! finders {
    ($($self:ident => $start:expr),*) => {$(
        /// Elements by a selector: CSS, or with an engine in front `xpath=`, `text=`, `role=`, `id=`, `data-testid=`,
        /// `nth=`, `visible=`; parts are chained by `>>`.
        pub fn locator(&$self, selector: &str) -> Locator {
            $start.then_selector(selector)
        }

        /// Elements of a role, such as `button`, as assistive technology sees them.
        pub fn get_by_role(&$self, role: &str, options: RoleOptions) -> Locator {
            $start.then(options.step(role))
        }

        /// The smallest elements with this text; buttons made by `input` by their value.
        pub fn get_by_text(&$self, text: impl Into<TextMatch>) -> Locator {
            $start.then(Step::new("text", text.into().json()))
        }

        /// Controls by the text of their label, `aria-labelledby` or `aria-label`.
        pub fn get_by_label(&$self, text: impl Into<TextMatch>) -> Locator {
            $start.then(Step::new("label", text.into().json()))
        }

        /// Controls by their placeholder.
        pub fn get_by_placeholder(&$self, text: impl Into<TextMatch>) -> Locator {
            $start.then(Step::new("placeholder", text.into().json()))
        }

        /// Images by their alternative text.
        pub fn get_by_alt_text(&$self, text: impl Into<TextMatch>) -> Locator {
            $start.then(Step::new("alt", text.into().json()))
        }

        /// Elements by their `title`.
        pub fn get_by_title(&$self, text: impl Into<TextMatch>) -> Locator {
            $start.then(Step::new("title", text.into().json()))
        }

        /// Elements by their `data-testid`: a text stands for the whole of it.
        pub fn get_by_test_id(&$self, id: impl Into<TextMatch>) -> Locator {
            $start.then(Step::new("test_id", id.into().json()))
        }

        /// The document in the frame whose element the selector finds.
        pub fn frame_locator(&$self, selector: &str) -> FrameLocator {
            FrameLocator { element: $start.then_selector(selector) }
        }
    )*};
}

impl Page {
    finders!(self => Locator::of(self.main_frame()));
}

impl Frame {
    finders!(self => Locator::of(self.clone()));
}

impl Locator {
    finders!(self => self.clone());

    /// Those that also fulfil what the filter says.
    #[must_use]
    pub fn filter(&self, filter: Filter) -> Locator {
        let mut locator = self.clone();
        let texts = [("has_text", filter.has_text), ("has_not_text", filter.has_not_text)];
        for (engine, text) in texts {
            if let Some(text) = text {
                locator = locator.then(Step::new(engine, text.json()));
            }
        }
        let inner = [("has", filter.has), ("has_not", filter.has_not)];
        for (engine, inner) in inner {
            if let Some(inner) = inner {
                locator = locator.then_inner(engine, &inner);
            }
        }
        match filter.visible {
            Some(visible) => locator.then(Step::new("visible", visible)),
            None => locator,
        }
    }

    /// Those that the other locator finds as well.
    #[must_use]
    pub fn and(&self, other: &Locator) -> Locator {
        self.clone().then_inner("and", other)
    }

    /// Those of either, in the order of the page.
    #[must_use]
    pub fn or(&self, other: &Locator) -> Locator {
        self.clone().then_inner("or", other)
    }

    /// The first of them.
    #[must_use]
    pub fn first(&self) -> Locator {
        self.nth(0)
    }

    /// The last of them.
    #[must_use]
    pub fn last(&self) -> Locator {
        self.nth(-1)
    }

    /// One of them, from 0; negative numbers count from the end.
    #[must_use]
    pub fn nth(&self, index: i64) -> Locator {
        self.clone().then(Step::new("nth", index))
    }

    /// The document in the frame whose element it finds.
    pub fn content_frame(&self) -> FrameLocator {
        FrameLocator { element: self.clone() }
    }

    /// The page it looks in.
    pub fn page(&self) -> &Page {
        self.frame.page()
    }

    fn of(frame: Frame) -> Locator {
        Locator { frame, frames: Vec::new(), steps: Vec::new(), error: None }
    }

    fn then(mut self, step: Step) -> Locator {
        self.steps.push(step);
        self
    }

    fn then_selector(mut self, selector: &str) -> Locator {
        match selector::parse(selector) {
            Ok(steps) => self.steps.extend(steps),
            Err(error) => self.error = self.error.or(Some(error)),
        }
        self
    }

    fn then_inner(mut self, engine: &'static str, inner: &Locator) -> Locator {
        if self.frames != inner.frames && !inner.frames.is_empty() {
            let what = "inner locator: expected one without frames, or in the same frames";
            self.error = self.error.or_else(|| Some(crate::BrowserError::invalid(what)));
        }
        self.error = self.error.or_else(|| inner.error.clone());
        self.then(Step::new(engine, steps_json(&inner.steps)))
    }

    fn steps_json(&self) -> Value {
        steps_json(&self.steps)
    }

    fn parsed(&self) -> Result<()> {
        self.error.clone().map_or(Ok(()), Err)
    }
}

impl FrameLocator {
    finders!(self => self.inside());

    fn inside(&self) -> Locator {
        let mut locator = self.element.clone();
        let steps = std::mem::take(&mut locator.steps);
        locator.frames.push(steps);
        locator
    }

    /// The frame's element.
    pub fn owner(&self) -> Locator {
        self.element.clone()
    }
}

/// What elements must fulfil besides: see [`Locator::filter`].
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// Their text contains this.
    pub has_text: Option<TextMatch>,
    /// Their text does not contain this.
    pub has_not_text: Option<TextMatch>,
    /// They contain an element that this locator finds below them.
    pub has: Option<Locator>,
    /// They do not contain such an element.
    pub has_not: Option<Locator>,
    /// They are visible, or are not.
    pub visible: Option<bool>,
}

impl fmt::Display for Locator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&describe(&self.steps))?;
        for frame in self.frames.iter().rev() {
            write!(f, " in frame {}", describe(frame))?;
        }
        Ok(())
    }
}

impl fmt::Debug for Locator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Locator({self})")
    }
}

//! The component: the browser of the rollout as [`Tools`].

use crate::policies;
use crate::settings::Settings;
use crate::tools::{Did, Stuck, Tools};
use espalier_sdk::wit::espalier::base::log::Level;
use espalier_sdk::wit::espalier::browser::browsers::{Outcome, SnapshotOptions, Step};
use espalier_sdk::{Browser, Failure, Report, TaskView, invalid, log};
use serde_json::{Value, json};

espalier_sdk::harness!(Settings, run);

fn run(task: TaskView, settings: Settings) -> Result<Report, Failure> {
    let data: Value = serde_json::from_str(&task.data).unwrap_or_default();
    let Some(page) = data["page"].as_str() else {
        return Err(invalid("`data.page` of the task: expected the name of a page of MiniWoB++"));
    };
    let browser = Browser::open(&settings.browser)?;
    let mut session = Session { browser, settings, actions: 0, failure: None };
    let Some(played) = policies::play(page, &mut session) else {
        let known: Vec<&str> = policies::names().collect();
        return Err(invalid(format_args!("no policy for the page {page:?}: there are {}", known.join(", "))));
    };
    let ended = played.and_then(|()| session.act("done", json!({ "response": "done" })).map(drop));
    session.look()?;
    if let Some(failure) = session.failure {
        return Err(failure);
    }
    let facts = |why: Option<&str>| json!({ "page": page, "actions": session.actions, "gave_up": why });
    Ok(match ended {
        Ok(()) => Report::submitted().answer("done").data(facts(None)),
        Err(stuck) => {
            let why = stuck.to_string();
            log(Level::Warn, &why);
            Report::gave_up().data(facts(Some(&why)))
        }
    })
}

struct Session {
    browser: Browser,
    settings: Settings,
    actions: u32,
    /// Why the host did not do what it was asked; nothing is asked of it from then on.
    failure: Option<Failure>,
}

impl Session {
    fn kept<T>(&mut self, result: Result<T, Failure>) -> Result<T, Stuck> {
        result.map_err(|failure| {
            self.failure.get_or_insert(failure);
            Stuck::Lost
        })
    }

    /// Takes a screenshot where the experiment wants them. A page that cannot be shown is no reason to end.
    fn look(&mut self) -> Result<(), Failure> {
        if !self.settings.screenshots || self.failure.is_some() {
            return Ok(());
        }
        match self.browser.screenshot() {
            Ok(_) | Err(Failure::Other(_)) => Ok(()),
            Err(failure) => Err(failure),
        }
    }
}

impl Tools for Session {
    fn act(&mut self, tool: &str, arguments: Value) -> Result<Did, Stuck> {
        let looked = self.look();
        self.kept(looked)?;
        self.actions += 1;
        let step = self.browser.tool(tool, &arguments);
        self.kept(step).map(did)
    }

    fn describe(&mut self) -> Result<String, Stuck> {
        let tokens_max = Some(self.settings.description_tokens);
        let options = SnapshotOptions { tokens_max, changes: false, whole_page: true, extra: None };
        let snapshot = self.browser.0.snapshot(&options);
        self.kept(snapshot).map(|snapshot| snapshot.text)
    }

    fn say(&mut self, text: &str) {
        log(Level::Info, text);
    }
}

fn did(step: Step) -> Did {
    let area = step.element.as_ref().and_then(|element| element.area);
    Did {
        is_done: matches!(step.outcome, Outcome::Done | Outcome::Ended(_)),
        text: step.text,
        tag: step.element.map(|element| element.tag).unwrap_or_default(),
        area: area.map(|area| [area.x, area.y, area.width, area.height]),
        position: step.position.map(|at| [at.x, at.y]),
    }
}

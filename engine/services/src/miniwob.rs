//! MiniWoB++: the pages of the Python package, each started by itself with the seed of the task, its end told to the session.
//!
//! The page that is the episode gets one script more, at its end. It starts the episode, and tells the session what the page asks for and
//! how it ended; what makes its reports the session's own is a secret in its closure. The reward itself is computed by the page, as
//! MiniWoB++ does it: globals of the page that are written over count for nothing. Several pages put what is typed into their markup:
//! scripts run where the file itself has them, and nowhere else ([`guard`]).

mod guard;

use crate::folder::Folder;
use espalier_core::service::TaskService;
pub(crate) use guard::{Page, guard};
use serde::Deserialize;
use serde_json::{Value, json};
use std::borrow::Cow;

/// Longest utterance that is kept, characters.
const UTTERANCE_CHARS_MAX: usize = 4_000;
const SCRIPT: &str = include_str!("miniwob.js");
/// Folder of the tasks that are one page each.
const TASKS: &str = "miniwob/";
/// Folder of those of the flight sites, and the page of each.
const FLIGHT: (&str, &str) = ("flight/", "/wrapper.html");

/// The pages.
#[derive(Debug)]
pub struct Miniwob {
    pub(crate) folder: Folder,
}

impl Miniwob {
    /// Errors: it is not the folder of the package.
    pub fn new(folder: Folder) -> Result<Miniwob, String> {
        if folder.file("core/core.js").is_none() {
            return Err("no `core/core.js` in it".to_owned());
        }
        let miniwob = Miniwob { folder };
        if miniwob.tasks().next().is_none() {
            return Err("no task in it: expected `miniwob/*.html`".to_owned());
        }
        Ok(miniwob)
    }

    /// The names of its tasks, such as `click-button` and `flight.AA`.
    pub fn tasks(&self) -> impl Iterator<Item = String> {
        self.folder.paths().filter_map(|path| {
            let (folder, page) = FLIGHT;
            let flight = path.strip_prefix(folder).and_then(|rest| rest.strip_suffix(page));
            let plain = || path.strip_prefix(TASKS)?.strip_suffix(".html").filter(|name| !name.contains('/'));
            flight.map(|site| format!("flight.{site}")).or_else(|| plain().map(str::to_owned))
        })
    }

    /// Where the page of a task is.
    pub(crate) fn page(&self, task: &str) -> Option<String> {
        let path = match task.strip_prefix("flight.") {
            Some(site) => format!("{}{site}{}", FLIGHT.0, FLIGHT.1),
            None => format!("{TASKS}{task}.html"),
        };
        self.folder.file(&path).map(|_| path)
    }

    /// Whether a page is one of this task: its own, or one of the same flight site. Pages of other tasks are of the same origin, and so
    /// could read the secret: a session is not shown them.
    pub(crate) fn is_of(&self, task: &str, path: &str) -> bool {
        in_site(task, path) || self.page(task).as_deref() == Some(path)
    }

    /// Refuses what a task cannot say of it. Errors begin with `.KEY`.
    pub(crate) fn check(&self, service: &TaskService) -> Result<(), String> {
        if service.state.is_some() {
            return Err(".state is for applications, and the service is MiniWoB: expected `task`".to_owned());
        }
        let Some(task) = &service.task else {
            return Err(": `task` is missing, such as \"click-button\"".to_owned());
        };
        match self.page(task) {
            Some(_) => Ok(()),
            None => {
                let task: String = task.chars().take(100).collect();
                Err(format!(".task {task:?}: not one of the {} tasks of MiniWoB++", self.tasks().count()))
            }
        }
    }

    /// How a session begins.
    pub(crate) fn session(service: &TaskService, secret: String, nonce: String) -> MiniwobSession {
        MiniwobSession {
            task: service.task.clone().unwrap_or_default(),
            seed: service.seed.unwrap_or(0),
            secret,
            nonce,
            utterance: None,
            end: None,
        }
    }

    /// The page of the episode, with the script at its end. Opened several times it is the same episode: there is no practice.
    pub(crate) fn episode(&self, session: &MiniwobSession, sid: &str) -> Option<Page> {
        let page = self.folder.file(&self.page(&session.task)?)?;
        let values = [("SID", json!(sid)), ("SECRET", json!(session.secret)), ("SEED", json!(session.seed))];
        let script = values.iter().fold(SCRIPT.to_owned(), |script, (name, value)| {
            script.replace(&format!("__{name}__"), &value.to_string())
        });
        let script = format!("<script>{script}</script>");
        let text = String::from_utf8_lossy(page);
        let end = text.rfind("</body>").unwrap_or(text.len());
        let text = format!("{}{script}{}", &text[..end], &text[end..]);
        Some(guard(&text, &self.scripts(&session.task), &session.nonce))
    }

    /// Another page of its site.
    pub(crate) fn beside(&self, session: &MiniwobSession, path: &str) -> Option<Page> {
        let page = self.folder.file(path).filter(|_| self.is_of(&session.task, path))?;
        Some(guard(&String::from_utf8_lossy(page), &self.scripts(&session.task), &session.nonce))
    }

    /// The scripts of a task's flight site.
    fn scripts(&self, task: &str) -> Vec<Cow<'_, str>> {
        let paths = self.folder.paths().filter(|path| path.ends_with(".js") && in_site(task, path));
        paths.filter_map(|path| Some(String::from_utf8_lossy(self.folder.file(path)?))).collect()
    }
}

/// Whether a file is one of a task's flight site.
fn in_site(task: &str, path: &str) -> bool {
    let rest = task.strip_prefix("flight.").and_then(|site| path.strip_prefix(FLIGHT.0)?.strip_prefix(site));
    rest.is_some_and(|rest| rest.starts_with('/'))
}

/// The episode of one rollout.
#[derive(Debug)]
pub(crate) struct MiniwobSession {
    pub(crate) task: String,
    seed: u64,
    /// In the closure of the episode's page, however often it is opened.
    secret: String,
    /// What the scripts of its pages are known by.
    nonce: String,
    utterance: Option<String>,
    /// The raw reward of the first end.
    end: Option<f64>,
}

/// What the script tells.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Report {
    secret: String,
    #[serde(default)]
    utterance: Option<String>,
    #[serde(default)]
    raw_reward: Option<f64>,
}

impl MiniwobSession {
    /// Takes a report. The first end counts.
    pub(crate) fn report(&mut self, body: &[u8]) -> Result<(), String> {
        let report: Report = serde_json::from_slice(body).map_err(|error| error.to_string())?;
        if self.secret != report.secret {
            return Err("the report is not one of the episode's page".to_owned());
        }
        if let Some(utterance) = report.utterance {
            self.utterance = Some(utterance.chars().take(UTTERANCE_CHARS_MAX).collect());
        }
        if let Some(reward) = report.raw_reward {
            if !(-1.0..=1.0).contains(&reward) {
                return Err(format!("raw_reward {reward}: expected -1 to 1"));
            }
            self.end.get_or_insert(reward);
        }
        Ok(())
    }

    pub(crate) fn state(&self) -> Value {
        json!({
            "task": self.task,
            "seed": self.seed,
            "utterance": self.utterance,
            "done": self.end.is_some(),
            "raw_reward": self.end.unwrap_or(0.0),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package() -> Miniwob {
        let folder = tempfile::tempdir().unwrap();
        for (path, text) in [
            ("core/core.js", ""),
            ("miniwob/click-button.html", "<body><p>x</p></body>\n"),
            ("flight/AA/wrapper.html", ""),
            ("flight/AA/index.html", ""),
        ] {
            let path = folder.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        Miniwob::new(Folder::read(folder.path()).unwrap()).unwrap()
    }

    #[test]
    fn a_task_names_a_page() {
        let miniwob = package();
        assert_eq!(miniwob.tasks().collect::<Vec<_>>(), ["flight.AA", "click-button"]);
        let check = |text: &str| miniwob.check(&serde_json::from_str(text).unwrap());
        assert_eq!(check(r#"{"task":"click-button","seed":1}"#), Ok(()));
        assert_eq!(check(r#"{"task":"flight.AA"}"#), Ok(()));
        for (text, expect) in [
            ("{}", ": `task` is missing, such as \"click-button\""),
            (r#"{"task":"../core/core"}"#, ".task \"../core/core\": not one of the 2 tasks of MiniWoB++"),
            (r#"{"state":{}}"#, ".state is for applications, and the service is MiniWoB: expected `task`"),
        ] {
            assert_eq!(check(text).unwrap_err(), expect);
        }
    }

    #[test]
    fn the_first_end_that_the_page_tells_counts() {
        let miniwob = package();
        let mut session = Miniwob::session(
            &serde_json::from_str(r#"{"task":"click-button","seed":3}"#).unwrap(),
            "5ecret".to_owned(),
            "0nce".to_owned(),
        );
        let page = miniwob.episode(&session, "5id").unwrap();
        let text = page.text.as_str();
        assert!(
            text.contains("\"5id\"") && text.contains("\"5ecret\"") && text.ends_with("</script></body>\n")
        );
        assert!(!text.contains("__"), "every name has its value");
        let mut report = |value: Value| session.report(value.to_string().as_bytes());
        assert_eq!(report(json!({"secret": "5ecret", "utterance": "Click."})), Ok(()));
        let foreign = "the report is not one of the episode's page";
        assert_eq!(report(json!({"secret": "other", "raw_reward": 1})).unwrap_err(), foreign);
        assert_eq!(
            report(json!({"secret": "5ecret", "raw_reward": 2})).unwrap_err(),
            "raw_reward 2: expected -1 to 1"
        );
        assert_eq!(report(json!({"secret": "5ecret", "raw_reward": -1})), Ok(()));
        assert_eq!(report(json!({"secret": "5ecret", "raw_reward": 1})), Ok(()));
        let expect = json!({"task": "click-button", "seed": 3, "utterance": "Click.", "done": true, "raw_reward": -1.0});
        assert_eq!(session.state(), expect);
        assert_eq!(miniwob.episode(&session, "5id").unwrap(), page, "opened again it is the same episode");
        assert_eq!(session.report(br#"{"secret":"5ecret","raw_reward":1}"#), Ok(()));
        assert_eq!(session.state(), expect, "and its first end is the end");
    }
}

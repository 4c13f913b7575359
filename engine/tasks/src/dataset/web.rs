//! Published sets of tasks on websites: WebVoyager, Online-Mind2Web and DeepShop, row by row.
//!
//! A task opens the site of its record, may reach it, and keeps what the set says of the solution in `private`, for judges.

use super::rows::{Row, rows};
use super::{DatasetError, checked, shown};
use espalier_core::sandbox::Rule;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// A published set whose tasks are on websites.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WebSet {
    /// WebVoyager: `{web_name, id, ques, web}`.
    WebVoyager,
    /// Online-Mind2Web: `{task_id, confirmed_task, website, reference_length, level}`.
    OnlineMind2Web,
    /// DeepShop: WebVoyager's keys with `attribute`, `filter`, `sort`, `category` and `difficulty`.
    DeepShop,
}

impl WebSet {
    /// Every set with its name on the command line.
    pub const ALL: [(&str, WebSet); 3] = [
        ("webvoyager", WebSet::WebVoyager),
        ("online-mind2web", WebSet::OnlineMind2Web),
        ("deepshop", WebSet::DeepShop),
    ];

    /// By its name.
    pub fn from_name(name: &str) -> Option<WebSet> {
        WebSet::ALL.iter().find(|(known, _)| *known == name).map(|(_, set)| *set)
    }
}

/// What the user says beside the rows.
#[derive(Clone, Debug, Default)]
pub struct WebOptions {
    /// What every task may reach beside its site, as entries of `network.allow`.
    pub allow: Vec<String>,
    /// WebVoyager's reference answers.
    pub answers: Option<Answers>,
}

/// Reads rows, as JSON lines or one JSON array; each becomes a line of a task file, or says what is wrong with it.
pub fn read_web<'a>(
    set: WebSet,
    text: &'a str,
    options: &'a WebOptions,
) -> impl Iterator<Item = Result<String, DatasetError>> + 'a {
    rows(text).map(move |(record, row)| {
        let mut id = None;
        let task = row.and_then(|row| {
            id = row.name(id_key(set));
            task(set, &row, options)
        });
        task.and_then(|task| checked(&task)).map_err(|problem| DatasetError { record, id, problem })
    })
}

fn id_key(set: WebSet) -> &'static str {
    match set {
        WebSet::OnlineMind2Web => "task_id",
        WebSet::WebVoyager | WebSet::DeepShop => "id",
    }
}

fn task(set: WebSet, row: &Row, options: &WebOptions) -> Result<Value, String> {
    let id = row.text(id_key(set))?;
    let (instruction_key, site_key) = match set {
        WebSet::OnlineMind2Web => ("confirmed_task", "website"),
        WebSet::WebVoyager | WebSet::DeepShop => ("ques", "web"),
    };
    let instruction = row.text(instruction_key)?;
    let url = row.text(site_key)?;
    let site = Site::of(url)
        .map_err(|wanted| format!("invalid `{site_key}` {}: expected {wanted}", shown(&json!(url))))?;
    let mut allow = site.network();
    allow.extend(options.allow.iter().filter(|more| !allow.contains(more)).cloned().collect::<Vec<_>>());
    let parts = match set {
        WebSet::WebVoyager => webvoyager(row, id, options.answers.as_ref())?,
        WebSet::OnlineMind2Web => online_mind2web(row, &site)?,
        WebSet::DeepShop => deepshop(row)?,
    };
    let mut task = json!({
        "id": id,
        "instruction": instruction,
        "tags": parts.tags,
        "data": parts.data,
        "browser": { "start_url": url, "network": { "allow": allow } },
    });
    if !parts.private.is_empty() {
        task["private"] = Value::Object(parts.private);
    }
    Ok(task)
}

/// What the sets say in ways of their own.
struct Parts {
    tags: Vec<String>,
    data: Value,
    private: Map<String, Value>,
}

fn webvoyager(row: &Row, id: &str, answers: Option<&Answers>) -> Result<Parts, String> {
    let site = row.text("web_name")?;
    let answer = answers.and_then(|answers| answers.0.get(id));
    let private =
        answer.map(|answer| ("answer".to_owned(), json!({ "text": answer.text, "kind": answer.kind })));
    Ok(Parts {
        tags: vec!["webvoyager".to_owned(), site.to_owned()],
        data: json!({ "site": site }),
        private: private.into_iter().collect(),
    })
}

fn online_mind2web(row: &Row, site: &Site) -> Result<Parts, String> {
    const LEVELS: [&str; 3] = ["easy", "medium", "hard"];
    let level = one_of(row, "level", &LEVELS)?;
    let length = row.get("reference_length").ok_or("`reference_length` is missing")?;
    let steps = length.as_u64().filter(|steps| *steps > 0).ok_or_else(|| {
        format!("invalid `reference_length` {}: expected a number of steps above 0", shown(length))
    })?;
    let name = site.bare();
    Ok(Parts {
        tags: vec!["online-mind2web".to_owned(), name.to_owned(), level.to_owned()],
        data: json!({ "site": name, "level": level }),
        private: [("reference_length".to_owned(), json!(steps))].into_iter().collect(),
    })
}

fn deepshop(row: &Row) -> Result<Parts, String> {
    const LEVELS: [&str; 3] = ["easy", "medium", "hard"];
    let site = row.text("web_name")?;
    let level = one_of(row, "difficulty", &LEVELS)?;
    let category = row.text("category")?;
    let mut criteria = Map::new();
    for key in ["attribute", "filter", "sort"] {
        // The set writes the text "None" where a query has no such part.
        if let Some(text) = row.optional_text(key)?.filter(|text| *text != "None") {
            criteria.insert(key.to_owned(), json!(text));
        }
    }
    if criteria.is_empty() {
        return Err("`attribute`, `filter` and `sort` are all \"None\": nothing could be judged".to_owned());
    }
    Ok(Parts {
        tags: ["deepshop", site, level, category].map(str::to_owned).to_vec(),
        data: json!({ "site": site, "level": level, "category": category }),
        private: [("criteria".to_owned(), Value::Object(criteria))].into_iter().collect(),
    })
}

fn one_of<'a>(row: &'a Row, key: &str, known: &[&str]) -> Result<&'a str, String> {
    let text = row.text(key)?;
    match known.contains(&text) {
        true => Ok(text),
        false => Err(format!("invalid `{key}` {}: expected {}", shown(&json!(text)), known.join(", "))),
    }
}

/// Where a record's site is.
struct Site {
    host: String,
    port: Option<u16>,
    is_secure: bool,
}

impl Site {
    /// From an address, or what was expected of it.
    fn of(url: &str) -> Result<Site, &'static str> {
        const WANTED: &str = "an address such as \"https://example.org/\"";
        let (scheme, rest) = url.split_once("://").ok_or(WANTED)?;
        let is_secure = match scheme.to_ascii_lowercase().as_str() {
            "https" => true,
            "http" => false,
            _ => return Err(WANTED),
        };
        let authority = rest.split(['/', '?', '#', '\\']).next().unwrap_or_default();
        if authority.contains('@') {
            return Err("an address without a user's name");
        }
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, port)) if !port.ends_with(']') => (host, Some(port.parse().map_err(|_| WANTED)?)),
            _ => (authority, None),
        };
        let host = host.to_ascii_lowercase();
        if Rule::parse(&format!("{host}:443")).is_err() || host.contains(['*', '/']) {
            return Err(WANTED);
        }
        Ok(Site { host, port, is_secure })
    }

    /// The host without `www.`.
    fn bare(&self) -> &str {
        self.host.strip_prefix("www.").unwrap_or(&self.host)
    }

    /// The site and the names below it, as entries of `network.allow`.
    fn network(&self) -> Vec<String> {
        let ports = match (self.port, self.is_secure) {
            (Some(port), _) => vec![port],
            (None, true) => vec![443],
            // A site of an old address leads on to its new one.
            (None, false) => vec![80, 443],
        };
        let (host, bare) = (&self.host, self.bare());
        let is_address =
            Rule::parse(&format!("*.{bare}:443")).is_err() || bare.parse::<std::net::IpAddr>().is_ok();
        let mut allow = Vec::new();
        for port in ports {
            allow.push(format!("{host}:{port}"));
            if !is_address {
                allow.extend((bare != host).then(|| format!("{bare}:{port}")));
                allow.push(format!("*.{bare}:{port}"));
            }
        }
        allow
    }
}

/// WebVoyager's reference answers by the task's id.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answers(BTreeMap<String, Answer>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Answer {
    text: String,
    /// `golden`: the only right one; `possible`: one of several, or one that changes.
    kind: String,
}

impl Answers {
    /// Reads the set's file: `{SITE: {"answers": [{"id": 0, "type": "golden", "ans": "..."}]}}`. The error says where in it.
    pub fn read(text: &str) -> Result<Answers, String> {
        let file: Map<String, Value> = serde_json::from_str(text)
            .map_err(|error| format!("expected an object of sites with their `answers`: {error}"))?;
        let mut answers = BTreeMap::new();
        for (site, of_site) in &file {
            let list = of_site.get("answers").and_then(Value::as_array);
            let list = list.ok_or_else(|| format!("{site}: expected a list in `answers`"))?;
            for (place, entry) in list.iter().enumerate() {
                let at = format!("{site}.answers[{place}]");
                let (number, answer) = Answer::of(entry).map_err(|problem| format!("{at}: {problem}"))?;
                answers.insert(format!("{site}--{number}"), answer);
            }
        }
        Ok(Answers(answers))
    }
}

impl Answer {
    fn of(entry: &Value) -> Result<(u64, Answer), String> {
        let number = entry.get("id").and_then(Value::as_u64);
        let number = number.ok_or_else(|| format!("expected a number in `id`, found {}", shown(entry)))?;
        let text = |key: &str| {
            let text = entry.get(key).and_then(Value::as_str).map(str::to_owned);
            text.ok_or_else(|| format!("expected a text in `{key}`, found {}", shown(entry)))
        };
        let kind = text("type")?;
        if kind != "golden" && kind != "possible" {
            return Err(format!("invalid `type` {kind:?}: expected golden or possible"));
        }
        Ok((number, Answer { text: text("ans")?, kind }))
    }
}

#[cfg(test)]
mod tests;

//! The chat templates that a published package carries, each tried in full: what it can carry, whether marker rendering
//! equals full rendering, and that control-token text in messages stays text. The result is docs/templates.md.
//!
//! `ESPALIER_CHAT_TEMPLATES` names the folder of `*.jinja` files (`make test` sets it). `ESPALIER_UPDATE_DOCS=1` writes
//! the page instead of comparing it. `ESPALIER_PYTHON` names a Python with jinja2, the reference (default `python3`).

use espalier_core::chat::{Message, Part, Role, Tool, ToolResult};
use espalier_inference::template::{
    Carried, Features, Needs, Rewrites, Source, SystemAs, Template, TemplateError, TemplateOptions,
    ToolResultsAs,
};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Number of templates in the published package; a folder with fewer is an incomplete installation.
const TEMPLATES: usize = 36;

fn templates() -> Option<BTreeMap<String, String>> {
    let Some(folder) = std::env::var_os("ESPALIER_CHAT_TEMPLATES").map(PathBuf::from) else {
        assert!(std::env::var_os("CI").is_none(), "ESPALIER_CHAT_TEMPLATES is not set");
        eprintln!("skipped: ESPALIER_CHAT_TEMPLATES is not set (make test sets it)");
        return None;
    };
    let files = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut templates = BTreeMap::new();
    for file in files {
        let path = file.expect("a readable folder").path();
        if path.extension().is_some_and(|extension| extension == "jinja") {
            let name = path.file_stem().expect("a file").to_string_lossy().into_owned();
            templates.insert(name, std::fs::read_to_string(&path).expect("a readable template"));
        }
    }
    assert_eq!(templates.len(), TEMPLATES, "templates in {}", folder.display());
    Some(templates)
}

fn text(role: Role, text: &str) -> Message {
    Message::text(role, text)
}

fn user(content: &str) -> Message {
    text(Role::User, content)
}

fn answer(content: &str) -> Message {
    text(Role::Assistant, content)
}

fn result(call: u32, content: &str) -> Message {
    let result = ToolResult { call_id: format!("call{call:05}"), text: content.to_owned(), is_error: false };
    Message { role: Role::Tool, parts: vec![Part::ToolResult(result)], extra: None }
}

fn tools() -> Vec<Tool> {
    let tool = |name: &str, description: &str, parameters: &str| Tool {
        name: name.to_owned(),
        description: description.to_owned(),
        parameters: parameters.to_owned(),
    };
    vec![
        tool(
            "search",
            "Finds \"things\" & <more>.",
            r#"{"type": "object", "properties": {"query": {"type": "string", "description": "what; e.g. é"}, "limit": {"type": "integer", "default": 3}}, "required": ["query"]}"#,
        ),
        tool("wait", "Does nothing.", r#"{"type": "object", "properties": {}}"#),
    ]
}

/// Every text between `<|` and `|>`, `<｜` and `｜>` or square brackets that the template writes, and its ends of text.
fn special_tokens(source: &str) -> Vec<String> {
    let pattern = regex::Regex::new(
        r"<[|｜][A-Za-z_▁0-9]+[|｜]>|<[|][a-z_]+>|<[a-z_]+[|]>|\[/?[A-Z_]{3,}\]|<(?:start|end)_of_turn>",
    )
    .expect("a valid pattern");
    let mut tokens: Vec<String> = pattern.find_iter(source).map(|found| found.as_str().to_owned()).collect();
    tokens.extend(["<s>".to_owned(), "</s>".to_owned()]);
    tokens.sort();
    tokens.dedup();
    tokens
}

fn options(source: &str) -> TemplateOptions {
    TemplateOptions {
        bos: "<s>".to_owned(),
        eos: "</s>".to_owned(),
        special_tokens: special_tokens(source),
        now_ms: 1_753_500_000_000,
        ..TemplateOptions::default()
    }
}

fn template(source: &str, options: TemplateOptions) -> Template {
    Template::new(&Source::Jinja(source.to_owned()), options).unwrap_or_else(|error| panic!("{error}"))
}

fn repaired(source: &str) -> TemplateOptions {
    TemplateOptions { system: SystemAs::FirstUser, tool_results: ToolResultsAs::User, ..options(source) }
}

/// A conversation up to an answer, the answer, and what follows.
struct Case {
    name: &'static str,
    before: Vec<Message>,
    answer: &'static str,
    new: Vec<Message>,
    tools: Vec<Tool>,
}

const CALL: &str =
    "<tool_call>\n{\"name\": \"search\", \"arguments\": {\"query\": \"a lamp\"}}\n</tool_call>";

fn cases() -> Vec<Case> {
    let system = text(Role::System, "You play a game.\nBe brief.");
    let first = user("You are in a hall.\n\nWhat now?");
    let case = |name, before: &[Message], answer, new: &[Message], tools: &[Tool]| Case {
        name,
        before: before.to_vec(),
        answer,
        new: new.to_vec(),
        tools: tools.to_vec(),
    };
    let turns = [first.clone(), answer("go north"), user("A wall."), answer("go south"), user("A door.")];
    let with_system: Vec<Message> = std::iter::once(system.clone()).chain(turns.iter().cloned()).collect();
    let called = [first.clone(), answer(CALL), result(1, "[1, 2]")];
    vec![
        case("one turn", std::slice::from_ref(&first), "go north", &[user("A wall.")], &[]),
        case("three turns", &turns, "open the door", &[user("It is \"locked\".")], &[]),
        case("system", &[system.clone(), first.clone()], "go north", &[user("A wall.")], &[]),
        case("system, three turns", &with_system, "open the door", &[user("It is locked.")], &[]),
        case("cut answer", &turns, "open the do", &[user("It is locked.")], &[]),
        case("tools offered", std::slice::from_ref(&first), "go north", &[user("A wall.")], &tools()),
        case("tool result", std::slice::from_ref(&first), CALL, &[result(1, "[1, 2]")], &tools()),
        case(
            "two results",
            std::slice::from_ref(&first),
            CALL,
            &[result(1, "[1]"), result(2, "[2]")],
            &tools(),
        ),
        case("after a result", &called, "There are two.", &[user("Take one.")], &tools()),
        case("system and result", &[system, first], CALL, &[result(1, "[1, 2]")], &tools()),
    ]
}

#[test]
fn published_templates() {
    let Some(templates) = templates() else { return };
    let (mut rows, mut ends) = (BTreeMap::new(), Vec::new());
    let mut rewriting = BTreeMap::new();
    for (name, source) in &templates {
        let native = template(source, options(source));
        let features = native.probe().unwrap_or_else(|error| panic!("{name}: {error}"));
        let repaired = template(source, repaired(source));
        let with_options = repaired.probe().unwrap_or_else(|error| panic!("{name}: {error}"));

        // With both options nothing is left that a template cannot carry but tools shown by itself.
        let needs = Needs { system: true, tool_results: true, tools: false };
        with_options.check(needs).unwrap_or_else(|error| panic!("{name}: {error}"));
        refused_by_name(name, &features);
        for case in cases() {
            check_case(name, &case, &native, &features);
            check_case(name, &case, &repaired, &with_options);
        }
        literal_content(name, source);
        rows.insert(name.clone(), row(&features, &with_options));
        rewriting.insert(name.clone(), rewritten(&features, &with_options));
        ends.push(format!("{name}: {:?}", features.end_of_turn));
    }
    insta::assert_snapshot!("ends_of_turns", ends.join("\n"));
    let mut page = String::from(HEAD);
    grouped(&mut page, rows.iter().map(|(name, row)| (name.as_str(), row.as_str())));
    page.push_str(REWRITES);
    let ways =
        rewriting.iter().flat_map(|(name, ways)| ways.iter().map(move |way| (name.as_str(), way.as_str())));
    grouped(&mut page, ways);
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/templates.md");
    if std::env::var_os("ESPALIER_UPDATE_DOCS").is_some() {
        std::fs::write(&path, page).expect("docs are writable");
        return;
    }
    let committed = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(
        committed == page,
        "docs/templates.md is not what the templates do now; ESPALIER_UPDATE_DOCS=1 writes it:\n{page}"
    );
}

/// Marker rendering equals full rendering, or the probe has said that it does not, or cannot be.
fn check_case(name: &str, case: &Case, template: &Template, features: &Features) {
    let place = format!("{name}, {}", case.name);
    let uses_tools = case.new.iter().chain(&case.before).any(|message| message.role == Role::Tool);
    let uses_system = case.before[0].role == Role::System;
    let mut past = case.before.clone();
    past.push(answer(case.answer));
    match template.compare(&case.before, case.answer, &case.new, &case.tools) {
        Rewrites::Equal => {}
        Rewrites::Rewritten(how) => {
            assert!(features.rewrites_history(), "{place}: the probe did not see that {how}");
            // `append` stops at what was sampled; `template` sees the same change as text.
            let all: Vec<Message> = past.iter().chain(&case.new).cloned().collect();
            let opening = template.opening(&case.before, &case.tools).expect("compared").text;
            let suffix = template.suffix(&past, &case.new, &case.tools).expect("compared").text;
            let full = template.opening(&all, &case.tools).expect("compared").text;
            assert_ne!(format!("{opening}{}{suffix}", case.answer), full, "{place}");
        }
        Rewrites::NotCarried => {
            let named = (uses_tools && features.tool_results != Carried::Yes)
                || (uses_system && features.system != Carried::Yes)
                || (uses_tools && features.with_tools == Rewrites::NotCarried);
            assert!(named, "{place}: not carried, and the probe did not say so");
            return;
        }
    }
    // A truncated answer gets the template's end of turn, whatever it was.
    let suffix = template.suffix(&past, &case.new, &case.tools).expect("compared");
    past.pop();
    past.push(answer("go no"));
    let cut = template.suffix(&past, &case.new, &case.tools).expect("compared");
    assert_eq!(suffix, cut, "{place}");
    if case.tools.is_empty() && !uses_tools {
        assert_eq!(&suffix.text[..suffix.end_of_turn], features.end_of_turn, "{place}");
    }
    for content in &suffix.contents {
        assert!(content.message > case.before.len(), "{place}: {content:?}");
    }
    assert!(!suffix.contents.is_empty(), "{place}: new messages have no place");
}

/// What is not carried is refused, by name and with the option that mends it.
fn refused_by_name(name: &str, features: &Features) {
    let refusal = |needs: Needs| features.check(needs).err().map(|error| error.to_string());
    let system = refusal(Needs { system: true, ..Needs::default() });
    assert_eq!(system.is_none(), features.system == Carried::Yes, "{name}");
    if let Some(text) = system {
        assert!(text.contains("system messages") && text.contains("first-user"), "{name}: {text}");
    }
    let results = refusal(Needs { tool_results: true, ..Needs::default() });
    assert_eq!(results.is_none(), features.tool_results == Carried::Yes, "{name}");
    if let Some(text) = results {
        assert!(text.contains("tool results") && text.contains("tool_results = \"user\""), "{name}: {text}");
    }
}

/// Control-token text in a message is cut out as literal, changes nothing else, and nothing else is cut.
fn literal_content(name: &str, source: &str) {
    let options = repaired(source);
    let tokens = options.special_tokens.clone();
    let template = template(source, options);
    for token in &tokens {
        let content = format!("Say {token} now,{token}{token} or never");
        let rendered =
            template.opening(&[user(&content)], &[]).unwrap_or_else(|error| panic!("{name}: {error}"));
        let printed = template.print(&[user(&content)], &[], true).expect("rendered before");
        assert_eq!(rendered.text, printed, "{name}, {token}");
        assert_eq!(rendered.contents.len(), 1, "{name}, {token}");
        let place = &rendered.contents[0].range;
        assert_eq!(&rendered.text[place.clone()], content, "{name}, {token}");
        let at = |(at, _): (usize, &str)| place.start + at..place.start + at + token.len();
        let expected: Vec<_> = content.match_indices(token.as_str()).map(at).collect();
        assert_eq!(rendered.literals, expected, "{name}, {token}");
        let joined: String =
            rendered.pieces().iter().map(|piece| &rendered.text[piece.range.clone()]).collect();
        assert_eq!(joined, rendered.text, "{name}, {token}");
    }
    let clean = template.opening(&[user("Nothing odd.")], &[]).expect("a plain message");
    assert_eq!(clean.pieces().len(), 1, "{name}");
}

#[test]
fn rendered_as_the_reference_does() {
    let Some(templates) = templates() else { return };
    let python = std::env::var("ESPALIER_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let has_jinja = Command::new(&python).args(["-c", "import jinja2"]).stderr(Stdio::null()).status();
    if !has_jinja.is_ok_and(|status| status.success()) {
        assert!(std::env::var_os("CI").is_none(), "{python} has no jinja2");
        eprintln!("skipped: {python} has no jinja2 (make test sets ESPALIER_PYTHON)");
        return;
    }
    let conversations: Vec<(Vec<Message>, Vec<Tool>)> = vec![
        (vec![user("Hello  \n"), answer(" Hi. "), user("\n\nMore?")], vec![]),
        (vec![text(Role::System, "Be \"brief\" <b>."), user("Hello")], vec![]),
        (
            vec![
                user("Find é"),
                answer("<think>\nhm\n</think>\n\nLooking."),
                result(1, "[1, \"ü\"]"),
                answer("Two."),
            ],
            tools(),
        ),
        (
            vec![text(Role::System, "Rules."), user("Find"), answer(CALL), result(1, "x"), result(2, "y")],
            tools(),
        ),
    ];
    let mut requests = Vec::new();
    for (name, source) in &templates {
        let template = template(source, options(source));
        for (number, (messages, tools)) in conversations.iter().enumerate() {
            for prompt in [false, true] {
                let printed = template.print(messages, tools, prompt);
                let (text, raised) = match printed {
                    Ok(text) => (Some(text), None),
                    Err(TemplateError::Raised(words)) => (None, Some(words)),
                    Err(error) => (None, Some(format!("error: {error}"))),
                };
                requests.push(serde_json::json!({
                    "template": name, "source": source, "conversation": number, "prompt": prompt,
                    "messages": messages.iter().map(plain_json).collect::<Vec<_>>(),
                    "tools": tools.iter().map(tool_json).collect::<Vec<_>>(),
                    "text": text, "raised": raised,
                }));
            }
        }
    }
    let script = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/inference/jinja/compare.py");
    let mut child = Command::new(&python)
        .arg(&script)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("python was found before");
    let mut stdin = child.stdin.take().expect("piped");
    for request in &requests {
        writeln!(stdin, "{request}").expect("the script reads all lines");
    }
    drop(stdin);
    let output = child.wait_with_output().expect("the script ends");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}");
    assert_eq!(said.trim(), format!("{} renderings equal", requests.len()), "{said}");
}

fn plain_json(message: &Message) -> serde_json::Value {
    let mut json = serde_json::json!({"role": message.role.as_str(), "content": message.joined_text()});
    for part in &message.parts {
        if let Part::ToolResult(result) = part {
            json["tool_call_id"] = result.call_id.as_str().into();
        }
    }
    json
}

fn tool_json(tool: &Tool) -> serde_json::Value {
    let parameters: serde_json::Value = serde_json::from_str(&tool.parameters).expect("valid schemas");
    serde_json::json!({"type": "function", "function": {
        "name": tool.name, "description": tool.description, "parameters": parameters,
    }})
}

const HEAD: &str = "# What chat templates carry

```sh
espalier run experiment.toml --set models.policy.system=first-user --set models.policy.tool_results=user
```

Before the first rollout, `espalier run` tries the chat template of your model. If the template cannot carry what the experiment
needs, the run is refused with the feature and the option that helps:

| option | effect |
|---|---|
| `system = \"first-user\"` | the system message is put in front of the next user message |
| `tool_results = \"user\"` | tool results are sent as user messages |

The tables show the 36 templates of the Python package `axolotl`. With both options, all of them carry system messages and tool
results. The page is generated by `engine/inference/tests/inference/chat_templates.rs` (`ESPALIER_UPDATE_DOCS=1`) and checked by
every test run.

- **system**, **tool results**, **two users** (two user messages in a row): `yes`: the text reaches the model; `dropped`: the
  template leaves it out without an error; `refused`: the template raises an error.
- **tools**: whether the template itself shows the available tools to the model.
- **history**: four histories: user turns only, with a system message, with thoughts in answers, with tool results. `=`:
  `history = \"append\"` and `history = \"template\"` give the same text; `~`: the template rewrites earlier turns, so `append`
  keeps what was sampled and `template` opens a new segment; `-`: the template cannot carry this history.
- **with options**: the same with both options set.

| templates | system | tool results | tools | two users | history | with options |
|---|---|---|---|---|---|---|
";

const REWRITES: &str = "
## How history is rewritten

If a template moves the system message to the last user message, `append` repeats it in each turn; `system = \"first-user\"`
shows it once.

| templates | histories | rewrite |
|---|---|---|
";

/// One line for all names with the same row, in the order of their first name.
fn grouped<'a>(page: &mut String, rows: impl Iterator<Item = (&'a str, &'a str)>) {
    let mut groups: Vec<(&str, Vec<&str>)> = Vec::new();
    for (name, row) in rows {
        match groups.iter_mut().find(|(other, _)| *other == row) {
            Some((_, names)) => names.push(name),
            None => groups.push((row, vec![name])),
        }
    }
    for (row, names) in groups {
        writeln!(page, "| {} | {row} |", names.join(", ")).expect("a string takes all");
    }
}

fn row(features: &Features, with_options: &Features) -> String {
    let carried = |carried: &Carried| match carried {
        Carried::Yes => "yes",
        Carried::Dropped => "dropped",
        Carried::Refused(_) => "refused",
    };
    format!(
        "{} | {} | {} | {} | `{}` | `{}`",
        carried(&features.system),
        carried(&features.tool_results),
        if features.tools { "yes" } else { "no" },
        carried(&features.users_in_a_row),
        history(features),
        history(with_options),
    )
}

/// One line for each way in which the template rewrites history, with the histories it holds for.
fn rewritten(features: &Features, with_options: &Features) -> Vec<String> {
    let kinds = |features: &Features| {
        [&features.turns, &features.with_system, &features.with_thoughts, &features.with_tools]
            .map(Clone::clone)
    };
    let names = ["user turns", "system message", "thoughts", "tool results"];
    let mut ways: Vec<(String, Vec<String>)> = Vec::new();
    for ((native, repaired), kind) in kinds(features).into_iter().zip(kinds(with_options)).zip(names) {
        let (how, place) = match (native, repaired) {
            (Rewrites::Rewritten(how), _) => (how, kind.to_owned()),
            (Rewrites::NotCarried, Rewrites::Rewritten(how)) => (how, format!("{kind} (with options)")),
            _ => continue,
        };
        match ways.iter_mut().find(|(other, _)| *other == how) {
            Some((_, places)) => places.push(place),
            None => ways.push((how, vec![place])),
        }
    }
    ways.into_iter().map(|(how, places)| format!("{} | {}", places.join(", "), cell(&how))).collect()
}

fn history(features: &Features) -> String {
    [&features.turns, &features.with_system, &features.with_thoughts, &features.with_tools]
        .map(|rewrites| match rewrites {
            Rewrites::Equal => "=",
            Rewrites::Rewritten(_) => "~",
            Rewrites::NotCarried => "-",
        })
        .join(" ")
}

/// Text inside a table.
fn cell(text: &str) -> String {
    format!(
        "<code>{}</code>",
        text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('|', "&#124;")
    )
}

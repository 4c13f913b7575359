//! Pages for people that must say what is so. `docs/conformance.md`: the rows of `conformance/rows.jsonl` for people to read, made from them.
//!
//! `ESPALIER_UPDATE=1` writes the page; otherwise it must say what the rows say.

use serde_json::Value;
use std::fmt::Write;
use std::path::Path;

const HEAD: &str = "# Conformance

What locators, actions and waits do, as rows that [Playwright](https://playwright.dev) and this crate both run in the same pages of the
same Chromium. `tests/conformance/rows.jsonl` holds the rows; this page is made from them. `make test` runs them by Playwright 1.65
(`tests/conformance/playwright.mjs`) and by this crate (`tests/browser/conformance.rs`), and both must come to the outcome that is here.

*Page* is a file of `tests/conformance/pages/` or the markup itself, *then* the expression of the page that gives the outcome. `ids`
are the ids, or else the tags, of all matches. Calls are spelled as Playwright's; this crate's have the same names in snake case.
";

struct Row(Value);

impl Row {
    fn text(&self, key: &str) -> Option<&str> {
        self.0[key].as_str()
    }

    fn id(&self) -> &str {
        self.text("id").expect("an id")
    }

    /// What is called, as a user of Playwright spells it.
    fn call(&self) -> String {
        let steps = self.0["locator"].as_array().map_or(&[][..], Vec::as_slice);
        let called = camel(self.text("call").expect("a call"));
        let arguments = self.0["args"].as_object().into_iter().flatten();
        let arguments: Vec<String> = match self.0["args"].as_object() {
            Some(one) if one.len() == 1 && !matches!(called.as_str(), "waitFor" | "click" | "dblclick") => {
                one.values().map(Value::to_string).collect()
            }
            _ => arguments.map(|(key, value)| format!("{}: {value}", camel(key))).collect(),
        };
        let arguments = match called.as_str() {
            "waitFor" | "click" | "dblclick" if !arguments.is_empty() => {
                format!("{{ {} }}", arguments.join(", "))
            }
            _ => arguments.join(", "),
        };
        let on = if steps.is_empty() { "page".to_owned() } else { locator(steps) };
        format!("{on}.{called}({arguments})")
    }
}

fn locator(steps: &[Value]) -> String {
    let spelled = steps.iter().map(|step| {
        let body = &step["body"];
        let inner = || locator(body.as_array().map_or(&[][..], Vec::as_slice));
        match step["engine"].as_str().expect("an engine") {
            engine @ ("css" | "xpath") => {
                format!("locator({:?})", format!("{engine}={}", body.as_str().unwrap_or_default()))
            }
            "text" => format!("getByText({})", text(body)),
            "label" => format!("getByLabel({})", text(body)),
            "placeholder" => format!("getByPlaceholder({})", text(body)),
            "alt" => format!("getByAltText({})", text(body)),
            "title" => format!("getByTitle({})", text(body)),
            "test_id" => format!("getByTestId({})", text(body)),
            "role" => format!("getByRole({})", role(body)),
            "nth" => format!("nth({body})"),
            "visible" => format!("filter({{ visible: {body} }})"),
            "has_text" => format!("filter({{ hasText: {} }})", text(body)),
            "has_not_text" => format!("filter({{ hasNotText: {} }})", text(body)),
            "has" => format!("filter({{ has: {} }})", inner()),
            "has_not" => format!("filter({{ hasNot: {} }})", inner()),
            "and" => format!("and({})", inner()),
            "or" => format!("or({})", inner()),
            other => panic!("unknown engine {other}"),
        }
    });
    spelled.collect::<Vec<_>>().join(".")
}

fn text(body: &Value) -> String {
    let pattern = |body: &Value| {
        let flags = body["flags"].as_str().unwrap_or_default();
        Some(format!("/{}/{flags}", body["pattern"].as_str()?))
    };
    match (pattern(body), body["text"].as_str()) {
        (Some(pattern), _) => pattern,
        (None, Some(text)) if body["exact"] == true => format!("{text:?}, {{ exact: true }}"),
        (None, Some(text)) => format!("{text:?}"),
        (None, None) => body.to_string(),
    }
}

fn role(body: &Value) -> String {
    let options = body.as_object().into_iter().flatten().filter(|(key, _)| *key != "role");
    let options: Vec<String> = options
        .map(|(key, value)| {
            let is_text = key == "name" || key == "description";
            format!("{}: {}", camel(key), if is_text { text(value) } else { value.to_string() })
        })
        .collect();
    let role = &body["role"];
    if options.is_empty() { role.to_string() } else { format!("{role}, {{ {} }}", options.join(", ")) }
}

fn camel(name: &str) -> String {
    let mut words = name.split('_');
    let first = words.next().unwrap_or_default().to_owned();
    words.fold(first, |name, word| name + &word[..1].to_uppercase() + &word[1..])
}

/// As code in a cell of a table.
fn code(text: &str) -> String {
    let one_line = text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|");
    let longest = one_line.split(|at| at != '`').map(str::len).max().unwrap_or(0);
    let fence = "`".repeat(longest + 1);
    let room = if one_line.contains('`') { " " } else { "" };
    format!("{fence}{room}{one_line}{room}{fence}")
}

fn outcome(value: &Value) -> String {
    match value["error"].as_str() {
        Some(kind) => format!("error: {kind}"),
        None => code(&value.to_string()),
    }
}

fn page(rows: &[Row]) -> String {
    let mut page = HEAD.to_owned();
    let differing: Vec<&Row> = rows.iter().filter(|row| row.text("differs").is_some()).collect();
    let (all, otherwise) = (rows.len(), differing.len());
    let mut groups: Vec<&str> = Vec::new();
    for row in rows {
        let group = row.text("group").expect("a group");
        if !groups.contains(&group) {
            groups.push(group);
        }
    }
    let say = |page: &mut String, line: &str| writeln!(page, "{line}").expect("text");
    say(&mut page, &format!("\n{all} rows; in {otherwise} this crate does otherwise, on purpose.\n"));
    say(&mut page, "## Differences\n\n| row | Playwright | this crate | why |\n|---|---|---|---|");
    for row in differing {
        let why = row.text("differs").unwrap_or_default().replace('|', "\\|").replace('<', "&lt;");
        let (theirs, ours) = (outcome(&row.0["expect"]), outcome(&row.0["ours"]));
        say(&mut page, &format!("| {} | {theirs} | {ours} | {why} |", row.id()));
    }
    for group in groups {
        say(
            &mut page,
            &format!(
                "\n## {group}\n\n| row | page | before | call | then | outcome |\n|---|---|---|---|---|---|"
            ),
        );
        for row in rows.iter().filter(|row| row.text("group") == Some(group)) {
            let shown = match (row.text("page"), row.text("html")) {
                (Some(file), _) => file.to_owned(),
                (None, html) => html.map(code).unwrap_or_default(),
            };
            let cell = |key: &str| row.text(key).map(code).unwrap_or_default();
            let mark = if row.text("differs").is_some() { "*" } else { "" };
            let (before, then, came) = (cell("setup"), cell("then"), outcome(&row.0["expect"]));
            let called = code(&row.call());
            say(
                &mut page,
                &format!("| {}{mark} | {shown} | {before} | {called} | {then} | {came} |", row.id()),
            );
        }
    }
    say(&mut page, "\n\\* this crate does otherwise: see [Differences](#differences).");
    page
}

#[test]
fn the_page_of_conformance_says_what_the_rows_say() {
    let crate_folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let lines = std::fs::read_to_string(crate_folder.join("tests/conformance/rows.jsonl")).expect("the rows");
    let lines = lines.lines().filter(|line| !line.trim().is_empty());
    let rows: Vec<Row> = lines.map(|line| Row(serde_json::from_str(line).expect("a row"))).collect();
    let path = crate_folder.join("docs/conformance.md");
    let wanted = page(&rows);
    if std::env::var_os("ESPALIER_UPDATE").is_some() {
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        std::fs::write(&path, &wanted).expect("written");
    }
    let there = std::fs::read_to_string(&path).unwrap_or_default();
    let differing = there.lines().zip(wanted.lines()).find(|(there, wanted)| there != wanted);
    assert!(
        there == wanted,
        "docs/conformance.md differs from the rows ({differing:?}); run this test with ESPALIER_UPDATE=1"
    );
}

/// Tests that `docs/faults.md` names are there.
#[test]
fn the_page_of_faults_names_tests_that_exist() {
    let crate_folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = std::fs::read_to_string(crate_folder.join("docs/faults.md")).expect("the page");
    let named: Vec<&str> = page.split('`').skip(1).step_by(2).filter(|span| span.contains("::")).collect();
    assert!(named.len() >= 10, "{named:?}");
    for test in named {
        let (file, name) = test.split_once("::").expect("a file and a name");
        let source = crate_folder.join(format!("tests/browser/{file}.rs"));
        let source = std::fs::read_to_string(&source).unwrap_or_default();
        assert!(
            source.contains(&format!("fn {name}(")),
            "docs/faults.md names `{test}`, which does not exist"
        );
    }
}

#[test]
fn the_quick_start_is_the_example() {
    let crate_folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |name: &str| std::fs::read_to_string(crate_folder.join(name)).expect("a file");
    let example = read("examples/quick_start.rs");
    let (_, code) = example.split_once("\n\n").expect("a line that says what it is, and the code");
    assert!(read("README.md").contains(&format!("```rust\n{code}```\n")), "README.md shows other code");
}

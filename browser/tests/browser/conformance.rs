//! The rows of `conformance/rows.jsonl`, which Playwright runs too, by this library.

use crate::support::browser;
use espalier_browser::{
    ActionOptions, BrowserContext, BrowserError, ContextOptions, ElementState, Filter, Fulfill, GotoOptions,
    LoadState, Locator, Modifier, Page, Point, Result, RoleOptions, SelectOption, TextMatch,
};
use futures::StreamExt;
use serde::Deserialize;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

const ORIGIN: &str = "http://conformance.localhost";

#[derive(Deserialize)]
struct Row {
    id: String,
    page: Option<String>,
    html: Option<String>,
    setup: Option<String>,
    locator: Option<Vec<Value>>,
    call: String,
    #[serde(default)]
    args: Value,
    then: Option<String>,
    expect: Value,
    /// Why this library does otherwise; its outcome is then `ours`.
    differs: Option<String>,
    #[serde(default)]
    ours: Value,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_row_comes_to_its_outcome() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/conformance");
    let lines = std::fs::read_to_string(folder.join("rows.jsonl")).expect("the rows");
    let only = std::env::var("CONFORMANCE_ROW").ok();
    let rows = lines.lines().filter(|line| !line.trim().is_empty());
    let rows =
        rows.map(|line| serde_json::from_str::<Row>(line).unwrap_or_else(|error| panic!("{error}: {line}")));
    let rows: Vec<Row> =
        rows.filter(|row| only.as_ref().is_none_or(|only| row.id.starts_with(only.as_str()))).collect();
    assert!(only.is_some() || rows.len() >= 150, "{} rows", rows.len());
    let browser = browser().await;
    let outcomes = futures::stream::iter(rows.iter().map(|row| {
        let browser = browser.clone();
        let pages = folder.join("pages");
        async move {
            let context = browser.new_context(ContextOptions::default()).await.expect("a context");
            let outcome = outcome(&context, row, &pages).await;
            context.close().await.expect("closed");
            let expected = if row.differs.is_some() { &row.ours } else { &row.expect };
            (same(&outcome, expected), format!("{}: {outcome} in place of {expected}", row.id))
        }
    }));
    let outcomes: Vec<(bool, String)> = outcomes.buffer_unordered(4).collect().await;
    let different: Vec<String> =
        outcomes.into_iter().filter(|(same, _)| !same).map(|(_, text)| text).collect();
    assert!(
        different.is_empty(),
        "{} of {} rows differ:\n{}",
        different.len(),
        rows.len(),
        different.join("\n")
    );
}

/// Numbers are equal whether they are written as 1 or 1.0.
fn same(left: &Value, right: &Value) -> bool {
    match (left, right) {
        (Value::Number(left), Value::Number(right)) => left.as_f64() == right.as_f64(),
        (Value::Array(left), Value::Array(right)) => {
            left.len() == right.len() && left.iter().zip(right).all(|(left, right)| same(left, right))
        }
        (Value::Object(left), Value::Object(right)) => {
            left.len() == right.len()
                && left.iter().all(|(key, value)| right.get(key).is_some_and(|other| same(value, other)))
        }
        _ => left == right,
    }
}

async fn outcome(context: &BrowserContext, row: &Row, pages: &Path) -> Value {
    match attempt(context, row, pages).await {
        Ok(value) => value,
        Err(BrowserError::Strict { .. }) => json!({ "error": "strict" }),
        Err(error) if error.is_timeout() => json!({ "error": "timeout" }),
        Err(error) => {
            if std::env::var_os("CONFORMANCE_ROW").is_some() {
                eprintln!("{}: {error}", row.id);
            }
            json!({ "error": "invalid" })
        }
    }
}

async fn attempt(context: &BrowserContext, row: &Row, pages: &Path) -> Result<Value> {
    let page = context.new_page().await?;
    match (&row.page, &row.html) {
        (Some(file), _) => {
            let folder: PathBuf = pages.to_owned();
            let serve = Arc::new(move |route: espalier_browser::Route| {
                let name = route.url().trim_start_matches(ORIGIN).trim_start_matches('/').to_owned();
                let name = name.split(['?', '#']).next().unwrap_or_default().to_owned();
                let body = std::fs::read(folder.join(name));
                let answer = Fulfill {
                    status: if body.is_ok() { 200 } else { 404 },
                    content_type: Some("text/html; charset=utf-8".into()),
                    body: body.unwrap_or_default().into(),
                    ..Fulfill::default()
                };
                Box::pin(async move { drop(route.fulfill(answer)) })
                    as std::pin::Pin<Box<dyn Future<Output = ()> + Send>>
            });
            page.route(format!("{ORIGIN}/**"), serve).await?;
            page.goto(&format!("{ORIGIN}/{file}")).await?;
        }
        (None, Some(html)) => page.set_content(html).await?,
        (None, None) => {}
    }
    let late = row.expect["error"] == json!("timeout");
    context.set_default_timeout(Duration::from_millis(if late { 600 } else { 20_000 }));
    // Evaluates the library's script, so that what the setup does a moment later finds the call under way.
    page.locator("html").count().await?;
    if let Some(setup) = &row.setup {
        page.evaluate::<()>(setup).await?;
    }
    let value = run(&page, row).await?;
    context.set_default_timeout(Duration::from_secs(20));
    match &row.then {
        None => Ok(value),
        Some(then) => page.evaluate(then).await,
    }
}

async fn run(page: &Page, row: &Row) -> Result<Value> {
    let args = &row.args;
    let text = |key: &str| args[key].as_str().unwrap_or_default().to_owned();
    match row.call.as_str() {
        "wait_for_function" => {
            page.wait_for_function::<Value>(&format!("() => ({})", text("expression")), &[]).await?;
            return Ok(json!("done"));
        }
        "wait_for_url" => {
            page.wait_for_url(text("url")).await?;
            return Ok(json!("done"));
        }
        "wait_for_load_state" => {
            let state = match text("state").as_str() {
                "domcontentloaded" => LoadState::DomContentLoaded,
                "networkidle" => LoadState::NetworkIdle,
                _ => LoadState::Load,
            };
            page.main_frame().wait_for_load_state(state, GotoOptions::default().timeout).await?;
            return Ok(json!("done"));
        }
        _ => {}
    }
    let target = locate(page, None, row.locator.as_deref().unwrap_or_default());
    let nothing = |()| Value::Null;
    Ok(match row.call.as_str() {
        "ids" => {
            target
                .call_all("elements => elements.map(element => element.id || element.localName)", &[])
                .await?
        }
        "count" => json!(target.count().await?),
        "all_text_contents" => json!(target.all_text_contents().await?),
        "all_inner_texts" => json!(target.all_inner_texts().await?),
        "text_content" => json!(target.text_content().await?),
        "inner_text" => json!(target.inner_text().await?),
        "get_attribute" => json!(target.get_attribute(&text("name")).await?),
        "input_value" => json!(target.input_value().await?),
        "is_visible" => json!(target.is_visible().await?),
        "is_hidden" => json!(target.is_hidden().await?),
        "is_enabled" => json!(target.is_enabled().await?),
        "is_disabled" => json!(target.is_disabled().await?),
        "is_editable" => json!(target.is_editable().await?),
        "is_checked" => json!(target.is_checked().await?),
        "click" => target.click_with(click(args)).await.map(nothing)?,
        "dblclick" => target.double_click().await.map(nothing)?,
        "hover" => target.hover().await.map(nothing)?,
        "fill" => target.fill(&text("text")).await.map(nothing)?,
        "clear" => target.clear().await.map(nothing)?,
        "press" => target.press(&text("key")).await.map(nothing)?,
        "press_sequentially" => target.type_text(&text("text")).await.map(nothing)?,
        "check" => target.check().await.map(nothing)?,
        "uncheck" => target.uncheck().await.map(nothing)?,
        "set_checked" => target.set_checked(args["checked"] == json!(true)).await.map(nothing)?,
        "select_option" => json!(select(&target, &args["values"]).await?),
        "focus" => target.focus().await.map(nothing)?,
        "blur" => target.blur().await.map(nothing)?,
        "select_text" => target.select_text().await.map(nothing)?,
        "scroll_into_view_if_needed" => target.scroll_into_view().await.map(nothing)?,
        "wait_for" => {
            let state = match args["state"].as_str() {
                Some("attached") => ElementState::Attached,
                Some("detached") => ElementState::Detached,
                Some("hidden") => ElementState::Hidden,
                _ => ElementState::Visible,
            };
            target.wait_for(state, None).await.map(nothing)?
        }
        other => panic!("unknown call {other}"),
    })
}

fn click(args: &Value) -> ActionOptions {
    let mut options = ActionOptions { force: args["force"] == json!(true), ..ActionOptions::default() };
    if let (Some(x), Some(y)) = (args["position"]["x"].as_f64(), args["position"]["y"].as_f64()) {
        options.position = Some(Point::new(x, y));
    }
    options.click.count =
        args["clickCount"].as_u64().map_or(1, |count| u32::try_from(count).expect("a count"));
    options.click.button = match args["button"].as_str() {
        Some("right") => espalier_browser::Button::Right,
        Some("middle") => espalier_browser::Button::Middle,
        _ => espalier_browser::Button::Left,
    };
    for modifier in args["modifiers"].as_array().into_iter().flatten() {
        options.click.modifiers.push(match modifier.as_str() {
            Some("Shift") => Modifier::Shift,
            Some("Alt") => Modifier::Alt,
            Some("Meta") => Modifier::Meta,
            _ => Modifier::Control,
        });
    }
    options
}

async fn select(target: &Locator, values: &Value) -> Result<Vec<String>> {
    let one = |value: &Value| SelectOption {
        value: value["value"].as_str().map(str::to_owned),
        label: value["label"].as_str().map(str::to_owned),
        index: value["index"].as_u64().map(|index| usize::try_from(index).expect("an index")),
    };
    match values {
        Value::String(text) => target.select_option(text).await,
        Value::Array(values) if values.iter().all(Value::is_string) => {
            let texts: Vec<&str> = values.iter().filter_map(Value::as_str).collect();
            target.select_texts(&texts).await
        }
        Value::Array(values) => target.select_options(&values.iter().map(one).collect::<Vec<_>>()).await,
        value => target.select_options(&[one(value)]).await,
    }
}

/// The locator of the steps, as a user would spell it.
fn locate(page: &Page, base: Option<Locator>, steps: &[Value]) -> Locator {
    let mut at = base;
    for step in steps {
        at = Some(apply(page, at.as_ref(), step["engine"].as_str().unwrap_or_default(), &step["body"]));
    }
    at.unwrap_or_else(|| page.locator(":root"))
}

fn apply(page: &Page, at: Option<&Locator>, engine: &str, body: &Value) -> Locator {
    macro_rules! find {
        ($method:ident, $($arg:expr),*) => {
            match at {
                None => page.$method($($arg),*),
                Some(at) => at.$method($($arg),*),
            }
        };
    }
    let here = || at.cloned().unwrap_or_else(|| page.locator(":root"));
    match engine {
        "css" => find!(locator, &format!("css={}", body.as_str().unwrap_or_default())),
        "xpath" => find!(locator, &format!("xpath={}", body.as_str().unwrap_or_default())),
        "text" => find!(get_by_text, text(body)),
        "label" => find!(get_by_label, text(body)),
        "placeholder" => find!(get_by_placeholder, text(body)),
        "alt" => find!(get_by_alt_text, text(body)),
        "title" => find!(get_by_title, text(body)),
        "test_id" => find!(get_by_test_id, text(body)),
        "role" => find!(get_by_role, body["role"].as_str().unwrap_or_default(), role(body)),
        "nth" => here().nth(body.as_i64().expect("an index")),
        "visible" => here().filter(Filter { visible: body.as_bool(), ..Filter::default() }),
        "has_text" => here().filter(Filter { has_text: Some(text(body)), ..Filter::default() }),
        "has_not_text" => here().filter(Filter { has_not_text: Some(text(body)), ..Filter::default() }),
        "has" => here().filter(Filter { has: Some(inner(page, body)), ..Filter::default() }),
        "has_not" => here().filter(Filter { has_not: Some(inner(page, body)), ..Filter::default() }),
        "and" => here().and(&inner(page, body)),
        "or" => here().or(&inner(page, body)),
        other => panic!("unknown engine {other}"),
    }
}

fn inner(page: &Page, steps: &Value) -> Locator {
    locate(page, None, steps.as_array().map_or(&[], Vec::as_slice))
}

fn role(body: &Value) -> RoleOptions {
    let exact = body["exact"] == json!(true);
    let named = |value: &Value| match value {
        Value::Null => None,
        Value::String(name) if exact => Some(TextMatch::exact(name)),
        other => Some(text(other)),
    };
    RoleOptions {
        name: named(&body["name"]),
        description: named(&body["description"]),
        checked: body["checked"].as_bool(),
        disabled: body["disabled"].as_bool(),
        expanded: body["expanded"].as_bool(),
        level: body["level"].as_u64().map(|level| u32::try_from(level).expect("a level")),
        pressed: body["pressed"].as_bool(),
        selected: body["selected"].as_bool(),
        include_hidden: body["include_hidden"] == json!(true),
    }
}

fn text(body: &Value) -> TextMatch {
    match body {
        Value::String(text) => TextMatch::from(text.as_str()),
        _ => match (body["pattern"].as_str(), body["text"].as_str()) {
            (Some(pattern), _) => TextMatch::regex(pattern, body["flags"].as_str().unwrap_or_default()),
            (None, Some(text)) if body["exact"] == json!(true) => TextMatch::exact(text),
            (None, text) => TextMatch::from(text.unwrap_or_default()),
        },
    }
}

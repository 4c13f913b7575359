//! Tools of agents on real pages: what each does, and what its step tells.

use crate::server::{Answer, Server};
use crate::support::context;
use espalier_browser::ContextOptions;
use espalier_browser::agent::{
    Effect, FailureCode, Session, SessionOptions, SettleCause, SettleOptions, Step, StepOutcome, ToolCall,
    ToolOptions,
};
use serde_json::{Value, json};
use std::time::Duration;

pub(crate) fn call(name: &str, arguments: Value) -> ToolCall {
    ToolCall::new(name, arguments)
}

/// With points and references, and everything else that can be switched on.
pub(crate) fn options() -> SessionOptions {
    SessionOptions {
        tools: ToolOptions { points: true, refs: true, call_user: true, terminate: true },
        ..SessionOptions::default()
    }
}

pub(crate) async fn session_with(options: SessionOptions) -> Session {
    Session::open(context(ContextOptions::default()).await, options).await.expect("a session")
}

/// A session that shows this page.
pub(crate) async fn shown(html: &str) -> (Server, Session) {
    let server = Server::start([("/", Answer::html(html))]).await;
    let session = session_with(options()).await;
    let step = session.goto(&server.url("/")).await.expect("a step");
    assert_eq!(step.outcome, StepOutcome::Done, "{}", step.text);
    (server, session)
}

/// The step of one call.
pub(crate) async fn one(session: &Session, name: &str, arguments: Value) -> Step {
    let mut steps = session.act(&[call(name, arguments)]).await.expect("the browser is well");
    assert_eq!(steps.len(), 1);
    steps.remove(0)
}

/// The step of a call that is done.
pub(crate) async fn done(session: &Session, name: &str, arguments: Value) -> Step {
    let step = one(session, name, arguments).await;
    assert_eq!(step.outcome, StepOutcome::Done, "{}", step.text);
    step
}

/// The code of a call that fails, and what it says.
pub(crate) async fn fails(session: &Session, name: &str, arguments: Value) -> (FailureCode, String) {
    let step = one(session, name, arguments).await;
    match step.outcome {
        StepOutcome::Failed { code, text } => (code, text),
        _ => panic!("expected a failure: {}", step.text),
    }
}

pub(crate) async fn ask(session: &Session, expression: &str) -> Value {
    session.evaluate(expression, espalier_browser::agent::ScriptWorld::Main).await.expect("a value")
}

/// The middle of an element, in thousandths of the screen.
pub(crate) async fn middle_of(session: &Session, css: &str) -> Value {
    let middle =
        "[(box.x + box.width / 2) / innerWidth * 1000, (box.y + box.height / 2) / innerHeight * 1000]";
    ask(session, &format!("(box => {middle})(document.querySelector('{css}').getBoundingClientRect())")).await
}

/// Clicks the middle of an element.
pub(crate) async fn click_on(session: &Session, css: &str) -> Step {
    let point = middle_of(session, css).await;
    one(session, "click", json!({ "point_2d": point })).await
}

/// A button that fills the screen, which writes to `out`.
const BUTTON: &str = "<title>One</title><style>body{margin:0}button{position:fixed;inset:0;width:100%;height:100%}</style>
<button onclick='out.textContent += event.clientX + \",\" + event.clientY + \";\"'>Press me</button><p id=out></p>";

#[tokio::test]
async fn points_are_thousandths_of_the_screen() {
    let (_server, session) = shown(BUTTON).await;
    let rows = [
        (json!([501, 213]), (641.0, 213.0)),
        (json!([0, 0]), (0.0, 0.0)),
        (json!([1000, 1000]), (1279.0, 999.0)),
        (json!(["999.9", 999.9]), (1279.0, 999.0)),
        (json!("[501, 213]"), (641.0, 213.0)),
        (json!("(0.4, 500)"), (1.0, 500.0)),
        (json!({ "x": 500, "y": "500" }), (640.0, 500.0)),
    ];
    for (point, (x, y)) in rows {
        ask(&session, "out.textContent = ''").await;
        let step = done(&session, "click", json!({ "point_2d": point })).await;
        let at = step.point.expect("a point");
        assert_eq!((at.x, at.y), (x, y), "{point}");
        assert_eq!(ask(&session, "out.textContent").await, json!(format!("{x},{y};")), "{point}");
        let element = step.element.expect("an element");
        assert_eq!(
            (element.tag.as_str(), element.role.as_deref(), element.name.as_str()),
            ("button", Some("button"), "Press me")
        );
        assert!(
            step.text
                .starts_with(&format!("Succeed: `click` on button \"Press me\" at ({x}, {y}). Changed:")),
            "{}",
            step.text
        );
    }
}

/// Fields of several kinds; `log` collects what events say.
const FORM: &str = "<title>Form</title><body>
<input id=who aria-label=Name value=old><textarea id=text aria-label=Text>old</textarea>
<div id=rich contenteditable aria-label=Rich role=textbox>old</div>
<input id=number type=number aria-label=Number><input id=date type=date aria-label=Date>
<input id=short maxlength=3 aria-label=Short><input id=secret type=password aria-label=Secret>
<input id=fixed readonly aria-label=Fixed value=f><input id=off disabled aria-label=Off>
<select id=fruit aria-label=Fruit><option>Apple<option>Pear<option disabled>Plum</select>
<button id=go>Go</button><p id=log></p>
<script>
  for (const type of ['input', 'change', 'click', 'dblclick', 'auxclick', 'contextmenu'])
    document.addEventListener(type, event => { log.textContent += type + ':' + event.target.id + ':' + event.button + ' '; });
</script>";

async fn focus(session: &Session, id: &str) {
    ask(session, &format!("{id}.focus()")).await;
}

#[tokio::test]
async fn text_is_written_in_place_of_what_is_there() {
    let (_server, session) = shown(FORM).await;
    let text = "Grüße, 世界 🙂 e\u{301}";
    for (id, value) in [("who", "value"), ("text", "value"), ("rich", "textContent")] {
        focus(&session, id).await;
        let step = done(&session, "write", json!({ "message": text })).await;
        assert_eq!(ask(&session, &format!("{id}.{value}")).await, json!(text), "{id}");
        assert!(step.element.is_some_and(|element| element.role.as_deref() == Some("textbox")), "{id}");
        done(&session, "write", json!({ "message": "!", "clear": "false" })).await;
        assert_eq!(ask(&session, &format!("{id}.{value}")).await, json!(format!("{text}!")), "{id}");
        done(&session, "write", json!({ "message": "" })).await;
        assert_eq!(ask(&session, &format!("{id}.{value}")).await, json!(""), "{id}");
    }
    focus(&session, "text").await;
    done(&session, "write", json!({ "message": "one\ntwo" })).await;
    assert_eq!(ask(&session, "text.value").await, json!("one\ntwo"));
    focus(&session, "number").await;
    done(&session, "write", json!({ "message": 42 })).await;
    assert_eq!(ask(&session, "number.value").await, json!("42"));
    focus(&session, "date").await;
    done(&session, "write", json!({ "message": "2026-11-24" })).await;
    assert_eq!(ask(&session, "date.value").await, json!("2026-11-24"));
    focus(&session, "short").await;
    let step = done(&session, "write", json!({ "message": "abcdef" })).await;
    assert!(step.text.contains("; the field holds \"abc\" now"), "{}", step.text);
    focus(&session, "secret").await;
    let step = done(&session, "write", json!({ "message": "hunter2" })).await;
    assert!(!step.text.contains("hunter2"), "{}", step.text);
    focus(&session, "fruit").await;
    done(&session, "write", json!({ "message": "Pear" })).await;
    assert_eq!(ask(&session, "fruit.value").await, json!("Pear"));
}

#[tokio::test]
async fn fields_that_take_no_such_text_say_so() {
    let (_server, session) = shown(FORM).await;
    let rows = [
        ("document.activeElement.blur()", "a", FailureCode::NotInteractive, "no field has the focus"),
        (
            "go.focus()",
            "a",
            FailureCode::NotInteractive,
            "is not an <input>, <textarea> or [contenteditable] element",
        ),
        ("fixed.focus()", "a", FailureCode::NotInteractive, "textbox \"Fixed\" is readonly"),
        (
            "number.focus()",
            "many",
            FailureCode::InvalidArguments,
            "invalid write.message \"many\": input of type \"number\" takes no \"many\"",
        ),
        ("date.focus()", "tomorrow", FailureCode::InvalidArguments, "malformed value \"tomorrow\""),
        (
            "fruit.focus()",
            "Kiwi",
            FailureCode::InvalidArguments,
            "expected an option of combobox \"Fruit\": \"Apple\", \"Pear\", \"Plum\"",
        ),
        ("fruit.focus()", "Plum", FailureCode::NotInteractive, "is disabled"),
    ];
    for (setup, message, code, text) in rows {
        ask(&session, &format!("void ({setup})")).await;
        let (found, said) = fails(&session, "write", json!({ "message": message })).await;
        assert_eq!(found, code, "{setup}: {said}");
        assert!(said.contains(text), "{setup}: {said}");
    }
}

#[tokio::test]
async fn keys_are_pressed_one_by_one_or_together() {
    let (_server, session) = shown(FORM).await;
    let rows = [
        (json!({ "keys": ["a", "B", "Tab"] }), "a B Tab"),
        (json!({ "keys": ["Ctrl", "a"], "is_hotkey": true }), "^Control ^a"),
        (json!({ "keys": "ctrl+a" }), "^Control ^a"),
        (json!({ "keys": "[\"ArrowLeft\"]", "presses": "3" }), "ArrowLeft ArrowLeft ArrowLeft"),
        (json!({ "KEYS": ["esc", "RETURN"], "is_hotkey": "False" }), "Escape Enter"),
    ];
    ask(&session, "void document.addEventListener('keydown', event => keys.push((event.ctrlKey ? '^' : '') + event.key))")
        .await;
    for (arguments, expected) in rows {
        ask(&session, "keys = []; void who.focus()").await;
        let step = done(&session, "press_keys", arguments.clone()).await;
        assert_eq!(ask(&session, "keys.join(' ')").await, json!(expected), "{arguments}");
        assert_eq!(step.element.expect("the field").name, "Name");
    }
    ask(&session, "text.value = ''; void text.focus()").await;
    done(&session, "press_keys", json!({ "keys": ["é", "x"] })).await;
    assert_eq!(ask(&session, "text.value").await, json!("éx"));
    let (code, said) =
        fails(&session, "press_keys", json!({ "keys": ["Control", "é"], "is_hotkey": true })).await;
    assert_eq!(code, FailureCode::InvalidArguments, "{said}");
}

#[tokio::test]
async fn buttons_and_counts_of_clicks_are_real() {
    let (_server, session) = shown(FORM).await;
    let point = middle_of(&session, "#go").await;
    let rows = [
        (json!({ "point_2d": point }), "click:go:0"),
        (json!({ "point_2d": point, "button": "RIGHT" }), "contextmenu:go:2"),
        (json!({ "point_2d": point, "button": "middle" }), "auxclick:go:1"),
        (json!({ "point_2d": point, "clicks": 2 }), "click:go:0 click:go:0 dblclick:go:0"),
    ];
    for (arguments, expected) in rows {
        ask(&session, "log.textContent = ''").await;
        done(&session, "click", arguments.clone()).await;
        let log = ask(&session, "log.textContent").await;
        assert!(log.as_str().is_some_and(|log| log.trim().contains(expected)), "{arguments}: {log}");
    }
}

#[tokio::test]
async fn hovering_shows_what_it_shows() {
    let (_server, session) = shown(
        "<style>body{margin:0}#tip{display:none}#at:hover #tip{display:block}</style>
        <div id=at style='width:500px;height:500px'>Menu<div id=tip>Open</div></div>",
    )
    .await;
    let step = done(&session, "hover", json!({ "point_2d": [100, 100] })).await;
    assert_eq!(ask(&session, "getComputedStyle(tip).display").await, json!("block"));
    assert!(!step.effects.contains(&Effect::NothingChanged), "styles are not looked at: {:?}", step.effects);
    done(&session, "hover", json!({ "point_2d": [900, 900] })).await;
    assert_eq!(ask(&session, "getComputedStyle(tip).display").await, json!("none"));
}

#[tokio::test]
async fn drags_move_things_by_mouse_and_by_html() {
    let (_server, session) = shown(
        "<style>body{margin:0}div{position:absolute;width:128px;height:100px}</style>
        <div id=a style='left:0;top:0;background:red'>Mouse</div>
        <div id=card draggable=true role=img aria-label=Card style='left:0;top:200px;background:blue'></div>
        <div id=box role=region aria-label=Box style='left:640px;top:500px;background:green'></div>
        <script>
          a.onmousedown = () => { moves = 0; onmousemove = e => { moves++; a.style.left = e.clientX + 'px'; }; };
          onmouseup = () => { onmousemove = null; };
          card.ondragstart = event => event.dataTransfer.setData('text/plain', 'the card');
          box.ondragover = event => event.preventDefault();
          box.ondrop = event => { event.preventDefault(); box.textContent = event.dataTransfer.getData('text/plain'); };
        </script>",
    )
    .await;
    let step =
        done(&session, "drag", json!({ "start_point_2d": [50, 50], "end_point_2d": [500, 50], "steps": 20 }))
            .await;
    assert_eq!(ask(&session, "a.style.left").await, json!("640px"));
    assert!(ask(&session, "moves").await.as_u64().is_some_and(|moves| moves >= 20));
    assert!(step.text.starts_with("Succeed: `drag` on <div> \"Mouse\" at (64, 50)"), "{}", step.text);
    let step =
        done(&session, "drag", json!({ "start_point_2d": [50, 250], "end_point_2d": [550, 550] })).await;
    assert_eq!(ask(&session, "box.textContent").await, json!("the card"));
    assert!(
        step.text.contains("on img \"Card\" at (64, 250) onto region \"Box\" at (704, 550)"),
        "{}",
        step.text
    );
}

fn scrolled(step: &Step) -> (String, f64, f64, bool) {
    let found = step.effects.iter().find_map(|effect| match effect {
        Effect::Scrolled { what, x, y, at_end } => Some((what.clone(), *x, *y, *at_end)),
        _ => None,
    });
    found.unwrap_or_else(|| panic!("nothing scrolled: {step:?}"))
}

#[tokio::test]
async fn scrolling_tells_what_moved_and_whether_its_end_is_reached() {
    let (_server, session) = shown(
        "<style>body{margin:0}</style><div role=list aria-label=Results id=list tabindex=0
        style='height:400px;width:1200px;overflow:auto'><div style='height:900px;width:3000px'>long</div></div><div style='height:1600px'>page</div>",
    )
    .await;
    let page = "the page".to_owned();
    let list = "list \"Results\"".to_owned();
    let rows = [
        (json!({}), (page.clone(), 0.0, 500.0, false)),
        (json!({ "amount": "0.2" }), (page.clone(), 0.0, 200.0, false)),
        (json!({ "direction": "UP", "amount": 0.6 }), (page.clone(), 0.0, -600.0, false)),
        (json!({ "direction": "up", "amount": 1 }), (page.clone(), 0.0, -100.0, true)),
        (json!({ "direction": "up" }), (page.clone(), 0.0, 0.0, true)),
        (json!({ "point_2d": [100, 100], "amount": 0.3 }), (list.clone(), 0.0, 300.0, false)),
        (json!({ "point_2d": [100, 100], "amount": 1.0 }), (list.clone(), 0.0, 200.0, true)),
        (json!({ "point_2d": [100, 100], "direction": "right", "amount": 0.1 }), (list, 100.0, 0.0, false)),
        // The list is at its end: the page around it scrolls, as with a wheel.
        (json!({ "point_2d": [100, 100], "amount": 0.1 }), (page.clone(), 0.0, 100.0, false)),
        (json!({ "amount": 1.0 }), (page, 0.0, 900.0, true)),
    ];
    for (arguments, expected) in rows {
        let step = done(&session, "scroll", arguments.clone()).await;
        assert_eq!(scrolled(&step), expected, "{arguments}: {}", step.text);
        assert!(!step.effects.contains(&Effect::NothingChanged), "{arguments}");
    }
}

#[tokio::test]
async fn a_page_without_scrollbars_gets_the_wheel() {
    let (_server, session) =
        shown("<body style='margin:0;height:900px'><p id=out></p><script>onwheel = e => { out.textContent += e.deltaY; }</script>").await;
    let step = done(&session, "scroll", json!({ "point_2d": [500, 500] })).await;
    assert_eq!(ask(&session, "out.textContent").await, json!("500"));
    assert!(step.text.contains("the wheel was turned"), "{}", step.text);
}

#[tokio::test]
async fn waiting_is_as_long_as_asked() {
    let (_server, session) =
        shown("<p id=out></p><script>setTimeout(() => { out.textContent = 1; }, 300)</script>").await;
    let step = done(&session, "wait", json!({ "seconds": 0.5 })).await;
    assert!(step.duration_ms >= 500, "{step:?}");
    assert_eq!(ask(&session, "out.textContent").await, json!("1"));
    let (code, said) = fails(&session, "wait", json!({ "seconds": 3600 })).await;
    assert_eq!(code, FailureCode::InvalidArguments);
    assert_eq!(said, "invalid wait.seconds 3600: expected a number from 0 to 60");
}

#[tokio::test]
async fn ends_of_an_episode_are_outcomes() {
    let (_server, session) = shown("<p>x</p>").await;
    let rows = [
        (
            call("done", json!({ "response": "42" })),
            StepOutcome::Ended { response: "42".to_owned(), status: None },
        ),
        (
            call("terminate", json!({ "status": "Failure" })),
            StepOutcome::Ended { response: String::new(), status: Some("failure".to_owned()) },
        ),
        (
            call("call_user", json!({ "message": "Which?" })),
            StepOutcome::Asked { message: "Which?".to_owned() },
        ),
    ];
    for (ending, outcome) in rows {
        let steps =
            session.act(&[ending.clone(), call("wait", json!({ "seconds": 0 }))]).await.expect("steps");
        assert_eq!(steps[0].outcome, outcome);
        assert!(matches!(steps[1].outcome, StepOutcome::Skipped { .. }), "{:?}", steps[1]);
        assert!(steps[0].settled.is_none() && steps[0].effects.is_empty());
    }
}

#[tokio::test]
async fn settled_pages_are_told_by_cause() {
    let (_server, session) = shown(BUTTON).await;
    let step = done(&session, "click", json!({ "point_2d": [500, 500] })).await;
    let settled = step.settled.expect("it was waited for");
    assert_eq!(settled.cause, SettleCause::Quiet);
    assert!(settled.pending.is_empty());
    assert_eq!(session.settle().await.expect("settled").cause, SettleCause::Quiet);
    let quick = SettleOptions { bound: Duration::from_millis(500), ..SettleOptions::default() };
    let session = session_with(SessionOptions { settle: quick, ..options() }).await;
    assert_eq!(session.options().settle.bound, Duration::from_millis(500));
}

#[tokio::test]
async fn options_of_a_list_are_told_and_chosen_by_text_or_by_keys() {
    let (_server, session) = shown(FORM).await;
    let step = click_on(&session, "#fruit").await;
    assert_eq!(step.element.as_ref().expect("the list").options, ["Apple", "Pear", "Plum"]);
    assert!(
        step.text.contains("; its options are \"Apple\", \"Pear\", \"Plum\" (hint: `write` chooses one)"),
        "{}",
        step.text
    );
    done(&session, "write", json!({ "message": " Pear " })).await;
    assert_eq!(ask(&session, "fruit.value").await, json!("Pear"));
    click_on(&session, "#go").await;
    click_on(&session, "#fruit").await;
    done(&session, "press_keys", json!({ "keys": ["ArrowUp", "Enter"] })).await;
    assert_eq!(ask(&session, "fruit.value").await, json!("Apple"));
    click_on(&session, "#go").await;
    let clicks = ask(&session, "log.textContent.match(/click:go/g).length").await;
    assert_eq!(clicks, json!(2), "an open list swallows no click");
    // Chromium draws the open list above the page, and gives it no click of the protocol.
    click_on(&session, "#fruit").await;
    let below = "(box => [(box.x + 20) / innerWidth * 1000, (box.bottom + 36) / innerHeight * 1000])(fruit.getBoundingClientRect())";
    let point = ask(&session, below).await;
    let (code, said) = fails(&session, "click", json!({ "point_2d": point })).await;
    assert_eq!(code, FailureCode::Covered);
    assert!(
        said.contains("the open list of combobox \"Fruit\"") && said.contains("`write` chooses an option"),
        "{said}"
    );
    done(&session, "write", json!({ "message": "Pear" })).await;
    assert_eq!(ask(&session, "fruit.value").await, json!("Pear"));
    done(&session, "click", json!({ "point_2d": point })).await;
}

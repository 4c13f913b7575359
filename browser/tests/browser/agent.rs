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
        assert_eq!((element.tag.as_str(), element.role.as_deref(), element.name.as_str()), ("button", Some("button"), "Press me"));
        assert!(step.text.starts_with(&format!("Succeed: `click` on button \"Press me\" at ({x}, {y}). Changed:")), "{}", step.text);
    }
}

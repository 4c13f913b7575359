//! Agents on pages that do something: what settles them, and what happened as effects of a step.

use crate::agent::{ask, call, click_on, done, fails, one, options, session_with, shown};
use crate::server::{Answer, Server};
use espalier_browser::agent::{
    DialogAnswer, Effect, FailureCode, Session, SessionOptions, SettleCause, SettleOptions, Step, StepOutcome,
};
use espalier_browser::{BrowserError, DialogKind, DialogPolicy};
use serde_json::json;
use std::time::Duration;

/// Served beside every page of these tests.
async fn serve(html: &str) -> (Server, Session) {
    serve_with(html, options()).await
}

async fn serve_with(html: &str, options: SessionOptions) -> (Server, Session) {
    let file = Answer::typed("application/octet-stream", "12345")
        .header("content-disposition", "attachment; filename=data.bin");
    let big = Answer::typed("application/octet-stream", vec![0; 100_000])
        .header("content-disposition", "attachment; filename=big.bin");
    let server = Server::start([
        ("/", Answer::html(html)),
        ("/two", Answer::html("<title>Two</title><h1>Two</h1>")),
        ("/slow", Answer::Hang),
        ("/file", file),
        ("/big", big),
        ("/missing", Answer::html("<title>Gone</title>").status(404)),
        ("/json", Answer::typed("application/json", "[1]")),
        ("/to-file", Answer::redirect("file:///etc/passwd")),
        ("/to-data", Answer::redirect("data:text/html,x")),
        ("/to-source", Answer::redirect("view-source:http://127.0.0.1/")),
        ("/to-script", Answer::redirect("javascript:alert(1)")),
        ("/close", Answer::Close),
    ])
    .await;
    let session = session_with(options).await;
    let step = session.goto(&server.url("/")).await.expect("a step");
    assert_eq!(step.outcome, StepOutcome::Done, "{}", step.text);
    (server, session)
}

fn quick() -> SessionOptions {
    let settle = SettleOptions { bound: Duration::from_millis(700), ..SettleOptions::default() };
    SessionOptions { settle, ..options() }
}

fn cause(step: &Step) -> SettleCause {
    step.settled.as_ref().unwrap_or_else(|| panic!("not waited for: {step:?}")).cause
}

const BUTTON: &str = "<title>One</title><button onclick='go()'>Go</button><p id=out></p>";

/// A page whose button runs this script.
fn page(script: &str) -> String {
    format!("{BUTTON}<script>async function go() {{ {script} }}</script>")
}

#[tokio::test]
async fn what_a_click_begins_is_waited_for() {
    // What the button does, and what `out` holds once the page is at rest.
    let rows = [
        ("out.textContent = (await (await fetch('/json')).json())[0]", "1", SettleCause::Quiet),
        (
            "const s = document.createElement('script'); s.src = 'data:text/javascript,out.textContent=2'; document.head.append(s)",
            "2",
            SettleCause::Quiet,
        ),
        (
            "let n = 0; const step = () => { out.textContent = ++n; if (n < 30) requestAnimationFrame(step); }; step()",
            "30",
            SettleCause::Quiet,
        ),
        (
            "out.style.transition = 'margin 300ms'; out.offsetWidth; out.style.marginLeft = '99px'; out.ontransitionend = () => { out.textContent = 'moved'; }",
            "moved",
            SettleCause::Quiet,
        ),
    ];
    for (script, expected, expected_cause) in rows {
        let (_server, session) = serve(&page(script)).await;
        let step = click_on(&session, "button").await;
        assert_eq!(ask(&session, "out.textContent").await, json!(expected), "{script}: {}", step.text);
        assert_eq!(cause(&step), expected_cause, "{script}");
    }
}

#[tokio::test]
async fn what_never_ends_is_left_at_the_bound_and_told() {
    let rows = [
        ("fetch('/slow')", "fetch http://"),
        (
            "const s = document.createElement('script'); s.src = '/slow'; document.head.append(s)",
            "script http://",
        ),
        (
            "const s = document.createElement('link'); s.rel = 'stylesheet'; s.href = '/slow'; document.head.append(s)",
            "stylesheet http://",
        ),
        ("const poll = () => fetch('/slow', { signal: AbortSignal.timeout(80) }).catch(poll); poll()", ""),
        (
            "const step = () => { out.textContent = performance.now(); requestAnimationFrame(step); }; step()",
            "changes of the document",
        ),
        ("out.animate([{ opacity: 0 }, { opacity: 1 }], { duration: 60000 })", "1 animations"),
    ];
    for (script, pending) in rows {
        let (_server, session) = serve_with(&page(script), quick()).await;
        let step = click_on(&session, "button").await;
        assert_eq!(step.outcome, StepOutcome::Done, "{script}");
        let settled = step.settled.expect("it was waited for");
        assert_eq!(settled.cause, SettleCause::Bound, "{script}");
        assert!(settled.pending.iter().any(|told| told.contains(pending)), "{script}: {:?}", settled.pending);
        assert!(step.text.contains("The page is still busy after"), "{}", step.text);
    }
}

#[tokio::test]
async fn endless_animations_and_requests_given_up_on_do_not_keep_a_page_busy() {
    let settle = SettleOptions { bound: Duration::from_secs(3), ..SettleOptions::default() };
    let (_server, session) = serve_with(
        &page("if (out.textContent === '') { out.textContent = 'x'; fetch('/slow'); out.animate([{ opacity: 0 }, { opacity: 1 }], { duration: 100, iterations: Infinity }); }"),
        SessionOptions { settle, ..options() },
    )
    .await;
    let step = click_on(&session, "button").await;
    assert_eq!(cause(&step), SettleCause::Bound);
    let step = click_on(&session, "button").await;
    assert_eq!(cause(&step), SettleCause::Quiet, "{}", step.text);
}

#[tokio::test]
async fn navigations_are_effects_and_settle_in_the_new_document() {
    let (server, session) = serve(&page("location = '/two'")).await;
    let step = click_on(&session, "button").await;
    assert_eq!(step.outcome, StepOutcome::Done);
    assert_eq!(cause(&step), SettleCause::Navigation);
    let two = Effect::Navigated {
        url: server.url("/two"),
        title: "Two".to_owned(),
        status: Some(200),
        within_document: false,
    };
    assert_eq!(step.effects, vec![two.clone()]);
    assert_eq!(step.element.expect("the button as it was").name, "Go");
    assert!(step.text.ends_with(&format!("Opened {} \"Two\".", server.url("/two"))), "{}", step.text);
    let step = done(&session, "go_back", json!({})).await;
    assert!(
        matches!(&step.effects[0], Effect::Navigated { title, .. } if title == "One"),
        "{:?}",
        step.effects
    );
    let step = done(&session, "goto_url", json!({ "url": server.url("/missing") })).await;
    assert!(step.text.contains("\"Gone\" (status 404)"), "{}", step.text);
    let step = done(&session, "goto_url", json!({ "url": format!("  {} ", server.url("/two")) })).await;
    assert_eq!(step.effects, vec![two]);
    let (_server, session) = serve(&page("history.pushState(0, '', '/pushed')")).await;
    let step = click_on(&session, "button").await;
    assert!(
        matches!(&step.effects[0], Effect::Navigated { within_document: true, url, .. } if url.ends_with("/pushed")),
        "{:?}",
        step.effects
    );
}

#[tokio::test]
async fn failed_navigations_are_told() {
    let (server, session) = serve(&page("location = '/close'")).await;
    let step = click_on(&session, "button").await;
    assert!(
        matches!(&step.effects[0], Effect::NavigationFailed { reason, .. } if reason == "net::ERR_EMPTY_RESPONSE"),
        "{:?}",
        step.effects
    );
    let (code, said) = fails(&session, "goto_url", json!({ "url": server.url("/close") })).await;
    assert_eq!(code, FailureCode::NavigationFailed, "{said}");
    assert!(said.ends_with("could not be opened: net::ERR_EMPTY_RESPONSE"), "{said}");
    let tabs = session.tabs().await.expect("tabs");
    assert_eq!(tabs[0].url, server.url("/close"), "an error page has the address that was wanted");
    let session = session_with(options()).await;
    let (code, said) = fails(&session, "go_back", json!({})).await;
    assert_eq!((code, said.as_str()), (FailureCode::NavigationFailed, "there is no page to go back to"));
    let navigation_timeout = Duration::from_secs(3);
    let session = session_with(SessionOptions { navigation_timeout, ..options() }).await;
    let (code, said) = fails(&session, "goto_url", json!({ "url": server.url("/slow") })).await;
    assert_eq!(code, FailureCode::TimedOut, "{said}");
    done(&session, "goto_url", json!({ "url": server.url("/two") })).await;
}

#[tokio::test]
async fn dialogs_are_answered_and_told() {
    let script = "out.textContent = [alert('a'), confirm('c'), prompt('p', 'd')].join()";
    let rows = [
        (DialogAnswer::Dismiss, ",false,", "dismissed"),
        (DialogAnswer::Accept, ",true,d", "accepted"),
        (DialogAnswer::AcceptWith("mine".to_owned()), ",true,mine", "accepted"),
    ];
    for (dialogs, expected, answer) in rows {
        let (_server, session) = serve_with(&page(script), SessionOptions { dialogs, ..options() }).await;
        let step = click_on(&session, "button").await;
        assert_eq!(ask(&session, "out.textContent").await, json!(expected));
        assert_eq!(cause(&step), SettleCause::Dialog);
        let dialog = |dialog, message: &str| Effect::Dialog {
            dialog,
            message: message.to_owned(),
            answer: answer.to_owned(),
        };
        let expected = [
            dialog(DialogKind::Alert, "a"),
            dialog(DialogKind::Confirm, "c"),
            dialog(DialogKind::Prompt, "p"),
        ];
        assert_eq!(step.effects[..3], expected);
        assert!(
            step.text.contains(&format!("The page showed a dialog (prompt: \"p\"), which was {answer}.")),
            "{}",
            step.text
        );
    }
}

#[tokio::test]
async fn pages_that_ask_before_they_are_left_are_left() {
    let (server, session) = serve(&page("onbeforeunload = event => event.preventDefault()")).await;
    click_on(&session, "button").await;
    let step = done(&session, "goto_url", json!({ "url": server.url("/two") })).await;
    let answers: Vec<&Effect> =
        step.effects.iter().filter(|effect| matches!(effect, Effect::Dialog { .. })).collect();
    assert!(
        matches!(answers[..], [Effect::Dialog { dialog: DialogKind::BeforeUnload, answer, .. }] if answer == "accepted"),
        "{:?}",
        step.effects
    );
}

#[tokio::test]
async fn downloads_are_effects_with_their_bytes() {
    let (server, session) = serve(&page("location = '/file'")).await;
    for step in [
        click_on(&session, "button").await,
        one(&session, "goto_url", json!({ "url": server.url("/file") })).await,
    ] {
        assert_eq!(step.outcome, StepOutcome::Done, "{}", step.text);
        let [Effect::Downloaded { name, url, size: 5, path: Some(path) }] = &step.effects[..] else {
            panic!("{:?}", step.effects)
        };
        assert_eq!((name.as_str(), url), ("data.bin", &server.url("/file")));
        assert_eq!(std::fs::read(path).expect("the file"), b"12345");
        assert!(step.text.ends_with("Downloaded \"data.bin\" (5 bytes)."), "{}", step.text);
    }
}

#[tokio::test]
async fn downloads_too_large_or_too_many_are_refused() {
    let bounds = SessionOptions { download_bytes_max: 10_000, downloads_max: 2, ..options() };
    let (_server, session) = serve_with(&page("location = window.to ?? '/big'"), bounds).await;
    let step = click_on(&session, "button").await;
    assert!(
        matches!(&step.outcome, StepOutcome::Failed { code: FailureCode::DownloadRefused, .. }),
        "{step:?}"
    );
    assert!(step.text.contains("larger than 10000 bytes"), "{}", step.text);
    ask(&session, "to = '/file'").await;
    let step = click_on(&session, "button").await;
    assert!(matches!(&step.effects[..], [Effect::Downloaded { size: 5, .. }]), "{:?}", step.effects);
    let step = click_on(&session, "button").await;
    assert!(step.text.contains("more than 2 downloads"), "{}", step.text);
}

#[tokio::test]
async fn console_errors_and_changes_are_counted() {
    let rows = [
        (
            "console.error('bad', 1); console.error('worse'); console.log('fine')",
            "2 errors on the console: \"bad 1\".",
        ),
        ("throw new Error('thrown')", "1 error on the console: \"Error: thrown\"."),
        ("out.append('a', document.createElement('b'))", "Changed: 2 nodes added."),
        ("out.setAttribute('x', 1)", "Changed: 1 attribute changed."),
    ];
    for (script, expected) in rows {
        let (_server, session) = serve(&page(script)).await;
        let step = click_on(&session, "button").await;
        assert!(step.text.contains(expected), "{script}: {}", step.text);
    }
    let script = "document.querySelector('x-a').shadowRoot.append('text')";
    let host = "<x-a><template shadowrootmode=open>shadow</template></x-a>";
    let (_server, session) = serve(&format!("{}{host}", page(script))).await;
    let step = click_on(&session, "button").await;
    assert!(step.text.contains("Changed: 1 node added."), "{}", step.text);
    let (_server, session) = shown("<p>Nothing here</p>").await;
    let step = done(&session, "click", json!({ "point_2d": [500, 900] })).await;
    assert_eq!(step.effects, vec![Effect::NothingChanged]);
    assert!(step.text.ends_with("Nothing changed."), "{}", step.text);
}

#[tokio::test]
async fn a_flood_of_messages_hides_no_effect() {
    let script = "alert('seen'); for (let i = 0; i < 6000; i++) console.error(i)";
    let (_server, session) = serve(&page(script)).await;
    let step = click_on(&session, "button").await;
    assert!(matches!(&step.effects[0], Effect::Dialog { message, .. } if message == "seen"), "{}", step.text);
    assert!(
        step.effects.iter().any(|effect| matches!(effect, Effect::ConsoleErrors { .. })),
        "{}",
        step.text
    );
}

#[tokio::test]
async fn what_happens_between_steps_is_told_apart() {
    let (_server, session) = serve(&page("out.textContent = 1")).await;
    ask(&session, "new Promise(resolve => setTimeout(() => resolve(void alert('late')), 10))").await;
    let step = click_on(&session, "button").await;
    assert!(matches!(&step.meanwhile[..], [Effect::Dialog { message, .. }] if message == "late"), "{step:?}");
    assert!(!step.effects.iter().any(|effect| matches!(effect, Effect::Dialog { .. })), "{step:?}");
    assert!(step.text.starts_with("Meanwhile: The page showed a dialog (alert: \"late\")"), "{}", step.text);
    let step = click_on(&session, "button").await;
    assert!(step.meanwhile.is_empty(), "{step:?}");
}

#[tokio::test]
async fn popups_are_tabs_and_the_current_one() {
    let (server, session) = serve(&page("open('/two')")).await;
    let steps = session
        .act(&[
            call("click", json!({ "point_2d": crate::agent::middle_of(&session, "button").await })),
            call("wait", json!({ "seconds": 0 })),
        ])
        .await
        .expect("steps");
    assert_eq!(steps[0].effects[0], Effect::TabOpened { index: 1, url: server.url("/two"), is_active: true });
    assert!(
        matches!(&steps[1].outcome, StepOutcome::Skipped { reason } if reason == "an action before it opened another tab")
    );
    let tabs = session.tabs().await.expect("tabs");
    let told: Vec<(usize, &str, bool)> =
        tabs.iter().map(|tab| (tab.index, tab.title.as_str(), tab.is_active)).collect();
    assert_eq!(told, [(0, "One", false), (1, "Two", true)]);
    assert_eq!(tabs[1].url, server.url("/two"));
    done(&session, "switch_tab", json!({ "tab_index": "0" })).await;
    assert_eq!(ask(&session, "document.title").await, json!("One"));
    let step = done(&session, "new_tab", json!({})).await;
    assert_eq!(
        step.effects,
        vec![Effect::TabOpened { index: 2, url: "about:blank".to_owned(), is_active: true }]
    );
    let (code, said) = fails(&session, "switch_tab", json!({ "tab_index": 7 })).await;
    assert_eq!((code, said.as_str()), (FailureCode::NoSuchTab, "there is no tab 7: expected 0 to 2"));
    done(&session, "switch_tab", json!({ "tab_index": 1 })).await;
    let step = done(&session, "close_tab", json!({})).await;
    assert!(step.effects.contains(&Effect::TabClosed { index: 1 }), "{step:?}");
    let tabs = session.tabs().await.expect("tabs");
    assert!(tabs[1].is_active && tabs[1].url == "about:blank", "{tabs:?}");
    done(&session, "close_tab", json!({})).await;
    assert_eq!(ask(&session, "document.title").await, json!("One"));
    let step = done(&session, "close_tab", json!({})).await;
    assert!(
        step.effects.iter().any(|effect| matches!(effect, Effect::TabOpened { is_active: true, .. })),
        "{step:?}"
    );
    assert_eq!(session.tabs().await.expect("tabs").len(), 1);
}

#[tokio::test]
async fn tabs_that_close_themselves_are_left_and_too_many_are_closed() {
    let (_server, session) = serve_with(
        &page("open('/two'); open('/two'); open('/two')"),
        SessionOptions { tabs_max: 2, ..options() },
    )
    .await;
    let step = click_on(&session, "button").await;
    assert_eq!(session.tabs().await.expect("tabs").len(), 2, "{}", step.text);
    let (code, said) = fails(&session, "new_tab", json!({})).await;
    assert_eq!(code, FailureCode::NoSuchTab, "{said}");
    ask(&session, "document.body.innerHTML = '<button>Close</button>'; document.body.firstChild.onclick = () => close(); 0").await;
    let step = click_on(&session, "button").await;
    assert_eq!(step.outcome, StepOutcome::Done, "{}", step.text);
    assert!(step.effects.contains(&Effect::TabClosed { index: 1 }), "{step:?}");
    assert_eq!(cause(&step), SettleCause::Closed);
    assert_eq!(ask(&session, "document.title").await, json!("One"));
}

#[tokio::test]
async fn only_the_web_is_opened_by_whatever_way() {
    // What a button does, and a part of the address that is told.
    let rows = [
        ("location = 'file:///etc/passwd'", "file:///etc/passwd"),
        ("location = 'data:text/html,x'", "data:text/html,x"),
        ("location = 'chrome://version'", "chrome://version"),
        ("location = 'view-source:' + location.href", "view-source:http://"),
        ("location = 'about:version'", "about:blank#blocked"),
        ("location = URL.createObjectURL(new Blob(['<b>b'], { type: 'text/html' }))", "blob:http://"),
        ("location = 'mailto:a@example.org'", "mailto:a@example.org"),
        ("location = '/to-file'", "file:///etc/passwd"),
        ("location = '/to-data'", "data:text/html,x"),
        ("location = '/to-source'", "view-source:http://127.0.0.1/"),
        ("location = '/to-script'", "javascript:alert(1)"),
        ("open('file:///etc/passwd')", "file:///etc/passwd"),
        ("open('data:text/html,x')", "data:text/html,x"),
        ("open('chrome://version')", "chrome://version"),
        ("open('view-source:' + location.href)", "view-source:http://"),
        ("open(URL.createObjectURL(new Blob(['<b>b'], { type: 'text/html' })))", "blob:http://"),
        (
            "const a = document.createElement('a'); a.href = 'javascript:location=\"data:text/html,x\"'; a.click()",
            "data:text/html,x",
        ),
        (
            "const a = document.createElement('a'); a.href = 'file:///etc/passwd'; a.target = '_blank'; a.click()",
            "file:///etc/passwd",
        ),
        (
            "const f = document.createElement('form'); f.action = 'data:text/html,x'; out.append(f); f.submit()",
            "data:text/html,x",
        ),
    ];
    for (script, address) in rows {
        let (server, session) = serve(&page(script)).await;
        let step = click_on(&session, "button").await;
        let StepOutcome::Failed { code: FailureCode::BlockedUrl, text } = &step.outcome else {
            panic!("{script}: {}", step.text)
        };
        assert!(text.contains(address), "{script}: {text}");
        let tabs = session.tabs().await.expect("tabs");
        assert_eq!(tabs.len(), 1, "{script}: {tabs:?}");
        let stayed = [server.url("/"), server.url("/to-file"), server.url("/to-data")];
        assert!(stayed.contains(&tabs[0].url), "{script}: {tabs:?}");
    }
}

#[tokio::test]
async fn addresses_of_calls_are_checked_before_and_after_redirects() {
    let (server, session) = serve(BUTTON).await;
    for url in [
        "file:///etc/passwd",
        "view-source:http://example.com",
        "chrome://version",
        "data:text/html,x",
        "java\nscript:alert(1)",
    ] {
        let (code, said) = fails(&session, "goto_url", json!({ "url": url })).await;
        assert_eq!(code, FailureCode::BlockedUrl, "{said}");
        assert!(said.ends_with("is blocked: only http, https and about:blank may be opened"), "{said}");
    }
    for path in ["/to-file", "/to-data", "/to-source", "/to-script"] {
        let (code, said) = fails(&session, "goto_url", json!({ "url": server.url(path) })).await;
        assert_eq!(code, FailureCode::BlockedUrl, "{said}");
    }
    done(&session, "goto_url", json!({ "url": "about:blank" })).await;
    let (code, said) = fails(&session, "goto_url", json!({ "url": "http://a:99999999/" })).await;
    assert_eq!(code, FailureCode::InvalidArguments, "{said}");
}

#[tokio::test]
async fn pictures_of_files_in_a_page_do_not_fail_what_opened_it() {
    let (server, session) = serve("<title>Local</title><img src='file:///C:/a.png'>").await;
    let step = done(&session, "goto_url", json!({ "url": server.url("/") })).await;
    assert!(step.text.contains("\"Local\""), "{}", step.text);
}

#[tokio::test]
async fn a_page_that_spins_times_out_and_another_can_be_opened() {
    let action_timeout = Duration::from_millis(500);
    let settle = SettleOptions { bound: Duration::from_millis(500), ..SettleOptions::default() };
    let (server, session) =
        serve_with(&page("for (;;);"), SessionOptions { action_timeout, settle, ..options() }).await;
    let point = crate::agent::middle_of(&session, "button").await;
    for _ in 0..2 {
        let (code, said) = fails(&session, "click", json!({ "point_2d": point })).await;
        assert_eq!(code, FailureCode::TimedOut, "{said}");
    }
    assert_eq!(session.tabs().await.expect("tabs")[0].title, "One", "titles need no script");
    done(&session, "new_tab", json!({})).await;
    done(&session, "goto_url", json!({ "url": server.url("/two") })).await;
}

#[tokio::test]
async fn a_crash_is_an_error_and_no_failure_of_the_action() {
    let (_server, session) = serve(&page("for (;;);")).await;
    let page = session.context().pages().remove(0);
    let point = crate::agent::middle_of(&session, "button").await;
    let clicks = [call("click", json!({ "point_2d": point }))];
    let (steps, _) = tokio::join!(session.act(&clicks), async {
        page.devtools("Page.crash", json!({}), Duration::from_secs(5)).await.ok()
    });
    let error = steps.expect_err("the tab is lost");
    assert!(matches!(error, BrowserError::Crashed { what: "page", .. }), "{error}");
    assert!(session.act(&clicks).await.is_err_and(|error| error.is_gone()));
    session.close().await;
    assert!(session.act(&clicks).await.is_err_and(|error| error.is_gone()));
}

#[tokio::test]
async fn a_dialog_that_the_host_holds_open_is_a_failure_by_name() {
    let (_server, session) = serve(&page("alert('held'); out.textContent = 'after'")).await;
    let point = crate::agent::middle_of(&session, "button").await;
    let page = session.context().pages().remove(0);
    page.set_dialog_policy(DialogPolicy::Hold);
    let step = one(&session, "click", json!({ "point_2d": point })).await;
    assert!(
        matches!(&step.outcome, StepOutcome::Failed { code: FailureCode::Dialog, text } if text.contains("held")),
        "{}",
        step.text
    );
    assert!(matches!(&step.effects[0], Effect::Dialog { answer, .. } if answer == "left open"), "{step:?}");
    let (code, said) = fails(&session, "click", json!({ "point_2d": point })).await;
    assert_eq!(code, FailureCode::Dialog, "{said}");
    page.dialog().expect("it is open").accept(None).expect("it is not answered");
    assert_eq!(session.settle().await.expect("settled").cause, SettleCause::Quiet);
    assert_eq!(ask(&session, "out.textContent").await, json!("after"));
}

#[tokio::test]
async fn tabs_of_middle_clicks_stay_in_the_background() {
    let (server, session) = serve("<title>One</title><a href=/two>Two</a>").await;
    let point = crate::agent::middle_of(&session, "a").await;
    let step = done(&session, "click", json!({ "point_2d": point, "button": "middle" })).await;
    let opened = Effect::TabOpened { index: 1, url: server.url("/two"), is_active: false };
    assert!(step.effects.contains(&opened), "{step:?}");
    assert_eq!(ask(&session, "document.title").await, json!("One"));
}

//! Dialogs never wedge a page.

use crate::support::page;
use espalier_browser::{BrowserError, DialogKind, DialogPolicy};
use std::sync::{Arc, Mutex};

#[tokio::test]
async fn without_a_handler_dialogs_are_dismissed_and_remembered() {
    let page = page().await;
    assert_eq!(page.evaluate::<bool>("confirm('sure?')").await, Ok(false));
    assert_eq!(page.evaluate::<Option<String>>("prompt('name?', 'x')").await, Ok(None));
    page.evaluate::<()>("alert('hey')").await.expect("dismissed");
    let kinds: Vec<DialogKind> = page.dialogs().iter().map(|dialog| dialog.kind()).collect();
    assert_eq!(kinds, [DialogKind::Confirm, DialogKind::Prompt, DialogKind::Alert]);
    let prompt = &page.dialogs()[1];
    assert_eq!((prompt.message(), prompt.default_prompt(), prompt.is_answered()), ("name?", "x", true));
    assert!(prompt.accept(None).is_err(), "it is answered");
    assert!(page.dialog().is_none());
}

#[tokio::test]
async fn handlers_answer_dialogs() {
    let page = page().await;
    let seen = Arc::new(Mutex::new(Vec::new()));
    page.on_dialog({
        let seen = Arc::clone(&seen);
        move |dialog| {
            seen.lock().expect("not poisoned").push(dialog.message().to_owned());
            async move { drop(dialog.accept(Some("answer"))) }
        }
    });
    assert_eq!(page.evaluate::<String>("prompt('q')").await.as_deref(), Ok("answer"));
    assert_eq!(page.evaluate::<bool>("confirm('c')").await, Ok(true));
    // A handler that does not answer leaves the dialog to be dismissed.
    page.on_dialog(|_| async {});
    assert_eq!(page.evaluate::<bool>("confirm('c')").await, Ok(false));
    page.set_dialog_policy(DialogPolicy::Accept);
    assert_eq!(page.evaluate::<String>("prompt('q', 'd')").await.as_deref(), Ok("d"));
    assert_eq!(*seen.lock().expect("not poisoned"), ["q", "c"]);
}

#[tokio::test]
async fn a_held_dialog_fails_calls_in_place_of_hanging() {
    let page = page().await;
    page.set_dialog_policy(DialogPolicy::Hold);
    let open = BrowserError::DialogOpen { kind: DialogKind::Confirm, message: "sure?".into() };
    let asking = page.evaluate::<()>("setTimeout(() => { window.answer = confirm('sure?') }, 0)").await;
    assert!(asking.is_ok() || asking == Err(open.clone()), "{asking:?}");
    let mut waiting = page.evaluate::<()>("new Promise(() => {})").await;
    assert_eq!(waiting, Err(open.clone()), "calls under way fail");
    waiting = page.evaluate::<()>("1").await;
    assert_eq!(waiting, Err(open.clone()), "and new ones");
    assert_eq!(page.set_content("x").await, Err(open.clone()));
    assert_eq!(page.locator("body").click().await, Err(open.clone()));
    assert_eq!(page.mouse().click(5.0, 5.0).await, Err(open.clone()));
    assert_eq!(page.screenshot().await.map(drop), Err(open.clone()));
    assert_eq!(page.title().await, Err(open));
    let dialog = page.dialog().expect("it is open");
    dialog.accept(None).expect("answered");
    assert_eq!(page.evaluate::<bool>("window.answer").await, Ok(true));
    assert!(page.dialog().is_none());
}

#[tokio::test]
async fn a_page_with_an_open_dialog_can_be_closed() {
    let page = page().await;
    page.set_dialog_policy(DialogPolicy::Hold);
    let asked = page.evaluate::<()>("alert('x')").await;
    let open = BrowserError::DialogOpen { kind: DialogKind::Alert, message: "x".into() };
    assert_eq!(asked, Err(open.clone()));
    assert_eq!(page.goto("about:blank").await.map(drop), Err(open));
    page.close().await.expect("closed");
}

//! Locators where a page alone does not show it: messages, frames, documents that are replaced, files, drags.

use crate::server::{Answer, Server};
use crate::support::page;
use espalier_browser::{
    ActionOptions, BrowserError, ElementState, Filter, LoadState, Page, RoleOptions, ScreenshotOptions,
    TextMatch,
};
use std::time::Duration;

fn soon() -> ActionOptions {
    ActionOptions::within(Duration::from_secs(2))
}

async fn with(html: &str) -> Page {
    let page = page().await;
    page.set_content(html).await.expect("content");
    page
}

#[tokio::test]
async fn timeouts_say_what_was_missing() {
    let page = with(
        "<button id=hidden style='display:none'>Save</button><button id=off disabled>Off</button>
         <button id=under style='position:fixed;left:10px;top:100px'>Under</button>
         <div id=over style='position:fixed;left:0;top:80px;width:200px;height:100px'>over</div>
         <input id=ro readonly value=x><select id=s><option>a</option></select>
         <style>@keyframes m { to { transform: translateX(300px) } } #moving { animation: m 1s infinite linear }</style>
         <button id=moving>Moving</button>",
    )
    .await;
    page.context().set_default_timeout(Duration::from_secs(5));
    let save = page.get_by_role("button", RoleOptions { include_hidden: true, ..RoleOptions::named("Save") });
    let click = |selector: &str| {
        let locator = page.locator(selector);
        async move { locator.click().await.expect_err("it cannot be clicked").to_string() }
    };
    let (hidden, none, off, moving) =
        tokio::join!(save.click(), click("#none"), click("#off"), click("#moving"));
    let under = click("#under").await;
    assert_eq!(
        hidden.expect_err("it is hidden").to_string(),
        "timed out after 5 s: waiting for `button` named \"Save\" (hidden ones too) to be clicked; it is hidden: \
         <button id=\"hidden\">Save</button>"
    );
    assert_eq!(none, "timed out after 5 s: waiting for `#none` to be clicked; no element matches");
    assert!(off.contains("; it is disabled: "), "{off}");
    assert!(moving.contains("; it is moving: "), "{moving}");
    assert!(
        under.contains("; it is covered by <div id=\"over\">over</div>: <button id=\"under\">"),
        "{under}"
    );
    let (ro, option, off, none) =
        (page.locator("#ro"), page.locator("#s"), page.locator("#off"), page.locator("#none"));
    let (read_only, option, visible, text) = tokio::join!(
        ro.fill("y"),
        option.select_option("b"),
        off.wait_for(ElementState::Hidden, None),
        none.text_content()
    );
    let text_of = |error: BrowserError| error.to_string();
    let read_only = text_of(read_only.expect_err("it is read-only"));
    assert!(read_only.contains("; it is read-only: "), "{read_only}");
    let option = text_of(option.expect_err("there is no such option"));
    assert!(option.contains("it has no option [\"b\"]"), "{option}");
    let visible = text_of(visible.expect_err("it is visible"));
    assert!(visible.contains("`#off` to be hidden; it is visible: "), "{visible}");
    let text = text_of(text.expect_err("there is none"));
    assert_eq!(text, "timed out after 5 s: waiting for `#none` to be attached; no element matches");
}

#[tokio::test]
async fn several_matches_are_an_error_that_shows_them() {
    let page = with("<p>one</p><p id=b>two</p><div><p>three</p></div>").await;
    match page.locator("p").click().await {
        Err(BrowserError::Strict { selector, count, samples }) => {
            assert_eq!((selector.as_str(), count), ("`p`", 3));
            assert_eq!(samples, ["<p>one</p>", "<p id=\"b\">two</p>", "<p>three</p>"]);
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(page.locator("p").count().await, Ok(3));
    assert_eq!(page.locator("p").last().text_content().await.as_deref(), Ok("three"));
    let texts: Vec<String> = futures::future::try_join_all(
        page.locator("p").all().await.expect("all").iter().map(|one| one.text_content()),
    )
    .await
    .expect("texts");
    assert_eq!(texts, ["one", "two", "three"]);
    let filtered =
        page.locator("div").filter(Filter { has: Some(page.get_by_text("three")), ..Filter::default() });
    assert_eq!(filtered.count().await, Ok(1));
    assert!(matches!(page.locator("p >> nth=x").count().await, Err(BrowserError::Invalid { .. })));
    assert!(matches!(page.locator("p[").count().await, Err(BrowserError::Invalid { .. })));
    assert_eq!(page.get_by_text(TextMatch::regex("^t", "")).count().await, Ok(2));
}

#[tokio::test]
async fn actions_wait_for_elements_to_come() {
    let page = with("<div id=host></div>").await;
    page.evaluate::<()>(
        "setTimeout(() => { host.innerHTML = '<button disabled onclick=\"window.clicked = 1\">Late</button>' }, 100);
         setTimeout(() => { host.firstChild.disabled = false }, 300)",
    )
    .await
    .expect("set up");
    page.get_by_role("button", RoleOptions::named("Late")).click().await.expect("a click");
    assert_eq!(page.evaluate::<i32>("window.clicked").await, Ok(1));
}

#[tokio::test]
async fn actions_go_on_in_the_next_document() {
    let server = Server::start([
        ("/", Answer::html("<script>setTimeout(() => { location.href = '/next' }, 150)</script>")),
        ("/next", Answer::html("<input id=name>")),
    ])
    .await;
    let page = page().await;
    page.goto(&server.url("/")).await.expect("a page");
    page.locator("#name").fill("näme").await.expect("filled");
    assert_eq!(page.locator("#name").input_value().await.as_deref(), Ok("näme"));
    page.locator("#name").fill("").await.expect("emptied");
    assert_eq!(page.locator("#name").input_value().await.as_deref(), Ok(""));
}

/// A page with a frame of another site, scrolled down in both.
async fn framed() -> (Server, Page) {
    let server = Server::start([
        (
            "/outer",
            Answer::dynamic(|seen| {
                let port = seen.headers["host"].rsplit_once(':').expect("a port").1.to_owned();
                Answer::html(&format!(
                    "<div style='height:1500px'></div><iframe id=f style='width:400px;height:300px;border:5px solid;padding:3px'
                     src='http://b.localhost:{port}/inner'></iframe>"
                ))
            }),
        ),
        (
            "/inner",
            Answer::html(
                "<div style='height:900px'></div><button onclick='window.clicked = event.isTrusted'>Deep</button>
                 <input id=i><iframe id=g srcdoc='<button onclick=\"parent.leaf = 1\">Leaf</button>'></iframe>
                 <div style='height:900px'></div>",
            ),
        ),
    ])
    .await;
    let page = page().await;
    page.goto(&server.at("a.localhost", "/outer")).await.expect("a page");
    (server, page)
}

#[tokio::test]
async fn elements_in_frames_of_other_processes_are_clicked() {
    let (_server, page) = framed().await;
    let inner = page.frame_locator("#f");
    inner.get_by_role("button", RoleOptions::named("Deep")).click().await.expect("a click");
    let frame = page.frame_at("**/inner").expect("the frame");
    assert_eq!(frame.evaluate::<bool>("window.clicked").await, Ok(true));
    inner.locator("#i").fill("in the frame").await.expect("filled");
    assert_eq!(inner.locator("#i").input_value().await.as_deref(), Ok("in the frame"));
    inner.locator("#i").type_text("!").await.expect("typed");
    assert_eq!(frame.evaluate::<String>("i.value").await.as_deref(), Ok("in the frame!"));
    inner.frame_locator("#g").get_by_text("Leaf").click().await.expect("a click");
    assert_eq!(frame.evaluate::<i32>("window.leaf").await, Ok(1));
    page.evaluate::<()>(
        "document.body.insertAdjacentHTML('beforeend', '<div id=cover style=\"position:fixed;inset:0\"></div>')",
    )
    .await
    .expect("covered");
    let error =
        inner.get_by_text("Deep").click_with(soon()).await.expect_err("the frame is covered").to_string();
    assert!(error.contains("its frame is covered by <div id=\"cover\">"), "{error}");
    let error =
        page.frame_locator("#none").locator("p").click_with(soon()).await.expect_err("no frame").to_string();
    assert!(error.contains("frame `#none` to be attached"), "{error}");
    let wrong = page.frame_locator("#cover").locator("p").click_with(soon()).await;
    assert!(matches!(wrong, Err(BrowserError::Invalid { .. })), "{wrong:?}");
}

#[tokio::test]
async fn files_are_uploaded() {
    let page = with("<input id=f type=file multiple><input id=t>").await;
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name);
    std::fs::write(path("a.txt"), "first").expect("written");
    std::fs::write(path("b.txt"), "second").expect("written");
    let input = page.locator("#f");
    input.set_input_files(&[path("a.txt"), path("b.txt")]).await.expect("put in");
    let read = "Promise.all([...f.files].map(async file => file.name + ':' + await file.text()))";
    assert_eq!(
        page.evaluate::<Vec<String>>(read).await,
        Ok(vec!["a.txt:first".into(), "b.txt:second".into()])
    );
    input.set_input_files(&[] as &[&str]).await.expect("emptied");
    assert_eq!(page.evaluate::<i32>("f.files.length").await, Ok(0));
    assert!(matches!(input.set_input_files(&[path("none")]).await, Err(BrowserError::Invalid { .. })));
    assert!(matches!(
        page.locator("#t").set_input_files(&[path("a.txt")]).await,
        Err(BrowserError::Invalid { .. })
    ));
}

#[tokio::test]
async fn elements_are_read_hovered_dragged_and_drawn() {
    let page = with(
        "<style>#h:hover { background: rgb(1, 2, 3) } div { width: 90px; height: 40px; margin: 20px }</style>
         <div id=h>hover <b>me</b></div><div id=from draggable=true>cargo</div><div id=to>hold</div>
         <input type=checkbox aria-label=Check><button aria-describedby=d>B</button><p id=d>about b</p>
         <script>from.ondragstart = e => e.dataTransfer.setData('text/plain', 'x');
           to.ondragover = e => e.preventDefault(); to.ondrop = e => { e.preventDefault(); to.textContent = 'dropped' }</script>",
    )
    .await;
    let hover = page.locator("#h");
    hover.hover().await.expect("hovered");
    let color: String =
        hover.call("element => getComputedStyle(element).backgroundColor", &[]).await.expect("a colour");
    assert_eq!(color, "rgb(1, 2, 3)");
    assert_eq!(hover.inner_html().await.as_deref(), Ok("hover <b>me</b>"));
    assert_eq!(hover.get_attribute("id").await, Ok(Some("h".into())));
    assert_eq!(hover.get_attribute("nothing").await, Ok(None));
    let rect = hover.bounding_box().await.expect("a box").expect("it has one");
    assert_eq!((rect.width, rect.height), (90.0, 40.0));
    let picture = hover.screenshot(ScreenshotOptions::default()).await.expect("a picture");
    assert_eq!(picture[16..24], [0, 0, 0, 90, 0, 0, 0, 40]);
    page.locator("#from").drag_to(&page.locator("#to")).await.expect("dragged");
    assert_eq!(page.locator("#to").text_content().await.as_deref(), Ok("dropped"));
    let checkbox = page.get_by_label("Check");
    checkbox.check().await.expect("checked");
    checkbox.check().await.expect("still");
    assert_eq!(checkbox.is_checked().await, Ok(true));
    checkbox.uncheck().await.expect("unchecked");
    assert_eq!(checkbox.is_checked().await, Ok(false));
    let button = page.get_by_role("button", RoleOptions::default());
    assert_eq!(button.role().await, Ok(Some("button".into())));
    assert_eq!(button.accessible_name().await.as_deref(), Ok("B"));
    assert_eq!(button.accessible_description().await.as_deref(), Ok("about b"));
    button.dispatch_event("click", serde_json::json!({ "detail": 7 })).await.expect("dispatched");
    assert_eq!(page.locator("#none").is_visible().await, Ok(false));
    let handle = hover.handle().await.expect("a handle");
    assert_eq!(handle.call::<String>("element => element.id", &[]).await.as_deref(), Ok("h"));
}

#[tokio::test]
async fn waits_for_functions_requests_and_responses() {
    let server = Server::start([
        ("/", Answer::html("<title>start</title>")),
        ("/data", Answer::typed("text/plain", "data")),
    ])
    .await;
    let page = page().await;
    page.goto(&server.url("/")).await.expect("a page");
    page.evaluate::<()>("setTimeout(() => { window.ready = { at: 7 } }, 100)").await.expect("set up");
    let ready: serde_json::Value = page.wait_for_function("() => window.ready", &[]).await.expect("ready");
    assert_eq!(ready, serde_json::json!({ "at": 7 }));
    let never = page
        .main_frame()
        .wait_for_function::<bool>("() => false", &[], Some(Duration::from_millis(300)))
        .await;
    assert_eq!(
        never.expect_err("never").to_string(),
        "timed out after 300 ms: waiting for `() => false` to return something true"
    );
    let fetch = async { page.evaluate::<()>("void fetch('/data', { method: 'POST', body: 'b' })").await };
    let response = page.wait_for_response("**/data", fetch, None).await.expect("a response");
    assert_eq!(response.text().await.as_deref(), Ok("data"));
    let fetch = async { page.evaluate::<()>("void fetch('/data', { method: 'POST', body: 'c' })").await };
    let request = page.wait_for_request("**/data", fetch, None).await.expect("a request");
    assert_eq!(request.post_data().await, Ok(Some("c".into())));
    let none = page.wait_for_request("**/none", async { Ok(()) }, Some(Duration::from_millis(200))).await;
    assert_eq!(
        none.expect_err("none").to_string(),
        "timed out after 200 ms: waiting for a request to **/none"
    );
    page.wait_for_load_state(LoadState::NetworkIdle).await.expect("idle");
}

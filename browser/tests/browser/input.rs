//! Mouse, keyboard and touch, seen from the page.

use crate::server::{Answer, Server};
use crate::support::{context, page};
use espalier_browser::{BrowserError, Button, ClickOptions, ContextOptions, Modifier, Page, Point};
use std::time::Duration;

const LOG: &str = "<script>
  window.log = [];
  const mods = e => (e.altKey ? 'A' : '') + (e.ctrlKey ? 'C' : '') + (e.metaKey ? 'M' : '') + (e.shiftKey ? 'S' : '');
  for (const type of ['mousedown', 'mouseup', 'click', 'dblclick', 'contextmenu', 'auxclick'])
    addEventListener(type, e => log.push(`${type} ${e.button} ${e.detail} ${mods(e)}`.trim()), true);
</script>";

async fn log(page: &Page) -> Vec<String> {
    page.evaluate("log.splice(0)").await.expect("the log")
}

#[tokio::test]
async fn clicks_with_any_button_and_modifier() {
    let page = page().await;
    page.set_content(&format!(
        "{LOG}<button style='position:fixed;left:10px;top:10px;width:100px;height:40px'>x</button>"
    ))
    .await
    .expect("content");
    page.mouse().click(50.0, 30.0).await.expect("a click");
    assert_eq!(log(&page).await, ["mousedown 0 1", "mouseup 0 1", "click 0 1"]);
    page.mouse().double_click(50.0, 30.0).await.expect("a double click");
    assert_eq!(log(&page).await.last().map(String::as_str), Some("dblclick 0 2"));
    let options = ClickOptions { button: Button::Right, ..ClickOptions::default() };
    page.mouse().click_with(50.0, 30.0, options).await.expect("a right click");
    assert!(log(&page).await.contains(&"contextmenu 2 0".to_owned()));
    let options = ClickOptions { button: Button::Middle, ..ClickOptions::default() };
    page.mouse().click_with(50.0, 30.0, options).await.expect("a middle click");
    assert!(log(&page).await.contains(&"auxclick 1 1".to_owned()));
    let modifiers = vec![Modifier::Control, Modifier::Shift, Modifier::Alt];
    let options = ClickOptions { modifiers, delay: Duration::from_millis(20), ..ClickOptions::default() };
    page.mouse().click_with(50.0, 30.0, options).await.expect("a click");
    assert_eq!(log(&page).await, ["mousedown 0 1 ACS", "mouseup 0 1 ACS", "click 0 1 ACS"]);
    page.keyboard().down("Shift").await.expect("held");
    page.mouse().click(50.0, 30.0).await.expect("a click");
    page.keyboard().up("Shift").await.expect("released");
    assert_eq!(log(&page).await[2], "click 0 1 S");
    assert!(matches!(page.mouse().click(f64::NAN, 0.0).await, Err(BrowserError::Invalid { .. })));
}

#[tokio::test]
async fn text_of_any_language_is_typed() {
    let page = page().await;
    page.set_content(
        "<textarea id=t></textarea><script>window.keys = 0; t.focus(); t.onkeydown = () => keys++;
         window.composed = []; t.addEventListener('compositionend', e => composed.push(e.data))</script>",
    )
    .await
    .expect("content");
    let text = "Hello, World! {}\n\tÄßé 日本語 🎉 end";
    page.keyboard().type_text(text).await.expect("typed");
    // Tab leaves the field, so it is not among the text.
    page.evaluate::<()>("t.focus()").await.expect("focus");
    let typed: String = page.evaluate("t.value").await.expect("a value");
    assert_eq!(typed, "Hello, World! {}\n");
    page.evaluate::<()>("t.value = ''; keys = 0").await.expect("empty");
    page.keyboard().type_text("aÄß日本語🎉b C").await.expect("typed");
    assert_eq!(page.evaluate::<String>("t.value").await.as_deref(), Ok("aÄß日本語🎉b C"));
    assert_eq!(page.evaluate::<i32>("keys").await, Ok(4));
    page.keyboard().insert_text("+eingefügt").await.expect("put in");
    page.keyboard().compose("日本").await.expect("composed");
    assert_eq!(page.evaluate::<String>("t.value").await.as_deref(), Ok("aÄß日本語🎉b C+eingefügt日本"));
    assert_eq!(page.evaluate::<Vec<String>>("composed").await, Ok(vec!["日本".to_owned()]));
}

#[tokio::test]
async fn chords_do_what_they_do() {
    let page = page().await;
    page.set_content(
        "<textarea id=t>one two</textarea><script>t.focus(); window.log = [];
         addEventListener('keydown', e => log.push([e.key, e.code, e.ctrlKey, e.shiftKey, e.location, e.repeat].join(' ')))
         </script>",
    )
    .await
    .expect("content");
    page.keyboard().press("Control+A").await.expect("all selected");
    page.keyboard().press("Backspace").await.expect("deleted");
    assert_eq!(page.evaluate::<String>("t.value").await.as_deref(), Ok(""));
    assert_eq!(
        log(&page).await,
        [
            "Control ControlLeft true false 1 false",
            "A KeyA true false 0 false",
            "Backspace Backspace false false 0 false"
        ]
    );
    page.keyboard().press("Control+Shift+K").await.expect("pressed");
    assert_eq!(log(&page).await[2], "K KeyK true true 0 false");
    page.keyboard().down("x").await.expect("held");
    page.keyboard().down("x").await.expect("repeats");
    page.keyboard().up("x").await.expect("released");
    assert_eq!(log(&page).await, ["x KeyX false false 0 false", "x KeyX false false 0 true"]);
    assert_eq!(page.evaluate::<String>("t.value").await.as_deref(), Ok("xx"));
    page.keyboard().type_text("ab").await.expect("typed");
    page.keyboard().press("Shift+ArrowLeft").await.expect("selected");
    page.keyboard().press("Delete").await.expect("deleted");
    page.keyboard().press("Numpad7").await.expect("pressed");
    assert_eq!(page.evaluate::<String>("t.value").await.as_deref(), Ok("xxa7"));
    assert!(matches!(page.keyboard().press("Hyper+x").await, Err(BrowserError::Invalid { .. })));
}

#[tokio::test]
async fn the_wheel_scrolls() {
    let page = page().await;
    page.set_content("<div style='height:5000px;width:5000px'></div>").await.expect("content");
    page.mouse().move_to(100.0, 100.0).await.expect("moved");
    page.mouse().wheel(0.0, 400.0).await.expect("turned");
    let scrolled = "new Promise(resolve => { const see = () => scrollY >= 400 ? resolve(scrollY) : requestAnimationFrame(see); see(); })";
    assert_eq!(page.evaluate::<f64>(scrolled).await, Ok(400.0));
}

#[tokio::test]
async fn elements_are_dragged() {
    let page = page().await;
    page.set_content(
        "<style>div { position: fixed; width: 80px; height: 80px; top: 10px }</style>
         <div id=from draggable=true style='left:10px;background:red'></div>
         <div id=to style='left:300px;background:blue'></div>
         <div id=slider style='left:10px;top:300px;background:green'></div>
         <script>
           window.log = [];
           from.ondragstart = e => { e.dataTransfer.setData('text/plain', 'cargo'); log.push('start') };
           to.ondragover = e => e.preventDefault();
           to.ondrop = e => { e.preventDefault(); log.push('drop ' + e.dataTransfer.getData('text/plain')) };
           from.ondragend = () => log.push('end');
           slider.onmousedown = () => { onmousemove = e => log.push('move ' + e.clientX); onmouseup = () => { onmousemove = null; log.push('up') } };
         </script>",
    )
    .await
    .expect("content");
    page.mouse().drag(Point::new(50.0, 50.0), Point::new(340.0, 50.0)).await.expect("dragged");
    assert_eq!(log(&page).await, ["start", "drop cargo", "end"]);
    page.mouse().drag(Point::new(50.0, 340.0), Point::new(150.0, 340.0)).await.expect("dragged");
    assert_eq!(
        log(&page).await,
        ["move 70", "move 90", "move 110", "move 130", "move 150", "move 150", "up"]
    );
    page.mouse().click(340.0, 50.0).await.expect("the mouse is free again");
}

#[tokio::test]
async fn input_reaches_frames_of_other_processes() {
    let server = Server::start([
        (
            "/outer",
            Answer::dynamic(|seen| {
                let port = seen.headers["host"].rsplit_once(':').expect("a port").1.to_owned();
                let style = "position:fixed;left:100px;top:100px;width:300px;height:200px;border:0";
                Answer::html(&format!("<iframe name=in style='{style}' src='http://b.localhost:{port}/inner'></iframe>"))
            }),
        ),
        ("/inner", Answer::html("<body style='margin:0'><input id=i style='position:fixed;left:10px;top:10px'><script>i.onclick = () => window.clicked = 1</script>")),
    ])
    .await;
    let page = page().await;
    page.goto(&server.at("a.localhost", "/outer")).await.expect("a page");
    let inner = page.frame_named("in").expect("the frame");
    // Chromium must have drawn the frame before it knows what lies under the mouse.
    inner
        .evaluate::<()>("new Promise(r => requestAnimationFrame(() => requestAnimationFrame(r)))")
        .await
        .expect("drawn");
    page.mouse().click(130.0, 120.0).await.expect("a click");
    page.keyboard().type_text("aß").await.expect("typed");
    assert_eq!(inner.evaluate::<i32>("window.clicked").await, Ok(1));
    assert_eq!(inner.evaluate::<String>("i.value").await.as_deref(), Ok("aß"));
}

#[tokio::test]
async fn touch_needs_a_touch_screen() {
    let mouse_only = page().await;
    assert!(matches!(mouse_only.touchscreen().tap(1.0, 1.0).await, Err(BrowserError::Invalid { .. })));
    assert_eq!(mouse_only.evaluate::<i32>("navigator.maxTouchPoints").await, Ok(0));
    let context = context(ContextOptions { touch: true, ..ContextOptions::default() }).await;
    let page = context.new_page().await.expect("a page");
    page.set_content("<body style='height:500px'><script>window.log = []; for (const t of ['touchstart', 'touchmove', 'touchend', 'click']) addEventListener(t, () => log.push(t))</script>")
        .await
        .expect("content");
    page.touchscreen().tap(50.0, 50.0).await.expect("a tap");
    assert_eq!(log(&page).await, ["touchstart", "touchend", "click"]);
    page.touchscreen().swipe(&[Point::new(50.0, 50.0), Point::new(50.0, 150.0)]).await.expect("a swipe");
    let swiped = log(&page).await;
    assert_eq!(swiped.first().map(String::as_str), Some("touchstart"));
    assert!(swiped.contains(&"touchmove".to_owned()), "{swiped:?}");
}

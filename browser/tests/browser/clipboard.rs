//! The clipboard: each context has its own, by every way that there is to it.

use crate::server::{Answer, Server};
use crate::support::browser;
use espalier_browser::{
    ActionOptions, Browser, BrowserContext, Button, ClickOptions, ContextOptions, Page, Permission,
};
use serde_json::{Value, json};

const PAGE: &str = "<title>c</title><input id=i value=secret><input id=p type=password value=hidden><textarea id=t></textarea>
<div id=d contenteditable>rich <b>text</b></div><p id=x>plain paragraph</p>
<button id=b onclick=\"navigator.clipboard.writeText('by button')\">copy</button>
<button id=e onclick=\"x.textContent && getSelection().selectAllChildren(x); document.execCommand('copy')\">exec</button>";

async fn server() -> Server {
    Server::start([("/", Answer::html(PAGE))]).await
}

async fn context(browser: &Browser) -> BrowserContext {
    let permissions = vec![Permission::ClipboardRead, Permission::ClipboardWrite];
    browser.new_context(ContextOptions { permissions, ..ContextOptions::default() }).await.expect("a context")
}

async fn page(context: &BrowserContext, server: &Server) -> Page {
    page_at(context, server, "localhost").await
}

async fn page_at(context: &BrowserContext, server: &Server, host: &str) -> Page {
    let page = context.new_page().await.expect("a page");
    page.goto(&server.at(host, "/")).await.expect("a page");
    page
}

async fn keys(page: &Page, element: &str, keys: &[&str]) {
    page.locator(element).click().await.expect("a click");
    for key in keys {
        page.keyboard().press(key).await.unwrap_or_else(|error| panic!("{key}: {error}"));
    }
}

async fn value(page: &Page, expression: &str) -> Value {
    page.evaluate(expression).await.unwrap_or_else(|error| panic!("{expression}: {error}"))
}

/// What a context can read, by each way.
async fn read(page: &Page) -> Vec<Value> {
    page.evaluate::<()>("void (t.value = '', d.textContent = '')").await.expect("emptied");
    keys(page, "#t", &["Control+v", "Shift+Insert"]).await;
    keys(page, "#d", &["Control+v", "Control+Shift+V"]).await;
    let click = ClickOptions { button: Button::Middle, ..ClickOptions::default() };
    let middle = ActionOptions { click, ..ActionOptions::default() };
    page.locator("#t").click_with(middle).await.expect("a click");
    vec![
        value(page, "t.value").await,
        value(page, "d.textContent").await,
        value(page, "navigator.clipboard.readText().catch(e => e.name)").await,
        value(page, "navigator.clipboard.read().then(i => i.map(i => i.types).join(), e => e.name)").await,
        value(page, "(t.value = '', t.focus(), document.execCommand('paste'), t.value)").await,
    ]
}

#[tokio::test]
async fn what_one_context_copies_no_other_reads() {
    let (server, browser) = (server().await, browser().await);
    let (first, second) = (context(&browser).await, context(&browser).await);
    let (one, other) = (page(&first, &server).await, page(&second, &server).await);
    let nothing = vec![json!(""); 5];
    for way in ["keys", "insert", "cut", "writeText", "write", "button", "execCommand", "selection"] {
        match way {
            "keys" => keys(&one, "#i", &["Control+a", "Control+c"]).await,
            "insert" => keys(&one, "#i", &["Control+a", "Control+Insert"]).await,
            "cut" => keys(&one, "#i", &["Control+a", "Control+x"]).await,
            "button" => one.locator("#b").click().await.expect("a click"),
            "execCommand" => one.locator("#e").click().await.expect("a click"),
            "selection" => one.locator("#x").select_text().await.expect("selected"),
            api => {
                let write = "new ClipboardItem({ 'text/plain': new Blob(['item'], { type: 'text/plain' }) })";
                let call =
                    if api == "write" { format!("write([{write}])") } else { "writeText('api')".to_owned() };
                value(&one, &format!("navigator.clipboard.{call}.then(() => 1)")).await;
            }
        }
        assert_eq!(read(&other).await, nothing, "copied by {way}");
    }
    // Nor what a later context might find in the process.
    first.close().await.expect("closed");
    let third = context(&browser).await;
    assert_eq!(read(&page(&third, &server).await).await, nothing);
}

#[tokio::test]
async fn within_a_context_it_works_as_elsewhere() {
    let (server, browser) = (server().await, browser().await);
    let context = context(&browser).await;
    let (one, other) = (page(&context, &server).await, page(&context, &server).await);
    let pasted = async |page: &Page| {
        page.evaluate::<()>("void (t.value = '')").await.expect("emptied");
        keys(page, "#t", &["Control+v"]).await;
        value(page, "t.value").await
    };
    keys(&one, "#i", &["Control+a", "Control+c"]).await;
    assert_eq!(pasted(&other).await, "secret");
    assert_eq!(value(&other, "navigator.clipboard.readText()").await, "secret");
    keys(&one, "#i", &["Control+a", "Control+x"]).await;
    assert_eq!(value(&one, "i.value").await, "");
    keys(&one, "#p", &["Control+a", "Control+c"]).await;
    assert_eq!(pasted(&one).await, "secret", "a password is not copied");
    one.locator("#b").click().await.expect("a click");
    assert_eq!(pasted(&other).await, "by button");
    one.locator("#e").click().await.expect("a click");
    assert_eq!(pasted(&other).await, "plain paragraph");
    keys(&one, "#d", &["Control+a", "Control+c"]).await;
    assert_eq!(pasted(&other).await, "rich text");
    let types = "navigator.clipboard.read().then(([item]) => item.types)";
    assert_eq!(value(&other, types).await, json!(["text/plain", "text/html"]));
    value(&other, "navigator.clipboard.writeText('by api').then(() => 1)").await;
    keys(&one, "#d", &["Control+a", "Control+v"]).await;
    assert_eq!(value(&one, "d.textContent").await, "by api");
}

#[tokio::test]
async fn pages_see_the_events_and_decide() {
    let (server, browser) = (server().await, browser().await);
    let page = page(&context(&browser).await, &server).await;
    let listen = "void (window.seen = [],
        addEventListener('keydown', e => e.key.length === 1 && seen.push([e.key, e.keyCode, e.which, e.ctrlKey])),
        d.addEventListener('copy', e => { e.preventDefault(); e.clipboardData.setData('text/plain', 'own words') }),
        d.addEventListener('paste', e => { e.preventDefault(); seen.push(e.clipboardData.getData('text/plain')) }))";
    page.evaluate::<()>(listen).await.expect("listens");
    keys(&page, "#d", &["Control+c", "Control+v"]).await;
    assert_eq!(
        value(&page, "seen").await,
        json!([["c", 67, 67, true], ["v", 86, 86, true], "own words"]),
        "its handlers are asked, and do it themselves"
    );
    assert_eq!(value(&page, "d.textContent").await, "rich text");
    page.evaluate::<()>("void addEventListener('keydown', e => e.preventDefault(), true)")
        .await
        .expect("listens");
    keys(&page, "#t", &["Control+v"]).await;
    assert_eq!(value(&page, "t.value").await, "", "a key that was prevented does nothing");
}

#[tokio::test]
async fn frames_of_other_processes_copy_and_paste() {
    let server = server().await;
    let port = server.url("/").split(':').next_back().expect("a port").trim_end_matches('/').to_owned();
    let context = context(&browser().await).await;
    let page = context.new_page().await.expect("a page");
    page.goto(&server.at("localhost", "/")).await.expect("a page");
    let frame = format!(
        "new Promise(r => {{ const f = document.createElement('iframe'); f.onload = () => r(1); f.width = 600;
           f.src = 'http://127.0.0.1:{port}/'; document.body.prepend(f) }})"
    );
    value(&page, &frame).await;
    let inner = page.locator("iframe").content_frame();
    inner.locator("#i").click().await.expect("a click");
    page.keyboard().press("Control+a").await.expect("keys");
    page.keyboard().press("Control+c").await.expect("keys");
    keys(&page, "#t", &["Control+v"]).await;
    assert_eq!(value(&page, "t.value").await, "secret");
    inner.locator("#t").click().await.expect("a click");
    page.keyboard().press("Control+v").await.expect("keys");
    assert_eq!(inner.locator("#t").input_value().await.as_deref(), Ok("secret"));
}

#[tokio::test]
async fn pages_that_look_for_another_way_find_nothing() {
    let (server, browser) = (server().await, browser().await);
    let (first, second) = (context(&browser).await, context(&browser).await);
    let (one, hostile) = (page(&first, &server).await, page(&second, &server).await);
    keys(&one, "#i", &["Control+a", "Control+c"]).await;
    // Clean prototypes of frames that have just begun, listeners before all others, and the library's own channel.
    let look = "(async () => {
        const found = [];
        const words = async name => { try { found.push(name + ': ' + await eval(name)) } catch (e) { found.push(name + ': ' + e.name) } };
        window.f = document.createElement('iframe'); document.body.append(f);
        window.g = document.createElement('iframe'); g.srcdoc = 'x'; document.body.append(g);
        await words('f.contentWindow.navigator.clipboard.readText()');
        await words('f.contentWindow.Clipboard.prototype.readText.call(navigator.clipboard)');
        await words('g.contentWindow.navigator.clipboard.readText()');
        await words('typeof globalThis.__espalier_clipboard__');
        for (const w of [window, f.contentWindow, g.contentWindow])
          for (const type of ['beforepaste', 'paste', 'beforeinput'])
            w.addEventListener(type, e => e.isTrusted && found.push(type + ' ' + (e.clipboardData?.getData('text') ?? e.data)), true);
        window.found = found; return found })()";
    let found = value(&hostile, look).await;
    assert!(!found.to_string().contains("secret"), "{found}");
    assert!(found.to_string().contains("typeof globalThis.__espalier_clipboard__: undefined"), "{found}");
    read(&hostile).await;
    let found = value(&hostile, "window.found").await;
    assert!(!found.to_string().contains("secret"), "{found}");
}

#[tokio::test]
async fn reading_needs_a_permission_of_the_context() {
    let (server, browser) = (server().await, browser().await);
    let context = browser.new_context(ContextOptions::default()).await.expect("a context");
    let page = page(&context, &server).await;
    let state = "navigator.permissions.query({ name: 'clipboard-read' }).then(p => p.state)";
    let read = "navigator.clipboard.readText().catch(e => e.name)";
    keys(&page, "#i", &["Control+a", "Control+c"]).await;
    assert_ne!(value(&page, state).await, "granted");
    assert_eq!(value(&page, read).await, "NotAllowedError");
    let origin = server.at("localhost", "");
    context.grant_permissions(&[Permission::ClipboardRead], Some(&origin)).await.expect("granted");
    assert_eq!(value(&page, state).await, "granted");
    assert_eq!(value(&page, read).await, "secret");
    // Another origin of the same context may not, whatever it says of itself.
    let other = page_at(&context, &server, "127.0.0.1").await;
    assert_eq!(value(&other, read).await, "NotAllowedError");
    let forged = "new Promise(r => { const a = ['LOCAL', 'read'];
        globalThis.__espalier_calls__.waiting.set(77, { resolve: v => r(JSON.stringify(v)), reject: e => r(e.message) });
        __espalier_call__(JSON.stringify({ name: '__espalier_clipboard__', call: 77, args: a })) })";
    let told = value(&other, &forged.replace("LOCAL", &origin)).await;
    assert!(!told.to_string().contains("secret"), "{told}");
    context.clear_permissions().await.expect("taken back");
    assert_eq!(value(&page, read).await, "NotAllowedError");
}

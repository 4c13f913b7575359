//! Cookies and storage, in and out, and apart from other contexts.

use crate::server::{Answer, Server};
use crate::support::browser;
use espalier_browser::{
    BrowserError, ContextOptions, Cookie, Credentials, OriginStorage, PageEvent, Permission, SameSite,
    StorageItem, StorageState,
};
use std::time::Duration;

#[tokio::test]
async fn cookies_go_in_and_out() {
    let server =
        Server::start([("/", Answer::html("x").header("set-cookie", "served=1; HttpOnly; SameSite=Strict"))])
            .await;
    let context = browser().await.new_context(ContextOptions::default()).await.expect("a context");
    let mut given = Cookie::new("given", "välue", "127.0.0.1");
    given.expires = 4_000_000_000.0;
    assert!(context.add_cookies(&[Cookie::new("", "", "")]).await.is_err(), "a cookie without a name");
    context.add_cookies(&[Cookie::new("plain", "2", "127.0.0.1")]).await.expect("added");
    let page = context.new_page().await.expect("a page");
    page.goto(&server.url("/")).await.expect("a page");
    assert_eq!(page.evaluate::<String>("document.cookie").await.as_deref(), Ok("plain=2"));
    page.goto(&server.url("/")).await.expect("a page");
    assert_eq!(server.seen_at("/")[1].headers["cookie"], "plain=2; served=1");
    let cookies = context.cookies().await.expect("cookies");
    let served = cookies.iter().find(|cookie| cookie.name == "served").expect("the cookie");
    assert_eq!((served.http_only, served.same_site, served.expires), (true, SameSite::Strict, -1.0));
    context.clear_cookies().await.expect("removed");
    assert_eq!(context.cookies().await.expect("cookies"), vec![]);
}

#[tokio::test]
async fn storage_state_moves_to_another_context() {
    let server = Server::start([("/", Answer::html("x"))]).await;
    let browser = browser().await;
    let first = browser.new_context(ContextOptions::default()).await.expect("a context");
    first.add_cookies(&[Cookie::new("a", "1", "127.0.0.1")]).await.expect("added");
    let page = first.new_page().await.expect("a page");
    page.goto(&server.at("left.localhost", "/")).await.expect("a page");
    page.evaluate::<()>("localStorage.setItem('left', 'behind')").await.expect("stored");
    page.goto(&server.at("here.localhost", "/")).await.expect("a page");
    page.evaluate::<()>("localStorage.setItem('key', 'ä')").await.expect("stored");
    let state = first.storage_state().await.expect("the state");
    let origin = |host: &str, name: &str, value: &str| OriginStorage {
        origin: server.at(host, ""),
        local_storage: vec![StorageItem { name: name.into(), value: value.into() }],
        indexed_db: Vec::new(),
    };
    assert_eq!(
        state.origins,
        [origin("here.localhost", "key", "ä"), origin("left.localhost", "left", "behind")]
    );
    assert_eq!(state.cookies.len(), 1);
    assert_eq!(first.pages(), vec![page], "the page that looked is gone");
    let json = serde_json::to_string(&state).expect("JSON");
    let state: StorageState = serde_json::from_str(&json).expect("a state");
    let options = ContextOptions { storage_state: Some(state.clone()), ..ContextOptions::default() };
    let second = browser.new_context(options).await.expect("a context");
    let page = second.new_page().await.expect("a page");
    page.goto(&server.at("here.localhost", "/")).await.expect("a page");
    assert_eq!(page.evaluate::<String>("localStorage.getItem('key')").await.as_deref(), Ok("ä"));
    assert_eq!(second.storage_state().await.expect("the state"), state);
    assert!(
        server.seen_at("/").iter().all(|seen| seen.path == "/"),
        "only pages of the test asked the server"
    );
    assert_eq!(server.seen_at("/").len(), 3);
}

#[tokio::test]
async fn contexts_share_nothing() {
    let server = Server::start([
        ("/", Answer::html("x")),
        ("/worker.js", Answer::typed("text/javascript", "self.onfetch = () => {}")),
        ("/cached", Answer::typed("text/plain", "c").header("cache-control", "max-age=1000")),
    ])
    .await;
    let browser = browser().await;
    let fill = "(async () => {
        document.cookie = 'a=1'; localStorage.a = 1;
        await new Promise(r => { const q = indexedDB.open('db'); q.onsuccess = r });
        await (await caches.open('c')).put('/x', new Response('x'));
        await navigator.serviceWorker.register('/worker.js');
        await (await fetch('/cached')).text();
      })()";
    let look = "(async () => [document.cookie, localStorage.length, (await indexedDB.databases()).length,
        (await caches.keys()).length, (await navigator.serviceWorker.getRegistrations()).length])()";
    for round in 0..2 {
        let context = browser.new_context(ContextOptions::default()).await.expect("a context");
        let page = context.new_page().await.expect("a page");
        page.goto(&server.at("localhost", "/")).await.expect("a page");
        let found: serde_json::Value = page.evaluate(look).await.expect("values");
        assert_eq!(found, serde_json::json!(["", 0, 0, 0, 0]), "round {round}");
        page.evaluate::<()>(fill).await.expect("filled");
        let found: serde_json::Value = page.evaluate(look).await.expect("values");
        assert_eq!(found, serde_json::json!(["a=1", 1, 1, 1, 1]));
        assert_eq!(server.seen_at("/cached").len(), round + 1, "the cache is each context's own");
        context.close().await.expect("closed");
    }
}

#[tokio::test]
async fn contexts_at_the_same_time_do_not_meet() {
    let server = Server::start([
        ("/", Answer::html("x")),
        (
            "/worker.js",
            Answer::typed("text/javascript", "let n = 0; onconnect = e => e.ports[0].postMessage(++n)"),
        ),
        ("/file", Answer::typed("application/octet-stream", "secret")),
        (
            "/locked",
            Answer::dynamic(|seen| match seen.headers.get("authorization") {
                Some(_) => Answer::html("inside"),
                None => Answer::html("locked").status(401).header("www-authenticate", "Basic realm=\"r\""),
            }),
        ),
    ])
    .await;
    let browser = browser().await;
    let credentials =
        Some(Credentials { username: "ann".to_owned(), password: "secret".to_owned(), origin: None });
    let options = ContextOptions { http_credentials: credentials, ..ContextOptions::default() };
    let first = browser.new_context(options).await.expect("a context");
    let second = browser.new_context(ContextOptions::default()).await.expect("a context");
    let one = first.new_page().await.expect("a page");
    let other = second.new_page().await.expect("a page");
    let own = first.new_page().await.expect("a page");
    for page in [&one, &other, &own] {
        page.goto(&server.at("localhost", "/")).await.expect("a page");
    }
    // What a page hears of others of its origin: messages, changes of the storage, a shared worker's count, locks, windows by name.
    let listen = "window.heard = []; window.channel = new BroadcastChannel('c'); channel.onmessage = e => heard.push(e.data);
        addEventListener('storage', e => heard.push('storage ' + e.key)); 1";
    for page in [&one, &other, &own] {
        page.evaluate::<u32>(listen).await.expect("listens");
    }
    let shout = "(async () => {
        name = 'known'; sessionStorage.a = 1; localStorage.b = 1; channel.postMessage('message');
        navigator.locks.request('l', () => new Promise(() => {}));
        const worker = new SharedWorker('/worker.js');
        return await new Promise(r => worker.port.onmessage = e => r(e.data)) })()";
    assert_eq!(one.evaluate::<u32>(shout).await, Ok(1));
    let look = "(async () => {
        const worker = new SharedWorker('/worker.js');
        const count = await new Promise(r => worker.port.onmessage = e => r(e.data));
        const held = (await navigator.locks.query()).held.length;
        return [count, held, sessionStorage.length, localStorage.length, heard.sort().join()] })()";
    let found: serde_json::Value = own.evaluate(look).await.expect("values");
    assert_eq!(found, serde_json::json!([2, 1, 0, 1, "message,storage b"]), "pages of one context meet");
    let found: serde_json::Value = other.evaluate(look).await.expect("values");
    assert_eq!(found, serde_json::json!([1, 0, 0, 0, ""]), "pages of two contexts do not");
    // Permissions, and what a server knows one by.
    first.grant_permissions(&[Permission::Geolocation], None).await.expect("granted");
    let state = "navigator.permissions.query({ name: 'geolocation' }).then(p => p.state)";
    assert_eq!(one.evaluate::<String>(state).await.as_deref(), Ok("granted"));
    assert_ne!(other.evaluate::<String>(state).await.as_deref(), Ok("granted"));
    let locked = server.at("localhost", "/locked");
    one.goto(&locked).await.expect("a page");
    assert_eq!(one.evaluate::<String>("document.body.innerText").await.as_deref(), Ok("inside"));
    other.goto(&locked).await.expect("a page");
    assert_eq!(other.evaluate::<String>("document.body.innerText").await.as_deref(), Ok("locked"));
    // A download is a file of its context, and goes with it.
    let mut events = one.events();
    let file = one.goto(&server.at("localhost", "/file")).await.map(drop);
    assert!(matches!(file, Err(BrowserError::Download { .. })), "{file:?}");
    let download = loop {
        let event = events.next_within(Duration::from_secs(10)).await.expect("the download is told");
        if let PageEvent::Download(download) = event {
            break download;
        }
    };
    let path = download.path(Duration::from_secs(10)).await.expect("its file");
    assert_eq!(std::fs::read(&path).expect("its bytes"), b"secret");
    first.close().await.expect("closed");
    assert!(!path.exists(), "{} is left", path.display());
}

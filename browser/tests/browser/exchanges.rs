//! What pages exchange with others than by plain requests: credentials, files, WebSocket frames, workers.

use crate::server::{Answer, Server};
use crate::support::{context, page};
use espalier_browser::{
    ContextOptions, Credentials, Fulfill, HarOptions, HarRecorder, Page, PageEvent, Route, ServiceWorkers,
    StateOptions, StorageState, WebSocketEvent,
};
use futures::{SinkExt, StreamExt};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio_tungstenite::tungstenite::Message;

const WITHIN: Duration = Duration::from_secs(20);

fn asks(scheme: &'static str, expected: &'static str) -> Answer {
    Answer::dynamic(move |seen| match seen.headers.get("authorization") {
        Some(given) if given.starts_with(expected) => Answer::html("<title>in</title>"),
        _ => Answer::html("<title>out</title>").status(401).header("www-authenticate", scheme),
    })
}

#[tokio::test]
async fn credentials_are_given_to_those_who_ask() {
    let server = Server::start([
        // ann:secret
        ("/basic", asks("Basic realm=\"a\"", "Basic YW5uOnNlY3JldA==")),
        ("/digest", asks("Digest realm=\"b\", nonce=\"1\", algorithm=MD5", "Digest username=\"ann\"")),
        ("/never", asks("Basic realm=\"c\"", "nothing")),
    ])
    .await;
    let options = ContextOptions {
        http_credentials: Some(Credentials::new("ann", "secret")),
        ..ContextOptions::default()
    };
    let context = context(options).await;
    let page = context.new_page().await.expect("a page");
    for (path, title) in [("/basic", "in"), ("/digest", "in"), ("/never", "out")] {
        page.goto(&server.url(path)).await.expect("loaded");
        assert_eq!(page.title().await.as_deref(), Ok(title), "{path}");
    }
    let elsewhere =
        Credentials { origin: Some("http://elsewhere.example".into()), ..Credentials::new("ann", "secret") };
    let other = context.browser().new_context(ContextOptions::default()).await.expect("a context");
    let page = other.new_page().await.expect("a page");
    for (credentials, title) in
        [(None, "out"), (Some(elsewhere), "out"), (Some(Credentials::new("ann", "secret")), "in")]
    {
        other.set_http_credentials(credentials).await.expect("set");
        page.goto(&server.url("/basic")).await.expect("loaded");
        assert_eq!(page.title().await.as_deref(), Ok(title));
    }
    let debug = format!("{:?}", Credentials::new("ann", "secret"));
    assert!(!debug.contains("secret"), "{debug}");
}

#[tokio::test]
async fn file_choosers_are_answered() {
    let folder = tempfile::tempdir().expect("a folder");
    let (one, two) = (folder.path().join("one.txt"), folder.path().join("two.txt"));
    for file in [&one, &two] {
        std::fs::write(file, "content").expect("written");
    }
    let page = page().await;
    page.set_content("<input type=file id=a><input type=file id=b multiple>").await.expect("content");
    let open = async |page: &Page, id: &str| {
        let input = page.locator(id);
        page.expect_file_chooser(Box::pin(async { input.click().await })).await.expect("a chooser")
    };
    let chooser = open(&page, "#a").await;
    assert!(!chooser.is_multiple());
    let error = chooser.set_files(&[&one, &two]).await.expect_err("one only");
    assert_eq!(error.to_string(), "invalid 2 files: this chooser takes one");
    chooser.set_files(&[&one]).await.expect("set");
    let chooser = open(&page, "#b").await;
    chooser.set_files(&[&one, &two]).await.expect("set");
    let names = "[...document.querySelectorAll('input')].map(i => [...i.files].map(f => f.name).join())";
    assert_eq!(
        page.evaluate::<Vec<String>>(names).await,
        Ok(vec!["one.txt".into(), "one.txt,two.txt".into()])
    );
}

async fn echo_server() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    tokio::spawn(async move {
        let (stream, _) = listener.accept().await.expect("a connection");
        let mut socket = tokio_tungstenite::accept_async(stream).await.expect("a handshake");
        while let Some(Ok(message)) = socket.next().await {
            match message {
                Message::Text(text) if text.as_str() == "bye" => break,
                Message::Text(_) | Message::Binary(_) => socket.send(message).await.expect("sent"),
                _ => {}
            }
        }
        let _ = socket.close(None).await;
    });
    port
}

#[tokio::test]
async fn web_sockets_are_events() {
    let port = echo_server().await;
    let page = page().await;
    let mut events = page.events();
    let script = format!(
        "(() => {{ const s = new WebSocket('ws://127.0.0.1:{port}/echo'); s.binaryType = 'arraybuffer'; let got = 0;
          s.onopen = () => {{ s.send('hello'); s.send(new Uint8Array([1, 2])); }};
          s.onmessage = () => {{ if (++got === 2) s.send('bye'); }}; }})()"
    );
    page.evaluate::<()>(&script).await.expect("begun");
    let mut told = Vec::new();
    while told.last().is_none_or(|last| last != "closed") {
        let event = events.next_within(WITHIN).await.expect("an event");
        let PageEvent::WebSocket(socket, event) = event else { continue };
        assert_eq!(socket.url(), format!("ws://127.0.0.1:{port}/echo"));
        told.push(match event {
            WebSocketEvent::Opened => "opened".to_owned(),
            WebSocketEvent::Sent(frame) => format!("sent {:?}", frame.payload),
            WebSocketEvent::Received(frame) => format!("received {} {:?}", frame.is_text, frame.payload),
            WebSocketEvent::Closed => {
                assert!(socket.is_closed());
                "closed".to_owned()
            }
            other => format!("{other:?}"),
        });
    }
    let mut sorted = told.clone();
    sorted.sort();
    assert_eq!(told.first().map(String::as_str), Some("opened"));
    let expected = [
        "closed",
        "opened",
        "received false b\"\\x01\\x02\"",
        "received true b\"hello\"",
        "sent b\"\\x01\\x02\"",
        "sent b\"bye\"",
        "sent b\"hello\"",
    ];
    assert_eq!(sorted, expected);
}

const SERVICE_WORKER: &str = "
  addEventListener('install', event => event.waitUntil(fetch('/from-install').then(() => skipWaiting())));
  addEventListener('activate', event => event.waitUntil(clients.claim()));";
const REGISTER: &str = "navigator.serviceWorker.register('/sw.js').then(() => navigator.serviceWorker.ready)
  .then(() => 'ready', error => String(error))";

fn worker_pages() -> [(&'static str, Answer); 4] {
    [
        ("/", Answer::html("page")),
        ("/sw.js", Answer::typed("text/javascript", SERVICE_WORKER)),
        (
            "/shared.js",
            Answer::typed(
                "text/javascript",
                "onconnect = event => fetch('/from-shared').then(r => r.text())
                  .then(text => event.ports[0].postMessage(text));",
            ),
        ),
        ("/from-install", Answer::typed("text/plain", "x")),
    ]
}

#[tokio::test]
async fn requests_of_workers_that_are_no_pages_are_seen_and_routed() {
    let server = Server::start(worker_pages()).await;
    let context = context(ContextOptions::default()).await;
    context
        .route(
            "**/from-shared",
            Arc::new(|route: Route| {
                Box::pin(async move {
                    let _ = route.fulfill(Fulfill { body: "made up".into(), ..Fulfill::default() });
                })
            }),
        )
        .await
        .expect("a route");
    let mut requests = context.worker_requests();
    let page = context.new_page().await.expect("a page");
    page.goto(&server.url("/")).await.expect("loaded");
    assert_eq!(page.evaluate::<String>(REGISTER).await.as_deref(), Ok("ready"));
    let request = loop {
        let request = requests.next_within(WITHIN).await.expect("a request");
        if request.url() == server.url("/from-install") {
            break request;
        }
        assert_eq!(request.url(), server.url("/sw.js"), "its own script");
    };
    assert_eq!(request.response().expect("a response").status(), 200);
    let shared = "new Promise(resolve => { const w = new SharedWorker('/shared.js');
      w.port.onmessage = event => resolve(event.data); w.port.start(); })";
    assert_eq!(page.evaluate::<String>(shared).await.as_deref(), Ok("made up"));
    assert!(server.seen_at("/from-shared").is_empty());
}

#[tokio::test]
async fn service_workers_can_be_blocked() {
    let server = Server::start(worker_pages()).await;
    let options = ContextOptions { service_workers: ServiceWorkers::Block, ..ContextOptions::default() };
    let page = context(options).await.new_page().await.expect("a page");
    page.goto(&server.url("/")).await.expect("loaded");
    let answer = page.evaluate::<String>(REGISTER).await.expect("an answer");
    assert_eq!(answer, "SecurityError: service workers are blocked");
    assert!(server.seen_at("/sw.js").is_empty());
}

#[tokio::test]
async fn cookies_are_part_of_recorded_traffic() {
    let server = Server::start([
        ("/", Answer::html("x").header("set-cookie", "a=1; Path=/; HttpOnly").header("set-cookie", "b=2")),
        ("/to", Answer::redirect("/end").header("set-cookie", "c=3")),
        ("/end", Answer::html("end")),
    ])
    .await;
    let page = page().await;
    let recorder = HarRecorder::start(page.context(), HarOptions::default());
    for path in ["/", "/to"] {
        page.goto(&server.url(path)).await.expect("loaded");
    }
    let har = recorder.finish(WITHIN).await.expect("an archive");
    let entries = har["log"]["entries"].as_array().expect("entries");
    let of = |path: &str, part: &str| {
        let url = server.url(path);
        let entry = entries.iter().find(|entry| entry["request"]["url"] == url.as_str()).expect("an entry");
        let cookies = entry[part]["cookies"].as_array().expect("cookies").iter();
        let names = cookies.map(|cookie| format!("{}={}", cookie["name"], cookie["value"]).replace('"', ""));
        let mut names: Vec<String> = names.collect();
        names.sort();
        names.join(" ")
    };
    let table = [
        ("/", "request", ""),
        ("/", "response", "a=1 b=2"),
        ("/to", "request", "a=1 b=2"),
        ("/to", "response", "c=3"),
        ("/end", "request", "a=1 b=2 c=3"),
        ("/end", "response", ""),
    ];
    for (path, part, expected) in table {
        assert_eq!(of(path, part), expected, "{part} of {path}");
    }
}

#[tokio::test]
async fn databases_move_to_another_context() {
    let server = Server::start([("/", Answer::html("x"))]).await;
    let fill = "new Promise((resolve, reject) => {
      const open = indexedDB.open('library', 3);
      open.onupgradeneeded = () => {
        const books = open.result.createObjectStore('books', { keyPath: 'isbn' });
        books.createIndex('by title', 'title', { unique: true });
        books.createIndex('by tags', 'tags', { multiEntry: true });
        open.result.createObjectStore('notes', { autoIncrement: true });
        open.result.createObjectStore('pairs', { keyPath: ['a', 'b.c'] });
      };
      open.onerror = reject;
      open.onsuccess = () => {
        const t = open.result.transaction(['books', 'notes', 'pairs'], 'readwrite');
        t.objectStore('books').put({ isbn: 1, title: 'One', tags: ['x', 'y'], plain: { deep: [null, true] } });
        t.objectStore('books').put({ isbn: 2, title: 'Two', tags: [], when: new Date(5), bytes: new Uint8Array([1, 2]), big: 7n });
        const loop = { name: 'loop' }; loop.self = loop;
        t.objectStore('notes').put(loop);
        t.objectStore('notes').put('at a date', new Date(9));
        t.objectStore('pairs').put({ a: 'k', b: { c: 2 }, v: -0 });
        t.oncomplete = () => { open.result.close(); resolve('filled'); };
      };
    })";
    let look = "new Promise((resolve, reject) => {
      const open = indexedDB.open('library');
      open.onerror = reject;
      open.onsuccess = async () => {
        const get = request => new Promise(done => request.onsuccess = () => done(request.result));
        const t = open.result.transaction(['books', 'notes', 'pairs']);
        const books = t.objectStore('books');
        const two = await get(books.get(2)), notes = await get(t.objectStore('notes').getAll());
        const dated = await get(t.objectStore('notes').get(new Date(9)));
        const tagged = await get(books.index('by tags').getAll('y')), pair = await get(t.objectStore('pairs').get(['k', 2]));
        open.result.close();
        resolve([open.result.version, two.when.getTime(), [...two.bytes].join('+'), typeof two.big, tagged[0].title,
          JSON.stringify(tagged[0].plain), notes.some(note => note.self === note), dated, Object.is(pair.v, -0),
          books.index('by title').unique].join());
      };
    })";
    let expected = "3,5,1+2,bigint,One,{\"deep\":[null,true]},true,at a date,true,true";
    let browser = crate::support::browser().await;
    let first = browser.new_context(ContextOptions::default()).await.expect("a context");
    let page = first.new_page().await.expect("a page");
    page.goto(&server.at("here.localhost", "/")).await.expect("loaded");
    assert_eq!(page.evaluate::<String>(fill).await.as_deref(), Ok("filled"));
    assert_eq!(page.evaluate::<String>(look).await.as_deref(), Ok(expected));
    assert!(first.storage_state().await.expect("a state").origins.is_empty(), "only where asked for");
    let state = first.storage_state_with(StateOptions { indexed_db: true }).await.expect("a state");
    let text = serde_json::to_string(&state).expect("JSON");
    assert!(text.contains("\"indexedDB\":[{\"name\":\"library\",\"version\":3"), "{text}");
    let state: StorageState = serde_json::from_str(&text).expect("a state");
    let options = ContextOptions { storage_state: Some(state.clone()), ..ContextOptions::default() };
    let second = browser.new_context(options).await.expect("a context");
    let page = second.new_page().await.expect("a page");
    page.goto(&server.at("here.localhost", "/")).await.expect("loaded");
    assert_eq!(page.evaluate::<String>(look).await.as_deref(), Ok(expected));
    assert_eq!(second.storage_state_with(StateOptions { indexed_db: true }).await, Ok(state));
}

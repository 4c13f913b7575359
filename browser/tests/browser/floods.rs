//! Pages that tell more than anyone can read: the oldest is lost and counted, and pages of other contexts go on.

use crate::server::{Answer, Server};
use crate::support::browser;
use espalier_browser::{BrowserContext, ContextOptions, EVENTS_MAX, EventStream, Page, PageEvent};
use futures::{SinkExt, StreamExt};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio_tungstenite::tungstenite::Message;

const WITHIN: Duration = Duration::from_secs(20);
/// Clicks of the neighbour during a flood.
const CLICKS: u32 = 10;

/// A page with a button, and one of another context of the same process that is to flood.
struct Neighbours {
    server: Server,
    neighbour: Page,
    flooding: Page,
    events: EventStream<PageEvent>,
}

impl Neighbours {
    async fn new() -> Neighbours {
        let button = "<button onclick='window.clicks = (window.clicks ?? 0) + 1'>Go</button>";
        let server = Server::start([("/", Answer::html(button)), ("/flood", Answer::html("floods"))]).await;
        let browser = browser().await;
        let page = async |host: &str, path: &str| {
            let context: BrowserContext =
                browser.new_context(ContextOptions::default()).await.expect("a context");
            let page = context.new_page().await.expect("a page");
            page.goto(&server.at(host, path)).await.expect("loaded");
            page
        };
        let (neighbour, flooding) = (page("127.0.0.1", "/").await, page("localhost", "/flood").await);
        let events = flooding.events();
        Neighbours { server, neighbour, flooding, events }
    }

    /// Each call of the neighbour has the library's own deadline.
    async fn neighbour_goes_on(&self) {
        for _ in 0..CLICKS {
            self.neighbour.locator("button").click().await.expect("clicked during the flood");
        }
        assert_eq!(self.neighbour.evaluate::<u32>("window.clicks").await, Ok(CLICKS));
    }

    /// Waits until more events have come than are kept. The last ones are kept, and no more than there is room for.
    async fn oldest_is_lost(&mut self, is_of_flood: impl Fn(&PageEvent) -> bool) {
        let mut changed = self.flooding.events();
        while self.events.dropped() == 0 {
            changed.next_within(WITHIN).await.expect("the flood goes on");
        }
        let mut kept = 0;
        let lost = self.events.dropped();
        while kept < EVENTS_MAX && self.events.try_next().is_some_and(|event| is_of_flood(&event)) {
            kept += 1;
        }
        assert!(lost > 0 && kept > EVENTS_MAX / 2, "{lost} lost, {kept} kept");
    }

    /// A flood ends with its context.
    async fn end(self) {
        self.flooding.context().close().await.expect("closed");
        self.neighbour.goto(&self.server.url("/")).await.expect("loaded after the flood");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_that_flood_the_console_lose_the_oldest() {
    let mut pages = Neighbours::new().await;
    let script = "void [1, 2].map(() => new Worker(URL.createObjectURL(new Blob([
      'let i = 0; setInterval(() => { for (let n = 0; n < 2000; n++) console.log(i++) })']))))";
    pages.flooding.evaluate::<()>(script).await.expect("begun");
    pages.neighbour_goes_on().await;
    pages.oldest_is_lost(|event| matches!(event, PageEvent::Console(_))).await;
    let (messages, lost) = pages.flooding.console_messages();
    assert_eq!(messages.len(), 500);
    // Those of the two workers come in turn, each in its order: what is kept is the end of both.
    let numbers: Vec<u64> = messages.iter().map(|message| message.text.parse().expect("a number")).collect();
    assert!(lost > 500 && numbers.iter().all(|number| *number > 0), "{lost} lost before {numbers:?}");
    pages.end().await;
}

/// Sends frames without an end, and reads what comes.
async fn flooding_server() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("an address").port();
    tokio::spawn(async move {
        let (stream, _) = listener.accept().await.expect("a connection");
        let socket = tokio_tungstenite::accept_async(stream).await.expect("a handshake");
        let (mut to, mut from) = socket.split();
        let send = async { while to.send(Message::text("in")).await.is_ok() {} };
        let read = async { while let Some(Ok(_)) = from.next().await {} };
        tokio::join!(send, read);
    });
    port
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn web_sockets_that_flood_lose_the_oldest_frames() {
    let mut pages = Neighbours::new().await;
    let port = flooding_server().await;
    let script = format!(
        "(() => {{ const socket = new WebSocket('ws://127.0.0.1:{port}/');
          socket.onopen = () => setInterval(() => {{ for (let n = 0; n < 500 && socket.bufferedAmount < 1e5; n++) socket.send('out'); }}); }})()"
    );
    pages.flooding.evaluate::<()>(&script).await.expect("begun");
    pages.neighbour_goes_on().await;
    pages.oldest_is_lost(|event| matches!(event, PageEvent::WebSocket(..))).await;
    pages.end().await;
}

/// Answers to calls are commands, and they go the way of everyone's commands.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_without_an_end_are_not_all_answered() {
    let pages = Neighbours::new().await;
    let call = r#"__espalier_call__('{"name":"__espalier_clipboard__","call":0,"args":["readable"]}')"#;
    let script = format!("void setInterval(() => {{ for (let n = 0; n < 5000; n++) {call}; }}, 0)");
    pages.flooding.evaluate::<()>(&script).await.expect("begun");
    pages.neighbour_goes_on().await;
    pages.end().await;
}

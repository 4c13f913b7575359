//! Deterministic episodes: the same actions in three browser processes give the same bytes, the second and third time without
//! the server.

use crate::server::{Answer, Server};
use crate::support::{browser, context};
use espalier_browser::{
    Archive, ArchiveOptions, Browser, BrowserContext, BrowserError, ContextOptions, DeterministicOptions,
    Misses, Page, Result, Viewport,
};
use futures::{StreamExt, stream};
use serde_json::{Value, json};
use std::time::Duration;

/// One action of an episode.
#[derive(Clone, Copy, Debug)]
enum Act {
    Click(&'static str),
    Type(&'static str, &'static str),
    Press(&'static str),
    Wheel(f64),
    Hover(&'static str),
    Idle,
}
use Act::{Click, Hover, Idle, Press, Type, Wheel};

const STYLE: &str =
    "<style>body { font: 16px sans-serif } .box { width: 60px; height: 60px; background: teal }</style>";

/// Kinds of pages: without damage (`/still`), with CSS animations, animation frames, a caret, a canvas, a frame of another process
/// (`/outer`), workers, requests and so on. Each has its path, and actions in two orders: 34 episodes.
const PAGES: [(&str, &str, [&[Act]; 2]); 17] = [
    (
        "/still",
        "<h1>Still</h1><p>Nothing moves here.</p><a href='#below'>below</a><p style='margin-top:900px' id=below>end</p>",
        [&[Idle, Idle, Wheel(300.0)], &[Click("a"), Idle, Wheel(-200.0)]],
    ),
    (
        "/css",
        "<style>@keyframes m { to { transform: translateX(300px) rotate(90deg) } }
         #once { animation: m 2s 1 } #ever { animation: m 1s infinite } #t { transition: width 3s; width: 50px } #t.on { width: 400px }</style>
         <div id=once class=box></div><div id=ever class=box></div><div id=t class=box></div><button>go</button>
         <p id=log></p><script>document.querySelector('button').onclick = () => t.classList.toggle('on');
         addEventListener('transitionend', e => log.textContent += ' end:' + e.propertyName + Math.round(performance.now()));
         addEventListener('animationend', e => log.textContent += ' done:' + e.animationName);</script>",
        [&[Click("button"), Idle, Click("button")], &[Idle, Hover("#t"), Click("button"), Idle]],
    ),
    (
        "/raf",
        "<canvas id=c width=400 height=200></canvas><p id=n></p><script>let k = 0; const g = c.getContext('2d');
         const step = t => { k++; g.fillStyle = `hsl(${k * 7},80%,50%)`; g.fillRect((t / 3) % 380, (k * 5) % 180, 20, 20);
           n.textContent = k + ' frames at ' + Math.round(t); requestAnimationFrame(step); };
         requestAnimationFrame(step);</script>",
        [&[Idle, Idle, Idle], &[Click("#c"), Idle, Hover("#n")]],
    ),
    (
        "/caret",
        "<input id=a value='some text'><textarea id=b>more</textarea><p contenteditable id=d>edit me</p>",
        [&[Click("#a"), Type("#a", "abc"), Press("ArrowLeft")], &[Click("#b"), Press("End"), Click("#d"), Type("#d", "xyz")]],
    ),
    (
        "/canvas",
        "<canvas id=c width=300 height=200></canvas><script>const g = c.getContext('2d');
         const draw = () => { for (let i = 0; i < 40; i++) { g.fillStyle = `rgb(${Math.random()*255},${Math.random()*255},99)`;
           g.beginPath(); g.arc(Math.random()*300, Math.random()*200, Math.random()*20, 0, 7); g.fill(); } };
         draw(); c.onclick = draw;</script>",
        [&[Click("#c"), Click("#c"), Idle], &[Idle, Click("#c"), Hover("#c")]],
    ),
    (
        "/random",
        "<button>more</button><pre id=o></pre><script>const more = () => o.textContent += Math.random() + ' ' +
         crypto.randomUUID() + ' ' + crypto.getRandomValues(new Uint32Array(2)).join() + '\\n';
         more(); document.querySelector('button').onclick = more;</script>",
        [&[Click("button"), Idle, Click("button")], &[Click("button"), Click("button"), Click("button")]],
    ),
    (
        "/dates",
        "<pre id=o></pre><script>const tell = () => o.textContent = [new Date().toString(), Date.now(), new Date().toLocaleString(),
         Intl.DateTimeFormat(undefined, {dateStyle:'full', timeStyle:'long'}).format(), performance.now(), Date(),
         (1234.5).toLocaleString(), Intl.DateTimeFormat().resolvedOptions().timeZone].join('\\n'); tell(); setInterval(tell, 70);</script>",
        [&[Idle, Idle, Idle], &[Hover("#o"), Idle, Idle, Idle]],
    ),
    (
        "/timers",
        "<button>start</button><ol id=o></ol><script>document.querySelector('button').onclick = () => { let k = 0;
         const add = t => o.append(Object.assign(document.createElement('li'), {textContent: t + ' ' + Math.round(performance.now())}));
         const id = setInterval(() => { add('tick'); if (++k > 4) clearInterval(id); }, 90);
         setTimeout(() => { add('late'); setTimeout(() => add('later'), 0); }, 120);
         Promise.resolve().then(() => add('soon')); requestIdleCallback(() => add('idle')); };</script>",
        [&[Click("button"), Idle, Idle], &[Click("button"), Click("button"), Idle]],
    ),
    (
        "/outer",
        "<h1>outer</h1><iframe id=f width=500 height=200 src='http://b.localhost:PORT/inner'></iframe><p id=o></p>
         <button>ask</button><script>onmessage = e => o.textContent += ' ' + e.data + '@' + Math.round(performance.now());
         document.querySelector('button').onclick = () => f.contentWindow.postMessage('hello', '*');</script>",
        [&[Click("button"), Idle, Click("button")], &[Idle, Idle, Click("button"), Idle]],
    ),
    (
        "/worker",
        "<button>work</button><pre id=o></pre><script>const w = new Worker('/worker.js');
         w.onmessage = e => o.textContent += e.data + ' ' + Math.round(performance.now()) + '\\n';
         document.querySelector('button').onclick = () => w.postMessage(30);</script>",
        [&[Click("button"), Idle, Click("button")], &[Idle, Click("button"), Click("button")]],
    ),
    (
        "/fetch",
        "<button>load</button><ul id=o></ul><script>document.querySelector('button').onclick = async () => {
         const answers = ['/data?a', '/data?b', '/data?c'].map(async u => { const r = await fetch(u, {method:'POST', body: u + Math.random()});
           const li = document.createElement('li'); li.textContent = u + ' ' + await r.text(); o.append(li); });
         await Promise.all(answers); setTimeout(() => o.append('done'), 50); };</script>",
        [&[Click("button"), Idle, Click("button")], &[Click("button"), Click("button"), Idle]],
    ),
    (
        "/go",
        "<a id=one href=/page?1>one</a> <form action=/page><input name=q id=q><button>send</button></form>
         <script>if (location.hash === '#x') setTimeout(() => location.href = '/page?timer', 200)</script>",
        [&[Click("#one"), Idle, Click("a")], &[Type("#q", "word"), Press("Enter"), Click("a"), Idle]],
    ),
    (
        "/stored",
        "<button>add</button><p id=o></p><script>const open = indexedDB.open('d', 1); let db;
         open.onupgradeneeded = () => open.result.createObjectStore('s', {autoIncrement: true});
         const show = () => { db.transaction('s').objectStore('s').getAll().onsuccess = e => o.textContent = JSON.stringify(e.target.result); };
         open.onsuccess = () => { db = open.result; show(); };
         document.querySelector('button').onclick = () => { const t = db.transaction('s', 'readwrite');
           t.objectStore('s').add({at: Date.now(), r: Math.random()}); t.oncomplete = show; localStorage.n = Date.now(); };</script>",
        [&[Click("button"), Click("button"), Idle], &[Idle, Click("button"), Idle]],
    ),
    (
        "/images",
        "<img src=/dot.svg width=80><img src=/dot.svg?2 width=40 loading=lazy><svg width=100 height=100><circle r=20 cx=30 cy=30 fill=red>
         <animate attributeName=cx to=90 dur=2s repeatCount=indefinite /></circle></svg><button>more</button><script>
         document.querySelector('button').onclick = () => { const i = new Image(); i.src = '/dot.svg?' + Math.random(); document.body.append(i); };</script>",
        [&[Click("button"), Click("button"), Idle], &[Idle, Wheel(200.0), Click("button")]],
    ),
    (
        "/moving",
        "<img src=/moving.gif width=100 height=100><button>again</button><script>
         document.querySelector('button').onclick = () => { const i = new Image(90, 90); i.src = '/moving.gif'; document.body.append(i); };</script>",
        [&[Idle, Idle, Click("button")], &[Click("button"), Idle, Idle]],
    ),
    (
        "/scroll",
        "<style>html { scroll-behavior: smooth }</style><button>down</button><div style='height:3000px;background:linear-gradient(red,blue)'></div>
         <p id=end>end</p><script>document.querySelector('button').onclick = () => document.getElementById('end').scrollIntoView({behavior:'smooth'});
         const seen = new IntersectionObserver(e => document.title = 'seen ' + e.length + e.at(-1).isIntersecting); seen.observe(document.getElementById('end'));</script>",
        [&[Click("button"), Idle, Wheel(-500.0)], &[Wheel(700.0), Wheel(300.0), Idle]],
    ),
    (
        "/menu",
        "<select id=s><option>one<option>two</select><details><summary>more</summary><p>hidden text</p></details>
         <label><input type=checkbox id=k>check</label><dialog id=d>a dialog <button id=x>close</button></dialog><button id=open>open</button>
         <script>open.onclick = null; document.getElementById('open').onclick = () => d.showModal(); x.onclick = () => d.close();</script>",
        [&[Click("summary"), Click("#k"), Click("#open"), Click("#x")], &[Click("summary"), Click("#k"), Press("Tab"), Press("Space")]],
    ),
];

const WORKER: &str = "const fib = n => n < 2 ? n : fib(n - 1) + fib(n - 2);
onmessage = e => { const r = fib(22); postMessage('fib ' + r + ' ' + Math.random());
  fetch('/data?worker').then(x => x.text()).then(t => setTimeout(() => postMessage(t + ' ' + Date.now()), e.data)); };";
const INNER: &str = "<h2>inner</h2><p id=i></p><div style='width:50px;height:50px;background:green;animation:m 1s infinite'></div>
<style>@keyframes m { to { margin-left: 300px } }</style><script>let k = 0;
setInterval(() => { i.textContent = 'tick ' + ++k + ' ' + Date.now() + ' ' + Math.random(); }, 110);
onmessage = e => parent.postMessage(e.data + ' back ' + k, '*');</script>";
const DOT: &str = "<svg xmlns='http://www.w3.org/2000/svg' width='40' height='40'><circle cx='20' cy='20' r='18' fill='purple'/></svg>";

/// One pixel that is red and blue in turn, for 50 ms each.
const MOVING: &[u8] = b"GIF89a\x01\0\x01\0\x80\0\0\xff\0\0\0\0\xff\x21\xff\x0bNETSCAPE2.0\x03\x01\0\0\0\
\x21\xf9\x04\0\x05\0\0\0\x2c\0\0\0\0\x01\0\x01\0\0\x02\x02\x44\x01\0\
\x21\xf9\x04\0\x05\0\0\0\x2c\0\0\0\0\x01\0\x01\0\0\x02\x02\x4c\x01\0\x3b";

async fn server() -> Server {
    let pages = PAGES.iter().map(|(path, html, _)| {
        let answer = Answer::dynamic(move |seen| {
            let port = seen.headers["host"].rsplit_once(':').expect("a port").1.to_owned();
            Answer::html(&format!(
                "<!doctype html><title>{path}</title>{STYLE}{}",
                html.replace("PORT", &port)
            ))
        });
        (*path, answer)
    });
    let more = [
        ("/inner", Answer::html(INNER)),
        ("/moving.gif", Answer::typed("image/gif", MOVING)),
        ("/worker.js", Answer::typed("text/javascript", WORKER)),
        ("/dot.svg", Answer::typed("image/svg+xml", DOT)),
        (
            "/data",
            Answer::dynamic(|seen| {
                Answer::typed("text/plain", format!("data for {} {}", seen.path, seen.body))
            }),
        ),
        (
            "/page",
            Answer::dynamic(|seen| Answer::html(&format!("<h1>{}</h1><a href=/go#x>back</a>", seen.path))),
        ),
    ];
    Server::start(pages.chain(more)).await
}

async fn act(page: &Page, act: Act) -> Result<()> {
    match act {
        Click(selector) => page.step(page.locator(selector).first().click()).await,
        Type(selector, text) => page.step(page.locator(selector).type_text(text)).await,
        Press(key) => page.step(page.keyboard().press(key)).await,
        Wheel(down) => page.step(page.mouse().wheel(0.0, down)).await,
        Hover(selector) => page.step(page.locator(selector).hover()).await,
        Idle => page.context().idle_step().await,
    }
}

/// Chromium numbers nodes anew in each process.
fn without_numbers(value: &Value) -> Value {
    match value {
        Value::Object(fields) => {
            let kept = fields.iter().filter(|(name, _)| *name != "backendDOMNodeId");
            Value::Object(kept.map(|(name, value)| (name.clone(), without_numbers(value))).collect())
        }
        Value::Array(items) => Value::Array(items.iter().map(without_numbers).collect()),
        other => other.clone(),
    }
}

/// The accessible tree without the numbers that Chromium makes up.
fn accessible(node: &Value) -> Value {
    json!([
        node["role"]["value"],
        node["name"]["value"],
        node["value"]["value"],
        node["description"]["value"],
        node["ignored"],
        node["childIds"].as_array().map(Vec::len),
        without_numbers(&node["properties"])
    ])
}

/// What can be seen after a step.
async fn seen(page: &Page) -> Vec<Vec<u8>> {
    let picture = page.screenshot().await.expect("a picture");
    let tree = page
        .devtools("Accessibility.getFullAXTree", json!({}), Duration::from_secs(20))
        .await
        .expect("a tree");
    let tree: Vec<Value> = tree["nodes"].as_array().expect("nodes").iter().map(accessible).collect();
    let mut all = vec![picture.to_vec(), serde_json::to_vec(&tree).expect("JSON")];
    for frame in page.frames() {
        all.push(frame.content().await.expect("a document").into_bytes());
    }
    all
}

fn options() -> ContextOptions {
    ContextOptions {
        viewport: Viewport { width: 800, height: 600 },
        deterministic: Some(DeterministicOptions { seed: 7, ..DeterministicOptions::default() }),
        ..ContextOptions::default()
    }
}

async fn episode(context: &BrowserContext, url: &str, acts: &[Act]) -> Vec<Vec<Vec<u8>>> {
    let page = context.new_page().await.expect("a page");
    page.step(page.goto(url)).await.unwrap_or_else(|error| panic!("{url}: {error}"));
    let mut told = vec![seen(&page).await];
    for one in acts {
        act(&page, *one).await.unwrap_or_else(|error| panic!("{url}, {one:?}: {error}"));
        told.push(seen(&page).await);
    }
    told
}

/// An episode that was recorded: its address, its actions, what was seen, and the network.
struct Recorded {
    url: String,
    acts: &'static [Act],
    told: Vec<Vec<Vec<u8>>>,
    archive: Vec<u8>,
}

async fn record(browser: &Browser, url: String, acts: &'static [Act]) -> Recorded {
    let context = browser.new_context(options()).await.expect("a context");
    let recorder = context.record_archive(ArchiveOptions::default()).await.expect("a recorder");
    let told = episode(&context, &url, acts).await;
    let archive = recorder.finish().await.expect("an archive").to_bytes();
    context.close().await.expect("closed");
    Recorded { url, acts, told, archive }
}

/// What differs when it is done again without a server.
async fn replay(browser: &Browser, recorded: &Recorded) -> Vec<String> {
    let Recorded { url, acts, told, archive } = recorded;
    let context = browser.new_context(options()).await.expect("a context");
    let archive = Archive::from_bytes(archive).expect("an archive");
    let replay = context.replay_archive(&archive, Misses::Fail).await.expect("a replay");
    let again = episode(&context, url, acts).await;
    assert_eq!(replay.check(), Ok(()), "{url} {acts:?}");
    context.close().await.expect("closed");
    let mut differing = Vec::new();
    for (step, (one, other)) in told.iter().zip(&again).enumerate() {
        assert_eq!(one.len(), other.len(), "{url} {acts:?}, step {step}: frames");
        for (part, (one, other)) in one.iter().zip(other).enumerate().filter(|(_, (one, other))| one != other)
        {
            let what = ["picture", "tree"].get(part).unwrap_or(&"document");
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).chars().take(3000).collect::<String>();
            let detail = if part == 0 { String::new() } else { format!("\n{}\n{}", text(one), text(other)) };
            differing.push(format!("{url} {acts:?}, step {step}: {what} differs{detail}"));
        }
    }
    differing
}

/// Episodes that run at once, so that each meets a machine that is busy with others.
const AT_ONCE: usize = 3;

#[tokio::test]
async fn the_same_actions_give_the_same_bytes_and_the_archive_stands_for_the_server() {
    let server = server().await;
    let first = browser().await;
    let planned = PAGES.iter().flat_map(|(path, _, orders)| orders.iter().map(move |acts| (*path, *acts)));
    let recording = planned.map(|(path, acts)| record(&first, server.at("a.localhost", path), acts));
    let recorded: Vec<Recorded> = Box::pin(stream::iter(recording).buffered(AT_ONCE).collect()).await;
    first.close().await;
    drop(server);
    assert!(recorded.len() >= 30, "{} episodes", recorded.len());
    for _ in 0..2 {
        let again = browser().await;
        let replaying = recorded.iter().map(|recorded| replay(&again, recorded));
        let differing: Vec<Vec<String>> = Box::pin(stream::iter(replaying).buffered(AT_ONCE).collect()).await;
        again.close().await;
        let differing = differing.concat();
        assert!(differing.is_empty(), "{}", differing.join("\n"));
    }
}

#[tokio::test]
async fn time_stands_still_between_steps_and_goes_on_by_the_budget() {
    let context = context(options()).await;
    let page = context.new_page().await.expect("a page");
    let start = context.virtual_time().expect("a time");
    let now = "[Date.now(), Math.round(performance.now())]";
    page.step(page.set_content("<script>globalThis.calls = 0; setInterval(() => calls++, 100)</script>"))
        .await
        .expect("content");
    assert_eq!(context.virtual_time(), Ok(start + Duration::from_millis(500)));
    assert_eq!(page.evaluate::<(f64, f64)>(now).await, Ok((1_767_225_600_500.0, 500.0)));
    assert_eq!(page.evaluate::<(f64, f64)>(now).await, Ok((1_767_225_600_500.0, 500.0)));
    assert_eq!(page.evaluate::<i32>("calls").await, Ok(5));
    context.idle_step().await.expect("a step");
    assert_eq!(page.evaluate::<i32>("calls").await, Ok(10));
    let second = context.new_page().await.expect("a page");
    assert_eq!(
        second.evaluate::<f64>("Date.now()").await,
        Ok(1_767_225_601_000.0),
        "a new page has the same time"
    );
    let failed = page.step(async { page.evaluate::<()>("missing").await }).await;
    assert!(matches!(failed, Err(BrowserError::Script { .. })));
    assert_eq!(page.evaluate::<i32>("calls").await, Ok(15), "an action that fails takes its time, too");
}

#[tokio::test]
async fn what_is_not_covered_is_refused_by_name() {
    let table = [
        ("new WebSocket('ws://127.0.0.1:1')", "WebSocket"),
        ("new RTCPeerConnection()", "WebRTC"),
        ("new EventSource('/events')", "EventSource"),
        ("new SharedWorker('data:text/javascript,')", "SharedWorker"),
        ("new AudioContext()", "Web Audio"),
        ("document.createElement('video').play()", "media"),
        ("document.head.innerHTML = '<meta http-equiv=refresh content=5>'", "delayed meta refresh"),
    ];
    let context = context(options()).await;
    for (script, name) in table {
        let page = context.new_page().await.expect("a page");
        let run = format!("Promise.resolve().then(() => {script}).then(() => 'done', error => error.name)");
        let error = page.step(page.evaluate::<Value>(&run)).await.expect_err(script);
        assert_eq!(error.to_string(), format!("not supported: {name} in a deterministic episode"));
        page.close().await.expect("closed");
    }
    let server = server().await;
    let page = context.new_page().await.expect("a page");
    page.goto(&server.url("/still")).await.expect("loaded");
    let register = "navigator.serviceWorker.register('/worker.js').catch(error => error.message)";
    let error = page.step(page.evaluate::<String>(register)).await.expect_err("no service workers");
    assert_eq!(error.to_string(), "not supported: service worker in a deterministic episode");
    let plain = crate::support::page().await;
    let error = plain.step(async { Ok(()) }).await.expect_err("no episode");
    assert!(matches!(error, BrowserError::Invalid { .. }), "{error}");
}

#[tokio::test]
async fn pages_that_never_rest_are_told_within_the_bound() {
    let server =
        Server::start([("/", Answer::html("<script>fetch('/hang')</script>")), ("/hang", Answer::Hang)])
            .await;
    let mut options = options();
    let bound = Duration::from_secs(1);
    options.deterministic =
        Some(DeterministicOptions { rest_bound: bound, ..DeterministicOptions::default() });
    let page = context(options).await.new_page().await.expect("a page");
    let error = page.step(page.goto(&server.url("/"))).await.expect_err("a request hangs");
    assert!(error.is_timeout() && error.to_string().contains("/hang"), "{error}");
}

#[tokio::test]
async fn requests_that_an_archive_does_not_have_fail_or_go_to_the_network() {
    let server = Server::start([
        ("/", Answer::html("<title>page</title>")),
        ("/known", Answer::typed("text/plain", "recorded")),
        ("/other", Answer::typed("text/plain", "live")),
    ])
    .await;
    let ask = |path: &str| format!("fetch('{path}').then(r => r.text(), error => error.name)");
    let browser = browser().await;
    let context = browser.new_context(ContextOptions::default()).await.expect("a context");
    let recorder = context.record_archive(ArchiveOptions::default()).await.expect("a recorder");
    let page = context.new_page().await.expect("a page");
    page.goto(&server.url("/")).await.expect("loaded");
    assert_eq!(page.evaluate::<String>(&ask("/known")).await.as_deref(), Ok("recorded"));
    let archive = recorder.finish().await.expect("an archive");
    assert!(archive.len() >= 2 && archive.body_bytes() > 0);
    for (misses, expected) in [(Misses::Fail, "TypeError"), (Misses::Live, "live")] {
        let context = browser.new_context(ContextOptions::default()).await.expect("a context");
        let replay = context.replay_archive(&archive, misses).await.expect("a replay");
        let page = context.new_page().await.expect("a page");
        page.goto(&server.url("/")).await.expect("loaded");
        assert_eq!(page.evaluate::<String>(&ask("/known")).await.as_deref(), Ok("recorded"));
        assert_eq!(page.evaluate::<String>(&ask("/other")).await.as_deref(), Ok(expected));
        let (missed, count) = replay.misses();
        let asked = missed.iter().any(|miss| *miss == format!("GET {} (occurrence 1)", server.url("/other")));
        assert!(asked && count >= 1, "{missed:?}");
        assert!(matches!(replay.check(), Err(BrowserError::Unsupported { .. })));
    }
    assert_eq!(server.seen_at("/known").len(), 1, "the archive answers");
}

#[tokio::test]
async fn archives_have_redirects_cookies_and_forms() {
    let server = Server::start([
        ("/", Answer::redirect("/page").header("set-cookie", "first=1")),
        ("/page", Answer::dynamic(|seen| Answer::html(&format!("cookies {:?}", seen.headers.get("cookie"))))),
        (
            "/form",
            Answer::dynamic(|seen| {
                Answer::typed("text/plain", format!("{} bytes", seen.body.len()))
                    .header("set-cookie", "second=2")
            }),
        ),
        ("/count", {
            let count = std::sync::atomic::AtomicU64::new(0);
            Answer::dynamic(move |_| {
                let count = count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                Answer::typed("text/plain", count.to_string())
            })
        }),
        ("/closed", Answer::Close),
    ])
    .await;
    let script = "(async () => {
      const form = new FormData(); form.append('a', 'b'); form.append('file', new Blob(['content']), 'name.txt');
      const told = [document.body.textContent];
      told.push(await (await fetch('/form', { method: 'POST', body: form })).text());
      told.push(await (await fetch('/form', { method: 'POST', body: new Uint8Array([1, 2, 255]) })).text());
      for (let k = 0; k < 3; k++) told.push(await (await fetch('/count')).text());
      told.push(await fetch('/closed').then(() => 'answered', () => 'failed'));
      return told.concat(document.cookie).join('; ');
    })()";
    let browser = browser().await;
    let told = async |context: &BrowserContext| {
        let page = context.new_page().await.expect("a page");
        page.goto(&server.url("/")).await.expect("loaded");
        assert_eq!(page.url(), server.url("/page"));
        page.evaluate::<String>(script).await.expect("an answer")
    };
    let context = browser.new_context(ContextOptions::default()).await.expect("a context");
    let recorder = context.record_archive(ArchiveOptions::default()).await.expect("a recorder");
    let first = Box::pin(told(&context)).await;
    assert!(first.contains("first=1") && first.ends_with("0; 1; 2; failed; first=1; second=2"), "{first}");
    let archive = Archive::from_bytes(&recorder.archive().to_bytes()).expect("an archive");
    let asked = server.seen().len();
    let context = browser.new_context(ContextOptions::default()).await.expect("a context");
    let replay = context.replay_archive(&archive, Misses::Fail).await.expect("a replay");
    assert_eq!(Box::pin(told(&context)).await, first);
    assert_eq!(replay.check(), Ok(()));
    assert_eq!(server.seen().len(), asked, "nobody asked the server");
}

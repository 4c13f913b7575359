//! Rounds of misfortune, by seed: no call outlives its deadline, errors are typed, neighbours go on, nothing is left.
//!
//! `CHAOS_ROUNDS` sets how many rounds (26), `CHAOS_SEED` which. With `CHAOS_ROUNDS`, no other test may run beside it: it then looks
//! at the folder of temporary files, too.

use crate::server::{Answer, Server};
use crate::support::{browser, members, profile};
use espalier_browser::{
    Area, Browser, BrowserContext, BrowserError, ContextOptions, DialogPolicy, DownloadState, ImageFormat,
    Page, PageEvent, ScreenshotOptions,
};
use futures::{StreamExt, stream};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// What every call of a round may take.
const DEADLINE: Duration = Duration::from_secs(3);
/// What a call may take beyond its deadline on a machine that is very busy, before the test says that it hangs.
const SLACK: Duration = Duration::from_secs(30);
/// Browsers at once, each with a round after the other.
const AT_ONCE: usize = 2;

struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % bound as u64).expect("an index")
    }
}

const FAULTS: [&str; 13] = [
    "tab crash",
    "process killed",
    "context closed",
    "dialog held",
    "endless redirect",
    "download in place of a page",
    "hung server",
    "endless loop",
    "console flood",
    "many elements",
    "huge picture",
    "popups",
    "two navigations",
];

/// A round: what it is called in messages, and how long its calls took.
struct Round {
    name: String,
    fault: &'static str,
    longest: Mutex<Duration>,
}

/// What was found of one kind of fault.
#[derive(Default)]
struct Found {
    rounds: u32,
    /// The longest call that was to end by [`DEADLINE`].
    call: Duration,
    /// Clicks of the neighbour meanwhile, and the longest.
    neighbour_clicks: u64,
    neighbour: Duration,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rounds_of_chaos() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let rounds = number("CHAOS_ROUNDS");
    let seed = number("CHAOS_SEED").unwrap_or(u64::from(std::process::id()) + 1);
    println!("CHAOS_SEED={seed}");
    let before = temporary();
    let server = server().await;
    // Each browser meets every fault, in an order of its own.
    let browsers = rounds.unwrap_or(26).div_ceil(FAULTS.len() as u64);
    let found: Mutex<BTreeMap<&'static str, Found>> = Mutex::default();
    let runs = (0..browsers).map(|browser| one_browser(browser, seed, &server, &found));
    stream::iter(runs).buffer_unordered(AT_ONCE).collect::<Vec<()>>().await;
    for (fault, found) in found.into_inner().expect("not poisoned") {
        let Found { rounds, call, neighbour_clicks, neighbour } = found;
        println!(
            "{fault}: {rounds} rounds, longest call {:.2} s of {} s; neighbour: {neighbour_clicks} clicks, longest {:.2} s",
            call.as_secs_f64(),
            DEADLINE.as_secs(),
            neighbour.as_secs_f64()
        );
    }
    if rounds.is_some() {
        let left: Vec<PathBuf> = temporary().difference(&before).cloned().collect();
        assert_eq!(left, Vec::<PathBuf>::new(), "temporary files are left");
    }
}

async fn server() -> Server {
    Server::start([
        ("/", Answer::html("<title>well</title><button onclick='window.clicked = 1'>Go</button>")),
        ("/loop", Answer::redirect("/loop")),
        ("/hang", Answer::Hang),
        ("/file", Answer::typed("application/octet-stream", "x").header("content-disposition", "attachment")),
        ("/spin", Answer::html("<script>setTimeout(() => { while (true) {} })</script>")),
        (
            "/flood",
            Answer::html(
                "<script>setInterval(() => { for (let i = 0; i < 2000; i++) console.log('x', i) })</script>",
            ),
        ),
        ("/many", Answer::html(&format!("<body>{}</body>", "<button>b</button>".repeat(10_000)))),
        ("/tall", Answer::html("<div style='height:100000px;background:linear-gradient(red, blue)'></div>")),
    ])
    .await
}

/// What is in the folder of temporary files.
fn temporary() -> BTreeSet<PathBuf> {
    let entries = std::fs::read_dir(std::env::temp_dir()).expect("the folder of temporary files");
    entries.filter_map(|entry| Some(entry.ok()?.path())).collect()
}

/// Every fault once, in a browser that a page of another context shares.
async fn one_browser(browser: u64, seed: u64, server: &Server, found: &Mutex<BTreeMap<&'static str, Found>>) {
    let mut random = Random((seed ^ browser.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let mut faults = FAULTS;
    for last in (1..faults.len()).rev() {
        faults.swap(last, random.below(last + 1));
    }
    let mut machine = Machine::start().await;
    for (number, fault) in faults.into_iter().enumerate() {
        let name = format!("round {number} of browser {browser}, seed {seed}: {fault}");
        let round = Round { name, fault, longest: Mutex::default() };
        let what = &round.name;
        let context = machine.browser.new_context(ContextOptions::default()).await.expect("a context");
        context.set_default_timeout(DEADLINE);
        let page = context.new_page().await.expect("a page");
        let over = AtomicBool::new(false);
        let (clicks, neighbour, kept) = {
            let strike = async {
                let kept = Box::pin(strike(&round, &context, &page, server)).await;
                over.store(true, Ordering::Relaxed);
                kept
            };
            let ((clicks, longest), kept) = tokio::join!(machine.neighbour_clicks(what, &over), strike);
            (clicks, longest, kept)
        };
        if fault == "process killed" {
            machine = machine.killed(&round).await;
        } else {
            bounded(&round, context.close()).await.unwrap_or_else(|error| panic!("{what}: {error}"));
            assert!(page.evaluate::<i32>("1").await.is_err(), "{what}: the context is closed");
            machine.has_only_the_neighbour(what).await;
        }
        if let Some(folder) = kept {
            drop((context, page));
            assert!(!folder.exists(), "{what}: {} is left", folder.display());
        }
        let mut found = found.lock().expect("not poisoned");
        let found = found.entry(round.fault).or_default();
        found.rounds += 1;
        found.call = found.call.max(*round.longest.lock().expect("not poisoned"));
        found.neighbour_clicks += clicks;
        found.neighbour = found.neighbour.max(neighbour);
    }
    machine.end("the end").await;
}

/// A browser with a neighbour in a context of its own.
struct Machine {
    browser: Browser,
    neighbour: Page,
    profile: PathBuf,
}

impl Machine {
    async fn start() -> Machine {
        let browser = browser().await;
        let context = browser.new_context(ContextOptions::default()).await.expect("a context");
        let neighbour = context.new_page().await.expect("a page");
        neighbour
            .set_content("<button onclick='window.clicked = (window.clicked ?? 0) + 1'>Count</button>")
            .await
            .expect("content");
        let profile = profile(browser.process_group().expect("a group"));
        Machine { browser, neighbour, profile }
    }

    /// Clicks until it is over; every click must count. How many, and the longest.
    async fn neighbour_clicks(&self, what: &str, over: &AtomicBool) -> (u64, Duration) {
        self.neighbour.evaluate::<()>("void (window.clicked = 0)").await.expect("the neighbour");
        let (mut clicks, mut longest) = (0, Duration::ZERO);
        loop {
            let began = Instant::now();
            let clicked = self.neighbour.locator("button").click().await;
            assert_eq!(clicked, Ok(()), "{what}: the neighbour");
            longest = longest.max(began.elapsed());
            clicks += 1;
            if over.load(Ordering::Relaxed) {
                break;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        assert_eq!(self.neighbour.evaluate::<u64>("clicked").await, Ok(clicks), "{what}: the neighbour");
        (clicks, longest)
    }

    /// Targets of contexts that were closed are gone.
    async fn has_only_the_neighbour(&self, what: &str) {
        let pages: usize = self.browser.contexts().iter().map(|context| context.pages().len()).sum();
        assert_eq!((self.browser.contexts().len(), pages), (1, 1), "{what}: contexts and pages");
        let targets = self
            .neighbour
            .devtools("Target.getTargets", json!({}), Duration::from_secs(20))
            .await
            .expect("targets");
        let others: Vec<&Value> = targets["targetInfos"]
            .as_array()
            .expect("targets")
            .iter()
            .filter(|target| target["type"] == "page")
            .collect();
        assert_eq!(others.len(), 1, "{what}: {others:?}");
    }

    /// Kills its process, and starts another.
    async fn killed(self, round: &Round) -> Machine {
        let what = &round.name;
        let group = self.browser.process_group().expect("a group").cast_signed();
        let group = rustix::process::Pid::from_raw(group).expect("a group");
        rustix::process::kill_process_group(group, rustix::process::Signal::KILL).expect("killed");
        let error = bounded(round, self.neighbour.evaluate::<i32>("1")).await.expect_err("it was killed");
        assert!(matches!(error, BrowserError::Crashed { .. }), "{what}: {error}");
        self.end(what).await;
        Machine::start().await
    }

    async fn end(&self, what: &str) {
        self.browser.close().await;
        assert_eq!(
            members(self.browser.process_group().expect("a group")),
            Vec::<u32>::new(),
            "{what}: processes are left"
        );
        assert!(!self.profile.exists(), "{what}: {} is left", self.profile.display());
    }
}

/// A call that must end a little after its deadline at the latest.
async fn bounded<T>(
    round: &Round,
    call: impl Future<Output = Result<T, BrowserError>>,
) -> Result<T, BrowserError> {
    let began = Instant::now();
    let Ok(result) = tokio::time::timeout(DEADLINE + SLACK, call).await else {
        panic!("{}: a call outlives its deadline", round.name)
    };
    let mut longest = round.longest.lock().expect("not poisoned");
    *longest = longest.max(began.elapsed());
    result
}

/// What happens in the round. The folder of the context's downloads, where there was one.
async fn strike(round: &Round, context: &BrowserContext, page: &Page, server: &Server) -> Option<PathBuf> {
    let what = &round.name;
    let go = |path: &str| {
        let url = server.url(path);
        async move { bounded(round, page.goto(&url)).await.map(drop) }
    };
    match round.fault {
        "tab crash" => {
            let crash = go("/").await.and(bounded(round, page.goto("chrome://crash")).await.map(drop));
            assert!(crash.is_err(), "{what}");
            let after = bounded(round, page.evaluate::<i32>("1")).await;
            assert!(matches!(after, Err(BrowserError::Crashed { what: "page", .. })), "{what}: {after:?}");
        }
        "context closed" => {
            let url = server.url("/hang");
            let (navigation, closed) =
                tokio::join!(bounded(round, page.goto(&url)), bounded(round, context.close()));
            assert!(closed.is_ok(), "{what}");
            assert!(matches!(navigation, Err(BrowserError::Closed { .. })), "{what}: {navigation:?}");
        }
        "dialog held" => {
            page.set_dialog_policy(DialogPolicy::Hold);
            let asked = bounded(round, page.evaluate::<bool>("confirm('?')")).await;
            assert!(matches!(asked, Err(BrowserError::DialogOpen { .. })), "{what}: {asked:?}");
            let blocked = bounded(round, page.screenshot()).await;
            assert!(matches!(blocked, Err(BrowserError::DialogOpen { .. })), "{what}: {blocked:?}");
        }
        "endless redirect" => {
            let error = go("/loop").await;
            assert!(matches!(error, Err(BrowserError::Navigation { .. })), "{what}: {error:?}");
        }
        "download in place of a page" => {
            let mut events = page.events();
            let error = go("/file").await;
            assert!(matches!(error, Err(BrowserError::Download { .. })), "{what}: {error:?}");
            assert_eq!(go("/").await, Ok(()), "{what}");
            let mut download = None;
            while let (None, Some(event)) = (&download, events.try_next()) {
                if let PageEvent::Download(told) = event {
                    download = Some(told);
                }
            }
            let download = download.unwrap_or_else(|| panic!("{what}: no download is told"));
            let file = bounded(round, download.path(DEADLINE))
                .await
                .unwrap_or_else(|error| panic!("{what}: {error}"));
            assert_eq!(download.state(), DownloadState::Complete, "{what}");
            return file.parent().map(PathBuf::from);
        }
        "hung server" => {
            let error = go("/hang").await.expect_err("it hangs");
            assert!(error.is_timeout(), "{what}: {error}");
            assert_eq!(go("/").await, Ok(()), "{what}");
        }
        "endless loop" => {
            let _ = go("/spin").await;
            let (paragraph, mouse) = (page.locator("p"), page.mouse());
            let (evaluated, located, pictured, clicked) = tokio::join!(
                bounded(round, page.evaluate::<i32>("1")),
                bounded(round, paragraph.click()),
                bounded(round, page.screenshot()),
                bounded(round, mouse.click(5.0, 5.0))
            );
            let results = [evaluated.map(drop), located, pictured.map(drop), clicked];
            let typed = |result: &Result<(), BrowserError>| {
                result.as_ref().err().is_none_or(BrowserError::is_timeout)
            };
            assert!(results.iter().all(typed), "{what}: {results:?}");
        }
        "console flood" => {
            let mut events = page.events();
            let _ = go("/flood").await;
            let answer = bounded(round, page.evaluate::<i32>("1")).await;
            assert!(
                answer.is_ok() || answer.as_ref().is_err_and(BrowserError::is_timeout),
                "{what}: {answer:?}"
            );
            assert!(page.console_messages().0.len() <= 500, "{what}");
            assert!(events.try_next().is_some(), "{what}");
        }
        "many elements" => {
            assert_eq!(go("/many").await, Ok(()), "{what}");
            let strict = bounded(round, page.locator("button").click()).await;
            let typed = matches!(
                strict,
                Err(BrowserError::Strict { count: 10_000, .. } | BrowserError::Timeout { .. })
            );
            assert!(typed, "{what}: {strict:?}");
        }
        "huge picture" => {
            assert_eq!(go("/tall").await, Ok(()), "{what}");
            let options = ScreenshotOptions {
                area: Area::FullPage,
                format: ImageFormat::Jpeg(50),
                ..ScreenshotOptions::default()
            };
            let picture = bounded(round, page.screenshot_with(options)).await;
            assert!(
                picture.is_ok() || picture.as_ref().is_err_and(BrowserError::is_timeout),
                "{what}: {picture:?}"
            );
        }
        "popups" => {
            assert_eq!(go("/").await, Ok(()), "{what}");
            bounded(round, page.evaluate::<()>("for (let i = 0; i < 5; i++) void open('/')"))
                .await
                .expect("opened");
            let clicked = bounded(round, page.locator("button").click()).await;
            assert!(
                clicked.is_ok() || clicked.as_ref().is_err_and(BrowserError::is_timeout),
                "{what}: {clicked:?}"
            );
        }
        "two navigations" => {
            let (first, second) = (server.url("/hang"), server.url("/"));
            let (first, second) =
                tokio::join!(bounded(round, page.goto(&first)), bounded(round, page.goto(&second)));
            assert!(first.is_err(), "{what}: {first:?}");
            assert!(second.is_ok(), "{what}: {second:?}");
        }
        _ => assert_eq!(go("/").await, Ok(()), "{what}"),
    }
    None
}

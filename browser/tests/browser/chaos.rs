//! Rounds of misfortune, by seed: no call outlives its deadline, errors are typed, neighbours go on, nothing is left.
//!
//! `CHAOS_ROUNDS` sets how many rounds (25), `CHAOS_SEED` which.

use crate::server::{Answer, Server};
use crate::support::{browser, members, profile};
use espalier_browser::{
    Area, Browser, BrowserContext, BrowserError, ContextOptions, DialogPolicy, ImageFormat, Page,
    ScreenshotOptions,
};
use std::path::PathBuf;
use std::time::Duration;

/// What every call of a round may take.
const DEADLINE: Duration = Duration::from_secs(3);
/// What a call may take beyond its deadline on a machine that is very busy, before the test says that it hangs.
const SLACK: Duration = Duration::from_secs(30);

struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rounds_of_chaos() {
    let number = |name: &str, default: u64| {
        std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
    };
    let rounds = number("CHAOS_ROUNDS", 25);
    let seed = number("CHAOS_SEED", u64::from(std::process::id()) + 1);
    println!("CHAOS_SEED={seed}");
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let server = Server::start([
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
    .await;
    let mut machine = Machine::start().await;
    for round in 0..rounds {
        let fault = FAULTS[usize::try_from(random.below(FAULTS.len() as u64)).expect("an index")];
        let context = machine.browser.new_context(ContextOptions::default()).await.expect("a context");
        context.set_default_timeout(DEADLINE);
        let page = context.new_page().await.expect("a page");
        let what = format!("round {round} of seed {seed}: {fault}");
        strike(fault, &what, &context, &page, &server).await;
        if fault == "process killed" {
            let killed = rustix::process::Pid::from_raw(
                machine.browser.process_group().expect("a group").cast_signed(),
            )
            .expect("a group");
            rustix::process::kill_process_group(killed, rustix::process::Signal::KILL).expect("killed");
            let error =
                bounded(&what, machine.neighbour.evaluate::<i32>("1")).await.expect_err("it was killed");
            assert!(matches!(error, BrowserError::Crashed { .. }), "{what}: {error}");
            machine.end(&what).await;
            machine = Machine::start().await;
            continue;
        }
        assert_eq!(
            bounded(&what, machine.neighbour.evaluate::<i32>("40 + 2")).await,
            Ok(42),
            "{what}: the neighbour"
        );
        bounded(&what, context.close()).await.unwrap_or_else(|error| panic!("{what}: {error}"));
        assert!(page.evaluate::<i32>("1").await.is_err(), "{what}: the context is closed");
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
        let profile = profile(browser.process_group().expect("a group"));
        Machine { browser, neighbour, profile }
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
    what: &str,
    call: impl Future<Output = Result<T, BrowserError>>,
) -> Result<T, BrowserError> {
    match tokio::time::timeout(DEADLINE + SLACK, call).await {
        Ok(result) => result,
        Err(_) => panic!("{what}: a call outlives its deadline"),
    }
}

async fn strike(fault: &str, what: &str, context: &BrowserContext, page: &Page, server: &Server) {
    let go = |path: &str| {
        let url = server.url(path);
        async move { bounded(what, page.goto(&url)).await.map(drop) }
    };
    match fault {
        "tab crash" => {
            let crash = go("/").await.and(bounded(what, page.goto("chrome://crash")).await.map(drop));
            assert!(crash.is_err(), "{what}");
            let after = bounded(what, page.evaluate::<i32>("1")).await;
            assert!(matches!(after, Err(BrowserError::Crashed { what: "page", .. })), "{what}: {after:?}");
        }
        "context closed" => {
            let url = server.url("/hang");
            let (navigation, closed) =
                tokio::join!(bounded(what, page.goto(&url)), bounded(what, context.close()));
            assert!(closed.is_ok(), "{what}");
            assert!(matches!(navigation, Err(BrowserError::Closed { .. })), "{what}: {navigation:?}");
        }
        "dialog held" => {
            page.set_dialog_policy(DialogPolicy::Hold);
            let asked = bounded(what, page.evaluate::<bool>("confirm('?')")).await;
            assert!(matches!(asked, Err(BrowserError::DialogOpen { .. })), "{what}: {asked:?}");
            let blocked = bounded(what, page.screenshot()).await;
            assert!(matches!(blocked, Err(BrowserError::DialogOpen { .. })), "{what}: {blocked:?}");
        }
        "endless redirect" => {
            let error = go("/loop").await;
            assert!(matches!(error, Err(BrowserError::Navigation { .. })), "{what}: {error:?}");
        }
        "download in place of a page" => {
            let error = go("/file").await;
            assert!(matches!(error, Err(BrowserError::Download { .. })), "{what}: {error:?}");
            assert_eq!(go("/").await, Ok(()), "{what}");
        }
        "hung server" => {
            let error = go("/hang").await.expect_err("it hangs");
            assert!(error.is_timeout(), "{what}: {error}");
            assert_eq!(go("/").await, Ok(()), "{what}");
        }
        "endless loop" => {
            let _ = go("/spin").await;
            let results = [
                bounded(what, page.evaluate::<i32>("1")).await.map(drop),
                bounded(what, page.locator("p").click()).await,
                bounded(what, page.screenshot()).await.map(drop),
                bounded(what, page.mouse().click(5.0, 5.0)).await,
            ];
            let typed = |result: &Result<(), BrowserError>| {
                result.as_ref().err().is_none_or(BrowserError::is_timeout)
            };
            assert!(results.iter().all(typed), "{what}: {results:?}");
        }
        "console flood" => {
            let mut events = page.events();
            let _ = go("/flood").await;
            let answer = bounded(what, page.evaluate::<i32>("1")).await;
            assert!(
                answer.is_ok() || answer.as_ref().is_err_and(BrowserError::is_timeout),
                "{what}: {answer:?}"
            );
            assert!(page.console_messages().0.len() <= 500, "{what}");
            assert!(events.try_next().is_some(), "{what}");
        }
        "many elements" => {
            assert_eq!(go("/many").await, Ok(()), "{what}");
            let strict = bounded(what, page.locator("button").click()).await;
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
            let picture = bounded(what, page.screenshot_with(options)).await;
            assert!(
                picture.is_ok() || picture.as_ref().is_err_and(BrowserError::is_timeout),
                "{what}: {picture:?}"
            );
        }
        "popups" => {
            assert_eq!(go("/").await, Ok(()), "{what}");
            bounded(what, page.evaluate::<()>("for (let i = 0; i < 5; i++) void open('/')"))
                .await
                .expect("opened");
            let clicked = bounded(what, page.locator("button").click()).await;
            assert!(
                clicked.is_ok() || clicked.as_ref().is_err_and(BrowserError::is_timeout),
                "{what}: {clicked:?}"
            );
        }
        "two navigations" => {
            let (first, second) = (server.url("/hang"), server.url("/"));
            let (first, second) =
                tokio::join!(bounded(what, page.goto(&first)), bounded(what, page.goto(&second)));
            assert!(first.is_err(), "{what}: {first:?}");
            assert!(second.is_ok(), "{what}: {second:?}");
        }
        _ => assert_eq!(go("/").await, Ok(()), "{what}"),
    }
}

//! Pictures, PDF, and what contexts make pages believe.

use crate::server::{Answer, Server};
use crate::support::{browser, context, page};
use espalier_browser::{
    Area, BrowserError, ColorScheme, ContextOptions, Geolocation, ImageFormat, Media, MediaOptions, Page,
    PdfOptions, Permission, Rect, ScreenshotOptions, Viewport,
};
use std::collections::BTreeMap;

/// Width and height in the head of a PNG.
fn png_size(png: &[u8]) -> (u32, u32) {
    assert!(png.starts_with(b"\x89PNG"), "no PNG");
    let number = |at: usize| u32::from_be_bytes(png[at..at + 4].try_into().expect("four bytes"));
    (number(16), number(20))
}

async fn shot(page: &Page, area: Area, format: ImageFormat) -> Vec<u8> {
    let options = ScreenshotOptions { area, format, ..ScreenshotOptions::default() };
    page.screenshot_with(options).await.expect("a picture").to_vec()
}

#[tokio::test]
async fn pictures_in_every_format_and_area() {
    let page = page().await;
    page.set_content("<body style='margin:0;background:#fee'><div style='height:3000px'>tall</div>")
        .await
        .expect("content");
    assert_eq!(png_size(&page.screenshot().await.expect("a picture")), (1280, 720));
    assert_eq!(png_size(&shot(&page, Area::FullPage, ImageFormat::FastPng).await), (1280, 3000));
    let rect = Rect { x: 10.0, y: 10.0, width: 100.0, height: 50.0 };
    assert_eq!(png_size(&shot(&page, Area::Clip(rect), ImageFormat::Png).await), (100, 50));
    let below = Rect { y: 2900.0, ..rect };
    assert_eq!(png_size(&shot(&page, Area::Document(below), ImageFormat::Png).await), (100, 50));
    assert!(shot(&page, Area::Viewport, ImageFormat::Jpeg(80)).await.starts_with(&[0xff, 0xd8, 0xff]));
    let webp = shot(&page, Area::Viewport, ImageFormat::Webp(80)).await;
    assert!(webp.starts_with(b"RIFF") && webp[8..12] == *b"WEBP");
    let nothing = Rect { width: 0.0, ..rect };
    let options = ScreenshotOptions { area: Area::Clip(nothing), ..ScreenshotOptions::default() };
    assert!(matches!(page.screenshot_with(options).await, Err(BrowserError::Invalid { .. })));
}

#[tokio::test]
async fn full_page_pictures_do_not_change_the_viewport() {
    let page = page().await;
    page.set_content(
        "<body style='margin:0'><div style='height:3000px'></div><div id=v style='height:100vh'></div>
         <script>window.resized = 0; addEventListener('resize', () => resized++); scrollTo(0, 500)</script>",
    )
    .await
    .expect("content");
    for _ in 0..3 {
        assert_eq!(png_size(&shot(&page, Area::FullPage, ImageFormat::Png).await), (1280, 3720));
    }
    let state: (i32, i32, f64, f64) =
        page.evaluate("new Promise(r => requestAnimationFrame(() => r([resized, innerHeight, scrollY, v.offsetHeight])))")
            .await
            .expect("the state");
    assert_eq!(state, (0, 720, 500.0, 720.0));
}

#[tokio::test]
async fn transparent_pictures_differ() {
    let page = page().await;
    page.set_content("<p>text</p>").await.expect("content");
    let white = page.screenshot().await.expect("a picture");
    let options = || ScreenshotOptions { transparent: true, ..ScreenshotOptions::default() };
    let clear = page.screenshot_with(options()).await.expect("a picture");
    assert_eq!((white[25], clear[25]), (2, 6), "colour types: RGB, and RGB with alpha");
    assert_eq!(page.screenshot().await.expect("a picture"), white, "the background is back");
}

#[tokio::test]
async fn pages_are_printed() {
    let page = page().await;
    page.set_content("<h1>print</h1>").await.expect("content");
    let pdf = page.pdf(PdfOptions::default()).await.expect("a PDF");
    assert!(pdf.starts_with(b"%PDF-"));
    let wrong = PdfOptions { pages: Some("x".into()), ..PdfOptions::default() };
    assert!(matches!(page.pdf(wrong).await, Err(BrowserError::Protocol { .. })));
}

#[tokio::test]
async fn contexts_make_pages_believe() {
    let server = Server::start([
        ("/", Answer::html("<meta name=viewport content='width=device-width'>")),
        ("/data", Answer::typed("text/plain", "data")),
    ])
    .await;
    let options = ContextOptions {
        viewport: Viewport { width: 400, height: 300 },
        device_scale_factor: 2.0,
        locale: Some("de-DE".into()),
        timezone: Some("Asia/Tokyo".into()),
        geolocation: Some(Geolocation { latitude: 48.0, longitude: 11.0, accuracy: 5.0 }),
        permissions: vec![Permission::Geolocation],
        color_scheme: ColorScheme::Dark,
        user_agent: Some("Agent/1".into()),
        extra_headers: BTreeMap::from([("x-extra".into(), "yes".into())]),
        mobile: true,
        touch: true,
        ..ContextOptions::default()
    };
    let context = context(options).await;
    let page = context.new_page().await.expect("a page");
    page.goto(&server.url("/")).await.expect("a page");
    let believed: serde_json::Value = page
        .evaluate(
            "[innerWidth, innerHeight, devicePixelRatio, navigator.language, (1.5).toLocaleString(),
              Intl.DateTimeFormat().resolvedOptions().timeZone, matchMedia('(prefers-color-scheme: dark)').matches,
              navigator.userAgent, navigator.maxTouchPoints > 0, 'ontouchstart' in window, navigator.onLine]",
        )
        .await
        .expect("values");
    let expected =
        serde_json::json!([400, 300, 2, "de-DE", "1,5", "Asia/Tokyo", true, "Agent/1", true, true, true]);
    assert_eq!(believed, expected);
    let seen = &server.seen_at("/")[0];
    assert_eq!(seen.headers["x-extra"], "yes");
    assert!(seen.headers["accept-language"].starts_with("de-DE"), "{:?}", seen.headers);
    let place = "new Promise((y, n) => navigator.geolocation.getCurrentPosition(p => y([p.coords.latitude, p.coords.longitude]), e => n(e.message)))";
    assert_eq!(page.evaluate::<(f64, f64)>(place).await, Ok((48.0, 11.0)));
    context
        .set_geolocation(Some(Geolocation { latitude: 1.0, longitude: 2.0, accuracy: 1.0 }))
        .await
        .expect("moved");
    assert_eq!(page.evaluate::<(f64, f64)>(place).await, Ok((1.0, 2.0)));
    let fetch = "fetch('/data').then(r => r.text()).catch(() => 'cut off')";
    context.set_offline(true).await.expect("cut off");
    assert_eq!(page.evaluate::<String>(fetch).await.as_deref(), Ok("cut off"));
    assert_eq!(page.evaluate::<bool>("navigator.onLine").await, Ok(false));
    context.set_offline(false).await.expect("back");
    assert_eq!(page.evaluate::<String>(fetch).await.as_deref(), Ok("data"));
    assert_eq!(png_size(&page.screenshot().await.expect("a picture")), (800, 600));
}

#[tokio::test]
async fn pages_can_be_changed_one_by_one() {
    let page = page().await;
    page.set_viewport_size(Viewport { width: 500, height: 400 }).await.expect("resized");
    assert_eq!(page.evaluate::<(i32, i32)>("[innerWidth, innerHeight]").await, Ok((500, 400)));
    let media = MediaOptions { media: Media::Print, reduced_motion: true, ..MediaOptions::default() };
    page.emulate_media(media).await.expect("emulated");
    let matches: (bool, bool, bool) = page
        .evaluate("['print', '(prefers-reduced-motion: reduce)', '(prefers-color-scheme: dark)'].map(q => matchMedia(q).matches)")
        .await
        .expect("values");
    assert_eq!(matches, (true, true, false));
    assert!(matches!(
        page.set_viewport_size(Viewport { width: 0, height: 1 }).await,
        Err(BrowserError::Invalid { .. })
    ));
}

#[tokio::test]
async fn wrong_options_are_told() {
    let browser = browser().await;
    let wrong = [
        ContextOptions { device_scale_factor: 0.0, ..ContextOptions::default() },
        ContextOptions { viewport: Viewport { width: 0, height: 10 }, ..ContextOptions::default() },
        ContextOptions {
            geolocation: Some(Geolocation { latitude: 91.0, longitude: 0.0, accuracy: 0.0 }),
            ..ContextOptions::default()
        },
    ];
    for options in wrong {
        assert!(matches!(browser.new_context(options).await, Err(BrowserError::Invalid { .. })));
    }
    let context = browser
        .new_context(ContextOptions { timezone: Some("Nowhere/Land".into()), ..ContextOptions::default() })
        .await
        .expect("a context");
    let error = context.new_page().await.expect_err("there is no such time zone");
    assert!(error.to_string().contains("timezone"), "{error}");
    assert_eq!(context.pages(), vec![]);
}

#[tokio::test]
async fn pages_without_scripts_can_still_be_asked() {
    let context = context(ContextOptions { javascript_enabled: false, ..ContextOptions::default() }).await;
    let page = context.new_page().await.expect("a page");
    page.goto(
        "data:text/html,<title>t</title><noscript>none</noscript><script>document.title = 'ran'</script>",
    )
    .await
    .expect("a page");
    assert_eq!(page.title().await.as_deref(), Ok("t"));
}

#[tokio::test]
async fn the_clipboard_needs_a_permission() {
    let server = Server::start([("/", Answer::html("x"))]).await;
    let page = page().await;
    page.goto(&server.at("localhost", "/")).await.expect("a page");
    let write = "navigator.clipboard.writeText('copied').then(() => navigator.clipboard.readText()).catch(e => e.name)";
    assert_eq!(page.evaluate::<String>(write).await.as_deref(), Ok("NotAllowedError"));
    let permissions = [Permission::ClipboardRead, Permission::ClipboardWrite];
    page.context().grant_permissions(&permissions, Some(&server.at("localhost", ""))).await.expect("granted");
    assert_eq!(page.evaluate::<String>(write).await.as_deref(), Ok("copied"));
    page.context().clear_permissions().await.expect("taken back");
    assert_eq!(page.evaluate::<String>(write).await.as_deref(), Ok("NotAllowedError"));
}

//! Files in and out, and answers in place of a server: `cargo run -p espalier-browser --example files_and_routes`.

use espalier_browser::{Browser, ContextOptions, Fulfill, LaunchOptions, PageEvent, Result};
use std::sync::Arc;
use std::time::Duration;

const PAGE: &str = "<input type=file id=file><a download=copy.txt>Save</a><script>
    file.onchange = async () => {
      document.querySelector('a').href = URL.createObjectURL(new Blob([(await file.files[0].text()).toUpperCase()]));
    };
  </script>";

#[tokio::main]
async fn main() -> Result<()> {
    let no_sandbox = std::env::args().any(|arg| arg == "--no-sandbox");
    let browser = Browser::launch(LaunchOptions { no_sandbox, ..LaunchOptions::default() }).await?;
    let page = browser.new_context(ContextOptions::default()).await?.new_page().await?;

    // No server is asked: this is its answer. `*` and `**` match as in Playwright.
    page.route(
        "http://app.test/**",
        Arc::new(|route| {
            Box::pin(async move {
                let answer = Fulfill {
                    content_type: Some("text/html".to_owned()),
                    body: PAGE.into(),
                    ..Fulfill::default()
                };
                // Fails where the page is gone: then nobody waits for it.
                let _ = route.fulfill(answer);
            })
        }),
    )
    .await?;
    page.goto("http://app.test/").await?;

    let folder = std::env::temp_dir();
    let (given, saved) = (folder.join("given.txt"), folder.join("copy.txt"));
    std::fs::write(&given, "hello").expect("the file is written");
    page.locator("#file").set_input_files(&[&given]).await?;

    // Before what causes it, so that nothing is missed.
    let mut events = page.events();
    page.locator("a[href]").click().await?;
    let download = loop {
        let event = events.next_within(Duration::from_secs(10)).await.expect("an event within ten seconds");
        if let PageEvent::Download(download) = event {
            break download;
        }
    };
    download.save_as(&saved, Duration::from_secs(10)).await?;
    println!("{}: {}", download.suggested_name(), std::fs::read_to_string(&saved).expect("it is there"));
    browser.close().await;
    Ok(())
}

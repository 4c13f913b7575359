//! The quick start of the README.

use espalier_browser::{Browser, ContextOptions, LaunchOptions, Result, RoleOptions};

#[tokio::main]
async fn main() -> Result<()> {
    // Chromium keeps its own sandbox on, and so does not start as root: there, say `no_sandbox: true`.
    let options = LaunchOptions { no_sandbox: false, ..LaunchOptions::default() };
    let browser = Browser::launch(options).await?;
    let context = browser.new_context(ContextOptions::default()).await?;
    let page = context.new_page().await?;

    // Any page will do: `page.goto("https://example.com").await?`.
    page.set_content(
        "<h1>Hello</h1><label>Name <input></label><button>Greet</button><script>
           document.querySelector('button').onclick = () => setTimeout(() => {
             document.querySelector('h1').textContent = 'Hello, ' + document.querySelector('input').value;
           }, 200);
         </script>",
    )
    .await?;
    page.get_by_label("Name").fill("Ann").await?;
    page.get_by_role("button", RoleOptions::named("Greet")).click().await?;

    // Waits until there is such a heading.
    let greeting = page.get_by_role("heading", RoleOptions::named("Hello, Ann"));
    println!("{}", greeting.inner_text().await?);
    std::fs::write("greeting.png", page.screenshot().await?).expect("the picture is written");
    browser.close().await;
    Ok(())
}

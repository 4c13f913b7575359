//! The scripted server as a program, for tests in other languages: `espalier-scripted ANSWER...` says its address on the first line of its
//! output, answers each conversation with one of the answers, by its seed, and ends with its standard input.

use espalier_scripted::{Options, Prompt, Scripted};
use std::io::Read;

#[tokio::main]
async fn main() -> std::io::Result<()> {
    let answers: Vec<String> = std::env::args().skip(1).collect();
    if answers.is_empty() {
        eprintln!("espalier-scripted ANSWER...: what it answers");
        std::process::exit(2);
    }
    let policy =
        move |prompt: &Prompt<'_>| Some(answers[(prompt.seed % answers.len() as u64) as usize].clone());
    let server = Scripted::start(Options { record: false, ..Options::new(policy) }).await?;
    println!("{}", server.url());
    // Whoever started it is gone when this ends.
    tokio::task::spawn_blocking(|| std::io::stdin().read_to_end(&mut Vec::new())).await??;
    Ok(())
}

//! What an author waits for: `espalier plugin test` on one case of a Rust harness, the whole process, compiled code from the cache.
//!
//! `cases [DIST]`: the folder of built guests (default `plugins/dist`). Runs the `espalier` beside this program.

use espalier_benches::{Finding, median};
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

/// How often the command is run; the median is printed.
const REPEATS: usize = 15;

const CASE: &str = r#"
[task]
id = "lamp"
instruction = "Light the lamp."

[environment]
reset = "It is dark."

[[environment.steps]]
action = "light"
observation = "It is lit."
reward = 1.0
done = true

[[models.policy]]
said = ["It is dark."]
text = "Action: light"

[expect]
report = { outcome = "submitted" }
"#;

fn main() -> Result<(), Box<dyn Error>> {
    let dist = PathBuf::from(std::env::args().nth(1).unwrap_or_else(|| "plugins/dist".to_owned()));
    let espalier = std::env::current_exe()?.with_file_name("espalier");
    let project = tempfile::tempdir()?;
    let file = |name: &str| project.path().join(name);
    std::fs::create_dir_all(file("build"))?;
    std::fs::create_dir_all(file("cases"))?;
    std::fs::write(file("plugin.toml"), "name = \"bench\"\nkind = \"harness\"\nlanguage = \"rust\"\n")?;
    std::fs::write(file("cases/lit.toml"), CASE)?;
    std::fs::copy(dist.join("react-text.wasm"), file("build/bench.wasm"))?;
    let mut took = Vec::with_capacity(REPEATS);
    run(&espalier, project.path())?;
    for _ in 0..REPEATS {
        let started = Instant::now();
        run(&espalier, project.path())?;
        took.push(started.elapsed().as_secs_f64() * 1e3);
    }
    Finding::new("plugin test, one case, rust", median(&mut took), "ms")
        .at_most(100.0)
        .note("the whole command, compiled code from the cache")
        .print();
    Ok(())
}

fn run(espalier: &Path, project: &Path) -> Result<(), Box<dyn Error>> {
    let output = Command::new(espalier).args(["plugin", "test"]).arg(project).output()?;
    if !output.status.success() {
        return Err(format!(
            "{}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        )
        .into());
    }
    Ok(())
}

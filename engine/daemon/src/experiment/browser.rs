//! Whether `[browser]` says what a browser can have, before a task adds to it.

use super::{BrowserConfig, ExperimentError, source::Source};
use espalier_core::browser::{BrowserFile, BrowserSpec};

const HINT: &str = "see docs/browsers.md";

pub(super) fn check(config: &BrowserConfig, source: &Source) -> Result<(), ExperimentError> {
    let refuse = |key: &str, problem: String| source.refuse(&format!("browser.{key}"), problem, HINT);
    let file = config.file();
    // A network beside a sandbox is refused where both are known to hold: a task may name the sandbox.
    let spec = BrowserSpec::resolve(&file, &BrowserFile::default())
        .map_err(|error| refuse(error.key, error.to_string()))?;
    match file.network {
        // A task can only take away from it.
        Some(_) => spec.check_start().map_err(|problem| refuse("start_url", problem)),
        None => Ok(()),
    }
}

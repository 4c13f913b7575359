//! Running other programs: quietly, with what they printed shown when they fail, or in the open.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Stdio};

/// One short line on what is being done.
pub fn say(line: &str) {
    eprintln!("espalier: {line}");
}

/// Runs a program quietly; an error has its command line and the end of what it printed.
pub fn quietly(command: &mut Command) -> Result<String, String> {
    let output = command.stdin(Stdio::null()).output().map_err(|error| unstartable(command, &error))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let mut printed = String::from_utf8_lossy(&output.stdout).into_owned();
    printed.push_str(&String::from_utf8_lossy(&output.stderr));
    let lines: Vec<&str> = printed.lines().collect();
    let tail = lines[lines.len().saturating_sub(60)..].join("\n");
    Err(format!("{tail}\n{} ended with {}", line_of(command), output.status))
}

/// Runs a program that speaks for itself.
pub fn openly(command: &mut Command) -> Result<(), String> {
    let status = command.status().map_err(|error| unstartable(command, &error))?;
    if status.success() { Ok(()) } else { Err(format!("{} ended with {status}", line_of(command))) }
}

fn unstartable(command: &Command, error: &std::io::Error) -> String {
    format!("{} cannot be started: {error}", line_of(command))
}

fn line_of(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let words: Vec<_> = words.map(|word| word.to_string_lossy()).collect();
    format!("`{}`", words.join(" "))
}

/// A program of Debian's: the file by which it is known to be there, and the package that brings it.
pub struct Debian {
    /// `*` stands for one version folder.
    pub file: &'static str,
    /// Package.
    pub package: &'static str,
}

/// Installs what is missing; without root it says the line to run and stops.
pub fn apt(wanted: &[Debian]) -> Result<(), String> {
    let missing: BTreeSet<&str> =
        wanted.iter().filter(|program| !there(program.file)).map(|program| program.package).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let packages = missing.iter().copied().collect::<Vec<_>>().join(" ");
    if !is_root() {
        return Err(format!(
            "these Debian packages are missing. Install them, then try again:\n  \
             sudo apt-get update && sudo apt-get install -y --no-install-recommends {packages}"
        ));
    }
    say(&format!("installing Debian packages: {packages}"));
    quietly(Command::new("apt-get").arg("update"))?;
    quietly(
        Command::new("apt-get")
            .env("DEBIAN_FRONTEND", "noninteractive")
            .args(["install", "-y", "--no-install-recommends"])
            .args(missing),
    )?;
    Ok(())
}

/// Whether this is the root user.
pub fn is_root() -> bool {
    quietly(Command::new("id").arg("-u")).is_ok_and(|user| user.trim() == "0")
}

/// Whether a file is there; a bare name is looked for in `PATH`.
fn there(file: &str) -> bool {
    if let Some((folder, rest)) = file.split_once("/*/") {
        let versions = std::fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
        return versions.map(|version| version.path().join(rest)).any(|path| path.exists());
    }
    if file.contains('/') {
        return Path::new(file).exists();
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(file).is_file())
}

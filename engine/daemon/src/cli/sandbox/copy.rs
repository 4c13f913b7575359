//! Files between this machine and a sandbox: which end is which. What goes in is read here, by its user's right; what comes out
//! is a stranger's.

mod into;
mod out;
mod place;

use super::{CopyArgs, attach};
use crate::cli::exit::Exit;
use crate::output::problem::Problem;
use crate::output::text::harmless;
use espalier_agent_client::{AgentError, wire};
use espalier_core::cause::with_causes;
use espalier_sandbox::service::{Sandbox, Sandboxes};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Names of what was left out that are said; of the others their number.
const NAMED_MAX: usize = 20;

/// What was not copied: where it is, and why.
#[derive(Debug, Default)]
struct LeftOut(Vec<(Vec<u8>, String)>);

impl LeftOut {
    fn note(&mut self, path: impl Into<Vec<u8>>, why: impl Into<String>) {
        self.0.push((path.into(), why.into()));
    }

    /// Says it; whether all was copied.
    fn tell(self) -> Exit {
        let named = self.0.iter().take(NAMED_MAX);
        for (path, why) in named {
            let line = format!("{}: left out: {why}", String::from_utf8_lossy(path));
            eprintln!("{}", harmless(&line).replace('\n', "\\n"));
        }
        if self.0.len() > NAMED_MAX {
            eprintln!("and {} more left out", self.0.len() - NAMED_MAX);
        }
        if self.0.is_empty() { Exit::Done } else { Exit::Negative }
    }
}

/// `ID:PATH`, or a path of this machine.
enum End {
    Here(PathBuf),
    There(String, String),
}

impl End {
    fn of(text: &str) -> End {
        match text.split_once(':') {
            // A path with a slash before its first colon is a path.
            Some((id, path)) if !id.is_empty() && !id.contains('/') && !id.starts_with('.') => {
                End::There(id.to_owned(), path.to_owned())
            }
            _ => End::Here(text.into()),
        }
    }
}

pub(super) async fn copy(service: &Sandboxes, args: &CopyArgs) -> Result<Exit, Problem> {
    match (End::of(&args.from), End::of(&args.to)) {
        (End::Here(from), End::There(id, to)) => {
            let sandbox = attach(service, &id).await?;
            let to = absolute(&sandbox, &to);
            let name = from.canonicalize().ok().and_then(|path| path.file_name().map(OsStr::to_owned));
            let to = if is_folder(&sandbox, &to).await {
                join(&to, name.as_deref().unwrap_or(OsStr::new("")))
            } else {
                to
            };
            Ok(into::put(&sandbox, &from, to).await?.tell())
        }
        (End::There(id, from), End::Here(to)) => {
            let sandbox = attach(service, &id).await?;
            let from = absolute(&sandbox, &from);
            let name = from.rsplit(|byte| *byte == b'/').find(|part| !part.is_empty()).unwrap_or(b"root");
            let to = if to.is_dir() { to.join(OsStr::from_bytes(name)) } else { to };
            Ok(out::get(&sandbox, &from, &to).await?.tell())
        }
        (End::Here(_), End::Here(_)) => {
            Err(Problem::new(Exit::Input, "neither path is in a sandbox").hint("write one as ID:PATH"))
        }
        (End::There(..), End::There(..)) => {
            Err(Problem::new(Exit::Input, "both paths are in a sandbox").hint("copy through a local folder"))
        }
    }
}

fn absolute(sandbox: &Sandbox, path: &str) -> Vec<u8> {
    if path.starts_with('/') {
        path.as_bytes().to_vec()
    } else {
        join(sandbox.workdir.as_bytes(), OsStr::new(path))
    }
}

fn join(folder: &[u8], name: &OsStr) -> Vec<u8> {
    let slash: &[u8] = if folder.ends_with(b"/") { b"" } else { b"/" };
    [folder, slash, name.as_bytes()].concat()
}

async fn is_folder(sandbox: &Sandbox, path: &[u8]) -> bool {
    let stat = sandbox.agent.stat(path.to_vec(), true).await;
    stat.is_ok_and(|stat| stat.kind() == wire::FileKind::Folder)
}

fn there(path: &[u8], error: &AgentError) -> Problem {
    let exit = match error {
        AgentError::Refused { .. } => Exit::Input,
        _ => Exit::Unavailable,
    };
    let path = String::from_utf8_lossy(path);
    let text = with_causes(error);
    Problem::new(exit, if text.contains(&*path) { text } else { format!("{path}: {text}") })
}

fn here(path: &Path, error: &std::io::Error) -> Problem {
    Problem::new(Exit::Input, format!("{}: {error}", path.display()))
}

//! Into a sandbox.

use super::{LeftOut, here, is_folder, join, there};
use crate::output::problem::Problem;
use espalier_agent_client::files::Source;
use espalier_agent_client::{AgentError, Excerpts, command, wire};
use espalier_sandbox::service::Sandbox;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use wire::outcome::Outcome;

/// Links that one command makes.
const LINKS_AT_ONCE: usize = 64;
/// Makes links from pairs of arguments, owned by the first one if that is not empty. Says which failed on its standard error.
const LINK: &str = r#"
owner=$1; shift; failed=0
while [ $# -gt 0 ]; do
    ln -sfT -- "$1" "$2" && { [ -z "$owner" ] || chown -h -- "$owner" "$2"; } || failed=1
    shift 2
done
exit $failed
"#;

/// A file or a folder with all in it; links are followed at the top alone.
pub(super) async fn put(sandbox: &Sandbox, from: &Path, to: Vec<u8>) -> Result<LeftOut, Problem> {
    let agent = &sandbox.agent;
    let owner = sandbox.user.clone().unwrap_or_default();
    let mut left = vec![(from.to_owned(), to)];
    let (mut links, mut left_out) = (Vec::new(), LeftOut::default());
    while let Some((from_path, to)) = left.pop() {
        let at_top = from_path == *from;
        let found =
            if at_top { std::fs::metadata(&from_path) } else { std::fs::symlink_metadata(&from_path) };
        let found = found.map_err(|error| here(&from_path, &error))?;
        let mode = Some(found.permissions().mode() & 0o7777);
        if found.is_dir() {
            let request = wire::MakeFolderRequest {
                path: to.clone().into(),
                mode,
                owner: owner.clone(),
                parents: true,
                ..wire::MakeFolderRequest::default()
            };
            match agent.make_folder(&agent.allot(), request).await {
                Err(AgentError::Refused { reason: wire::Reason::Kind, .. })
                    if is_folder(sandbox, &to).await => {}
                other => other.map_err(|error| there(&to, &error))?,
            }
            let entries = std::fs::read_dir(&from_path).map_err(|error| here(&from_path, &error))?;
            for entry in entries {
                let entry = entry.map_err(|error| here(&from_path, &error))?;
                left.push((entry.path(), join(&to, &entry.file_name())));
            }
        } else if found.is_file() {
            let header = wire::WriteHeader {
                path: to.clone().into(),
                mode,
                owner: owner.clone(),
                parents: true,
                ..wire::WriteHeader::default()
            };
            let written = agent.write(&agent.allot(), header, Source::File(from_path)).await;
            written.map_err(|error| there(&to, &error))?;
        } else if found.is_symlink() {
            links.push((std::fs::read_link(&from_path).map_err(|error| here(&from_path, &error))?, to));
        } else {
            left_out.note(from_path.into_os_string().into_vec(), kind(found.file_type()));
        }
    }
    make_links(sandbox, links, &mut left_out).await?;
    Ok(left_out)
}

fn kind(found: std::fs::FileType) -> &'static str {
    match () {
        () if found.is_fifo() => "it is a fifo",
        () if found.is_socket() => "it is a socket",
        () => "it is a device",
    }
}

/// The protocol writes files; links are the shell's work, with nothing of theirs read as shell.
async fn make_links(
    sandbox: &Sandbox,
    links: Vec<(PathBuf, Vec<u8>)>,
    left_out: &mut LeftOut,
) -> Result<(), Problem> {
    let mut links = links.into_iter().peekable();
    if links.peek().is_none() {
        return Ok(());
    }
    let owner = match &sandbox.user {
        Some(user) => numbers(sandbox, user).await?,
        None => Vec::new(),
    };
    while links.peek().is_some() {
        let mut words: Vec<Vec<u8>> =
            [&b"sh"[..], b"-c", LINK.as_bytes(), b"links", &owner].map(<[u8]>::to_vec).into();
        let mut paths = Vec::new();
        for (target, to) in links.by_ref().take(LINKS_AT_ONCE) {
            words.extend([target.into_os_string().into_vec(), to.clone()]);
            paths.push(to);
        }
        let (outcome, said) = run(sandbox, command::arguments(&words), &paths[0]).await?;
        match outcome {
            Some(Outcome::ExitCode(0)) => {}
            Some(Outcome::ExitCode(1)) if !said.is_empty() => {
                for line in said.lines() {
                    left_out.note(Vec::from("a link"), line);
                }
            }
            other => {
                let why = format!("links: {}: {said}", espalier_sandbox::service::describe(other.as_ref()));
                for path in paths {
                    left_out.note(path, why.clone());
                }
            }
        }
    }
    Ok(())
}

/// A user and its group as numbers: as the agent knows them, not as `chown` of the image does.
async fn numbers(sandbox: &Sandbox, user: &str) -> Result<Vec<u8>, Problem> {
    let spec = wire::CommandSpec {
        user: user.to_owned(),
        folder: b"/"[..].into(),
        ..command::script("echo $(id -u):$(id -g)")
    };
    let answer = sandbox.agent.run(&sandbox.agent.allot(), spec, Excerpts::default()).await;
    let answer = answer.map_err(|error| there(user.as_bytes(), &error))?;
    Ok(answer.stdout.unwrap_or_default().head.trim_ascii().to_vec())
}

async fn run(
    sandbox: &Sandbox,
    spec: wire::CommandSpec,
    place: &[u8],
) -> Result<(Option<Outcome>, String), Problem> {
    let spec = wire::CommandSpec { merge_stderr: true, folder: b"/"[..].into(), ..spec };
    let answer = sandbox.agent.run(&sandbox.agent.allot(), spec, Excerpts::default()).await;
    let answer = answer.map_err(|error| there(place, &error))?;
    let said = answer.stdout.unwrap_or_default();
    let said = String::from_utf8_lossy(&[said.head, said.tail].concat()).trim().to_owned();
    Ok((answer.ended.and_then(|ended| ended.outcome?.outcome), said))
}

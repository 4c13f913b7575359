//! Patches: unified and git diffs, applied all or not at all.
//!
//! [`parse`] reads the text, [`apply`] finds a hunk's place in a file; both are pure. [`plan`] works out what every file becomes,
//! [`commit`] puts it on disk and takes it back where that fails.

pub mod apply;
mod commit;
pub mod parse;
mod plan;

use crate::{Reason, refusal};
use espalier_agent_protocol::v1::{ApplyPatchAnswer, ApplyPatchRequest};
use parse::Options;
use std::ffi::CStr;
use tonic::Status;

/// Lines of context that may differ at each end of a hunk, unless the request says otherwise.
const FUZZ: u32 = 2;

/// Applies a patch below a folder.
pub fn run(root: &CStr, request: &ApplyPatchRequest) -> Result<ApplyPatchAnswer, Status> {
    let refused = |message: String| refusal(Reason::Patch, message);
    let options = Options { strip: request.strip, reverse: request.reverse };
    let patches = parse::parse(&request.patch, options).map_err(refused)?;
    if patches.is_empty() {
        return Err(refusal(Reason::Patch, "the patch contains no file"));
    }
    let root = commit::Root::open(root)?;
    let fuzz = usize::try_from(request.fuzz.unwrap_or(FUZZ)).unwrap_or(usize::MAX);
    let plan = plan::Plan::make(&root, &patches, fuzz)?;
    if !request.dry_run {
        commit::commit(&root, &plan)?;
    }
    Ok(ApplyPatchAnswer { files: plan.report })
}

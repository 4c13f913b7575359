//! placeholder
use crate::{Reason, refusal};
use espalier_agent_protocol::v1::*;
use std::ffi::CStr;
use tonic::Status;
/// x
pub fn run(_root: &CStr, _request: &ApplyPatchRequest) -> Result<ApplyPatchAnswer, Status> { Err(refusal(Reason::Unsupported, "")) }

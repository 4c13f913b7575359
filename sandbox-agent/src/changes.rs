//! placeholder
use crate::{Reason, refusal};
use crate::agent::Agent;
use espalier_agent_protocol::v1::*;
use futures::stream::BoxStream;
use std::sync::Arc;
use tonic::Status;
/// x
#[derive(Debug)]
pub struct Baseline;
impl Baseline { /// x
 pub fn take(_a: &Agent, _r: &BaselineRequest) -> Result<Baseline, Status> { Err(refusal(Reason::Unsupported, "")) }
 /// x
 pub fn entries(&self) -> u64 { 0 } }
/// x
pub async fn changes(_a: &Arc<Agent>, _r: ChangesRequest) -> Result<BoxStream<'static, Result<ChangeEvent, Status>>, Status> { Err(refusal(Reason::Unsupported, "")) }
/// x
pub mod apply {
 use super::*;
 /// x
 #[derive(Debug)]
 pub struct Staged;
 impl Staged { /// x
 pub fn apply(self) -> Result<ApplyChangesAnswer, Status> { Err(refusal(Reason::Unsupported, "")) } }
 /// x
 pub async fn receive(_a: &Arc<Agent>, _h: &ApplyChangesHeader, _p: &mut tonic::Streaming<ApplyChangesRequest>) -> Result<Staged, Option<Status>> { Err(None) }
}

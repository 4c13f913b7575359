//! A stateful shell of a sandbox.

use super::machine::{Machine, excerpts, keep, millis};
use async_trait::async_trait;
use espalier_agent_client::wire::CommandSpec;
use espalier_agent_client::{Id, command};
use espalier_core::failure::Failure;
use espalier_core::host::sandbox::{Outcome, RunOptions, Shell};
use std::sync::Arc;

/// See the module.
pub(super) struct OpenShell {
    pub(super) machine: Arc<Machine>,
    pub(super) id: Id,
}

#[async_trait]
impl Shell for OpenShell {
    fn begin(&self, call: u64) {
        self.machine.begin(call);
    }

    async fn run(&self, text: String, options: RunOptions) -> Result<Outcome, Failure> {
        let machine = &self.machine;
        let spec = CommandSpec {
            timeout_ms: millis(options.timeout),
            stdin: options.stdin.into(),
            merge_stderr: options.merge_stderr,
            output_keep_bytes: keep(options.show),
            ..command::in_shell(&self.id, text)
        };
        let change = machine.change();
        let answer = machine.agent.run(&change, spec, excerpts(options.show)).await;
        let outcome = machine.outcome(&change, answer, options.show).await?;
        machine.forget((*change).clone(), outcome.stdout.total + outcome.stderr.total).await;
        Ok(outcome)
    }

    async fn close(&self) -> Result<(), Failure> {
        let change = self.machine.change();
        match self.machine.said(self.machine.agent.close_shell(&change, &self.id).await) {
            Err(Failure::Other { code, .. }) if code == "not-found" => Ok(()),
            closed => closed,
        }
    }
}

//! The imports of what runs in a sandbox: processes and shells.

use super::super::Answer;
use super::{SLICE_BYTES_MAX, short, slice, within};
use crate::bindings::harness::espalier::sandbox::sandboxes as wit;
use crate::convert::failure_out;
use crate::convert::sandbox::{bounded, channel_in, piece_out, run_in, size_in};
use crate::guest::{Guest, OpenProcess, OpenShell};
use espalier_core::failure::Failure;
use espalier_core::host::sandbox::Piece;
use wasmtime::component::Resource;

impl wit::HostProcess for Guest {
    fn pid(&mut self, this: Resource<OpenProcess>) -> wasmtime::Result<u32> {
        let pid = self.table.get(&this)?.0.pid();
        self.gate.pass_always("process.pid", |_| pid, |_| 4)
    }

    async fn poll(&mut self, this: Resource<OpenProcess>) -> Answer<Option<wit::Outcome>> {
        let process = self.process(&this)?;
        self.outcome_if_ended("process.poll", async move { process.poll().await }).await
    }

    async fn read(
        &mut self,
        this: Resource<OpenProcess>,
        channel: wit::Channel,
        offset: u64,
        length: u32,
        wait_ms: u64,
    ) -> Answer<wit::Piece> {
        let process = self.process(&this)?;
        let wait = self.wait_within(wait_ms);
        let channel = channel_in(channel);
        let work = |()| async move { process.read(channel, offset, length, wait).await };
        let bytes_out = |piece: &Piece| piece.bytes.len() as u64;
        let read = self.in_sandbox_noted("process.read", slice(length), 0, work, bytes_out, |_| None).await?;
        Ok(read.map(piece_out).map_err(failure_out))
    }

    async fn write_stdin(&mut self, this: Resource<OpenProcess>, bytes: Vec<u8>) -> Answer<u64> {
        let process = self.process(&this)?;
        let bytes_in = bytes.len() as u64;
        let asked = bounded("the input", bytes.len(), SLICE_BYTES_MAX as usize);
        let work = |()| async move { process.write_stdin(bytes).await };
        let taken =
            self.in_sandbox_noted("process.write-stdin", asked, bytes_in, work, |_| 8, |_| None).await?;
        Ok(taken.map_err(failure_out))
    }

    async fn close_stdin(&mut self, this: Resource<OpenProcess>) -> Answer<()> {
        let process = self.process(&this)?;
        let work = async move { process.close_stdin().await };
        Ok(self.gate.pass("process.close-stdin", 0, work, |()| 0).await?.map_err(failure_out))
    }

    async fn resize(&mut self, this: Resource<OpenProcess>, size: wit::TerminalSize) -> Answer<()> {
        let process = self.process(&this)?;
        let note = format!("{} x {}", size.rows, size.columns);
        let work = |size| async move { process.resize(size).await };
        let done = self.in_sandbox("process.resize", size_in(size), 4, note, work).await?;
        Ok(done.map_err(failure_out))
    }

    async fn signal(&mut self, this: Resource<OpenProcess>, number: u8, tree: bool) -> Answer<u32> {
        let process = self.process(&this)?;
        let asked = match number {
            1..=64 => Ok(number),
            _ => Err(Failure::Invalid(format!("signal {number} is not within 1 and 64"))),
        };
        let work = |number| async move { process.signal(number, tree).await };
        let reached = self.in_sandbox("process.signal", asked, 1, number.to_string(), work).await?;
        Ok(reached.map_err(failure_out))
    }

    async fn wait(&mut self, this: Resource<OpenProcess>, timeout_ms: u64) -> Answer<Option<wit::Outcome>> {
        let process = self.process(&this)?;
        let within = self.wait_within(timeout_ms);
        let work = async move {
            match process.ended(within).await? {
                true => process.poll().await,
                false => Ok(None),
            }
        };
        self.outcome_if_ended("process.wait", work).await
    }

    fn drop(&mut self, this: Resource<OpenProcess>) -> wasmtime::Result<()> {
        self.table.delete(this)?;
        Ok(())
    }
}

impl wit::HostShell for Guest {
    async fn run(
        &mut self,
        this: Resource<OpenShell>,
        text: String,
        options: wit::RunOptions,
    ) -> Answer<wit::Outcome> {
        let shell = self.shell(&this)?;
        let longest = self.longest_command();
        let (bytes_in, note) = (text.len() as u64, short(&text));
        let options = run_in(&text, options).map(|mut options| {
            options.timeout = within(options.timeout, Some(longest));
            options
        });
        let work = |options| async move { shell.run(text, options).await };
        self.outcome_of("shell.run", options, bytes_in, note, work).await
    }

    async fn close(&mut self, this: Resource<OpenShell>) -> Answer<()> {
        let shell = self.shell(&this)?;
        let work = async move { shell.close().await };
        Ok(self.gate.pass("shell.close", 0, work, |()| 0).await?.map_err(failure_out))
    }

    fn drop(&mut self, this: Resource<OpenShell>) -> wasmtime::Result<()> {
        self.table.delete(this)?;
        Ok(())
    }
}

//! The imports of what runs in a sandbox: processes and shells.

use super::super::{Answer, handle};
use super::{SLICE_BYTES_MAX, short, slice, within};
use crate::bindings::harness::espalier::sandbox::sandboxes as wit;
use crate::convert::failure_out;
use crate::convert::sandbox::{bounded, channel_in, piece_out, run_in, size_in};
use crate::guest::{Guest, OpenProcess, OpenShell};
use espalier_core::failure::Failure;
use espalier_core::journal::{Bytes, Call, Reply};
use std::borrow::Cow;
use wasmtime::component::Resource;

impl wit::HostProcess for Guest {
    fn pid(&mut self, this: Resource<OpenProcess>) -> wasmtime::Result<u32> {
        let pid = self.table.get(&this)?.0.pid();
        let asked = self.gate.asked(Call::Pid { process: handle(&this) });
        self.gate.pass_always(asked, |_| pid, |pid| Reply::Number((*pid).into()))
    }

    async fn poll(&mut self, this: Resource<OpenProcess>) -> Answer<Option<wit::Outcome>> {
        let process = self.process(&this)?;
        let call = Call::Poll { process: handle(&this) };
        self.outcome_if_ended(call, async move { process.poll().await }).await
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
        let read = self
            .in_sandbox_noted(
                "process.read",
                slice(length),
                |()| Call::ReadOutput { process: handle(&this), channel, offset, length, wait_ms },
                |()| async move { process.read(channel, offset, length, wait).await },
                |piece| Reply::Piece(Cow::Borrowed(piece)),
                |_| None,
            )
            .await?;
        Ok(read.map(piece_out).map_err(failure_out))
    }

    async fn write_stdin(&mut self, this: Resource<OpenProcess>, bytes: Vec<u8>) -> Answer<u64> {
        let process = self.process(&this)?;
        let asked = bounded("the input", bytes.len(), SLICE_BYTES_MAX as usize).map(|()| bytes);
        let taken = self
            .in_sandbox_noted(
                "process.write-stdin",
                asked,
                |bytes| Call::WriteStdin { process: handle(&this), bytes: Bytes::from(bytes) },
                |bytes| async move { process.write_stdin(bytes).await },
                |taken| Reply::Number(*taken),
                |_| None,
            )
            .await?;
        Ok(taken.map_err(failure_out))
    }

    async fn close_stdin(&mut self, this: Resource<OpenProcess>) -> Answer<()> {
        let process = self.process(&this)?;
        let asked = self.gate.asked(Call::CloseStdin { process: handle(&this) });
        let work = async move { process.close_stdin().await };
        Ok(self.gate.pass(asked, work, |()| Reply::Done).await?.map_err(failure_out))
    }

    async fn resize(&mut self, this: Resource<OpenProcess>, size: wit::TerminalSize) -> Answer<()> {
        let process = self.process(&this)?;
        let note = format!("{} x {}", size.rows, size.columns);
        let done = self
            .in_sandbox(
                "process.resize",
                size_in(size),
                |size| Call::Resize { process: handle(&this), size: *size },
                note,
                |size| async move { process.resize(size).await },
                |()| Reply::Done,
            )
            .await?;
        Ok(done.map_err(failure_out))
    }

    async fn signal(&mut self, this: Resource<OpenProcess>, number: u8, tree: bool) -> Answer<u32> {
        let process = self.process(&this)?;
        let asked = match number {
            1..=64 => Ok(number),
            _ => Err(Failure::Invalid(format!("signal {number} is not between 1 and 64"))),
        };
        let reached = self
            .in_sandbox(
                "process.signal",
                asked,
                |number| Call::Signal { process: handle(&this), number: *number, tree },
                number.to_string(),
                |number| async move { process.signal(number, tree).await },
                |reached| Reply::Number((*reached).into()),
            )
            .await?;
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
        self.outcome_if_ended(Call::Wait { process: handle(&this), timeout_ms }, work).await
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
        let note = short(&text);
        let asked = run_in(&text, options).map(|options| (text, options));
        self.outcome_of(
            "shell.run",
            asked,
            |(text, options)| Call::ShellRun {
                shell: handle(&this),
                text: Cow::Borrowed(text),
                options: Cow::Borrowed(options),
            },
            note,
            |(text, mut options)| async move {
                options.timeout = within(options.timeout, Some(longest));
                shell.run(text, options).await
            },
        )
        .await
    }

    async fn close(&mut self, this: Resource<OpenShell>) -> Answer<()> {
        let shell = self.shell(&this)?;
        let asked = self.gate.asked(Call::ShellClose { shell: handle(&this) });
        let work = async move { shell.close().await };
        Ok(self.gate.pass(asked, work, |()| Reply::Done).await?.map_err(failure_out))
    }

    fn drop(&mut self, this: Resource<OpenShell>) -> wasmtime::Result<()> {
        self.table.delete(this)?;
        Ok(())
    }
}

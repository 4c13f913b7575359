//! Sandboxes whose commands are stopped: for as long as that is wanted, or for a checkpoint. Checkpoints: made, and forgotten.

use super::listed::page;
use super::machine::hold;
use super::{Phase, SandboxTable, unknown};
use crate::keeper::cgroups::Groups;
use crate::keeper::home::{self, checkpoint_name};
use crate::wire::{Checkpoint, Page, Refusal, RefusalKind, SandboxRecord};
use std::io;
use std::time::{Duration, Instant};

/// How long commands may take to stop.
const FREEZE_MAX: Duration = Duration::from_secs(2);

impl SandboxTable {
    /// Keeps the file system of a sandbox as it is now.
    pub(in super::super) fn checkpoint(&mut self, id: &str, checkpoint: &str) -> Result<Checkpoint, Refusal> {
        let Some(sandbox) = self.sandboxes.get(id).filter(|sandbox| matches!(sandbox.state, Phase::Running))
        else {
            return Err(unknown(id));
        };
        if !home::is_id(checkpoint) {
            let text =
                format!("invalid checkpoint id {checkpoint:?}: expected 1 to 40 letters, digits and dashes");
            return Err(Refusal::new(RefusalKind::Invalid, text));
        }
        if self.checkpoints.contains_key(checkpoint) {
            let text = format!("checkpoint id {checkpoint:?} is in use");
            return Err(Refusal::new(RefusalKind::Invalid, text));
        }
        if self.gone.contains(&checkpoint_name(checkpoint)) {
            return Err(Refusal::new(
                RefusalKind::Failed,
                format!("checkpoint {checkpoint} was deleted before it was created"),
            ));
        }
        let Some(pool) = &self.pool else {
            return Err(Refusal::new(RefusalKind::Unable, format!("keep checkpoints: {}", self.pool_fault)));
        };
        let groups = self.hierarchies.groups(id);
        let began = Instant::now();
        stop(&groups, id)?;
        let name = checkpoint_name(checkpoint);
        let copied = pool.copy(id, &name, u64::MAX).map(drop);
        // One that was suspended before stays so.
        let thawed = groups.freeze(sandbox.record.suspended);
        let frozen_ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
        copied.map_err(|error| self.refuse_errno("its copy", error))?;
        if let Err(error) = thawed {
            self.forget_checkpoint(checkpoint);
            return Err(self.refuse("resuming it", &error));
        }
        let order = &sandbox.record.order;
        let bytes = pool.disk_id(id).ok().and_then(|disk| pool.written(disk));
        let made = Checkpoint {
            id: checkpoint.to_owned(),
            sandbox: id.to_owned(),
            overlays: order.root.overlays.clone(),
            holds: order.root.holds.clone(),
            environment: None,
            labels: order.labels.clone(),
            created_s: home::now_s(),
            frozen_ms,
            bytes,
            folder: pool.folder.join(&name),
        };
        if let Err(error) = self.home.write_checkpoint(&made) {
            self.forget_checkpoint(checkpoint);
            return Err(self.refuse("its record", &error));
        }
        self.checkpoint_holds.insert(checkpoint.to_owned(), hold(&made.holds));
        self.checkpoints.insert(checkpoint.to_owned(), made.clone());
        Ok(made)
    }

    /// Stops the commands of a sandbox until they are let go on, also over the end of this keeper.
    pub(in super::super) fn suspend(&mut self, id: &str, suspended: bool) -> Result<(), Refusal> {
        let Some(sandbox) = self.sandboxes.get(id).filter(|sandbox| matches!(sandbox.state, Phase::Running))
        else {
            return Err(unknown(id));
        };
        let groups = self.hierarchies.groups(id);
        if suspended {
            stop(&groups, id)?;
        } else {
            groups.freeze(false).map_err(|error| self.refuse("resuming it", &error))?;
        }
        let record = SandboxRecord { suspended, ..sandbox.record.clone() };
        if let Err(error) = self.home.write_record(&record) {
            // As it is written down.
            let _ = groups.freeze(sandbox.record.suspended);
            return Err(self.refuse("its record", &error));
        }
        if let Some(sandbox) = self.sandboxes.get_mut(id) {
            sandbox.record = record;
        }
        Ok(())
    }

    /// Forgets a checkpoint; sandboxes made from it keep what they have.
    pub(in super::super) fn delete_checkpoint(&mut self, id: &str) -> Result<(), Refusal> {
        if self.checkpoints.remove(id).is_none() {
            self.gone.add(&checkpoint_name(id));
            return Err(Refusal::new(RefusalKind::Unknown, format!("no checkpoint {id:?}")));
        }
        self.checkpoint_holds.remove(id);
        self.forget_checkpoint(id);
        Ok(())
    }

    fn forget_checkpoint(&mut self, id: &str) {
        self.home.forget_checkpoint(id);
        self.leftovers.push(checkpoint_name(id));
        self.tidy();
    }

    /// A page of checkpoints, without their environments.
    pub(in super::super) fn checkpoints(&self, after: &str, brief: bool) -> Page<Checkpoint> {
        page(after, &self.checkpoints, |made| Some(if brief { made.brief() } else { made.clone() }))
    }

    /// One, with its environment.
    pub(in super::super) fn find_checkpoint(&self, id: &str) -> Result<Option<Checkpoint>, Refusal> {
        let Some(made) = self.checkpoints.get(id) else { return Ok(None) };
        let environment = self.home.checkpoint_environment(id);
        let environment = environment
            .map_err(|error| Refusal::failed(format!("the environment of checkpoint {id}"), error))?;
        Ok(Some(Checkpoint { environment: Some(environment), ..made.clone() }))
    }
}

/// Stops all commands. Where they do not stop in time, they go on.
fn stop(groups: &Groups, id: &str) -> Result<(), Refusal> {
    let failed = |error: io::Error| Refusal::new(RefusalKind::Unable, format!("stop a sandbox: {error}"));
    groups.freeze(true).map_err(failed)?;
    let began = Instant::now();
    while !groups.is_frozen() {
        if began.elapsed() >= FREEZE_MAX {
            let _ = groups.freeze(false);
            let waited = FREEZE_MAX.as_secs();
            let text = format!(
                "sandbox {id} could not be stopped in {waited} s: a process of it waits in the kernel"
            );
            return Err(Refusal::new(RefusalKind::Busy, text));
        }
        pause();
    }
    Ok(())
}

#[expect(
    clippy::disallowed_methods,
    reason = "the keeper has no runtime, and a sandbox is stopped in one go"
)]
fn pause() {
    std::thread::sleep(Duration::from_millis(1));
}

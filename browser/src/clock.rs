//! Virtual time: a page's clock stands still, and goes on by as much as is asked for.

use crate::deadline::Deadline;
use crate::error::{BrowserError, Result};
use crate::page::Page;
use crate::protocol::Raw;
use serde_json::{Value, json};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

impl Page {
    /// Stops the page's clock, at `now` where that is given: timers, animations, `Date` and `performance.now()` stand
    /// still until [`advance_time`](Self::advance_time). Requests go on. It cannot be undone. Pause a page that is loaded:
    /// while time stands still documents are not parsed and pages are not drawn anew, so that navigations and pictures may
    /// run into their deadlines.
    pub async fn pause_time(&self, now: Option<SystemTime>) -> Result<()> {
        let mut params = json!({ "policy": "pause" });
        if let Some(now) = now {
            let since = now.duration_since(UNIX_EPOCH);
            let since = since.map_err(|_| BrowserError::invalid("time: expected one after 1970-01-01"))?;
            params["initialVirtualTime"] = json!(since.as_secs_f64());
        }
        self.set_time_policy(params, self.deadline()).await
    }

    /// Lets the page's clock, which [`pause_time`](Self::pause_time) has stopped, go on by this much, as quickly as the
    /// page can, and waits until it has. Time stands while requests are under way.
    pub async fn advance_time(&self, by: Duration) -> Result<()> {
        let deadline = self.deadline();
        let before = self.inner.state.lock().virtual_time_expired;
        let ms = by.as_secs_f64() * 1000.0;
        let params = json!({ "policy": "pauseIfNetworkFetchesPending", "budget": ms });
        self.set_time_policy(params, deadline).await?;
        let waiting_for = || format!("{ms} ms of virtual time to pass; requests or scripts hold it up");
        self.inner
            .wait(deadline, waiting_for, |state| (state.virtual_time_expired > before).then_some(Ok(())))
            .await
    }

    async fn set_time_policy(&self, params: Value, deadline: Deadline) -> Result<()> {
        let command = Raw::new("Emulation.setVirtualTimePolicy", params);
        self.inner.session.call_as::<Value>(command, deadline).await?;
        Ok(())
    }
}

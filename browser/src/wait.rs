//! Waits for functions, events, requests and responses.

use crate::deadline::Deadline;
use crate::error::{BrowserError, Result};
use crate::event::PageEvent;
use crate::frame::Frame;
use crate::network::{Request, Response};
use crate::page::Page;
use crate::page::state::World;
use crate::script::Return;
use crate::url_match::UrlMatch;
use crate::value::{JsArg, into_rust};
use serde::de::DeserializeOwned;
use std::time::Duration;

/// Calls the function in every animation frame, and twice a second where the page is not drawn, until its result is
/// true-like.
const POLL: &str = "(function_, limit, ...args) => new Promise((resolve, reject) => {
  const end = performance.now() + limit;
  const stop = [];
  const next = () => {
    stop.splice(0).forEach(cancel => cancel());
    const frame = requestAnimationFrame(look), timer = setTimeout(look, 500);
    stop.push(() => cancelAnimationFrame(frame), () => clearTimeout(timer));
  };
  const look = async () => {
    stop.splice(0).forEach(cancel => cancel());
    try {
      const value = await function_(...args);
      if (value) resolve({ value });
      else if (performance.now() > end) resolve(null);
      else next();
    } catch (error) {
      reject(error);
    }
  };
  look();
})";

impl Frame {
    /// Waits until a function, called again and again in the page's own world, returns something true-like, and returns
    /// that. A navigation begins the wait anew in the next document.
    pub async fn wait_for_function<T: DeserializeOwned>(
        &self,
        function: &str,
        args: &[JsArg],
        timeout: Option<Duration>,
    ) -> Result<T> {
        let deadline = self.deadline(timeout);
        let waiting_for = || format!("`{function}` to return something true");
        deadline
            .bound(waiting_for, async {
                loop {
                    match self.poll(function, args, deadline).await {
                        // Each attempt waits for an answer of the browser, so that this never spins.
                        Err(BrowserError::Navigated) => {}
                        Ok(None) => return Err(deadline.timeout(waiting_for())),
                        Ok(Some(value)) => return Ok(value),
                        Err(error) => return Err(error.waiting_for(waiting_for)),
                    }
                }
            })
            .await
    }

    async fn poll<T: DeserializeOwned>(
        &self,
        function: &str,
        args: &[JsArg],
        deadline: Deadline,
    ) -> Result<Option<T>> {
        let place = self.place(World::Main, deadline).await?;
        let limit = deadline.in_page_ms();
        let declaration = format!("(limit, ...args) => ({POLL})({function}, limit, ...args)");
        let mut all: Vec<JsArg> = vec![limit.into()];
        all.extend_from_slice(args);
        #[derive(serde::Deserialize)]
        struct Found<T> {
            value: T,
        }
        let object = place.call(&declaration, &all, Return::Json, deadline).await?;
        let found: Option<Found<T>> = into_rust(&object)?;
        Ok(found.map(|found| found.value))
    }
}

impl Page {
    /// See [`Frame::wait_for_function`].
    pub async fn wait_for_function<T: DeserializeOwned>(&self, function: &str, args: &[JsArg]) -> Result<T> {
        self.main_frame().wait_for_function(function, args, None).await
    }

    /// Does `action` and waits for an event that comes with or after it.
    pub async fn wait_for_event<T>(
        &self,
        mut wanted: impl FnMut(&PageEvent) -> Option<T>,
        action: impl Future<Output = Result<()>>,
        timeout: Option<Duration>,
    ) -> Result<T> {
        let deadline = self.deadline_of(timeout);
        let mut events = self.events();
        deadline.bound(|| "the action before an event".to_owned(), action).await?;
        let found = async {
            loop {
                let Some(event) = events.next().await else {
                    return Err(self.failure().unwrap_or_else(|| BrowserError::closed("page")));
                };
                if let Some(found) = wanted(&event) {
                    return Ok(found);
                }
                if let PageEvent::Crashed | PageEvent::Closed = event {
                    return Err(self.failure().unwrap_or_else(|| BrowserError::closed("page")));
                }
            }
        };
        deadline.bound(|| "an event of the page".to_owned(), found).await
    }

    /// Does `action` and waits for a request to a matching address.
    pub async fn wait_for_request(
        &self,
        urls: impl Into<UrlMatch>,
        action: impl Future<Output = Result<()>>,
        timeout: Option<Duration>,
    ) -> Result<Request> {
        let urls = urls.into();
        let wanted = |event: &PageEvent| match event {
            PageEvent::Request(request) if urls.matches(request.url()) => Some(request.clone()),
            _ => None,
        };
        let found = self.wait_for_event(wanted, action, timeout).await;
        found.map_err(|error| error.waiting_for(|| format!("a request to {urls:?}")))
    }

    /// Does `action` and waits for a response from a matching address.
    pub async fn wait_for_response(
        &self,
        urls: impl Into<UrlMatch>,
        action: impl Future<Output = Result<()>>,
        timeout: Option<Duration>,
    ) -> Result<Response> {
        let urls = urls.into();
        let wanted = |event: &PageEvent| match event {
            PageEvent::Response(response) if urls.matches(response.url()) => Some(response.clone()),
            _ => None,
        };
        let found = self.wait_for_event(wanted, action, timeout).await;
        found.map_err(|error| error.waiting_for(|| format!("a response from {urls:?}")))
    }
}

//! What can be changed on a page: its size, media, routes, scripts and functions.

use super::Page;
use super::inner::init_script;
use crate::auth::Credentials;
use crate::connection::tell_all;
use crate::context::{BINDING, BrowserContext, Function};
use crate::emulation::{MediaOptions, Viewport, check_viewport};
use crate::error::{BrowserError, Result};
use crate::protocol::{Done, Raw};
use crate::route::{self, RouteHandler, RouteId};
use crate::url_match::UrlMatch;
use chromiumoxide::cdp::js_protocol::runtime::AddBindingParams;
use futures::future::BoxFuture;
use serde_json::Value;
use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

impl Page {
    /// Its size from now on.
    pub async fn set_viewport_size(&self, viewport: Viewport) -> Result<()> {
        check_viewport(viewport)?;
        let command = self.context().inner.emulated.lock().metrics(viewport);
        self.inner.session.call_as::<Done>(command, self.deadline()).await?;
        self.inner.state.lock().viewport = viewport;
        Ok(())
    }

    /// Its size.
    pub fn viewport_size(&self) -> Viewport {
        self.inner.state.lock().viewport
    }

    /// How its media queries are answered from now on.
    pub async fn emulate_media(&self, media: MediaOptions) -> Result<()> {
        self.inner.state.lock().media = media;
        self.tell(media.command()).await
    }

    /// Gives requests to matching addresses to a handler. Of several routes the one added last is asked first, those of
    /// the page before those of the context.
    ///
    /// ```ignore
    /// page.route("**/*.png", Arc::new(|route| Box::pin(async move {
    ///     let _ = route.abort(AbortReason::Blocked);
    /// }))).await?;
    /// ```
    pub async fn route(&self, urls: impl Into<UrlMatch>, handler: RouteHandler) -> Result<RouteId> {
        let id = self.inner.routes.add(urls.into(), handler);
        self.apply_routes().await?;
        Ok(id)
    }

    /// Takes a route away. False: there is none.
    pub async fn unroute(&self, id: RouteId) -> Result<bool> {
        let removed = self.inner.routes.remove(id);
        self.apply_routes().await?;
        Ok(removed)
    }

    /// Runs a script in every new document of every frame before those of the page.
    pub async fn add_init_script(&self, source: &str) -> Result<()> {
        self.inner.exposed.lock().add_script(source.to_owned());
        self.tell(init_script(source.to_owned())).await
    }

    /// Lets pages call `function` by this name, in all frames, from now on. It gets the arguments as JSON, and answers
    /// with a value, or with the message of an error that is thrown. A call that takes longer than the default timeout
    /// fails.
    pub async fn expose_function<F>(
        &self,
        name: &str,
        function: impl Fn(Vec<Value>) -> F + Send + Sync + 'static,
    ) -> Result<()>
    where
        F: Future<Output = std::result::Result<Value, String>> + Send + 'static,
    {
        let script = self.inner.exposed.lock().add_function(name, boxed(function))?;
        self.tell(AddBindingParams::new(BINDING)).await?;
        self.tell(init_script(script.clone())).await?;
        self.run_everywhere(&script).await;
        Ok(())
    }

    /// Sends a command of the DevTools protocol, such as `Page.getLayoutMetrics`, to the page's own session and returns
    /// its answer: for what this library does not do itself.
    pub async fn devtools(&self, method: &str, params: Value, timeout: Duration) -> Result<Value> {
        let command = Raw { method: Cow::Owned(method.to_owned()), params };
        self.inner.session.call_as(command, crate::deadline::Deadline::after(timeout)).await
    }

    /// Sends a command to all its sessions.
    pub(crate) async fn tell(&self, command: impl chromiumoxide::Command + Clone) -> Result<()> {
        // Workers know fewer commands, and frames go away.
        let pass = |error: &BrowserError| {
            matches!(error, BrowserError::Detached | BrowserError::Protocol { code: -32601, .. })
        };
        tell_all(self.inner.sessions(), command, self.deadline(), pass).await
    }

    async fn apply_routes(&self) -> Result<()> {
        let context = &self.context().inner;
        let routes = [&context.routes, &self.inner.routes];
        route::apply(&self.inner.sessions(), &routes, context.auth.is_set(), self.deadline()).await
    }

    async fn run_everywhere(&self, script: &str) {
        for frame in self.frames() {
            // A frame that is just being replaced gets it with its new document.
            let _ = frame.evaluate::<()>(script).await;
        }
    }
}

impl BrowserContext {
    /// Like [`Page::route`], for all its pages.
    pub async fn route(&self, urls: impl Into<UrlMatch>, handler: RouteHandler) -> Result<RouteId> {
        self.inner.check_open()?;
        let id = self.inner.routes.add(urls.into(), handler);
        self.apply_routes().await?;
        Ok(id)
    }

    /// Takes a route away. False: there is none.
    pub async fn unroute(&self, id: RouteId) -> Result<bool> {
        let removed = self.inner.routes.remove(id);
        self.apply_routes().await?;
        Ok(removed)
    }

    /// Given from now on to servers and proxies that ask for a name and a password; `None`: they are refused.
    pub async fn set_http_credentials(&self, credentials: Option<Credentials>) -> Result<()> {
        self.inner.auth.set(credentials);
        self.apply_routes().await
    }

    /// Like [`Page::add_init_script`], for all its pages.
    pub async fn add_init_script(&self, source: &str) -> Result<()> {
        self.inner.check_open()?;
        self.inner.exposed.lock().add_script(source.to_owned());
        for page in self.pages() {
            page.tell(init_script(source.to_owned())).await?;
        }
        Ok(())
    }

    /// Like [`Page::expose_function`], for all its pages.
    pub async fn expose_function<F>(
        &self,
        name: &str,
        function: impl Fn(Vec<Value>) -> F + Send + Sync + 'static,
    ) -> Result<()>
    where
        F: Future<Output = std::result::Result<Value, String>> + Send + 'static,
    {
        self.inner.check_open()?;
        let script = self.inner.exposed.lock().add_function(name, boxed(function))?;
        for page in self.pages() {
            page.tell(AddBindingParams::new(BINDING)).await?;
            page.tell(init_script(script.clone())).await?;
            page.run_everywhere(&script).await;
        }
        Ok(())
    }

    async fn apply_routes(&self) -> Result<()> {
        let auth = self.inner.auth.is_set();
        route::apply(&self.inner.workers.sessions(), &[&self.inner.routes], auth, self.deadline()).await?;
        for page in self.inner.all_pages() {
            let routes = [&self.inner.routes, &page.routes];
            match route::apply(&page.sessions(), &routes, auth, self.deadline()).await {
                Err(error) if !error.is_gone() => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }
}

fn boxed<F>(function: impl Fn(Vec<Value>) -> F + Send + Sync + 'static) -> Function
where
    F: Future<Output = std::result::Result<Value, String>> + Send + 'static,
{
    Arc::new(move |args| -> BoxFuture<'static, std::result::Result<Value, String>> {
        Box::pin(function(args))
    })
}

//! Objects of a page that Rust holds on to.

use crate::deadline::Deadline;
use crate::error::{BrowserError, Result};
use crate::frame::Frame;
use crate::protocol::RemoteObject;
use crate::script::{Place, Return};
use crate::value::{JsArg, JsValue, into_rust};
use chromiumoxide::cdp::js_protocol::runtime::ReleaseObjectParams;
use serde::de::DeserializeOwned;
use std::fmt;
use std::sync::Arc;

/// An object of a page. It lives until the last clone of its handle is dropped, or its document is gone.
#[derive(Clone)]
pub struct JsHandle {
    inner: Arc<HandleInner>,
}

struct HandleInner {
    frame: Frame,
    place: Place,
    object_id: Arc<str>,
    kind: String,
    description: String,
    is_element: bool,
}

impl JsHandle {
    /// `None`: the value is none that has an identity, such as a number.
    pub(crate) fn new(frame: Frame, place: Place, object: RemoteObject) -> Option<JsHandle> {
        let is_element = object.subtype.as_deref() == Some("node");
        Some(JsHandle {
            inner: Arc::new(HandleInner {
                frame,
                place,
                object_id: object.object_id?,
                description: object.description.or(object.class_name).unwrap_or_default(),
                kind: object.subtype.unwrap_or(object.kind),
                is_element,
            }),
        })
    }

    /// Such as `object`, `array`, `node`, `function`, `promise`.
    pub fn kind(&self) -> &str {
        &self.inner.kind
    }

    /// As the developer tools describe it, such as `Array(3)` or `div#main`.
    pub fn description(&self) -> &str {
        &self.inner.description
    }

    /// The frame it belongs to.
    pub fn frame(&self) -> &Frame {
        &self.inner.frame
    }

    /// Whether it is a node of a document.
    pub fn is_node(&self) -> bool {
        self.inner.is_element
    }

    /// Calls `function` with the object as its first argument and `args` after it; the result as JSON gives it to `T`.
    pub async fn call<T: DeserializeOwned>(&self, function: &str, args: &[JsArg]) -> Result<T> {
        into_rust(&self.run(function, args, Return::Json).await?)
    }

    /// Like [`call`](Self::call), with what JSON cannot say.
    pub async fn call_value(&self, function: &str, args: &[JsArg]) -> Result<JsValue> {
        JsValue::from_remote(&self.run(function, args, Return::Deep).await?)
    }

    /// Like [`call`](Self::call), with a handle of the result. A result without identity is an error.
    pub async fn call_handle(&self, function: &str, args: &[JsArg]) -> Result<JsHandle> {
        let object = self.run(function, args, Return::Handle).await?;
        let kind = object.kind.clone();
        JsHandle::new(self.inner.frame.clone(), self.inner.place.clone(), object).ok_or_else(|| {
            BrowserError::invalid(format!("result: expected an object, got a value of type {kind}"))
        })
    }

    /// A property, as a handle.
    pub async fn property(&self, name: &str) -> Result<JsHandle> {
        self.call_handle("(object, name) => object[name]", &[name.into()]).await
    }

    /// The object as JSON gives it to `T`.
    pub async fn json<T: DeserializeOwned>(&self) -> Result<T> {
        self.call("object => object", &[]).await
    }

    pub(crate) fn object_id(&self) -> &str {
        &self.inner.object_id
    }

    pub(crate) fn place(&self) -> &Place {
        &self.inner.place
    }

    async fn run(&self, function: &str, args: &[JsArg], returns: Return) -> Result<RemoteObject> {
        let deadline: Deadline = self.inner.frame.page().deadline();
        let mut all = vec![JsArg::Handle(self.clone())];
        all.extend_from_slice(args);
        self.inner.place.call(function, &all, returns, deadline).await
    }
}

impl Drop for HandleInner {
    fn drop(&mut self) {
        let object_id = self.object_id.to_string();
        self.place.session.post(ReleaseObjectParams::new(object_id));
    }
}

impl fmt::Debug for JsHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "JsHandle({}: {})", self.inner.kind, self.inner.description)
    }
}

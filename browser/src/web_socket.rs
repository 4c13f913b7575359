//! The WebSockets of a page, as events tell of them.

use crate::protocol::event;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use parking_lot::Mutex;
use serde::Deserialize;
use serde_json::value::RawValue;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Bytes of a frame that an event carries; longer ones are cut off.
pub const FRAME_BYTES_MAX: usize = 16 << 10;
/// WebSockets of one page that are followed at once; more are not reported.
const SOCKETS_MAX: usize = 1000;

/// One WebSocket of a page.
#[derive(Clone)]
pub struct WebSocket {
    inner: Arc<WebSocketInner>,
}

struct WebSocketInner {
    id: String,
    url: String,
    closed: AtomicBool,
}

impl WebSocket {
    /// Where to.
    pub fn url(&self) -> &str {
        &self.inner.url
    }

    /// Whether it is closed.
    pub fn is_closed(&self) -> bool {
        self.inner.closed.load(Ordering::Acquire)
    }
}

impl PartialEq for WebSocket {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }
}

impl Eq for WebSocket {}

impl fmt::Debug for WebSocket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WebSocket({} {})", self.inner.url, self.inner.id)
    }
}

/// One frame of a WebSocket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebSocketFrame {
    /// Whether it is text; otherwise it is binary.
    pub is_text: bool,
    /// Its first [`FRAME_BYTES_MAX`] bytes.
    pub payload: Bytes,
    /// Its length in bytes.
    pub bytes: usize,
}

/// What happened on a WebSocket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WebSocketEvent {
    /// The page opens it.
    Opened,
    /// The page has sent a frame.
    Sent(WebSocketFrame),
    /// The server has sent a frame.
    Received(WebSocketFrame),
    /// An error, such as a refused handshake.
    Failed(String),
    /// It is closed. No event follows.
    Closed,
}

/// The open WebSockets of a page.
#[derive(Default)]
pub(crate) struct WebSockets {
    open: Mutex<HashMap<String, WebSocket>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct SocketEvent {
    request_id: String,
    url: Option<String>,
    response: Option<FrameInfo>,
    error_message: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct FrameInfo {
    opcode: f64,
    payload_data: String,
}

impl FrameInfo {
    fn frame(self) -> Option<WebSocketFrame> {
        let (is_text, payload) = match self.opcode as u8 {
            1 => (true, self.payload_data.into_bytes()),
            // Chromium gives frames that are not text in Base64.
            2 => (false, STANDARD.decode(self.payload_data).ok()?),
            _ => return None,
        };
        let bytes = payload.len();
        let kept = bytes.min(FRAME_BYTES_MAX);
        Some(WebSocketFrame { is_text, payload: Bytes::copy_from_slice(&payload[..kept]), bytes })
    }
}

impl WebSockets {
    /// What an event of the Network domain means for a WebSocket.
    pub(crate) fn event(&self, method: &str, params: &RawValue) -> Option<(WebSocket, WebSocketEvent)> {
        if !method.starts_with("Network.webSocket") || method.contains("Handshake") {
            return None;
        }
        let event = event::<SocketEvent>(method, params)?;
        let mut open = self.open.lock();
        if method == "Network.webSocketCreated" {
            if open.len() >= SOCKETS_MAX {
                return None;
            }
            let inner = WebSocketInner {
                id: event.request_id.clone(),
                url: event.url?,
                closed: AtomicBool::new(false),
            };
            let socket = WebSocket { inner: Arc::new(inner) };
            open.insert(event.request_id, socket.clone());
            return Some((socket, WebSocketEvent::Opened));
        }
        let socket = open.get(&event.request_id)?.clone();
        let what = match method {
            "Network.webSocketFrameSent" => WebSocketEvent::Sent(event.response?.frame()?),
            "Network.webSocketFrameReceived" => WebSocketEvent::Received(event.response?.frame()?),
            "Network.webSocketFrameError" => WebSocketEvent::Failed(event.error_message?),
            "Network.webSocketClosed" => {
                open.remove(&event.request_id);
                socket.inner.closed.store(true, Ordering::Release);
                WebSocketEvent::Closed
            }
            _ => return None,
        };
        Some((socket, what))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_those_of_a_socket() {
        let sockets = WebSockets::default();
        let told = |method: &str, params: &str| {
            let params = RawValue::from_string(params.to_owned()).expect("JSON");
            sockets.event(method, &params).map(|(_, event)| event)
        };
        let frame =
            |text: &str| WebSocketFrame { is_text: true, payload: text.to_owned().into(), bytes: text.len() };
        let long = "y".repeat(FRAME_BYTES_MAX + 1);
        let cut = WebSocketFrame { is_text: true, payload: long[1..].to_owned().into(), bytes: long.len() };
        let long = format!(r#"{{"requestId":"1","response":{{"opcode":1,"payloadData":"{long}"}}}}"#);
        let table = [
            (
                "Network.webSocketFrameSent",
                r#"{"requestId":"1","response":{"opcode":1,"payloadData":"a"}}"#,
                None,
            ),
            ("Network.webSocketCreated", r#"{"requestId":"1","url":"ws://x"}"#, Some(WebSocketEvent::Opened)),
            (
                "Network.webSocketFrameSent",
                r#"{"requestId":"1","response":{"opcode":1,"payloadData":"a"}}"#,
                Some(WebSocketEvent::Sent(frame("a"))),
            ),
            (
                "Network.webSocketFrameReceived",
                r#"{"requestId":"1","response":{"opcode":2,"payloadData":"AAE="}}"#,
                Some(WebSocketEvent::Received(WebSocketFrame {
                    is_text: false,
                    payload: Bytes::from_static(&[0, 1]),
                    bytes: 2,
                })),
            ),
            ("Network.webSocketFrameReceived", long.as_str(), Some(WebSocketEvent::Received(cut))),
            (
                "Network.webSocketFrameReceived",
                r#"{"requestId":"1","response":{"opcode":9,"payloadData":""}}"#,
                None,
            ),
            ("Network.webSocketClosed", r#"{"requestId":"1"}"#, Some(WebSocketEvent::Closed)),
            ("Network.webSocketClosed", r#"{"requestId":"1"}"#, None),
            ("Network.loadingFinished", r#"{"requestId":"1"}"#, None),
        ];
        for (method, params, expected) in table {
            assert_eq!(told(method, params), expected, "{method} {params}");
        }
    }
}

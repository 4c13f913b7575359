//! The WebSocket of a DevTools port as byte streams. Anything on its machine can drive a browser with a port, so that
//! pipes are to be preferred where both can be had.

use crate::browser::Browser;
use crate::deadline::Deadline;
use crate::error::{BrowserError, Result};
use crate::remote::RemoteOptions;
use crate::transport::{MESSAGE_BYTES_MAX, MessageReader};
use futures::{SinkExt, StreamExt};
use tokio::io::AsyncWriteExt;
use tokio_tungstenite::connect_async_with_config;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::WebSocketConfig;

/// Bytes between the socket and the connection, in each direction.
const BUFFER_BYTES: usize = 1 << 20;

impl Browser {
    /// A browser behind a DevTools port, such as `ws://127.0.0.1:9222/devtools/browser/...`: the address that Chromium
    /// prints when it is started with `--remote-debugging-port`. Otherwise like [`over`](Self::over); `wss` is not
    /// supported.
    pub async fn connect(url: &str, options: RemoteOptions) -> Result<Browser> {
        if !url.starts_with("ws://") {
            return Err(BrowserError::invalid(format!(
                "DevTools address {url:?}: expected ws://host:port/..."
            )));
        }
        let deadline = Deadline::after(options.timeout);
        let config = WebSocketConfig::default()
            .max_message_size(Some(MESSAGE_BYTES_MAX))
            .max_frame_size(Some(MESSAGE_BYTES_MAX));
        let refused = |error| BrowserError::Launch { reason: format!("no DevTools at {url}: {error}") };
        let connecting = async { connect_async_with_config(url, Some(config), true).await.map_err(refused) };
        let (socket, _) = deadline.bound(|| format!("DevTools at {url}"), connecting).await?;
        let (mut to_browser, mut from_browser) = socket.split();
        let (ours, theirs) = tokio::io::duplex(BUFFER_BYTES);
        let (reader, writer) = tokio::io::split(ours);
        let (commands, mut answers) = tokio::io::split(theirs);
        // Owner: the connection. Ends when it closes its stream, or when the socket fails.
        tokio::spawn(async move {
            let mut commands = MessageReader::new(Box::new(commands));
            while let Some(command) = commands.next().await {
                let Ok(text) = String::from_utf8(command.into()) else { break };
                if to_browser.send(Message::text(text)).await.is_err() {
                    break;
                }
            }
            // Fails where the other side has closed it.
            let _ = to_browser.close().await;
        });
        // Owner: the connection. Ends when the browser closes the socket, or when the connection reads no more.
        tokio::spawn(async move {
            while let Some(Ok(message)) = from_browser.next().await {
                if !(message.is_text() || message.is_binary()) {
                    continue;
                }
                let written = async {
                    answers.write_all(&message.into_data()).await?;
                    answers.write_all(&[0]).await
                };
                if written.await.is_err() {
                    break;
                }
            }
            let _ = answers.shutdown().await;
        });
        Browser::over(reader, writer, options).await
    }
}

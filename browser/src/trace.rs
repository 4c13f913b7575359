//! Chromium's own tracing, for its tools: one trace of a browser process at a time.

use crate::browser::Browser;
use crate::deadline::Deadline;
use crate::error::{BrowserError, Result};
use crate::protocol::{Done, Raw};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::{Bytes, BytesMut};
use serde::Deserialize;
use serde_json::json;
use std::time::Duration;

const CHUNK_BYTES: usize = 1 << 20;
/// A longer trace is cut off with an error.
const TRACE_BYTES_MAX: usize = 512 << 20;

/// The answer to `IO.read`.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Chunk {
    #[serde(default)]
    base64_encoded: bool,
    data: String,
    eof: bool,
}

impl Browser {
    /// Begins to trace these categories, such as `devtools.timeline` and `v8.execute`. An error where a trace is under
    /// way.
    pub async fn start_tracing(&self, categories: &[&str]) -> Result<()> {
        let params = json!({
            "transferMode": "ReturnAsStream", "traceConfig": { "includedCategories": categories },
        });
        let deadline = Deadline::after(crate::deadline::TIMEOUT_DEFAULT);
        self.inner.trace.send_replace(None);
        self.inner.root().call_as::<Done>(Raw::new("Tracing.start", params), deadline).await?;
        Ok(())
    }

    /// Ends the trace and returns it as JSON, as `chrome://tracing` and Perfetto read it.
    pub async fn stop_tracing(&self, timeout: Duration) -> Result<Bytes> {
        let deadline = Deadline::after(timeout);
        let root = self.inner.root();
        let mut complete = self.inner.trace.subscribe();
        root.call_as::<Done>(Raw::new("Tracing.end", json!({})), deadline).await?;
        let stream = deadline
            .bound(|| "the trace".to_owned(), async {
                tokio::select! {
                    stream = complete.wait_for(Option::is_some) => {
                        stream.map(|stream| stream.clone().unwrap_or_default()).map_err(|_| BrowserError::closed("browser"))
                    }
                    reason = self.ended() => Err(reason),
                }
            })
            .await?;
        let mut trace = BytesMut::new();
        loop {
            let read = Raw::new("IO.read", json!({ "handle": stream, "size": CHUNK_BYTES }));
            let chunk: Chunk = root.call_as(read, deadline).await?;
            if chunk.base64_encoded {
                let bytes = STANDARD.decode(&chunk.data);
                let bytes = bytes.map_err(|error| BrowserError::invalid(format!("trace: {error}")))?;
                trace.extend_from_slice(&bytes);
            } else {
                trace.extend_from_slice(chunk.data.as_bytes());
            }
            if chunk.eof || trace.len() > TRACE_BYTES_MAX {
                root.post(Raw::new("IO.close", json!({ "handle": stream })));
                break;
            }
        }
        if trace.len() > TRACE_BYTES_MAX {
            return Err(BrowserError::invalid(format!("trace: it is longer than {TRACE_BYTES_MAX} bytes")));
        }
        Ok(trace.freeze())
    }
}

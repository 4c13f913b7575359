//! The body of one plain request, and nothing after it, from a client to a peer.

use super::protocol::Body;
use std::io;
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Longest line between pieces.
const LINE_BYTES_MAX: u64 = 4096;
/// Lines after the last piece.
const TRAILERS_MAX: usize = 64;

fn bad(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}

/// Carries it.
pub(super) async fn carry(
    body: Body,
    mut client: impl AsyncBufRead + Unpin,
    mut peer: impl AsyncWrite + Unpin,
) -> io::Result<()> {
    match body {
        Body::Length(length) => exactly(length, &mut client, &mut peer).await?,
        Body::Chunked => loop {
            let line = line(&mut client).await?;
            let digits = line.split(';').next().unwrap_or("").trim_end();
            let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
            let size = u64::from_str_radix(digits, 16).ok().filter(|_| plain);
            let size = size.ok_or_else(|| bad("a piece without a size"))?;
            if size == 0 {
                // What may stand after the last piece is not passed on.
                for _ in 0..TRAILERS_MAX {
                    if self::line(&mut client).await?.is_empty() {
                        peer.write_all(b"0\r\n\r\n").await?;
                        return peer.flush().await;
                    }
                }
                return Err(bad("too many trailers"));
            }
            peer.write_all(format!("{size:x}\r\n").as_bytes()).await?;
            exactly(size, &mut client, &mut peer).await?;
            if !self::line(&mut client).await?.is_empty() {
                return Err(bad("a piece longer than its size"));
            }
            peer.write_all(b"\r\n").await?;
        },
    }
    peer.flush().await
}

async fn exactly(
    length: u64,
    client: &mut (impl AsyncRead + Unpin),
    peer: &mut (impl AsyncWrite + Unpin),
) -> io::Result<()> {
    let carried = tokio::io::copy(&mut client.take(length), peer).await?;
    if carried == length { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

/// One line, without its end.
async fn line(client: &mut (impl AsyncBufRead + Unpin)) -> io::Result<String> {
    let mut line = Vec::new();
    client.take(LINE_BYTES_MAX).read_until(b'\n', &mut line).await?;
    let line = line.strip_suffix(b"\r\n").ok_or_else(|| bad("a line without an end"))?;
    String::from_utf8(line.to_vec()).map_err(|_| bad("a line that is no text"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn one_body_is_carried_and_nothing_after_it() {
        for (body, sent, expect) in [
            (Body::Length(0), "GET http://b.org/ HTTP/1.1\r\n\r\n", Some("")),
            (Body::Length(3), "abcGET /", Some("abc")),
            (Body::Length(5), "abc", None),
            (
                Body::Chunked,
                "3;x=y\r\nabc\r\n0A\r\n0123456789\r\n0\r\nT: t\r\n\r\nGET /",
                Some("3\r\nabc\r\na\r\n0123456789\r\n0\r\n\r\n"),
            ),
            (Body::Chunked, "3\r\nabcd\r\n0\r\n\r\n", None),
            (Body::Chunked, "3\nabc\r\n0\r\n\r\n", None),
            (Body::Chunked, "+3\r\nabc\r\n0\r\n\r\n", None),
            (Body::Chunked, "-1\r\n", None),
            (Body::Chunked, "", None),
        ] {
            let mut peer = Vec::new();
            let carried = carry(body, sent.as_bytes(), &mut peer).await;
            let seen = carried.is_ok().then(|| String::from_utf8(peer).unwrap());
            assert_eq!(seen.as_deref(), expect, "{sent:?}");
        }
    }
}

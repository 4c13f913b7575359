//! What clients of the proxy say first: an HTTP request, or SOCKS 5.

use super::Refused;
use std::io;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Longest head of a request.
const HEAD_BYTES_MAX: usize = 16 << 10;

/// Where a client wants to go.
#[derive(Debug)]
pub(super) struct ProxyRequest {
    /// A name or an address.
    pub(super) host: String,
    /// Its port.
    pub(super) port: u16,
    /// How to answer.
    pub(super) protocol: Protocol,
    /// What the peer has to be sent first.
    pub(super) first: Vec<u8>,
    /// What has come after that already.
    pub(super) rest: Vec<u8>,
}

/// Where a plain request ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Body {
    /// After so many bytes.
    Length(u64),
    /// After the last of its pieces.
    Chunked,
}

/// How to answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protocol {
    /// A tunnel through HTTP.
    Connect,
    /// One plain request with this body, which the peer answers itself.
    Plain(Body),
    /// SOCKS 5.
    Socks,
}

impl Protocol {
    pub(super) fn acceptance(self) -> &'static [u8] {
        match self {
            Protocol::Connect => b"HTTP/1.1 200 Connection established\r\n\r\n",
            Protocol::Plain(_) => b"",
            Protocol::Socks => &[5, 0, 0, 1, 0, 0, 0, 0, 0, 0],
        }
    }

    pub(super) fn refusal(self, refused: &Refused) -> Vec<u8> {
        if self == Protocol::Socks {
            // 2: not allowed by the rules; 4: host unreachable.
            return vec![5, if refused.forbidden { 2 } else { 4 }, 0, 1, 0, 0, 0, 0, 0, 0];
        }
        let status = if refused.forbidden { "403 Forbidden" } else { "502 Bad Gateway" };
        let body = format!("espalier: {}\n", refused.why);
        let length = body.len();
        format!("HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}")
            .into_bytes()
    }
}

fn bad(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}

/// Hears the first request.
pub(super) async fn listen(client: &mut TcpStream) -> io::Result<ProxyRequest> {
    let mut head = vec![client.read_u8().await?];
    if head[0] == 5 {
        return socks(client).await;
    }
    let mut scratch = [0; 2048];
    loop {
        if let Some(end) = head.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
            let rest = head.split_off(end + 4);
            return http(&head, rest);
        }
        if head.len() > HEAD_BYTES_MAX {
            return Err(bad("the request is too long"));
        }
        let count = client.read(&mut scratch).await?;
        if count == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        head.extend_from_slice(&scratch[..count]);
    }
}

/// A head that is whole, and what came after it. What servers may read in two ways is refused: which of two readings is
/// checked, and which is served, must be the same.
fn http(head: &[u8], rest: Vec<u8>) -> io::Result<ProxyRequest> {
    let text = std::str::from_utf8(head).map_err(|_| bad("the request is no text"))?;
    let text = text.strip_suffix("\r\n\r\n").ok_or_else(|| bad("the request has no end"))?;
    let mut lines = text.split("\r\n");
    let line = lines.next().unwrap_or("");
    let mut words = line.split(' ');
    let (Some(method), Some(target), Some(version), None) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return Err(bad("no request line"));
    };
    if !is_token(method)
        || !matches!(version, "HTTP/1.0" | "HTTP/1.1")
        || text.split("\r\n").any(|line| line.contains(is_odd))
    {
        return Err(bad("no request line"));
    }
    if method == "CONNECT" {
        let (host, port) = split(target, None)?;
        return Ok(ProxyRequest { host, port, protocol: Protocol::Connect, first: Vec::new(), rest });
    }
    let scheme = target.get(..7).filter(|scheme| scheme.eq_ignore_ascii_case("http://"));
    let beyond = scheme.map(|scheme| &target[scheme.len()..]).ok_or_else(|| bad("no absolute address"))?;
    let at = beyond.find(['/', '?']).unwrap_or(beyond.len());
    let (authority, path) = beyond.split_at(at);
    let authority = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    let (host, port) = split(authority, Some(80))?;
    let slash = if path.starts_with('/') { "" } else { "/" };
    // The name that was checked is the one that is asked for.
    let mut first = format!("{method} {slash}{path} {version}\r\nHost: {authority}\r\n");
    let mut body = None;
    for header in lines {
        let (name, value) = header.split_once(':').ok_or_else(|| bad("a header without a colon"))?;
        if !is_token(name) {
            return Err(bad("a header's name with blanks in it"));
        }
        let name = name.to_ascii_lowercase();
        let found = match &*name {
            "host" | "connection" | "keep-alive" | "upgrade" | "te" | "trailer" => continue,
            _ if name.starts_with("proxy-") => continue,
            "content-length" => Some(Body::Length(length(value.trim())?)),
            "transfer-encoding" if version == "HTTP/1.1" && value.trim().eq_ignore_ascii_case("chunked") => {
                Some(Body::Chunked)
            }
            "transfer-encoding" => return Err(bad("a transfer encoding that is not known")),
            _ => None,
        };
        if found.is_some() && body.replace(found).is_some() {
            return Err(bad("a body of two lengths"));
        }
        first.push_str(header);
        first.push_str("\r\n");
    }
    // One connection, one request: the next one is looked at anew.
    first.push_str("Connection: close\r\n\r\n");
    let body = body.flatten().unwrap_or(Body::Length(0));
    Ok(ProxyRequest { host, port, protocol: Protocol::Plain(body), first: first.into_bytes(), rest })
}

/// Within a line: line breaks that are none for everybody, and other control characters.
fn is_odd(c: char) -> bool {
    c.is_control() && c != '\t'
}

/// What RFC 9110 calls a token.
fn is_token(text: &str) -> bool {
    !text.is_empty()
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte))
}

fn length(text: &str) -> io::Result<u64> {
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| digits).ok_or_else(|| bad("no length"))
}

fn split(authority: &str, default: Option<u16>) -> io::Result<(String, u16)> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_' | ':' | '[' | ']');
    if !authority.chars().all(plain) {
        return Err(bad("no host"));
    }
    let bracket = authority.rfind(']').unwrap_or(0);
    let (host, port) = match authority[bracket..].rfind(':') {
        Some(at) => {
            let port = authority[bracket + at + 1..].parse().map_err(|_| bad("no port"))?;
            (&authority[..bracket + at], port)
        }
        None => (authority, default.ok_or_else(|| bad("no port"))?),
    };
    if host.is_empty() {
        return Err(bad("no host"));
    }
    Ok((host.to_owned(), port))
}

async fn socks(client: &mut TcpStream) -> io::Result<ProxyRequest> {
    let count = client.read_u8().await?;
    let mut ways = vec![0; usize::from(count)];
    client.read_exact(&mut ways).await?;
    // Without a password: the socket is the sandbox's own.
    client.write_all(&[5, if ways.contains(&0) { 0 } else { 0xff }]).await?;
    let mut head = [0; 4];
    client.read_exact(&mut head).await?;
    if head[0] != 5 || head[1] != 1 {
        client.write_all(&[5, 7, 0, 1, 0, 0, 0, 0, 0, 0]).await?;
        return Err(bad("no CONNECT"));
    }
    let host = match head[3] {
        1 => std::net::Ipv4Addr::from(client.read_u32().await?).to_string(),
        4 => std::net::Ipv6Addr::from(client.read_u128().await?).to_string(),
        3 => {
            let mut name = vec![0; usize::from(client.read_u8().await?)];
            client.read_exact(&mut name).await?;
            String::from_utf8(name).map_err(|_| bad("the name is no text"))?
        }
        _ => return Err(bad("no kind of address")),
    };
    let port = client.read_u16().await?;
    Ok(ProxyRequest { host, port, protocol: Protocol::Socks, first: Vec::new(), rest: Vec::new() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_understood() {
        let check = |head: &str, expect: Option<(&str, u16, &str)>| {
            let asked = http(head.as_bytes(), b"rest".to_vec()).ok();
            let seen = asked.map(|asked| (asked.host, asked.port, String::from_utf8(asked.first).unwrap()));
            let expect = expect.map(|(host, port, first)| (host.to_owned(), port, first.to_owned()));
            assert_eq!(seen, expect, "{head}");
        };
        check("CONNECT a.org:443 HTTP/1.1\r\n\r\n", Some(("a.org", 443, "")));
        check("CONNECT [::1]:443 HTTP/1.1\r\n\r\n", Some(("[::1]", 443, "")));
        check("CONNECT a.org HTTP/1.1\r\n\r\n", None);
        check(
            "GET http://u:p@a.org/x?y HTTP/1.1\r\nHost: b.org\r\nProxy-Connection: keep-alive\r\nA: b\r\n\r\n",
            Some(("a.org", 80, "GET /x?y HTTP/1.1\r\nHost: a.org\r\nA: b\r\nConnection: close\r\n\r\n")),
        );
        check(
            "GET http://a.org:8080 HTTP/1.1\r\n\r\n",
            Some(("a.org", 8080, "GET / HTTP/1.1\r\nHost: a.org:8080\r\nConnection: close\r\n\r\n")),
        );
        check(
            "GET http://[::1]?a HTTP/1.1\r\n\r\n",
            Some(("[::1]", 80, "GET /?a HTTP/1.1\r\nHost: [::1]\r\nConnection: close\r\n\r\n")),
        );
        check("GET /x HTTP/1.1\r\nHost: a.org\r\n\r\n", None);
        check("GET http://:80/ HTTP/1.1\r\n\r\n", None);
        check("GET http://a.org/ HTTP/1.1 x\r\n\r\n", None);
        check("GET http://a.org/ HTTP/2\r\n\r\n", None);
        check("hello\r\n\r\n", None);
    }

    #[test]
    fn what_can_be_read_in_two_ways_is_refused() {
        for header in [
            "Connection : keep-alive",
            " Host: b.org",
            "Host: b.org\nX: y",
            "Host: b.org\rX: y",
            "A: \0",
            "no colon",
            "Content-Length: 3\r\nContent-Length: 4",
            "Content-Length: 3\r\nTransfer-Encoding: chunked",
            "Content-Length: +3",
            "Content-Length: 3, 3",
            "Content-Length:",
            "Transfer-Encoding: gzip, chunked",
            "Transfer-Encoding: identity",
        ] {
            let head = format!("POST http://a.org/ HTTP/1.1\r\n{header}\r\n\r\n");
            assert!(http(head.as_bytes(), Vec::new()).is_err(), "{header:?}");
        }
        let body = |header: &str| {
            let head = format!("POST http://a.org/ HTTP/1.1\r\n{header}\r\n\r\n");
            http(head.as_bytes(), Vec::new()).unwrap().protocol
        };
        assert_eq!(body("Content-Length: 3"), Protocol::Plain(Body::Length(3)));
        assert_eq!(body("Transfer-Encoding: Chunked"), Protocol::Plain(Body::Chunked));
        assert_eq!(body("A: b"), Protocol::Plain(Body::Length(0)));
    }
}

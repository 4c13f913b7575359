//! What clients of the proxy say first: an HTTP request, or SOCKS 5.

use super::Refused;
use std::io;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Longest head of a request.
const HEAD_BYTES_MAX: usize = 16 << 10;

/// Where a client wants to go.
#[derive(Debug)]
pub(super) struct Asked {
    /// A name or an address.
    pub(super) host: String,
    /// Its port.
    pub(super) port: u16,
    /// How to answer.
    pub(super) tongue: Tongue,
    /// What the peer has to be sent first.
    pub(super) first: Vec<u8>,
}

/// How to answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tongue {
    /// A tunnel through HTTP.
    Connect,
    /// A plain request, which the peer answers itself.
    Plain,
    /// SOCKS 5.
    Socks,
}

impl Tongue {
    pub(super) fn acceptance(self) -> &'static [u8] {
        match self {
            Tongue::Connect => b"HTTP/1.1 200 Connection established\r\n\r\n",
            Tongue::Plain => b"",
            Tongue::Socks => &[5, 0, 0, 1, 0, 0, 0, 0, 0, 0],
        }
    }

    pub(super) fn refusal(self, refused: &Refused) -> Vec<u8> {
        if self == Tongue::Socks {
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
pub(super) async fn listen(client: &mut TcpStream) -> io::Result<Asked> {
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

/// A head that is whole, and what came after it.
fn http(head: &[u8], rest: Vec<u8>) -> io::Result<Asked> {
    let text = std::str::from_utf8(head).map_err(|_| bad("the request is no text"))?;
    let (line, headers) = text.split_once("\r\n").ok_or_else(|| bad("no request line"))?;
    let mut words = line.split(' ');
    let (Some(method), Some(target), Some(version)) = (words.next(), words.next(), words.next()) else {
        return Err(bad("no request line"));
    };
    if method == "CONNECT" {
        let (host, port) = split(target, None)?;
        return Ok(Asked { host, port, tongue: Tongue::Connect, first: rest });
    }
    let beyond = target.strip_prefix("http://").ok_or_else(|| bad("no absolute address"))?;
    let at = beyond.find(['/', '?']).unwrap_or(beyond.len());
    let (authority, path) = beyond.split_at(at);
    let authority = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    let (host, port) = split(authority, Some(80))?;
    let slash = if path.starts_with('/') { "" } else { "/" };
    let mut first = format!("{method} {slash}{path} {version}\r\n");
    for header in headers.split("\r\n").filter(|header| !header.is_empty()) {
        let name = header.split(':').next().unwrap_or("").to_ascii_lowercase();
        if !matches!(&*name, "proxy-connection" | "proxy-authorization" | "connection" | "keep-alive") {
            first.push_str(header);
            first.push_str("\r\n");
        }
    }
    // One connection, one peer: the next request is looked at anew.
    first.push_str("Connection: close\r\n\r\n");
    let mut first = first.into_bytes();
    first.extend(rest);
    Ok(Asked { host, port, tongue: Tongue::Plain, first })
}

fn split(authority: &str, default: Option<u16>) -> io::Result<(String, u16)> {
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

async fn socks(client: &mut TcpStream) -> io::Result<Asked> {
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
    Ok(Asked { host, port, tongue: Tongue::Socks, first: Vec::new() })
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
        check("CONNECT a.org:443 HTTP/1.1\r\n\r\n", Some(("a.org", 443, "rest")));
        check("CONNECT [::1]:443 HTTP/1.1\r\n\r\n", Some(("[::1]", 443, "rest")));
        check("CONNECT a.org HTTP/1.1\r\n\r\n", None);
        check(
            "GET http://u:p@a.org/x?y HTTP/1.1\r\nHost: a.org\r\nProxy-Connection: keep-alive\r\n\r\n",
            Some(("a.org", 80, "GET /x?y HTTP/1.1\r\nHost: a.org\r\nConnection: close\r\n\r\nrest")),
        );
        check(
            "GET http://a.org:8080 HTTP/1.1\r\n\r\n",
            Some(("a.org", 8080, "GET / HTTP/1.1\r\nConnection: close\r\n\r\nrest")),
        );
        check(
            "GET http://[::1]?a HTTP/1.1\r\n\r\n",
            Some(("[::1]", 80, "GET /?a HTTP/1.1\r\nConnection: close\r\n\r\nrest")),
        );
        check("GET /x HTTP/1.1\r\nHost: a.org\r\n\r\n", None);
        check("GET http://:80/ HTTP/1.1\r\n\r\n", None);
        check("hello\r\n\r\n", None);
    }
}

//! SOCKS 5 (RFC 1928), as far as a proxy without passwords needs it.

use super::{Proxy, Target};
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// One tunnel of a client. What it says first comes within `head_max`.
pub(super) async fn serve<P: Proxy>(mut client: TcpStream, head_max: Duration, proxy: &P) -> io::Result<()> {
    let target = timeout(head_max, listen(&mut client)).await??;
    let reached = proxy.reach(&target).await;
    // 2: not allowed by the rules; 4: host unreachable.
    let code = reached.as_ref().map_or_else(|refused| if refused.forbidden { 2 } else { 4 }, |_| 0);
    client.write_all(&[5, code, 0, 1, 0, 0, 0, 0, 0, 0]).await?;
    let Ok(mut peer) = reached else { return Ok(()) };
    tokio::io::copy_bidirectional(&mut client, &mut peer).await.map(drop)
}

async fn listen(client: &mut TcpStream) -> io::Result<Target> {
    let bad = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what);
    let _version = client.read_u8().await?;
    let mut methods = vec![0; usize::from(client.read_u8().await?)];
    client.read_exact(&mut methods).await?;
    // Without a password: the socket is the sandbox's own.
    client.write_all(&[5, if methods.contains(&0) { 0 } else { 0xff }]).await?;
    let mut head = [0; 4];
    client.read_exact(&mut head).await?;
    if head[0] != 5 || head[1] != 1 {
        client.write_all(&[5, 7, 0, 1, 0, 0, 0, 0, 0, 0]).await?;
        return Err(bad("no CONNECT"));
    }
    let host = match head[3] {
        1 => Ipv4Addr::from(client.read_u32().await?).to_string(),
        4 => Ipv6Addr::from(client.read_u128().await?).to_string(),
        3 => {
            let mut name = vec![0; usize::from(client.read_u8().await?)];
            client.read_exact(&mut name).await?;
            String::from_utf8(name).map_err(|_| bad("the name is not text"))?
        }
        _ => return Err(bad("no kind of address")),
    };
    let port = client.read_u16().await?;
    Ok(Target { host, port, tunnel: true })
}

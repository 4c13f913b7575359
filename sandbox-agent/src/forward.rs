//! A port inside the sandbox as a stream of bytes both ways.

use crate::{Reason, refusal};
use bytes::{Bytes, BytesMut};
use espalier_agent_protocol::v1::{
    ForwardEvent, ForwardHeader, ForwardOpened, ForwardRequest, forward_event::Event, forward_request::Part,
};
use futures::stream::{BoxStream, StreamExt};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::OwnedReadHalf;
use tonic::{Status, Streaming};

/// How long a connection may take.
const CONNECT_MAX: Duration = Duration::from_secs(10);
/// Bytes of one message.
const PIECE_BYTES: usize = 32 << 10;

/// Connects and copies until both sides have finished. The client's end of stream closes the writing half alone.
pub async fn forward(
    mut requests: Streaming<ForwardRequest>,
) -> Result<BoxStream<'static, Result<ForwardEvent, Status>>, Status> {
    let Some(ForwardRequest { part: Some(Part::Header(header)) }) = requests.message().await? else {
        return Err(refusal(Reason::Invalid, "forward: the first message is not a header"));
    };
    let (reader, mut writer) = connect(&header).await?.into_split();
    // Owned by the stream of answers through the connection: ends when the client finishes or either side is gone.
    let sending = tokio::spawn(async move {
        while let Ok(Some(request)) = requests.message().await {
            if let Some(Part::Bytes(bytes)) = request.part
                && writer.write_all(&bytes).await.is_err()
            {
                return;
            }
        }
        let _ = writer.shutdown().await;
    });
    let opened = ForwardEvent { event: Some(Event::Opened(ForwardOpened {})) };
    let guard = AbortOnDrop(sending.abort_handle());
    let pieces = futures::stream::unfold((reader, guard), |(mut reader, guard)| async move {
        let piece = read(&mut reader).await?;
        Some((piece.map(|bytes| ForwardEvent { event: Some(Event::Bytes(bytes)) }), (reader, guard)))
    });
    Ok(futures::stream::iter([Ok(opened)]).chain(pieces).boxed())
}

struct AbortOnDrop(tokio::task::AbortHandle);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

async fn read(reader: &mut OwnedReadHalf) -> Option<Result<Bytes, Status>> {
    let mut piece = BytesMut::with_capacity(PIECE_BYTES);
    match reader.read_buf(&mut piece).await {
        Ok(0) => None,
        Ok(_) => Some(Ok(piece.freeze())),
        Err(error) => Some(Err(refusal(Reason::Io, format!("forward: {error}")))),
    }
}

async fn connect(header: &ForwardHeader) -> Result<TcpStream, Status> {
    let port = u16::try_from(header.port).ok().filter(|port| *port != 0);
    let port = port.ok_or_else(|| refusal(Reason::Invalid, format!("forward: port {}", header.port)))?;
    let hosts =
        if header.host.is_empty() {
            vec![IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)]
        } else {
            let host = header.host.parse();
            vec![host.map_err(|_| {
                refusal(Reason::Invalid, format!("forward: invalid address `{}`", header.host))
            })?]
        };
    let mut failure = String::new();
    for host in hosts {
        let address = SocketAddr::new(host, port);
        match tokio::time::timeout(CONNECT_MAX, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => {
                let _ = stream.set_nodelay(true);
                return Ok(stream);
            }
            Ok(Err(error)) => {
                if failure.is_empty() {
                    failure = format!("port {port}: {error}");
                }
            }
            Err(_) => failure = format!("port {port}: no connection in {} s", CONNECT_MAX.as_secs()),
        }
    }
    Err(refusal(Reason::NotFound, failure))
}

//! What a sandbox reaches: nothing, itself, or what a list names.

use crate::support::{Place, order};
use espalier_core::sandbox::{Network, SandboxSpec};
use espalier_keeper::wire::{Order, Reach};
use espalier_sandbox::service::Purpose;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

/// Talks to a port by bash alone.
fn call(host: &str, port: u16, text: &str) -> String {
    format!("exec 3<>/dev/tcp/{host}/{port} && printf '{text}' >&3 && timeout 5 cat <&3")
}

#[tokio::test]
async fn none_reaches_nothing_and_loopback_itself_alone() {
    let place = Place::new();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let none = place.host("none").await;
    let loopback = place.make(Order { network: Reach::Loopback, ..order(&place.folder, "loopback") }).await;
    for sandbox in [&none, &loopback] {
        for (host, port) in [("127.0.0.1", port), ("169.254.169.254", 80), ("10.0.0.1", 80), ("1.1.1.1", 53)]
        {
            let (text, code) =
                sandbox.run(&format!("timeout 5 bash -c 'exec 3<>/dev/tcp/{host}/{port}'")).await;
            assert_ne!(code, 0, "{host}:{port} {text}");
        }
    }
    let serve = "python3 -c \"import socket; s=socket.create_server(('127.0.0.1',8000)); c,_=s.accept(); c.sendall(b'served'); c.close()\" & sleep 0.5; ";
    let (text, _) = loopback.run(&format!("{serve}{}", call("localhost", 8000, ""))).await;
    assert_eq!(text, "served");
}

#[tokio::test]
async fn an_allow_list_lets_through_what_it_names() {
    let place = Place::new();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let server = tokio::spawn(async move {
        loop {
            let Ok((mut stream, _)) = listener.accept().await else { return };
            let mut heard = [0; 1024];
            let count = stream.read(&mut heard).await.unwrap_or(0);
            let heard =
                String::from_utf8_lossy(&heard[..count]).lines().next().unwrap_or_default().to_owned();
            let _ = stream.write_all(format!("HTTP/1.0 200 OK\r\n\r\nyou said {heard}").as_bytes()).await;
        }
    });
    let service = place.service(None);
    let spec = SandboxSpec {
        network: Network::Allow(vec![format!("127.0.0.1:{port}"), "localhost:81".to_owned()]),
        memory: 256 << 20,
        ..SandboxSpec::default()
    };
    let sandbox = service.create(&spec, &Purpose::new("test")).await.unwrap();
    let sandbox = crate::support::Sandbox { placed: sandbox.placed, agent: sandbox.agent };
    let (text, _) = sandbox.run("echo $http_proxy $NO_PROXY").await;
    assert_eq!(text, "http://127.0.0.1:3128 localhost,127.0.0.1,::1\n");
    let through = |request: &str| call("127.0.0.1", 3128, request);
    let (text, _) =
        sandbox.run(&through(&format!("GET http://127.0.0.1:{port}/x HTTP/1.1\\r\\n\\r\\n"))).await;
    assert!(text.ends_with("you said GET /x HTTP/1.1"), "{text}");
    let (text, _) =
        sandbox.run(&through(&format!("CONNECT 127.0.0.1:{port} HTTP/1.1\\r\\n\\r\\nhello"))).await;
    assert!(text.contains("200 Connection established") && text.ends_with("you said hello"), "{text}");
    for (host, expect) in [
        ("169.254.169.254:80", "403 Forbidden"),
        ("example.org:443", "403 Forbidden"),
        ("127.0.0.1:22", "403 Forbidden"),
        // A name that is allowed and leads inside.
        ("localhost:81", "a private or local address"),
    ] {
        let (text, _) = sandbox.run(&through(&format!("CONNECT {host} HTTP/1.1\\r\\n\\r\\n"))).await;
        assert!(text.contains(expect), "{host}: {text}");
    }
    let socks = format!(
        "\\x05\\x01\\x00\\x05\\x01\\x00\\x01\\x7f\\x00\\x00\\x01\\x{:02x}\\x{:02x}over socks",
        port >> 8,
        port & 255
    );
    let (text, _) = sandbox.run(&through(&socks)).await;
    assert!(text.ends_with("you said over socks"), "{text:?}");
    service.delete(&sandbox.placed.id).await.unwrap();
    assert!(place.local.list().await.unwrap().is_empty());
    server.abort();
}

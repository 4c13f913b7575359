//! What is said on the keeper's socket by others than this engine: engines and keepers of other versions, and what is not an engine.

use crate::support::{Place, keeper_pid, open};

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::time::Duration;

/// What every version says first.
const HELLO: &str = "{\"number\":1,\"what\":\"hello\"}\n";

fn connect(place: &Place) -> UnixStream {
    let stream = UnixStream::connect(place.folder.join("keeper.sock")).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream
}

/// All that comes until the keeper hangs up.
fn rest(mut stream: UnixStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    // Cut or closed, that is the end of it.
    let _ = stream.read_to_end(&mut bytes);
    bytes
}

#[tokio::test]
async fn a_keeper_of_another_version_is_refused_with_what_to_do() {
    for version in [2, 4] {
        let place = Place::new();
        let listener = UnixListener::bind(place.folder.join("keeper.sock")).unwrap();
        let keeper = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut heard = [0; HELLO.len()];
            stream.read_exact(&mut heard).unwrap();
            assert_eq!(heard, HELLO.as_bytes());
            // As versions 2 says it; a later one may be able to do what this engine has never heard of.
            let said = format!(
                "{{\"answer\":{{\"number\":1,\"answer\":{{\"Ok\":{{\"hello\":{{\"version\":{version},\"pid\":4711,\"abilities\":{{\"new\":[]}}}}}}}}}}}}\n"
            );
            stream.write_all(said.as_bytes()).unwrap();
        });
        let error = place.local.list().await.unwrap_err().to_string();
        keeper.join().unwrap();
        assert_eq!(
            error,
            format!(
                "this machine cannot use the keeper of sandboxes that runs (process 4711): it speaks version {version}, \
                 this engine version 3; it ends after its last sandbox and engine, or with `kill 4711`: sandboxes keep running, and the \
                 next keeper takes them over"
            )
        );
    }
}

#[tokio::test]
async fn an_engine_of_another_version_is_told_who_is_there() {
    let place = Place::new();
    place.local.abilities().await.unwrap();
    let pid = keeper_pid(&place);
    let mut stream = connect(&place);
    stream.write_all(HELLO.as_bytes()).unwrap();
    let mut text = Vec::new();
    while !text.ends_with(b"\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        text.push(byte[0]);
    }
    let said: serde_json::Value = serde_json::from_slice(&text).unwrap();
    let hello = &said["answer"]["answer"]["Ok"]["hello"];
    assert_eq!(
        (&said["answer"]["number"], &hello["version"], &hello["pid"]),
        (&1.into(), &3.into(), &pid.into())
    );
}

#[tokio::test]
async fn whoever_speaks_another_language_is_cut_off_alone() {
    let place = Place::new();
    place.host("one").await;
    let frame =
        |text: &str| [&u32::try_from(text.len()).unwrap().to_be_bytes()[..], text.as_bytes()].concat();
    let greeted = |rest: &[u8]| [HELLO.as_bytes(), rest].concat();
    for (what, bytes) in [
        ("a line that is not a hello", b"{\"number\":1,\"what\":\"list\"}\n".to_vec()),
        ("no JSON", b"GET / HTTP/1.1\r\n\r\n".to_vec()),
        ("a line without an end", vec![b'x'; 100_000]),
        ("a length beyond all bounds", greeted(&[0xff; 8])),
        ("a text without a number", greeted(&frame("{}"))),
        ("no text", greeted(&frame("\u{1}"))),
    ] {
        let mut stream = connect(&place);
        // It may hang up before all is written.
        let _ = stream.write_all(&bytes);
        let said = rest(stream);
        assert!(said.is_empty() || said.ends_with(b"\n"), "{what}: {}", String::from_utf8_lossy(&said));
        assert_eq!(place.local.list().await.unwrap().len(), 1, "{what}");
    }
    // Half of a request, and its sender goes.
    let mut stream = connect(&place);
    stream.write_all(&greeted(&frame("{\"number\":2,\"what\":{\"delete\":\"one\"}}")[..20])).unwrap();
    drop(stream);
    assert_eq!(place.local.list().await.unwrap().len(), 1);
    // A whole one that is not understood is answered as that, and the next is served.
    let mut stream = connect(&place);
    let (strange, find) =
        ("{\"number\":2,\"what\":{\"dance\":{}}}", "{\"number\":3,\"what\":{\"find\":\"one\"}}");
    stream.write_all(&greeted(&[frame(strange), frame(find)].concat())).unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let said = String::from_utf8_lossy(&rest(stream)).into_owned();
    assert!(said.contains("the request cannot be read") && said.contains("\"id\":\"one\""), "{said}");
    // A whole one whose sender goes at once is carried out.
    let mut stream = connect(&place);
    stream.write_all(&greeted(&frame("{\"number\":2,\"what\":{\"delete\":\"one\"}}"))).unwrap();
    drop(stream);
    crate::support::wait_until("it is deleted", || !place.folder.join("sandboxes/one.json").exists()).await;
}

#[tokio::test]
async fn an_engine_that_takes_no_answers_is_not_served_and_stops_nobody() {
    let place = Place::new();
    let labels = std::collections::BTreeMap::from([("big".to_owned(), "x".repeat(1 << 20))]);
    place
        .local
        .create(&espalier_keeper::wire::Order { labels, ..crate::support::order(&place.folder, "one") }, &[])
        .await
        .unwrap();
    let mut deaf = connect(&place);
    deaf.set_nonblocking(true).unwrap();
    deaf.write_all(HELLO.as_bytes()).unwrap();
    let text = "{\"number\":2,\"what\":{\"list\":{\"after\":\"\"}}}";
    let frame = [&u32::try_from(text.len()).unwrap().to_be_bytes()[..], text.as_bytes()].concat();
    // 2,000 lists of 1 MiB: the keeper takes no more of these than it can answer.
    let mut sent = 0;
    for _ in 0..2_000 {
        match deaf.write(&frame) {
            Ok(count) if count == frame.len() => sent += 1,
            _ => break,
        }
    }
    assert!(sent > 100, "{sent} requests");
    let other = open(&place.folder);
    for _ in 0..3 {
        assert_eq!(other.list().await.unwrap().len(), 1);
    }
    let status = std::fs::read_to_string(format!("/proc/{}/status", keeper_pid(&place))).unwrap();
    let kib = status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB"));
    let kib: u64 = kib.unwrap().trim().parse().unwrap();
    assert!(kib < 200 << 10, "the keeper took {kib} KiB");
    drop(deaf);
    place.local.delete("one").await.unwrap();
}

//! Who carries a sandbox's way out, where several engines and commands work on it.

use crate::support::{Place, found_by_the_next, keeper_pid, kill, open, order};
use espalier_core::sandbox::{Network, SandboxSpec};
use espalier_sandbox::backend::{Backend, Door, LentDoor, Order, Reach};
use espalier_sandbox::image::ImageOptions;
use espalier_sandbox::local::Local;
use espalier_sandbox::service::{Purpose, Sandboxes};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const PATIENCE: Duration = Duration::from_secs(20);

async fn lent(local: &Local) -> LentDoor {
    match local.proxy_door("one").await.unwrap() {
        Door::Lent(lent) => lent,
        Door::Later(_) => panic!("somebody has it"),
    }
}

#[tokio::test]
async fn a_way_out_is_carried_by_one_and_then_by_the_next() {
    let place = Place::new();
    place.make(Order { network: Reach::Proxy, ..order(&place.folder, "one") }).await;
    let other = open(&place.folder);
    let first = lent(&place.local).await;
    let (Door::Later(second), Door::Later(gone), Door::Later(third)) = (
        other.proxy_door("one").await.unwrap(),
        other.proxy_door("one").await.unwrap(),
        place.local.proxy_door("one").await.unwrap(),
    ) else {
        panic!("two have it");
    };
    drop(gone);
    let mut second = tokio::spawn(second);
    let still = tokio::time::timeout(Duration::from_millis(300), &mut second).await;
    assert!(still.is_err(), "it is not given back");
    drop(first);
    let second = tokio::time::timeout(PATIENCE, second).await.expect("its turn").unwrap().unwrap();
    drop(second);
    let third = tokio::time::timeout(PATIENCE, third).await.expect("its turn").unwrap();
    drop(third);
    drop(lent(&other).await);
    assert!(place.local.proxy_door("none").await.is_err(), "no such sandbox");
}

#[tokio::test]
async fn the_way_out_is_there_again_under_the_next_keeper() {
    let place = Place::new();
    let sandbox = place.make(Order { network: Reach::Proxy, ..order(&place.folder, "one") }).await;
    drop(lent(&place.local).await);
    kill(keeper_pid(&place));
    assert_eq!(found_by_the_next(&place, 1).await.len(), 1);
    let LentDoor { listener, held } = lent(&place.local).await;
    let served = tokio::task::spawn_blocking(move || {
        use std::io::{Read, Write};
        listener.set_nonblocking(false).unwrap();
        let (mut stream, _) = listener.accept().unwrap();
        let mut heard = [0; 5];
        stream.read_exact(&mut heard).unwrap();
        stream.write_all(&heard).unwrap();
    });
    let call = "exec 3<>/dev/tcp/127.0.0.1/3128 && printf hello >&3 && timeout 10 cat <&3";
    assert_eq!(sandbox.run(call).await.0, "hello");
    served.await.unwrap();
    drop(held);
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_looks_into_a_sandbox_cuts_none_of_its_connections() {
    let place = Place::new();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    // Answers late.
    let server = tokio::spawn(async move {
        loop {
            let Ok((mut stream, _)) = listener.accept().await else { return };
            tokio::spawn(async move {
                let mut heard = [0; 1024];
                let _ = stream.read(&mut heard).await;
                let _ = stream.write_all(b"HTTP/1.0 200 OK\r\n\r\n").await;
                tokio::time::sleep(Duration::from_millis(700)).await;
                let _ = stream.write_all(b"whole\n").await;
            });
        }
    });
    let spec = SandboxSpec {
        network: Network::Allow(vec![format!("127.0.0.1:{port}")]),
        memory: 256 << 20,
        ..SandboxSpec::default()
    };
    let engine = place.service(None);
    let made = engine.create(&spec, &Purpose::new("engine")).await.unwrap();
    let id = made.placed.id.clone();
    let sandbox = crate::support::Sandbox { placed: made.placed, agent: made.agent };
    let calls = format!(
        "for n in 1 2 3 4 5 6 7 8 9 10 11 12; do (exec 3<>/dev/tcp/127.0.0.1/3128; printf 'GET http://127.0.0.1:{port}/ HTTP/1.1\\r\\n\\r\\n' >&3; timeout 10 tail -n 1 <&3) & sleep 0.1; done; wait"
    );
    let looked = async {
        for number in 0..8 {
            // A runtime of its own, as a command has: what it carried ends with it.
            let (folder, id) = (place.folder.clone(), id.clone());
            let looking = std::thread::spawn(move || {
                let runtime = tokio::runtime::Runtime::new().unwrap();
                runtime.block_on(async {
                    let local = open(&folder);
                    let images = folder.join("images");
                    let command = Sandboxes::new(Arc::new(local), &images, ImageOptions::default());
                    let client = format!("command-{number}");
                    command.attach(&id, &client, Duration::ZERO).await.unwrap();
                    tokio::time::sleep(Duration::from_millis(100)).await;
                });
            });
            tokio::task::spawn_blocking(|| looking.join().unwrap()).await.unwrap();
        }
    };
    let ((text, _), ()) = tokio::join!(sandbox.run(&calls), looked);
    assert_eq!(text, "whole\n".repeat(12));
    engine.delete(&id).await.unwrap();
    server.abort();
}

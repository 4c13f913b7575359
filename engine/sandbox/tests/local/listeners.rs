//! Who carries the egress of a sandbox, where several engines and commands work on it.

use crate::support::{Place, found_by_the_next, keeper_pid, kill, open, order};
use espalier_core::sandbox::{Network, SandboxSpec};
use espalier_images::ImageOptions;
use espalier_keeper::wire::{Order, Reach};
use espalier_sandbox::local::machine::Machine;
use espalier_sandbox::local::machine::{Egress, EgressListener};
use espalier_sandbox::local::{Local, Services};
use espalier_sandbox::service::{Purpose, Sandboxes};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const PATIENCE: Duration = Duration::from_secs(20);

async fn leased(local: &Machine) -> EgressListener {
    match local.egress("one").await.unwrap() {
        Egress::Ready(listener) => listener,
        Egress::Later(_) => panic!("somebody has it"),
    }
}

#[tokio::test]
async fn a_way_out_is_carried_by_one_and_then_by_the_next() {
    let place = Place::new();
    place.make(Order { network: Reach::Proxy, ..order(&place.folder, "one") }).await;
    let other = open(&place.folder);
    let first = leased(&place.local).await;
    let (Egress::Later(second), Egress::Later(gone), Egress::Later(third)) = (
        other.egress("one").await.unwrap(),
        other.egress("one").await.unwrap(),
        place.local.egress("one").await.unwrap(),
    ) else {
        panic!("two have it");
    };
    drop(gone);
    let second = tokio::spawn(second);
    // Asked and answered behind it: had it been given to the second, that would be known by now.
    for local in [&other, &place.local] {
        local.list().await.unwrap();
    }
    assert!(!second.is_finished(), "it is not given back");
    drop(first);
    let second = tokio::time::timeout(PATIENCE, second).await.expect("its turn").unwrap().unwrap();
    drop(second);
    let third = tokio::time::timeout(PATIENCE, third).await.expect("its turn").unwrap();
    drop(third);
    drop(leased(&other).await);
    assert!(place.local.egress("none").await.is_err(), "no such sandbox");
}

#[tokio::test]
async fn the_way_out_is_there_again_under_the_next_keeper() {
    let place = Place::new();
    let sandbox = place.make(Order { network: Reach::Proxy, ..order(&place.folder, "one") }).await;
    drop(leased(&place.local).await);
    kill(keeper_pid(&place));
    assert_eq!(found_by_the_next(&place, 1).await.len(), 1);
    let EgressListener { listener, held } = leased(&place.local).await;
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
    // Begins its answers, and ends them when it is told to.
    let (begun, mut begins) = tokio::sync::mpsc::channel(32);
    let (end, ends) = tokio::sync::watch::channel(false);
    let server = tokio::spawn(async move {
        loop {
            let Ok((mut stream, _)) = listener.accept().await else { return };
            let (begun, mut ends) = (begun.clone(), ends.clone());
            tokio::spawn(async move {
                let mut heard = [0; 1024];
                let _ = stream.read(&mut heard).await;
                let _ = stream.write_all(b"HTTP/1.0 200 OK\r\n\r\n").await;
                let _ = begun.send(()).await;
                let _ = ends.wait_for(|end| *end).await;
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
        "for n in 1 2 3 4 5 6; do (exec 3<>/dev/tcp/127.0.0.1/3128; printf 'GET http://127.0.0.1:{port}/ HTTP/1.1\\r\\n\\r\\n' >&3; timeout 60 tail -n 1 <&3) & done; wait"
    );
    let (first_stands, first_stood) = tokio::sync::oneshot::channel();
    let mut first_stands = Some(first_stands);
    let looked = async {
        for number in 0..8 {
            // Half of the connections stand at the first look; the other half is made while it is taken, and stands at the
            // second.
            if number < 2 {
                for _ in 0..6 {
                    tokio::time::timeout(PATIENCE, begins.recv()).await.expect("it connects").unwrap();
                }
            }
            if let Some(first) = first_stands.take() {
                let _ = first.send(());
            }
            // A runtime of its own, as a command has: what it carried ends with it.
            let (folder, id) = (place.folder.clone(), id.clone());
            let looking = std::thread::spawn(move || {
                let runtime = tokio::runtime::Runtime::new().unwrap();
                runtime.block_on(async {
                    let local = open(&folder);
                    let local = Local::over(
                        local,
                        &folder.join("images"),
                        ImageOptions::default(),
                        Services::default(),
                    );
                    let command = Sandboxes::new(Arc::new(local));
                    let client = format!("command-{number}");
                    command.attach(&id, &client, Duration::ZERO).await.unwrap();
                });
            });
            tokio::task::spawn_blocking(|| looking.join().unwrap()).await.unwrap();
        }
        end.send_replace(true);
    };
    let second_half = async {
        first_stood.await.unwrap();
        sandbox.run(&calls).await
    };
    let ((first, _), (second, _), ()) = tokio::join!(sandbox.run(&calls), second_half, looked);
    assert_eq!(first + &second, "whole\n".repeat(12));
    engine.delete(&id).await.unwrap();
    server.abort();
}

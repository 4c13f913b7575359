//! What a sandbox may use, each bound met on purpose; the sandbox goes on, and so does its neighbour.

use crate::support::{Place, Sandbox, order};
use espalier_agent_client::{command, wire};
use espalier_keeper::wire::Order;
use wire::outcome::Outcome;

/// A sandbox that is to be bombed, and the neighbour that must not feel it.
async fn pair(place: &Place, change: impl FnOnce(&mut Order)) -> (Sandbox, Sandbox) {
    let mut bombed = order(&place.folder, "bombed");
    change(&mut bombed);
    let bombed = place.make(bombed).await;
    (bombed, place.host("neighbour").await)
}

async fn both_live(bombed: &Sandbox, neighbour: &Sandbox) {
    assert_eq!(bombed.run("echo alive").await, ("alive\n".to_owned(), 0));
    assert_eq!(neighbour.run("echo well > /root/x && cat /root/x").await, ("well\n".to_owned(), 0));
}

fn outcome(answer: &wire::RunAnswer) -> Option<&Outcome> {
    answer.ended.as_ref()?.outcome.as_ref()?.outcome.as_ref()
}

#[tokio::test]
async fn a_memory_bomb_is_out_of_memory() {
    let place = Place::new();
    let (bombed, neighbour) = pair(&place, |order| order.bounds.memory = 64 << 20).await;
    let answer = bombed.answer("exec tail /dev/zero").await;
    assert!(matches!(outcome(&answer), Some(Outcome::OutOfMemory(_))), "{:?}", answer.ended);
    // Memory files count too.
    let (_, code) =
        bombed.run("head -c 200M /dev/zero > /dev/shm/x; rc=$?; rm -f /dev/shm/x; exit $rc").await;
    assert_ne!(code, 0);
    both_live(&bombed, &neighbour).await;
}

#[tokio::test]
async fn a_disk_bomb_is_a_full_disk_and_never_out_of_memory() {
    let place = Place::new();
    let (bombed, neighbour) = pair(&place, |order| order.bounds.disk = 16 << 20).await;
    for target in ["/root/x", "/usr/x", "/tmp/x"] {
        let (text, code) = bombed
            .run(&format!(
                "dd if=/dev/zero of={target} bs=1M count=64 conv=fsync; rc=$?; rm -f {target}; exit $rc"
            ))
            .await;
        assert_eq!(code, 1, "{text}");
        assert!(text.contains("Disk quota exceeded") || text.contains("No space left"), "{text}");
    }
    let (text, code) = bombed.run("i=0; while : > /root/file-with-a-long-name-$i 2>&1; do i=$((i+1)); [ $i -lt 200000 ] || break; done; echo $i").await;
    let made: u32 =
        text.lines().last().and_then(|line| line.parse().ok()).unwrap_or_else(|| panic!("{text} [{code}]"));
    assert!((100..200_000).contains(&made), "an inode bomb of {made} files");
    assert_eq!(bombed.run("rm -rf /root/file-*; echo room > /root/x && cat /root/x").await.0, "room\n");
    both_live(&bombed, &neighbour).await;
}

#[tokio::test]
async fn fork_and_thread_bombs_meet_the_bound() {
    let place = Place::new();
    let (bombed, neighbour) = pair(&place, |order| order.bounds.processes_max = 32).await;
    let spec = command::within(
        command::script("f() { f | f & }; f; sleep 1000"),
        std::time::Duration::from_millis(1500),
    );
    let answer = bombed.spec_as_it_is(spec).await;
    assert!(
        matches!(outcome(&answer), Some(Outcome::TimedOut(timed)) if timed.unkillable == 0),
        "{:?}",
        answer.ended
    );
    both_live(&bombed, &neighbour).await;
    let threads = "import threading,time\nn=0\ntry:\n  while n<1000:\n    threading.Thread(target=time.sleep,args=(5,),daemon=True).start(); n+=1\nexcept RuntimeError: print('stopped at',n)";
    if bombed.run("command -v python3").await.1 == 0 {
        let (text, _) = bombed.run(&format!("python3 -c \"{threads}\"; true")).await;
        assert!(text.contains("stopped at"), "{text}");
    }
    both_live(&bombed, &neighbour).await;
}

#[tokio::test]
async fn an_output_bomb_is_cut_and_counted() {
    let place = Place::new();
    let (bombed, neighbour) = pair(&place, |order| order.bounds.disk = 32 << 20).await;
    let answer = bombed.answer("head -c 300000000 /dev/zero").await;
    assert!(matches!(outcome(&answer), Some(Outcome::ExitCode(0))));
    assert_eq!(answer.ended.unwrap().stdout_bytes, 300_000_000);
    let out = answer.stdout.unwrap();
    assert_eq!(out.head.len() as u64 + out.omitted_bytes + out.tail.len() as u64, 300_000_000);
    both_live(&bombed, &neighbour).await;
}

#[tokio::test]
async fn processor_time_is_shared_out() {
    let place = Place::new();
    let (bombed, neighbour) = pair(&place, |order| order.bounds.cpu = 0.2).await;
    // A fifth of a core for half a second of work: what the kernel counts, not what a clock says.
    let (text, _) = bombed.run("timeout 2 sh -c 'while :; do :; done'; cat /proc/$$/schedstat; times").await;
    let children = text.lines().last().unwrap_or_default().to_owned();
    let seconds: f64 = children
        .split_whitespace()
        .filter_map(|part| part.strip_suffix('s')?.split_once('m')?.1.parse::<f64>().ok())
        .sum();
    assert!(seconds < 1.0, "2 s of a fifth of a core were {seconds} s: {text}");
    both_live(&bombed, &neighbour).await;
}

use super::*;
use Outcome::{Answered, Busy, Cancelled, Failed, Refused};

struct Play {
    table: Table,
    start: Instant,
    now: Duration,
}

impl Play {
    fn new(servers: usize, limit: u32) -> Play {
        let start = Instant::now();
        let urls = (0..servers).map(|at| format!("http://{at}")).collect();
        Play { table: Table::new(urls, limit, start), start, now: Duration::ZERO }
    }

    fn now(&self) -> Instant {
        self.start + self.now
    }

    fn pass(&mut self, millis: u64) {
        self.now += Duration::from_millis(millis);
    }

    fn choose(&mut self, session: &str) -> Choice {
        let now = self.now();
        self.table.choose(Some(session), &[], now)
    }

    fn at(&mut self, session: &str) -> usize {
        match self.choose(session) {
            Choice::Server(at) => at,
            other => panic!("{other:?} for {session}"),
        }
    }

    fn end(&mut self, at: usize, outcome: Outcome) {
        self.end_after(at, outcome, 100);
    }

    fn end_after(&mut self, at: usize, outcome: Outcome, millis: u64) {
        let now = self.now();
        self.table.ended(at, true, outcome, Duration::from_millis(millis), now);
    }

    /// A whole call.
    fn call(&mut self, session: &str, outcome: Outcome) -> usize {
        let at = self.at(session);
        self.end(at, outcome);
        at
    }
}

const FINE: Outcome = Answered { bytes: 1000 };

#[test]
fn new_sessions_go_where_least_is_in_flight_and_stay_there() {
    let mut play = Play::new(3, 8);
    let held: Vec<usize> = ["a", "b", "c", "d"].map(|session| play.at(session)).to_vec();
    assert_eq!(held, [0, 1, 2, 0]);
    // Server 0 has two, yet its sessions come back to it, whatever else is free.
    play.end(1, FINE);
    play.end(2, FINE);
    for (session, at) in [("a", 0), ("c", 2), ("b", 1), ("a", 0)] {
        assert_eq!(play.at(session), at, "{session}");
    }
    assert_eq!(play.at("e"), 2, "of two with as much, the one that was chosen longer ago");
}

#[test]
fn a_full_server_gives_sessions_away_and_full_servers_wait() {
    let mut play = Play::new(2, 2);
    assert_eq!([play.at("a"), play.at("b"), play.at("a")], [0, 1, 0]);
    assert_eq!(play.at("a"), 1, "its own is full");
    assert_eq!(play.choose("c"), Choice::Full);
    play.end(0, FINE);
    assert_eq!(play.at("c"), 0);
    let now = play.now();
    assert!(
        matches!(play.table.choose(None, &[], now), Choice::Server(_)),
        "what samples nothing does not wait"
    );
}

#[test]
fn a_server_that_fails_is_left_alone_and_tried_by_one_call() {
    let mut play = Play::new(2, 8);
    for _ in 0..FAILURES_MAX {
        assert_eq!(play.call("a", Failed), 0, "it is its session's until it is broken");
    }
    assert_eq!(play.call("a", FINE), 1);
    play.pass(1001);
    // Its time is up: the next new session tries it, others do not meanwhile.
    assert_eq!([play.at("x"), play.at("y"), play.at("z")], [0, 1, 1]);
    play.end(0, Failed);
    play.pass(1001);
    assert_eq!(play.call("w", FINE), 1, "twice as long the second time");
    play.pass(1001);
    assert_eq!(play.call("v", Cancelled), 0);
    assert_eq!(play.call("v", FINE), 0, "a trial that nobody waited for is made again");
    assert_eq!([play.at("p"), play.at("q")], [0, 0], "it is well again, and less is in flight there");
}

#[test]
fn misuse_and_cancels_break_nothing() {
    for outcome in [Refused, Cancelled, FINE] {
        let mut play = Play::new(2, 8);
        for _ in 0..10 {
            assert_eq!(play.call("a", outcome), 0, "{outcome:?}");
        }
    }
    let mut play = Play::new(2, 8);
    for outcome in [Failed, Failed, FINE, Failed, Failed, Refused, Failed] {
        assert_eq!(play.call("a", outcome), 0, "never three in a row");
    }
}

#[test]
fn a_call_goes_elsewhere_after_it_failed_and_nowhere_else_if_there_is_nothing_else() {
    let mut play = Play::new(2, 8);
    assert_eq!(play.call("a", Failed), 0);
    let now = play.now();
    assert_eq!(play.table.choose(Some("a"), &[0], now), Choice::Server(1));
    assert_eq!(play.table.choose(Some("b"), &[0, 1], now), Choice::Server(0), "all have failed it");
    let mut alone = Play::new(1, 8);
    for _ in 0..20 {
        assert_eq!(alone.call("a", Failed), 0, "the only server is asked, whatever it did");
    }
    let mut all = Play::new(2, 8);
    for session in ["a", "b"] {
        for _ in 0..FAILURES_MAX {
            all.call(session, Failed);
        }
        all.pass(10);
    }
    assert_eq!(all.call("c", FINE), 0, "where all are broken, the one whose time is up first");
}

#[test]
fn a_slow_server_keeps_no_session() {
    let mut play = Play::new(3, 8);
    for round in 0..PACE_SAMPLES {
        for (session, millis) in [("a", 100), ("b", 120), ("c", 500)] {
            let at = play.at(session);
            assert_eq!(at, (u32::from(session.as_bytes()[0]) - 97) as usize, "round {round}");
            play.end_after(at, FINE, millis);
        }
    }
    assert_eq!(play.at("c"), 0, "it moves");
    assert_eq!(play.at("c"), 0, "and stays where it is now");
    assert_eq!([play.at("d"), play.at("e"), play.at("f")], [1, 1, 0], "new ones go elsewhere");
    play.pass(PACE_HOLDS.as_millis() as u64 + 1);
    assert_eq!(play.at("g"), 2, "a pace is forgotten, so that it is tried again");
}

#[test]
fn a_limit_falls_when_a_server_is_busy_and_rises_with_answers() {
    let mut play = Play::new(1, 10);
    for _ in 0..10 {
        play.at("a");
    }
    assert_eq!(play.choose("a"), Choice::Full);
    play.end(0, Busy);
    assert_eq!(play.table.servers[0].limit, 8);
    assert_eq!(play.choose("a"), Choice::Full);
    for expect in [9, 9, 9] {
        // An answer of a server that had all it takes lets one more in.
        play.end(0, FINE);
        assert_eq!(play.table.servers[0].limit, expect);
    }
    play.table.told_load(0, Some(Load { running: 3.0, waiting: 3.0, cache: 0.97 }));
    assert_eq!(play.table.servers[0].limit, 3);
}

#[test]
fn a_server_that_is_fenced_off_gets_nothing_until_the_fence_is_lifted() {
    let mut play = Play::new(2, 8);
    assert_eq!(play.at("a"), 0);
    play.table.fence(0, Some("the update to s2 failed".to_owned()));
    assert_eq!([play.at("a"), play.at("b")], [1, 1]);
    play.end(0, FINE);
    assert_eq!(play.at("c"), 1, "an answer from before lifts nothing");
    play.table.fence(1, Some("that of this one, too".to_owned()));
    assert_eq!(play.choose("d"), Choice::Fenced("that of this one, too".to_owned()));
    play.table.fence(0, None);
    assert_eq!(play.at("d"), 0);
}

#[test]
fn load_is_asked_of_servers_that_are_half_full_and_tell_it() {
    let mut play = Play::new(1, 8);
    for _ in 0..4 {
        play.at("a");
    }
    let now = play.now();
    assert!(!play.table.wants_load(0, now), "not at once");
    play.pass(2000);
    let now = play.now();
    assert!(play.table.wants_load(0, now) && !play.table.wants_load(0, now), "once in two seconds");
    play.table.told_load(0, None);
    play.pass(9000);
    let now = play.now();
    assert!(!play.table.wants_load(0, now), "it does not tell");
}

#[test]
fn sessions_that_were_not_used_for_long_are_forgotten() {
    let mut play = Play::new(2, u32::MAX);
    for number in 0..=SESSIONS_MAX {
        play.pass(1);
        play.at(&format!("s{number}"));
    }
    assert!(play.table.sessions.len() <= SESSIONS_MAX / 2 + 1, "{}", play.table.sessions.len());
    assert!(play.table.sessions.contains_key(&hash(&format!("s{SESSIONS_MAX}"))));
}

/// Any order of calls and endings: no server has more than its limit, nothing is lost count of, and there is always somewhere to go.
#[test]
fn counts_hold_under_any_order() {
    use rand::{RngExt, SeedableRng};
    for seed in 0..200 {
        let mut rng = rand_chacha::ChaCha8Rng::seed_from_u64(seed);
        let mut play = Play::new(rng.random_range(1..5), rng.random_range(1..6));
        let mut open: Vec<usize> = Vec::new();
        for _ in 0..400 {
            play.pass(rng.random_range(0..400));
            if rng.random_bool(0.55) {
                match play.choose(&format!("s{}", rng.random_range(0..12))) {
                    Choice::Server(at) => open.push(at),
                    Choice::Full => {
                        assert!(!open.is_empty(), "seed {seed}: nothing is in flight, yet all are full");
                    }
                    Choice::Fenced(reason) => panic!("seed {seed}: {reason}"),
                }
            } else if !open.is_empty() {
                let at = open.swap_remove(rng.random_range(0..open.len()));
                let outcomes = [FINE, FINE, Failed, Busy, Cancelled, Refused];
                let outcome = outcomes[rng.random_range(0..outcomes.len())];
                play.end_after(at, outcome, rng.random_range(1..2000));
            }
            for (at, server) in play.table.servers.iter().enumerate() {
                let count = open.iter().filter(|open| **open == at).count();
                assert_eq!(server.in_flight as usize, count, "seed {seed}");
                assert!(server.limit >= 1 && server.limit <= play.table.limit_max, "seed {seed}");
            }
        }
    }
}

#[test]
fn a_pinned_session_has_one_server_alone_until_nobody_wants_it_so() {
    let mut play = Play::new(3, 2);
    play.table.pin("a", "http://2", true);
    play.table.pin("a", "http://2", true);
    play.table.pin("b", "http://elsewhere", true);
    assert_eq!(
        (play.call("a", Failed), play.call("a", Failed), play.call("a", Failed)),
        (2, 2, 2),
        "failing or not"
    );
    assert_eq!((play.at("a"), play.at("a")), (2, 2));
    assert_eq!(play.choose("a"), Choice::Full);
    assert_ne!(play.at("b"), 2, "that is no server of its own, and 2 is left alone");
    play.table.fence(2, Some("stale".to_owned()));
    assert_eq!(play.choose("a"), Choice::Fenced("stale".to_owned()));
    play.table.pin("a", "http://2", false);
    assert_eq!(play.choose("a"), Choice::Fenced("stale".to_owned()), "another attempt wants it still");
    play.table.pin("a", "http://2", false);
    assert_ne!(play.at("a"), 2);
}

use super::*;
use std::cell::RefCell;
use std::collections::VecDeque;

const POLICY: Policy = Policy {
    attempts: 5,
    base: Duration::from_millis(200),
    cap: Duration::from_secs(1),
    retry_after_max: Duration::from_secs(120),
};

fn busy(retry_after: Option<u64>) -> Attempt {
    Attempt::Again(Fault::Status {
        status: 429,
        retry_after: retry_after.map(Duration::from_secs),
        body: String::new(),
    })
}

/// Runs a script of outcomes under paused time with the largest jitter; returns the result and when each attempt began.
async fn play(
    script: Vec<Result<u32, Attempt>>,
    deadline: Option<Duration>,
) -> (Result<Answered<u32>, EndpointError>, Vec<u128>) {
    let script = RefCell::new(VecDeque::from(script));
    let begun = Instant::now();
    let times = RefCell::new(Vec::new());
    let attempt = |_| {
        times.borrow_mut().push(begun.elapsed().as_millis());
        let next = script.borrow_mut().pop_front();
        async {
            match next {
                Some(outcome) => outcome,
                None => std::future::pending().await,
            }
        }
    };
    let result = run(&POLICY, |bound| bound, deadline.map(|after| begun + after), "/x", attempt).await;
    (result, times.take())
}

#[tokio::test(start_paused = true)]
async fn waits_double_up_to_the_cap_and_the_attempts_are_bounded() {
    let (result, times) = play((0..9).map(|_| Err(busy(None))).collect(), None).await;
    assert_eq!(times, [0, 200, 600, 1400, 2400]);
    let error = result.unwrap_err();
    assert_eq!(error.to_string(), "/x did not answer after 5 attempts in 2.4 s");
    assert!(matches!(error, EndpointError::Unavailable { attempts: 5, .. }));
}

#[tokio::test(start_paused = true)]
async fn retry_after_is_honoured_and_a_long_one_gives_up_at_once() {
    let (result, times) = play(vec![Err(busy(Some(7))), Ok(1)], None).await;
    assert_eq!(times, [0, 7200]);
    assert_eq!(result.unwrap(), Answered { value: 1, retries: 1 });
    let (result, times) = play(vec![Err(busy(Some(121))), Ok(1)], None).await;
    assert_eq!(times, [0]);
    assert!(matches!(result.unwrap_err(), EndpointError::Unavailable { attempts: 1, .. }));
}

#[tokio::test(start_paused = true)]
async fn a_stop_is_never_repeated() {
    let denied = EndpointError::Denied { endpoint: "/x".to_owned(), status: 401 };
    let (result, times) = play(vec![Err(busy(None)), Err(Attempt::Stop(denied)), Ok(1)], None).await;
    assert_eq!(times.len(), 2);
    assert!(matches!(result.unwrap_err(), EndpointError::Denied { status: 401, .. }));
}

#[tokio::test(start_paused = true)]
async fn the_deadline_ends_an_attempt_and_no_wait_goes_beyond_it() {
    let begun = Instant::now();
    let (result, _) = play(vec![], Some(Duration::from_secs(3))).await;
    assert_eq!(begun.elapsed().as_millis(), 3000);
    assert!(matches!(result.unwrap_err(), EndpointError::Deadline { attempts: 1, last: None, .. }));
    let begun = Instant::now();
    let (result, times) = play(vec![Err(busy(Some(60))), Ok(1)], Some(Duration::from_secs(3))).await;
    assert_eq!((begun.elapsed().as_millis(), times.len()), (0, 1), "the wait is not begun");
    assert!(matches!(result.unwrap_err(), EndpointError::Deadline { attempts: 1, last: Some(_), .. }));
}

#[test]
fn jitter_is_drawn_from_the_whole_bound() {
    let cut = Fault::Cut { source: String::new().into() };
    let bounds: Vec<u128> = (1..6)
        .filter_map(|number| {
            let mut seen = 0;
            let wait = POLICY.wait(number, &cut, &mut |bound: Duration| {
                seen = bound.as_millis();
                Duration::ZERO
            });
            wait.map(|wait| {
                assert_eq!(wait, Duration::ZERO);
                seen
            })
        })
        .collect();
    assert_eq!(bounds, [200, 400, 800, 1000]);
}

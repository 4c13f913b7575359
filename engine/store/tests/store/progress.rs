//! What a resumed run knows, against a plain model, over random histories with engines that die.

use crate::backend::Backend;
use crate::on_both;
use crate::sample::{NOW, closed, opened, play, spec, started};
use espalier_core::samples::GroupStatus;
use espalier_store::{AttemptState, Finality, Holder, RunWriter, Start, Store};
use proptest::prelude::*;
use std::collections::BTreeMap;

#[derive(Clone, Debug)]
enum Event {
    Open,
    Start(u64, u32),
    End(u64, u32, bool),
    Close(u64),
    Die,
}

#[derive(Clone, Debug, PartialEq)]
enum Word {
    Running,
    Cut,
    Abandoned,
    Final(bool),
}

/// Groups by place: whether closed, and each rollout's attempts.
type Model = Vec<(bool, BTreeMap<u32, Vec<Word>>)>;

fn events() -> impl Strategy<Value = Vec<Event>> {
    let event = prop_oneof![
        2 => Just(Event::Open),
        6 => (0..4u64, 0..3u32).prop_map(|(group, rollout)| Event::Start(group, rollout)),
        6 => (0..4u64, 0..3u32, any::<bool>()).prop_map(|(group, rollout, last)| Event::End(group, rollout, last)),
        1 => (0..4u64).prop_map(Event::Close),
        1 => Just(Event::Die),
    ];
    proptest::collection::vec(event, 1..60)
}

async fn claim(store: &Store) -> RunWriter {
    let dead = Holder { pid: u32::MAX, ..Holder::this_process() };
    store.claim_run(&spec("a", 1), &dead, Start::Resume, NOW).await.unwrap().run
}

/// Carries out what is possible, in the store and in the model.
async fn carry_out(store: &Store, run: &mut RunWriter, model: &mut Model, event: Event) {
    match event {
        Event::Open => {
            run.open_group(opened(model.len() as u64)).await.unwrap();
            model.push((false, BTreeMap::new()));
        }
        Event::Start(group, rollout) => {
            let Some((false, rollouts)) = model.get_mut(group as usize) else { return };
            let attempts = rollouts.entry(rollout).or_default();
            if matches!(attempts.last(), Some(Word::Running | Word::Final(_))) {
                return;
            }
            run.attempt_started(started(group, rollout, attempts.len() as u32)).await.unwrap();
            attempts.push(Word::Running);
        }
        Event::End(group, rollout, last) => {
            let Some((false, rollouts)) = model.get_mut(group as usize) else { return };
            let Some(attempts) = rollouts.get_mut(&rollout) else { return };
            if attempts.last() != Some(&Word::Running) {
                return;
            }
            let rewarded = last && rollout != 2;
            let finality = if last { Finality::Final } else { Finality::Abandoned };
            let number = attempts.len() as u32 - 1;
            play(run, group, rollout, number, rewarded.then_some(1.0), finality).await.unwrap();
            attempts.pop();
            attempts.push(if last { Word::Final(rewarded) } else { Word::Abandoned });
        }
        Event::Close(group) => {
            let Some((is_closed @ false, rollouts)) = model.get_mut(group as usize) else { return };
            let last = |word: &Word| rollouts.values().any(|attempts| attempts.last() == Some(word));
            if last(&Word::Running) {
                return;
            }
            let ready =
                rollouts.values().filter(|attempts| attempts.last() == Some(&Word::Final(true))).count();
            run.close_group(closed(group, GroupStatus::Failed, ready as u32, &[])).await.unwrap();
            *is_closed = true;
        }
        Event::Die => {
            *run = claim(store).await;
            for attempts in model.iter_mut().flat_map(|(_, rollouts)| rollouts.values_mut()) {
                if let Some(word @ Word::Running) = attempts.last_mut() {
                    *word = Word::Cut;
                }
            }
        }
    }
}

async fn seen(run: &RunWriter) -> Model {
    let word = |state| match state {
        AttemptState::Running => Word::Running,
        AttemptState::Cut => Word::Cut,
        AttemptState::Abandoned(_) => Word::Abandoned,
        AttemptState::Final(result) => Word::Final(result.reward.is_some()),
    };
    let groups = run.progress().await.unwrap().into_iter();
    groups
        .map(|group| {
            let rollouts = group.rollouts.into_iter();
            let words = rollouts.map(|(index, rollout)| {
                (index, rollout.attempts.into_iter().map(|one| word(one.state)).collect())
            });
            (group.status.is_some(), words.collect())
        })
        .collect()
}

fn check_histories(cases: u32, backend: fn() -> Backend) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    // A failing history is printed with its seed.
    let config = ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() };
    proptest!(config, |(events in events())| {
        runtime.block_on(async {
            let backend = backend();
            let store = backend.open().await;
            let (mut run, mut model) = (claim(&store).await, Model::new());
            for event in events {
                carry_out(&store, &mut run, &mut model, event).await;
            }
            carry_out(&store, &mut run, &mut model, Event::Die).await;
            // Closed groups are told without their rollouts.
            for (is_closed, rollouts) in &mut model {
                if *is_closed {
                    rollouts.clear();
                }
            }
            assert_eq!(seen(&run).await, model);
            store.close().await;
        });
    });
}

#[test]
fn random_histories_sqlite() {
    check_histories(24, Backend::sqlite);
}

#[test]
fn random_histories_postgres() {
    check_histories(8, Backend::postgres);
}

on_both! {
    async fn a_group_is_resumed_as_it_opened(backend: Backend) {
        let store = backend.open().await;
        let run = claim(&store).await;
        let judge = espalier_store::GroupOpened {
            model: "judge".into(),
            deadline_ms: Some(NOW + 5),
            step_budget: None,
            repeat: 2,
            ..opened(7)
        };
        run.open_group(judge.clone()).await.unwrap();
        run.open_group(opened(2)).await.unwrap();
        let groups = claim(&store).await.progress().await.unwrap();
        let found: Vec<_> = groups.into_iter().map(|group| group.opened).collect();
        assert_eq!(found, [opened(2), judge]);
    }
}

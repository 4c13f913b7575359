//! What judges and rewards of the group asked of models: a table for each of them, or call by call with question and answer.

use super::beginning;
use crate::output::rollout_view::{block, heading};
use crate::output::table::{Align, Table};
use crate::output::text::{count, counted};
use crate::output::{Look, styles};
use anstyle::Style;
use espalier_core::judge::JudgeRecord;
use espalier_core::samples::Call;
use espalier_core::trajectory::{AttemptRecord, Turn};
use std::collections::BTreeSet;

/// Those of the record's judges, then those that no conversation has: of a judge that failed, or that was asked again.
pub(super) fn lines(record: &AttemptRecord, full: bool, look: &Look) -> Vec<String> {
    let mut lines = Vec::new();
    for judge in &record.judges {
        let calls: Vec<Asked<'_>> =
            judge.transcript.turns.iter().map(|turn| Asked::of(turn, judge, record)).collect();
        let facts = format!("model {}, {}", judge.model, counted(calls.len() as u64, "answer"));
        lines.push(String::new());
        lines.push(heading(&format!("asked by {}", judge.judge), &facts, look));
        lines.extend(if full { in_full(judge, &calls, look) } else { table(&calls, look) });
    }
    let told = record.transcript.turns.iter().chain(record.judges.iter().flat_map(|j| &j.transcript.turns));
    let told: BTreeSet<&str> = told.map(|turn| turn.call_id.as_str()).collect();
    let others: Vec<Asked<'_>> = (record.trajectory.other_calls.iter())
        .filter(|call| !told.contains(call.call_id.as_str()))
        .map(Asked::without_words)
        .collect();
    if !others.is_empty() {
        lines.push(String::new());
        lines.push(heading("other calls of models", "their conversations are not kept", look));
        lines.extend(table(&others, look));
    }
    lines
}

/// One call.
struct Asked<'a> {
    call_id: &'a str,
    model: &'a str,
    /// Prompt and sampled; `None` where the record does not say.
    tokens: Option<(u32, u32)>,
    finish: &'a str,
}

impl<'a> Asked<'a> {
    fn of(turn: &'a Turn, judge: &'a JudgeRecord, record: &'a AttemptRecord) -> Asked<'a> {
        let sampled = judge.sampled.iter().flat_map(|sampled| &sampled.calls);
        let mut calls = sampled.chain(&record.trajectory.other_calls);
        let call = calls.find(|call| call.call_id == turn.call_id);
        let tokens = call.map(|call| (call.n_prompt, call.n_sampled));
        Asked { call_id: &turn.call_id, model: &judge.model, tokens, finish: &turn.finish }
    }

    fn without_words(call: &'a Call) -> Asked<'a> {
        let tokens = Some((call.n_prompt, call.n_sampled));
        Asked { call_id: &call.call_id, model: &call.model, tokens, finish: &call.finish }
    }

    fn tokens(&self) -> (String, String) {
        let shown = |n: u32| count(n.into());
        self.tokens.map_or_else(Default::default, |(prompt, sampled)| (shown(prompt), shown(sampled)))
    }
}

fn table(calls: &[Asked<'_>], look: &Look) -> Vec<String> {
    let mut table = Table::new(&[
        ("call", Align::Left),
        ("model", Align::Left),
        ("prompt", Align::Right),
        ("sampled", Align::Right),
        ("ended by", Align::Left),
    ]);
    for call in calls {
        let (prompt, sampled) = call.tokens();
        table.row(vec![
            call.call_id.into(),
            call.model.into(),
            prompt.into(),
            sampled.into(),
            call.finish.into(),
        ]);
    }
    if calls.is_empty() { Vec::new() } else { table.lines(look) }
}

/// Each call with what was new in its conversation, and the answer.
fn in_full(judge: &JudgeRecord, calls: &[Asked<'_>], look: &Look) -> Vec<String> {
    let mut lines = Vec::new();
    let mut opened = BTreeSet::new();
    for (turn, call) in judge.transcript.turns.iter().zip(calls) {
        let (prompt, sampled) = call.tokens();
        let facts = format!("{prompt} + {sampled} tokens, {}", call.finish);
        lines.push(heading(&format!("call {}", call.call_id), &facts, look));
        // With what it was forked from, outermost first.
        let mut openings = Vec::new();
        let mut of = Some(turn.conversation);
        while let Some(index) = of.filter(|index| opened.insert(*index)) {
            let conversation = judge.transcript.conversations.get(index as usize);
            openings.extend(conversation.map(|conversation| &conversation.opening));
            of = conversation.and_then(|conversation| conversation.forked_from);
        }
        for message in openings.into_iter().rev().flatten() {
            let label = format!("{}: ", message.role.as_str());
            lines.extend(block(&label, &beginning(message.joined_text()), Style::new(), look));
        }
        lines.extend(block("answered: ", &beginning(turn.message.joined_text()), styles::GOOD, look));
        for message in &turn.results {
            let label = format!("{}: ", message.role.as_str());
            lines.extend(block(&label, &beginning(message.joined_text()), Style::new(), look));
        }
    }
    lines
}

//! What a case says as what plugins are shown, and what plugins give as what a case can say.

use crate::case::{self, CaseError, CaseFile};
use crate::script::MemoryBlobs;
use espalier_core::chat::{Message, Role, ToolCall, Usage};
use espalier_core::ending::{Limit, Outcome, Report};
use espalier_core::host::StepResult;
use espalier_core::judge::Vote;
use espalier_core::task::{Task, TaskView};
use espalier_core::trajectory::{LogLine, LogSource, RolloutView, Score, Step, Turn};
use serde_json::{Map, Value, json};

/// The task of a case, with its private part; one that scores may do without.
pub(crate) fn task(file: &CaseFile) -> Result<TaskView, CaseError> {
    let Some(task) = &file.task else {
        let task = json!({ "id": "task", "instruction": "-" }).to_string();
        return parse_task(&task).map(|view| TaskView { instruction: String::new(), ..view });
    };
    let mut view = parse_task(&task.to_string())?;
    for name in
        file.sandboxes.keys().filter(|name| !view.sandboxes.contains(name)).cloned().collect::<Vec<_>>()
    {
        view.sandboxes.push(name);
    }
    Ok(view)
}

fn parse_task(line: &str) -> Result<TaskView, CaseError> {
    let task = Task::parse(line).map_err(|error| {
        // Columns are those of a line that nobody has written.
        let text = error.to_string();
        CaseError(format!("task: {}", text.split(" (column ").next().unwrap_or(&text)))
    })?;
    Ok(task.view(true))
}

/// A finished rollout as what scores it is shown it.
pub(crate) fn rollout(
    place: usize,
    file: &case::Rollout,
    task: &TaskView,
    blobs: &MemoryBlobs,
) -> RolloutView {
    let mut tool_calls = 0;
    let turns = file.turns.iter().enumerate();
    RolloutView {
        rollout_id: format!("case.g0.r{place}"),
        task: task.clone(),
        status: file.status.clone().unwrap_or_else(|| "completed".to_owned()),
        stop_reason: file.stop_reason.clone().unwrap_or_else(|| "submitted".to_owned()),
        report: file.report.as_ref().map(report),
        turns: turns.map(|(index, one)| turn(index, one, &mut tool_calls)).collect(),
        steps: file.steps.iter().map(step).collect(),
        blobs: file
            .blobs
            .iter()
            .map(|(name, text)| (name.clone(), blobs.keep(text.clone().into_bytes(), "text/plain")))
            .collect(),
        extra: (!file.extra.is_empty()).then(|| Value::Object(file.extra.clone()).to_string()),
    }
}

fn turn(index: usize, file: &case::Turn, tool_calls: &mut u32) -> Turn {
    let mut called = |call: &case::ToolCall| {
        let id = format!("call-{tool_calls}");
        *tool_calls += 1;
        ToolCall { id, name: call.name.clone(), arguments: Value::Object(call.arguments.clone()).to_string() }
    };
    Turn {
        index: index as u32,
        conversation: 0,
        call_id: format!("case.g0.r0.{index}"),
        message: Message::text(Role::Assistant, file.text.as_str()),
        tool_calls: file.tool_calls.iter().map(&mut called).collect(),
        malformed: None,
        finish: if file.tool_calls.is_empty() { "stop" } else { "tool-calls" }.to_owned(),
        usage: Usage::default(),
        results: file.answers.iter().map(|text| Message::text(Role::User, text.as_str())).collect(),
        images_elided: 0,
        calls_at: Vec::new(),
    }
}

fn step(file: &case::TakenStep) -> Step {
    Step {
        turn: file.turn,
        action: file.action.clone(),
        observation: file.observation.clone(),
        reward: file.reward,
        done: file.done,
        info: file.info.to_string(),
    }
}

fn report(file: &case::Report) -> Report {
    Report {
        outcome: outcome(&file.outcome),
        answer: file.answer.clone(),
        data: file.data.to_string(),
        extra: None,
    }
}

fn outcome(word: &str) -> Outcome {
    match word {
        "submitted" => Outcome::Submitted,
        "gave-up" => Outcome::GaveUp,
        word => match word.strip_prefix("limit-") {
            Some("turns") => Outcome::Limit(Limit::Turns),
            Some("tokens") => Outcome::Limit(Limit::Tokens),
            Some("calls") => Outcome::Limit(Limit::Calls),
            Some("wall") => Outcome::Limit(Limit::Wall),
            Some("format") => Outcome::Limit(Limit::Format),
            Some(other) => Outcome::Limit(Limit::Other(other.to_owned())),
            None => Outcome::Other(word.to_owned()),
        },
    }
}

fn outcome_word(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Submitted => "submitted".to_owned(),
        Outcome::GaveUp => "gave-up".to_owned(),
        Outcome::Limit(limit) => format!(
            "limit-{}",
            match limit {
                Limit::Turns => "turns",
                Limit::Tokens => "tokens",
                Limit::Calls => "calls",
                Limit::Wall => "wall",
                Limit::Format => "format",
                Limit::Other(word) => word,
            }
        ),
        Outcome::Other(word) => word.clone(),
    }
}

/// JSON text as its value; what is none, as text.
fn value(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|_| Value::String(text.to_owned()))
}

fn extra(text: Option<&str>) -> Value {
    text.map_or(Value::Null, value)
}

pub(crate) fn report_json(report: &Report) -> Value {
    json!({
        "outcome": outcome_word(&report.outcome),
        "answer": report.answer,
        "data": value(&report.data),
        "extra": extra(report.extra.as_deref()),
    })
}

pub(crate) fn scores_json(scores: &[Score]) -> Value {
    let score = |score: &Score| {
        json!({
            "name": score.name,
            "value": score.value,
            "turn": score.turn,
            "reason": score.reason,
            "extra": extra(score.extra.as_deref()),
        })
    };
    scores.iter().map(score).collect()
}

pub(crate) fn votes_json(votes: &[Vote]) -> Value {
    let vote = |vote: &Vote| {
        json!({
            "turn": vote.turn,
            "value": vote.value,
            "text": vote.text,
            "call": vote.call,
            "extra": extra(vote.extra.as_deref()),
        })
    };
    votes.iter().map(vote).collect()
}

pub(crate) fn step_json(step: &StepResult, actions: Option<Vec<String>>) -> Value {
    let mut seen = Map::from_iter([
        ("observation".to_owned(), json!(step.observation.text)),
        ("reward".to_owned(), json!(step.reward)),
        ("done".to_owned(), json!(step.done)),
        ("info".to_owned(), value(&step.info)),
        ("extra".to_owned(), extra(step.extra.as_deref())),
    ]);
    if let Some(actions) = actions {
        seen.insert("actions".to_owned(), json!(actions));
    }
    Value::Object(seen)
}

pub(crate) fn tasks_json(tasks: &[String]) -> Value {
    tasks.iter().map(|task| value(task)).collect()
}

/// Lines of a log as people read them.
pub(crate) fn log_lines(logs: &[LogLine]) -> Vec<String> {
    let line = |line: &LogLine| {
        let source = match line.source {
            LogSource::Debug => "debug",
            LogSource::Info => "info",
            LogSource::Warn => "warn",
            LogSource::Error => "error",
            LogSource::Stdout => "stdout",
            LogSource::Stderr => "stderr",
        };
        let fields = line.fields.as_ref().map_or(String::new(), |fields| format!(" {fields}"));
        format!("[{source}] {}{fields}", line.text)
    };
    logs.iter().map(line).collect()
}

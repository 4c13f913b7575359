//! Between the generated types of `wit/` and the plain types of `espalier_core`.

pub(crate) mod browser;
pub(crate) mod sandbox;

use crate::bindings::harness::espalier::base::types as base;
use crate::bindings::harness::espalier::environment::types as environment;
use crate::bindings::harness::espalier::model::conversations;
use crate::bindings::harness::espalier::model::messages;
use crate::bindings::harness::espalier::plugin::reports;
use crate::bindings::reward::espalier::plugin::scores;
use espalier_core::chat;
use espalier_core::ending;
use espalier_core::failure::{BudgetKind, Failure};
use espalier_core::host;
use espalier_core::task::TaskView;
use espalier_core::trajectory::{RolloutView, Score};

pub(crate) fn failure_out(failure: Failure) -> base::Failure {
    match failure {
        Failure::Budget(kind) => base::Failure::Budget(match kind {
            BudgetKind::Turns => base::BudgetKind::Turns,
            BudgetKind::Tokens => base::BudgetKind::Tokens,
            BudgetKind::SampledTokens => base::BudgetKind::SampledTokens,
            BudgetKind::Wall => base::BudgetKind::Wall,
            BudgetKind::HostCalls => base::BudgetKind::HostCalls,
            BudgetKind::BlobBytes => base::BudgetKind::BlobBytes,
            BudgetKind::Other(word) => base::BudgetKind::Other(word),
        }),
        Failure::Cancelled => base::Failure::Cancelled,
        Failure::Denied(what) => base::Failure::Denied(what),
        Failure::Unavailable(text) => base::Failure::Unavailable(text),
        Failure::Invalid(text) => base::Failure::Invalid(text),
        Failure::Other { code, text } => base::Failure::Other(base::OtherFailure { code, text }),
    }
}

pub(crate) fn failure_in(failure: base::Failure) -> Failure {
    match failure {
        base::Failure::Budget(kind) => Failure::Budget(match kind {
            base::BudgetKind::Turns => BudgetKind::Turns,
            base::BudgetKind::Tokens => BudgetKind::Tokens,
            base::BudgetKind::SampledTokens => BudgetKind::SampledTokens,
            base::BudgetKind::Wall => BudgetKind::Wall,
            base::BudgetKind::HostCalls => BudgetKind::HostCalls,
            base::BudgetKind::BlobBytes => BudgetKind::BlobBytes,
            base::BudgetKind::Other(word) => BudgetKind::Other(word),
        }),
        base::Failure::Cancelled => Failure::Cancelled,
        base::Failure::Denied(what) => Failure::Denied(what),
        base::Failure::Unavailable(text) => Failure::Unavailable(text),
        base::Failure::Invalid(text) => Failure::Invalid(text),
        base::Failure::Other(other) => Failure::Other { code: other.code, text: other.text },
    }
}

pub(crate) fn task_out(task: TaskView) -> base::TaskView {
    let TaskView { id, instruction, environment, sandboxes, tags, data, private_data } = task;
    base::TaskView { id, instruction, environment, sandboxes, tags, data, private_data, extra: None }
}

fn role_in(role: messages::Role) -> chat::Role {
    match role {
        messages::Role::System => chat::Role::System,
        messages::Role::User => chat::Role::User,
        messages::Role::Assistant => chat::Role::Assistant,
        messages::Role::Tool => chat::Role::Tool,
    }
}

fn role_out(role: chat::Role) -> messages::Role {
    match role {
        chat::Role::System => messages::Role::System,
        chat::Role::User => messages::Role::User,
        chat::Role::Assistant => messages::Role::Assistant,
        chat::Role::Tool => messages::Role::Tool,
    }
}

fn tool_call_in(call: messages::ToolCall) -> chat::ToolCall {
    chat::ToolCall { id: call.id, name: call.name, arguments: call.arguments }
}

fn tool_call_out(call: chat::ToolCall) -> messages::ToolCall {
    messages::ToolCall { id: call.id, name: call.name, arguments: call.arguments }
}

fn part_in(part: messages::Part) -> chat::Part {
    match part {
        messages::Part::Text(text) => chat::Part::Text(text),
        messages::Part::TextBlob(blob) => chat::Part::TextBlob(blob),
        messages::Part::Image(blob) => chat::Part::Image(blob),
        messages::Part::ToolCall(call) => chat::Part::ToolCall(tool_call_in(call)),
        messages::Part::ToolResult(result) => chat::Part::ToolResult(chat::ToolResult {
            call_id: result.call_id,
            text: result.text,
            is_error: result.is_error,
        }),
        messages::Part::Other(json) => chat::Part::Other(json),
    }
}

fn part_out(part: chat::Part) -> messages::Part {
    match part {
        chat::Part::Text(text) => messages::Part::Text(text),
        chat::Part::TextBlob(blob) => messages::Part::TextBlob(blob),
        chat::Part::Image(blob) => messages::Part::Image(blob),
        chat::Part::ToolCall(call) => messages::Part::ToolCall(tool_call_out(call)),
        chat::Part::ToolResult(result) => messages::Part::ToolResult(messages::ToolResult {
            call_id: result.call_id,
            text: result.text,
            is_error: result.is_error,
        }),
        chat::Part::Other(json) => messages::Part::Other(json),
    }
}

pub(crate) fn messages_in(list: Vec<messages::Message>) -> Vec<chat::Message> {
    list.into_iter()
        .map(|message| chat::Message {
            role: role_in(message.role),
            parts: message.parts.into_iter().map(part_in).collect(),
            extra: message.extra,
        })
        .collect()
}

pub(crate) fn message_out(message: chat::Message) -> messages::Message {
    messages::Message {
        role: role_out(message.role),
        parts: message.parts.into_iter().map(part_out).collect(),
        extra: message.extra,
    }
}

pub(crate) fn tools_in(tools: Vec<conversations::Tool>) -> Vec<chat::Tool> {
    tools
        .into_iter()
        .map(|tool| chat::Tool {
            name: tool.name,
            description: tool.description,
            parameters: tool.parameters,
        })
        .collect()
}

pub(crate) fn options_in(options: conversations::Options) -> chat::CompleteOptions {
    chat::CompleteOptions {
        max_tokens: options.max_tokens,
        stop: options.stop,
        temperature: options.temperature,
        tool_choice: options.tool_choice,
        extra: options.extra,
    }
}

pub(crate) fn usage_out(usage: &chat::Usage) -> conversations::Usage {
    conversations::Usage {
        prompt_tokens: usage.prompt_tokens,
        sampled_tokens: usage.sampled_tokens,
        turns: usage.turns,
        tokens_left: usage.tokens_left,
        turns_left: usage.turns_left,
        extra: None,
    }
}

pub(crate) fn completion_out(completion: chat::Completion) -> conversations::Completion {
    conversations::Completion {
        message: message_out(completion.message),
        tool_calls: completion.tool_calls.into_iter().map(tool_call_out).collect(),
        malformed: completion.malformed,
        finish: match completion.finish {
            chat::Finish::Stop => conversations::Finish::Stop,
            chat::Finish::Length => conversations::Finish::Length,
            chat::Finish::ToolCalls => conversations::Finish::ToolCalls,
            chat::Finish::Filtered => conversations::Finish::Filtered,
            chat::Finish::Other(word) => conversations::Finish::Other(word),
        },
        usage: usage_out(&completion.usage),
        extra: completion.call.map(|call| format!(r#"{{"call":"{call}"}}"#)),
    }
}

pub(crate) fn observation_out(observation: host::Observation) -> environment::Observation {
    environment::Observation { text: observation.text, images: observation.images, extra: observation.extra }
}

pub(crate) fn observation_in(observation: environment::Observation) -> host::Observation {
    host::Observation { text: observation.text, images: observation.images, extra: observation.extra }
}

pub(crate) fn step_out(step: host::StepResult) -> environment::StepResult {
    environment::StepResult {
        observation: observation_out(step.observation),
        reward: step.reward,
        done: step.done,
        info: step.info,
        extra: step.extra,
    }
}

pub(crate) fn step_in(step: environment::StepResult) -> host::StepResult {
    host::StepResult {
        observation: observation_in(step.observation),
        reward: step.reward,
        done: step.done,
        info: step.info,
        extra: step.extra,
    }
}

pub(crate) fn report_in(report: reports::Report) -> ending::Report {
    ending::Report {
        outcome: match report.outcome {
            reports::Outcome::Submitted => ending::Outcome::Submitted,
            reports::Outcome::GaveUp => ending::Outcome::GaveUp,
            reports::Outcome::Limit(limit) => ending::Outcome::Limit(match limit {
                reports::Limit::Turns => ending::Limit::Turns,
                reports::Limit::Tokens => ending::Limit::Tokens,
                reports::Limit::Calls => ending::Limit::Calls,
                reports::Limit::Wall => ending::Limit::Wall,
                reports::Limit::Format => ending::Limit::Format,
                reports::Limit::Other(word) => ending::Limit::Other(word),
            }),
            reports::Outcome::Other(word) => ending::Outcome::Other(word),
        },
        answer: report.answer,
        data: report.data,
        extra: report.extra,
    }
}

fn report_out(report: ending::Report) -> reports::Report {
    reports::Report {
        outcome: match report.outcome {
            ending::Outcome::Submitted => reports::Outcome::Submitted,
            ending::Outcome::GaveUp => reports::Outcome::GaveUp,
            ending::Outcome::Limit(limit) => reports::Outcome::Limit(match limit {
                ending::Limit::Turns => reports::Limit::Turns,
                ending::Limit::Tokens => reports::Limit::Tokens,
                ending::Limit::Calls => reports::Limit::Calls,
                ending::Limit::Wall => reports::Limit::Wall,
                ending::Limit::Format => reports::Limit::Format,
                ending::Limit::Other(word) => reports::Limit::Other(word),
            }),
            ending::Outcome::Other(word) => reports::Outcome::Other(word),
        },
        answer: report.answer,
        data: report.data,
        extra: report.extra,
    }
}

pub(crate) fn score_in(score: scores::Score) -> Score {
    Score { name: score.name, value: score.value, turn: score.turn, reason: score.reason, extra: score.extra }
}

/// Texts must already be cut to [`crate::view::TEXT_BYTES_MAX`]; a step's whole observation comes beside it.
pub(crate) fn view_out(view: RolloutView, observation_blobs: Vec<Option<String>>) -> scores::RolloutView {
    scores::RolloutView {
        rollout_id: view.rollout_id,
        task: task_out(view.task),
        status: view.status,
        stop_reason: view.stop_reason,
        report: view.report.map(report_out),
        turns: view
            .turns
            .into_iter()
            .map(|turn| scores::Turn {
                index: turn.index,
                message: message_out(turn.message),
                tool_calls: turn.tool_calls.into_iter().map(tool_call_out).collect(),
                answers: turn.results.into_iter().map(message_out).collect(),
                extra: None,
            })
            .collect(),
        steps: view
            .steps
            .into_iter()
            .zip(observation_blobs)
            .map(|(step, observation_blob)| scores::Step {
                turn: step.turn,
                action: step.action,
                observation: step.observation,
                observation_blob,
                reward: step.reward,
                done: step.done,
                info: step.info,
                extra: None,
            })
            .collect(),
        blobs: view.blobs,
        extra: view.extra,
    }
}

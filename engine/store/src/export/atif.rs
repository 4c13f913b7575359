//! ATIF 1.8, the trajectory format of Harbor: one document a trajectory.
//!
//! Steps of the group's model stand in the document itself, in order; each conversation with another model is an embedded
//! subagent trajectory. What the format has no place for (masks, weight versions, environment steps, account of
//! excluded tokens) stands in `extra`. An image is a part of a message's content, with the path of its file; one without a file is named by
//! digest in `extra.images`.

use super::chat;
use espalier_core::chat::{Message, Part, Role};
use espalier_core::image::ImageKind;
use espalier_core::samples::{Call, Excluded, Group, RewardPart, Segment, SpanUse};
use espalier_core::trajectory::{AttemptRecord, Turn};
use serde::Serialize;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

const SCHEMA_VERSION: &str = "ATIF-v1.8";

#[derive(Serialize)]
pub(super) struct Document<'a> {
    schema_version: &'static str,
    session_id: &'a str,
    trajectory_id: String,
    agent: Agent<'a>,
    steps: Vec<Step>,
    #[serde(skip_serializing_if = "Option::is_none")]
    final_metrics: Option<FinalMetrics<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    extra: Option<RootExtra<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    subagent_trajectories: Vec<Document<'a>>,
}

#[derive(Serialize)]
struct Agent<'a> {
    name: &'static str,
    version: &'a str,
    model_name: &'a str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_definitions: Vec<Value>,
    extra: Value,
}

#[derive(Serialize)]
struct Step {
    step_id: u32,
    source: &'static str,
    /// Text, or parts where an image is among them.
    message: Value,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    observation: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    metrics: Option<Metrics>,
    #[serde(skip_serializing_if = "Option::is_none")]
    llm_call_count: Option<u32>,
    #[serde(skip_serializing_if = "Map::is_empty")]
    extra: Map<String, Value>,
}

#[derive(Serialize)]
struct Metrics {
    prompt_tokens: u32,
    completion_tokens: u32,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    completion_token_ids: Vec<u32>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    logprobs: Vec<f32>,
    extra: Value,
}

#[derive(Serialize)]
struct FinalMetrics<'a> {
    total_prompt_tokens: u64,
    total_completion_tokens: u64,
    total_steps: usize,
    extra: Rewards<'a>,
}

#[derive(Serialize)]
struct Rewards<'a> {
    reward: Option<f64>,
    reward_parts: &'a BTreeMap<String, RewardPart>,
    #[serde(skip_serializing_if = "Option::is_none")]
    turn_rewards: Option<&'a Vec<Option<f64>>>,
    trained: u64,
    masked: u64,
    dropped: u64,
}

#[derive(Serialize)]
struct RootExtra<'a> {
    run_id: &'a str,
    group_id: &'a str,
    task_id: &'a str,
    task_hash: &'a str,
    rollout_index: u32,
    attempt: u32,
    status: &'static str,
    stop_reason: &'static str,
    trainable: bool,
    excluded: &'a [Excluded],
    errors: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    answer: Option<&'a str>,
}

/// Where images are found, by digest.
pub(super) type ImageFiles = BTreeMap<String, ImageFile>;

/// An image that has a file.
pub(super) struct ImageFile {
    /// From the document.
    pub(super) path: String,
    pub(super) kind: ImageKind,
}

/// The images that a document has parts for, in order, each as often as it is shown.
pub(super) fn images(record: &AttemptRecord) -> impl Iterator<Item = &str> {
    let openings = record.transcript.conversations.iter().flat_map(|log| &log.opening);
    let turns = record.transcript.turns.iter();
    let told = turns.flat_map(|turn| std::iter::once(&turn.message).chain(&turn.results));
    openings.chain(told).flat_map(Message::images)
}

/// `None` for a trajectory in which nothing was said: the format wants at least one step.
pub(super) fn document<'a>(
    group: &'a Group,
    record: &'a AttemptRecord,
    engine: &'a str,
    files: &ImageFiles,
) -> Option<Document<'a>> {
    let trajectory = &record.trajectory;
    let logs = &record.transcript.conversations;
    let own: Vec<u32> =
        (0..logs.len() as u32).filter(|index| logs[*index as usize].model == group.model).collect();
    let steps = steps(record, &own, files);
    if steps.is_empty() {
        return None;
    }
    let plugins = json!({"plugins": trajectory.plugins});
    let agent = |model_name, tools: &[_], extra| Agent {
        name: "espalier",
        version: engine,
        model_name,
        tool_definitions: tools.iter().map(chat::tool_json).collect(),
        extra,
    };
    let subagents = (0..logs.len() as u32).filter(|index| !own.contains(index)).filter_map(|index| {
        let steps = self::steps(record, &[index], files);
        let tools = chat::tools(&record.transcript, index);
        (!steps.is_empty()).then(|| Document {
            schema_version: SCHEMA_VERSION,
            session_id: &trajectory.session_id,
            trajectory_id: format!("{}.conversation{index}", trajectory.traj_id),
            agent: agent(&logs[index as usize].model, tools, json!({})),
            steps,
            final_metrics: None,
            extra: None,
            subagent_trajectories: Vec::new(),
        })
    });
    let subagent_trajectories = subagents.collect();
    let sums = trajectory.token_sums();
    Some(Document {
        schema_version: SCHEMA_VERSION,
        session_id: &trajectory.session_id,
        trajectory_id: trajectory.traj_id.clone(),
        agent: agent(&group.model, chat::tools(&record.transcript, own[0]), plugins),
        final_metrics: Some(FinalMetrics {
            total_prompt_tokens: trajectory.calls.iter().map(|call| u64::from(call.n_prompt)).sum(),
            total_completion_tokens: sums.sampled,
            total_steps: steps.len(),
            extra: Rewards {
                reward: trajectory.reward,
                reward_parts: &trajectory.reward_parts,
                turn_rewards: trajectory.turn_rewards.as_ref(),
                trained: sums.trained,
                masked: sums.masked,
                dropped: sums.dropped,
            },
        }),
        steps,
        extra: Some(RootExtra {
            run_id: &group.run_id,
            group_id: &group.group_id,
            task_id: &group.task_id,
            task_hash: &group.task_hash,
            rollout_index: trajectory.rollout_index,
            attempt: trajectory.attempt,
            status: trajectory.status.as_str(),
            stop_reason: trajectory.stop_reason.as_str(),
            trainable: trajectory.trainable,
            excluded: &trajectory.excluded,
            errors: trajectory.errors.iter().map(|note| format!("{}: {}", note.code, note.text)).collect(),
            answer: record.report.as_ref().and_then(|report| report.answer.as_deref()),
        }),
        subagent_trajectories,
    })
}

/// The steps of some conversations: each one's opening before its first answer, answers in the order they were given.
fn steps(record: &AttemptRecord, conversations: &[u32], files: &ImageFiles) -> Vec<Step> {
    let transcript = &record.transcript;
    let mut steps = Vec::new();
    let mut opened = Vec::new();
    let mut open = |index: u32, steps: &mut Vec<Step>| {
        if !opened.contains(&index) {
            opened.push(index);
            let log = &transcript.conversations[index as usize];
            steps.extend(log.opening.iter().map(|message| said(message, index, files)));
        }
    };
    for turn in transcript.turns.iter().filter(|turn| conversations.contains(&turn.conversation)) {
        open(turn.conversation, &mut steps);
        steps.push(answer(record, turn, files));
        let others = turn.results.iter().filter(|message| message.role != Role::Tool);
        steps.extend(others.map(|message| said(message, turn.conversation, files)));
    }
    for index in conversations {
        open(*index, &mut steps);
    }
    for (step, id) in steps.iter_mut().zip(1..) {
        step.step_id = id;
    }
    steps
}

fn said(message: &Message, conversation: u32, files: &ImageFiles) -> Step {
    let source = match message.role {
        Role::System => "system",
        Role::Assistant => "agent",
        Role::User | Role::Tool => "user",
    };
    Step {
        step_id: 0,
        source,
        message: content(message, files),
        tool_calls: Vec::new(),
        observation: None,
        metrics: None,
        // An answer that the harness wrote, say as an example, is not an answer of a model.
        llm_call_count: (source == "agent").then_some(0),
        extra: extra(message, conversation, files),
    }
}

/// Text, or parts where it shows an image that has a file.
fn content(message: &Message, files: &ImageFiles) -> Value {
    if !message.images().any(|digest| files.contains_key(digest)) {
        return message.joined_text().into();
    }
    let part = |part: &Part| match part {
        Part::Text(text) => Some(json!({"type": "text", "text": text})),
        Part::Image(blob) => files.get(blob.as_str()).map(image_part),
        _ => None,
    };
    message.parts.iter().filter_map(part).collect()
}

fn image_part(file: &ImageFile) -> Value {
    json!({"type": "image", "source": {"media_type": file.kind.media_type(), "path": file.path}})
}

fn extra(message: &Message, conversation: u32, files: &ImageFiles) -> Map<String, Value> {
    let images: Vec<&str> = message.images().filter(|digest| !files.contains_key(*digest)).collect();
    let mut extra = Map::new();
    if conversation > 0 {
        extra.insert("conversation".into(), conversation.into());
    }
    if !images.is_empty() {
        extra.insert("images".into(), images.into());
    }
    extra
}

fn answer(record: &AttemptRecord, turn: &Turn, files: &ImageFiles) -> Step {
    let trajectory = &record.trajectory;
    let own = trajectory.calls.iter().find(|call| call.call_id == turn.call_id);
    let call = own.or_else(|| trajectory.other_calls.iter().find(|call| call.call_id == turn.call_id));
    let results: Vec<Value> = turn
        .results
        .iter()
        .flat_map(|message| message.parts.iter().map(move |part| (message.role, part)))
        .filter_map(|(role, part)| match part {
            Part::ToolResult(result) => {
                let known = turn.tool_calls.iter().any(|call| call.id == result.call_id);
                let mut value = json!({"content": result.text});
                let key = if known { "source_call_id" } else { "extra" };
                value[key] = if known { json!(result.call_id) } else { json!({"call_id": result.call_id}) };
                Some(value)
            }
            // Beside results, of the tools together.
            Part::Image(blob) if role == Role::Tool => {
                files.get(blob.as_str()).map(|file| json!({"content": [image_part(file)]}))
            }
            _ => None,
        })
        .collect();
    let mut extra = extra(&turn.message, turn.conversation, files);
    let results_without_file: Vec<&str> = (turn.results.iter())
        .filter(|message| message.role == Role::Tool)
        .flat_map(Message::images)
        .filter(|digest| !files.contains_key(*digest))
        .collect();
    if !results_without_file.is_empty() {
        extra.insert("result_images".into(), results_without_file.into());
    }
    if let Some(malformed) = &turn.malformed {
        extra.insert("malformed".into(), malformed.as_str().into());
    }
    if record.transcript.conversations.get(turn.conversation as usize).is_some_and(|log| log.discarded) {
        extra.insert("discarded".into(), true.into());
    }
    // Environment steps belong to the policy's turns, which the group's own calls are.
    let taken: Vec<Value> = record
        .steps
        .iter()
        .filter(|step| own.is_some() && step.turn == turn.index)
        .map(|step| {
            json!({"action": step.action, "observation": step.observation, "reward": step.reward, "done": step.done})
        })
        .collect();
    if !taken.is_empty() {
        extra.insert("environment_steps".into(), taken.into());
    }
    Step {
        step_id: 0,
        source: "agent",
        message: content(&turn.message, files),
        tool_calls: turn
            .tool_calls
            .iter()
            .map(|call| {
                let arguments = chat::arguments(&call.arguments);
                json!({"tool_call_id": call.id, "function_name": call.name, "arguments": arguments})
            })
            .collect(),
        observation: (!results.is_empty()).then(|| json!({"results": results})),
        metrics: call.map(|call| metrics(call, &trajectory.segments)),
        llm_call_count: Some(1),
        extra,
    }
}

/// Ids and logprobs of those tokens that stand in a row; `held` says which they are where some do not.
fn metrics(call: &Call, segments: &[Segment]) -> Metrics {
    let mut runs: Vec<(u32, &Segment, usize, usize)> = segments
        .iter()
        .flat_map(|segment| segment.spans.iter().map(move |span| (segment, span)))
        .filter(|(_, span)| span.usage == SpanUse::Sampled && span.call_id == call.call_id)
        .map(|(segment, span)| (span.offset, segment, span.start as usize, span.len as usize))
        .collect();
    runs.sort_by_key(|(offset, ..)| *offset);
    let (mut ids, mut logprobs, mut mask, mut held) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for (offset, segment, start, len) in runs {
        let range = start..start + len;
        ids.extend_from_slice(segment.tokens.get(range.clone()).unwrap_or_default());
        logprobs.extend_from_slice(segment.logprobs.get(range.clone()).unwrap_or_default());
        mask.extend_from_slice(segment.mask.get(range).unwrap_or_default());
        held.push((offset, len));
    }
    let mut extra = json!({
        "call_id": call.call_id,
        "finish": call.finish,
        "versions": call.versions,
        "sampling": call.sampling,
        "logprob_kind": call.logprob_kind,
        "mask": mask,
    });
    if ids.len() != call.n_sampled as usize {
        extra["held"] = json!(held);
    }
    Metrics {
        prompt_tokens: call.n_prompt,
        completion_tokens: call.n_sampled,
        completion_token_ids: ids,
        logprobs,
        extra,
    }
}

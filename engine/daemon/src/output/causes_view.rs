//! Why rollouts have no reward: each cause once, whole, with how often it was met.

use super::text::{count, counted, harmless, wrap};
use super::{Look, styles};
use espalier_store::{Cause, Causes};
use serde_json::{Value, json};

/// Causes shown as text; `--json` has more.
const SHOWN: usize = 10;

/// The lines, with a heading; none where every rollout has a reward.
pub fn lines(causes: &Causes, look: &Look) -> Vec<String> {
    if causes.list.is_empty() {
        return Vec::new();
    }
    let mut lines = vec![String::new(), look.paint(styles::FAINT, "without a reward")];
    for cause in causes.list.iter().take(SHOWN) {
        let head = format!("{}: ", counted(cause.rollouts, "rollout"));
        let text = harmless(&format!("{head}{} (first: {})", sentence(cause), cause.first));
        // On a terminal it is broken between words, in a pipe it stays on its line; it is never cut.
        let columns = if look.terminal { look.width.saturating_sub(4) } else { usize::MAX };
        for (index, line) in wrap(&text, columns).into_iter().enumerate() {
            let indent = if index == 0 { "  " } else { "    " };
            let line = line
                .strip_prefix(&head)
                .filter(|_| index == 0)
                .map_or(line.clone(), |rest| format!("{}{rest}", look.paint(styles::BAD, &head)));
            lines.push(format!("{indent}{line}").trim_end().to_owned());
        }
    }
    let hidden = causes.more + causes.list.len().saturating_sub(SHOWN) as u64;
    if hidden > 0 {
        lines.push(look.paint(styles::FAINT, &format!("  and {} more: --json has them", count(hidden))));
    }
    lines
}

/// The plugin and what it said; else the error of the ending, else the ending.
fn sentence(cause: &Cause) -> String {
    match (&cause.failure, &cause.error) {
        (Some(failure), _) => failure.to_string(),
        (None, Some(error)) => error.clone(),
        (None, None) => format!("ended by {}, which is not scored", cause.stop_reason.as_str()),
    }
}

/// For programs.
pub fn json(causes: &Causes) -> Value {
    let list: Vec<Value> = causes
        .list
        .iter()
        .map(|cause| {
            let mut value = json!({
                "rollouts": cause.rollouts,
                "stop_reason": cause.stop_reason.as_str(),
                "text": sentence(cause),
                "first": cause.first,
            });
            if let Some(failure) = &cause.failure {
                value["failure"] = json!(failure);
            }
            value
        })
        .collect();
    json!({ "list": list, "more": causes.more })
}

#[cfg(test)]
mod tests {
    use super::*;
    use espalier_core::ending::StopReason;
    use espalier_core::plugin_failure::{PluginFailure, PluginFailureClass};

    fn cause(rollouts: u64, failure: Option<PluginFailure>, error: Option<&str>) -> Cause {
        Cause {
            rollouts,
            stop_reason: StopReason::LimitWall,
            failure,
            error: error.map(str::to_owned),
            first: "test-0a1b2c3d.g0.r0.a0".to_owned(),
        }
    }

    #[test]
    fn causes_are_whole_and_bounded() {
        let panic = PluginFailure {
            world: "reward".into(),
            plugin: "brevity".into(),
            digest: "ab".into(),
            export: "reward.score-rollout".into(),
            class: PluginFailureClass::Panic,
            place: Some("src/lib.rs:31:9".into()),
            message:
                "called `Option::unwrap()` on a `None` value, of which there are more than fit on a line"
                    .into(),
            excused: false,
        };
        let environment = PluginFailure {
            world: "environment".into(),
            plugin: "guess".into(),
            export: "provider.reset".into(),
            class: PluginFailureClass::Returned,
            place: None,
            message: "invalid: private.secret is not an integer".into(),
            ..panic.clone()
        };
        let mut list = vec![
            cause(256, Some(panic), Some("reward-failure: brevity: long")),
            cause(12, Some(environment), None),
            cause(3, None, Some("infrastructure: endpoint policy: 503\nbusy\u{1b}[31m")),
            cause(1, None, None),
        ];
        list.extend((0..9).map(|n| cause(1, None, Some(&format!("harness-failure: {}", "x".repeat(n))))));
        let causes = Causes { list, more: 7 };
        let shown = |terminal| lines(&causes, &Look { colour: false, width: 80, terminal }).join("\n");
        let terminal = shown(true);
        assert!(terminal.lines().all(|line| crate::output::text::width(line) <= 80), "{terminal}");
        insta::assert_snapshot!("causes_on_a_terminal", terminal);
        insta::assert_snapshot!("causes_in_a_pipe", shown(false));
        assert_eq!(lines(&Causes::default(), &Look { colour: false, width: 80, terminal: true }), [""; 0]);
        assert_eq!(
            json(&causes)["list"][1]["failure"]["message"],
            "invalid: private.secret is not an integer"
        );
    }
}

//! Predictions: how SWE-bench takes results.

use serde_json::json;

/// A line of a predictions file. An attempt without a patch has an empty one.
pub fn prediction(instance_id: &str, model: &str, patch: Option<&str>) -> String {
    json!({
        "instance_id": instance_id,
        "model_name_or_path": model,
        "model_patch": patch.unwrap_or_default(),
    })
    .to_string()
}

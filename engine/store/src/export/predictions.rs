//! Predictions: how SWE-bench takes results, one line for each rollout that has a patch.

use super::output::Output;
use super::{ExportError, GroupContent};
use crate::error::StoreError;
use crate::store::Store;
use espalier_core::trajectory::{AttemptRecord, PATCH};
use serde_json::json;

impl Store {
    /// Returns how many it wrote. Each place in a group is a model of its own, `NAME`, `NAME-r1` ..., since SWE-bench takes one
    /// prediction for a task from each.
    pub(super) async fn write_predictions(
        &self,
        content: &GroupContent,
        name: &str,
        output: &mut Output,
    ) -> Result<u64, ExportError> {
        let mut written = 0;
        for record in content.counted() {
            let Some(patch) = self.patch(record).await? else { continue };
            let model = match record.trajectory.rollout_index {
                0 => name.to_owned(),
                place => format!("{name}-r{place}"),
            };
            output.line_of(&model, &prediction(&content.group.task_id, &model, &patch))?;
            written += 1;
        }
        Ok(written)
    }

    /// The patch that was kept, else the answer where that is one.
    async fn patch(&self, record: &AttemptRecord) -> Result<Option<String>, StoreError> {
        if let Some((_, blob)) = record.blobs.iter().find(|(name, _)| name == PATCH) {
            let bytes = self.blobs().read_whole(blob).await?;
            return Ok(Some(String::from_utf8_lossy(&bytes).into_owned()));
        }
        let answer = record.report.as_ref().and_then(|report| report.answer.as_ref());
        Ok(answer.filter(|answer| answer.starts_with("diff --git ")).cloned())
    }
}

/// A line of a predictions file.
fn prediction(instance_id: &str, model: &str, patch: &str) -> String {
    json!({ "instance_id": instance_id, "model_name_or_path": model, "model_patch": patch }).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prediction_is_a_line() {
        let expect = r#"{"instance_id":"a__b-1","model_name_or_path":"me","model_patch":"diff\n"}"#;
        assert_eq!(prediction("a__b-1", "me", "diff\n"), expect);
    }
}

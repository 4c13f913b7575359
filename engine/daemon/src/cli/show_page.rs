//! `espalier show ROLLOUT --html FILE`: reads the pictures that the page shows, within bounds, and writes it.

use super::Context;
use crate::cli::exit::Exit;
use crate::output::problem::Problem;
use crate::output::rollout_page::{PagePicture, RolloutPage};
use crate::output::text::{bytes, counted};
use crate::output::whole_file::write_whole;
use espalier_core::image::ImageKind;
use espalier_core::trajectory::AttemptRecord;
use espalier_store::{AttemptRow, GroupRow, Store, StoreError};
use serde_json::json;
use std::collections::BTreeMap;
use std::path::Path;

/// Largest picture that is embedded.
const PICTURE_BYTES_MAX: usize = 8 << 20;
/// Bytes of all pictures of a page; browsers are slow with more.
const PICTURES_BYTES_MAX: usize = 96 << 20;

pub(super) async fn write(
    context: &mut Context,
    store: &Store,
    (record, attempt, group): (&AttemptRecord, &AttemptRow, &GroupRow),
    file: &Path,
) -> Result<Exit, Problem> {
    let (_, meaning) = store.run_experiment(&attempt.run_id).await?;
    let device_scale = meaning.pointer("/browser/device_scale").and_then(serde_json::Value::as_f64);
    let task_id = &group.opened.task_id;
    let page = RolloutPage::new(record, task_id, attempt.left_out(), device_scale.unwrap_or(1.0));
    let pictures = read(store, &page.pictures()).await?;
    let text = page.render(&pictures);
    if file == Path::new("-") {
        context.out.writer().write_all(text.as_bytes())?;
        return Ok(Exit::Done);
    }
    write_whole(file, |file| file.write_all(text.as_bytes())).map_err(|error| {
        Problem::new(Exit::Unavailable, format!("{} cannot be written: {error}", file.display()))
    })?;
    let kept = pictures.values().filter(|picture| matches!(picture, PagePicture::Kept(..))).count();
    let left_out = page.pictures().len() - kept;
    if context.common.json {
        let out = file.display().to_string();
        context
            .out
            .json(&json!({ "out": out, "bytes": text.len(), "pictures": kept, "left_out": left_out }))?;
        return Ok(Exit::Done);
    }
    let without = if left_out > 0 { format!(", {left_out} left out") } else { String::new() };
    let (size, kept) = (bytes(text.len() as u64), counted(kept as u64, "picture"));
    context.screen.say(&format!("{} has {kept}{without}, {size}", file.display()));
    Ok(Exit::Done)
}

/// The pictures by their hashes; one that the store does not have is not among them.
async fn read(store: &Store, hashes: &[&str]) -> Result<BTreeMap<String, PagePicture>, Problem> {
    let mut pictures = BTreeMap::new();
    let mut room = PICTURES_BYTES_MAX;
    for hash in hashes {
        let content = match store.blobs().read(hash, 0, PICTURE_BYTES_MAX as u64 + 1).await {
            Ok(content) => content,
            Err(StoreError::NotFound { .. }) => continue,
            Err(error) => return Err(error.into()),
        };
        let size = content.len();
        let picture = match ImageKind::of(&content) {
            None => PagePicture::LeftOut("it is no PNG, JPEG or WebP".to_owned()),
            Some(_) if size > PICTURE_BYTES_MAX => {
                let most = bytes(PICTURE_BYTES_MAX as u64);
                PagePicture::LeftOut(format!("it is larger than {most}"))
            }
            Some(_) if size > room => {
                let most = bytes(PICTURES_BYTES_MAX as u64);
                PagePicture::LeftOut(format!("the page already has {most} of pictures"))
            }
            Some(kind) => {
                room -= size;
                PagePicture::Kept(kind, content)
            }
        };
        pictures.insert((*hash).to_owned(), picture);
    }
    Ok(pictures)
}

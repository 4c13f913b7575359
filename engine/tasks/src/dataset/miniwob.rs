//! Tasks of MiniWoB++: each page of the installed package with some seeds.

use super::{DatasetError, checked};
use serde_json::json;

/// Most seeds of a page.
pub const SEEDS_MAX: u32 = 10_000;

/// The tasks of pages by their names, `click-button` for `click-button.html` and `flight.AA` for that site: each with the seeds from 0 on. They are served by the
/// service `miniwob` of an experiment.
pub fn miniwob_tasks<'a>(
    names: &'a [String],
    seeds: u32,
) -> impl Iterator<Item = Result<String, DatasetError>> + 'a {
    let task = move |(index, name): (usize, &'a String)| {
        (0..seeds.min(SEEDS_MAX)).map(move |seed| {
            let id = format!("{name}-{seed}");
            let task = json!({
                "id": id,
                "instruction": "Do what the page asks.",
                "tags": ["miniwob", name],
                "data": { "page": name },
                "services": { "miniwob": { "task": name, "seed": seed } },
                "browser": { "start_url": "http://miniwob.espalier.internal/?sid={sid}" },
            });
            checked(&task).map_err(|problem| DatasetError { record: index + 1, id: Some(id), problem })
        })
    };
    names.iter().enumerate().flat_map(task)
}

//! Services that the engine answers itself: where MiniWoB++ is installed, and how sandboxes reach what a run serves.

use crate::proxy::RunProxies;
use espalier_core::service::MODEL_SERVICE;
use espalier_sandbox::local::{Service, Services};
use espalier_services::RunServices;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::Arc;

/// Names the folder of pages of MiniWoB++.
const VARIABLE: &str = "ESPALIER_MINIWOB";
/// Prints where the package is, without importing it.
const FIND: &str = "import importlib.util, pathlib; print(pathlib.Path(importlib.util.find_spec('miniwob').origin).parent / 'html')";

/// The services of a run, for allow-lists that grant them; with its proxies, the model is one.
pub(crate) fn for_sandboxes(services: &Arc<RunServices>, proxies: Option<Arc<RunProxies>>) -> Services {
    let services = Arc::clone(services);
    let model = proxies.map(|proxies| proxies.service());
    Services::new(move |name| {
        if let Some(model) = model.as_ref().filter(|_| name == MODEL_SERVICE) {
            return Some(model.clone());
        }
        services.has(name).then(|| {
            let (services, name) = (Arc::clone(&services), name.to_owned());
            Service::new(move |request| std::future::ready(services.answer(&name, request)))
        })
    })
}

/// The folder `html` of the Python package `miniwob`, of the first of these that has it:
///
/// 1. `ESPALIER_MINIWOB`, which names the folder itself;
/// 2. `python3` in PATH, so also an environment that is active;
/// 3. `espalier/miniwob-env` in the user's cache folder, which `make build` makes.
pub(crate) fn installed_miniwob() -> Option<PathBuf> {
    let named = |key| std::env::var_os(key).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(folder) = named(VARIABLE) {
        return Some(folder);
    }
    let home = || named("HOME").unwrap_or_else(|| PathBuf::from("/")).join(".cache");
    let made = named("XDG_CACHE_HOME").unwrap_or_else(home).join("espalier/miniwob-env/bin/python");
    [PathBuf::from("python3"), made].into_iter().find_map(|python| {
        let found =
            Command::new(python).args(["-c", FIND]).current_dir("/").stdin(Stdio::null()).output().ok()?;
        let folder = PathBuf::from(String::from_utf8(found.stdout).ok()?.trim());
        (found.status.success() && folder.is_dir()).then_some(folder)
    })
}

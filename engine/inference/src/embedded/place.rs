//! Where the packages of the embedded model are: which environment of Python, and which cache.

use std::path::{Path, PathBuf};

/// Environment variable that names the environment of Python.
pub const FOLDER_VARIABLE: &str = "ESPALIER_MODEL_ENV";

/// The environment of Python that the server runs in, the first of:
///
/// 1. the folder that `ESPALIER_MODEL_ENV` names;
/// 2. the one that this program is installed in, where `pip install 'espalier[model]'` has put the server beside it;
/// 3. `espalier/model-env` in the user's cache folder, which `make build` makes;
/// 4. where none of them is there: the one that this program is installed in, else the one of the cache, so that an error names
///    the place where the packages belong.
pub fn environment_folder() -> PathBuf {
    if let Some(folder) = named(FOLDER_VARIABLE) {
        return folder;
    }
    let made = user_cache().join("model-env");
    match own_environment() {
        Some(own) if has_server(&own) || !is_installed(&made) => own,
        _ => made,
    }
}

/// Whether the folder holds an interpreter; the packages show only when it runs.
pub fn is_installed(folder: &Path) -> bool {
    interpreter(folder).is_some()
}

/// The interpreter of an environment.
pub(super) fn interpreter(folder: &Path) -> Option<PathBuf> {
    ["bin/python", "bin/python3"].map(|name| folder.join(name)).into_iter().find(|path| path.is_file())
}

/// What may be kept between runs and deleted at any time: `ESPALIER_CACHE`, else `espalier` in the user's cache folder.
pub(super) fn cache_folder() -> PathBuf {
    named("ESPALIER_CACHE").unwrap_or_else(user_cache)
}

/// The environment that this program is installed in: there is an interpreter beside it.
fn own_environment() -> Option<PathBuf> {
    let program = std::env::current_exe().ok()?;
    let prefix = program.parent().filter(|folder| folder.ends_with("bin"))?.parent()?;
    is_installed(prefix).then(|| prefix.to_owned())
}

/// Whether the environment has the package of the server.
fn has_server(folder: &Path) -> bool {
    let Ok(versions) = std::fs::read_dir(folder.join("lib")) else { return false };
    let packages = |version: PathBuf| ["site-packages", "dist-packages"].map(|name| version.join(name));
    versions
        .flatten()
        .flat_map(|version| packages(version.path()))
        .any(|folder| folder.join("xllamacpp").is_dir())
}

fn user_cache() -> PathBuf {
    // Programs in it are run: without a home it is not a directory below the current one, which anybody may have made.
    let home = || named("HOME").unwrap_or_else(|| PathBuf::from("/")).join(".cache");
    named("XDG_CACHE_HOME").unwrap_or_else(home).join("espalier")
}

fn named(variable: &str) -> Option<PathBuf> {
    std::env::var_os(variable).filter(|folder| !folder.is_empty()).map(PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_environment_is_known_by_its_interpreter_and_its_packages() {
        let folder = tempfile::tempdir().unwrap();
        let make = |name: &str| std::fs::create_dir_all(folder.path().join(name)).unwrap();
        assert!(!is_installed(folder.path()) && !has_server(folder.path()));
        make("bin");
        std::fs::write(folder.path().join("bin/python3"), "").unwrap();
        assert_eq!(interpreter(folder.path()), Some(folder.path().join("bin/python3")));
        make("lib/python3.13/site-packages/other");
        assert!(!has_server(folder.path()));
        make("lib/python3.13/site-packages/xllamacpp");
        assert!(has_server(folder.path()));
    }
}

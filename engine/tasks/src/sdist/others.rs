//! Other releases of a library among this machine's programs: an image over them would show an agent its solution.

use super::plain;
use std::fs::FileType;
use std::io;
use std::path::{Path, PathBuf};

/// How what is installed or packed is called.
const RECORDS: [&str; 6] = [".dist-info", ".egg-info", ".egg", ".whl", ".tar.gz", ".zip"];
/// Where packages lie among the modules of an interpreter.
const PACKAGES: [&str; 2] = ["site-packages", "dist-packages"];

/// Names that a release goes by where it is installed, vendored or unpacked.
pub(super) struct Names<'a> {
    /// Name of the library in the package index.
    pub(super) library: &'a str,
    /// Modules that are imported: `jinja2`, `google/auth`, `six.py`.
    pub(super) modules: &'a [String],
}

/// All folders and files below one that go by these names and are Python; what lies in a folder found is not named again. Links are
/// not followed, folders that cannot be read hold nothing, and an interpreter's own modules are left alone. Blocks.
pub(super) fn find(below: &Path, names: &Names<'_>) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut folders = vec![below.to_owned()];
    while let Some(folder) = folders.pop() {
        let entries = match std::fs::read_dir(&folder) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => continue,
            entries => entries?,
        };
        let standard = is_standard_library(&folder);
        for entry in entries {
            let entry = entry?;
            let (kind, path) = (entry.file_type()?, entry.path());
            if standard {
                if kind.is_dir() && PACKAGES.iter().any(|packages| path.ends_with(packages)) {
                    folders.push(path);
                }
            } else if names.fit(&path) && is_release(&path, kind) {
                found.push(path);
            } else if kind.is_dir() {
                folders.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

impl Names<'_> {
    fn fit(&self, path: &Path) -> bool {
        let stub = |module: &String| module.ends_with(".py") && path.ends_with(format!("{module}i"));
        if self.modules.iter().any(|module| path.ends_with(module) || stub(module)) {
            return true;
        }
        let library = plain(self.library);
        let Some(file) = path.file_name().and_then(|name| name.to_str()) else { return false };
        match RECORDS.iter().find_map(|end| file.strip_suffix(end)) {
            // `more_itertools-10.2.0-py3-none-any`, `Jinja2-3.1.2`
            Some(stem) => {
                stem.split_once('-').is_some_and(|(name, _)| plain(name) == library)
                    || stem.rsplit_once('-').is_some_and(|(name, _)| plain(name) == library)
            }
            None => !file.contains('.') && plain(file) == library,
        }
    }
}

/// Whether it can hold a release: `/usr/bin/sh` is none of the library `sh`.
fn is_release(path: &Path, kind: FileType) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    RECORDS.iter().any(|end| name.ends_with(end))
        || (!kind.is_dir() && is_python(path))
        || (path.is_dir() && holds_python(path))
}

/// `python3.11`, where an interpreter has its own modules; `os.py` is among them.
fn is_standard_library(folder: &Path) -> bool {
    let name = folder.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let version = ["python", "pypy"].iter().find_map(|start| name.strip_prefix(start));
    let is_version = |text: &str| text.contains('.') && text.chars().all(|c| c == '.' || c.is_ascii_digit());
    version.is_some_and(is_version) && folder.join("os.py").is_file()
}

fn holds_python(folder: &Path) -> bool {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.into_iter().any(|entry| match entry.file_type() {
        Ok(kind) if kind.is_dir() => holds_python(&entry.path()),
        _ => is_python(&entry.path()),
    })
}

fn is_python(file: &Path) -> bool {
    file.extension().is_some_and(|end| end == "py" || end == "pyi")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is found in a folder with these files, and which of them lie in none of it.
    fn check(library: &str, modules: &[&str], hidden: &[&str], shown: &[&str]) {
        let usr = tempfile::tempdir().unwrap();
        for path in hidden.iter().chain(shown) {
            let path = usr.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "").unwrap();
        }
        std::os::unix::fs::symlink("/", usr.path().join("around")).unwrap();
        let modules: Vec<String> = modules.iter().map(|module| (*module).to_owned()).collect();
        let found = find(usr.path(), &Names { library, modules: &modules }).unwrap();
        let left = |paths: &[&str]| -> Vec<String> {
            let below = |path: &&&str| !found.iter().any(|found| usr.path().join(path).starts_with(found));
            paths.iter().filter(below).map(|path| (*path).to_owned()).collect()
        };
        assert_eq!(left(hidden), Vec::<String>::new());
        assert_eq!(left(shown), shown);
        assert_eq!(found.len(), hidden.len(), "{found:?}");
    }

    #[test]
    fn releases_are_found_wherever_they_lie() {
        let hidden = [
            "lib/kit/third_party/my_lib/src/deep/a.py",
            "lib/kit/lib/python3.12/mylib/__init__.py",
            "lib/python3/dist-packages/My.Lib-1.2.egg-info/PKG-INFO",
            "lib/python3/dist-packages/other/_vendor/mylib/__init__.py",
            "lib/python3.11/site-packages/mylib/__init__.py",
            "lib/python3.11/site-packages/single.py",
            "lib/python3.11/site-packages/single.pyi",
            "share/python-wheels/my_lib-1.0-py3-none-any.whl",
            "src/my-lib-1.0.tar.gz",
        ];
        let shown = [
            "go/src/mylib/idna.go",
            "lib/python3.11/mylib/__init__.py",
            "lib/python3.11/os.py",
            "lib/python3.11/single.py",
            "lib/python3.11/urllib/single.py",
            "lib/python3/dist-packages/mylibrary/__init__.py",
            "lib/python3/dist-packages/my_lib_more-1.0.dist-info/METADATA",
            "share/single/readme",
        ];
        check("My-Lib", &["mylib", "single.py"], &hidden, &shown);
    }

    #[test]
    fn programs_of_that_name_stay() {
        check("sh", &["sh.py"], &["lib/python3/dist-packages/sh.py"], &["bin/sh", "share/sh/readme"]);
        check("git", &["git"], &["lib/kit/git/__init__.py"], &["bin/git", "lib/git-core/git"]);
    }

    #[test]
    fn of_a_namespace_only_the_library_goes() {
        let hidden = ["kit/google/auth/__init__.py", "kit/google_auth-2.1.dist-info/METADATA"];
        let shown = ["kit/auth/__init__.py", "kit/google/api/__init__.py", "kit/mygoogle/auth/__init__.py"];
        check("google-auth", &["google/auth"], &hidden, &shown);
    }

    #[test]
    fn a_link_to_a_release_goes_too() {
        let usr = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(usr.path().join("kept")).unwrap();
        std::fs::write(usr.path().join("kept/a.py"), "").unwrap();
        std::os::unix::fs::symlink("kept", usr.path().join("mylib")).unwrap();
        std::os::unix::fs::symlink("nowhere", usr.path().join("my_lib")).unwrap();
        let modules = ["mylib".to_owned()];
        let found = find(usr.path(), &Names { library: "my-lib", modules: &modules }).unwrap();
        assert_eq!(found, [usr.path().join("mylib")]);
    }
}

//! What is asked of Python: pip, to read the package index and to install what tests need; the interpreter of the image `host`, to
//! compile it. Nothing of a library under test runs here.

use super::{Folders, Refusal, SdistError, plain};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// The interpreter that sandboxes of `host` have.
pub(super) const INTERPRETER: &str = "/usr/bin/python3";
/// Where it lies in an image, with its packages: a virtual environment.
const HOME: &str = "opt/python";
/// Folders of this machine's own packages, `{}` being the version; nobody's tests shall see them.
const OWN: [&str; 4] = [
    "usr/lib/python3/dist-packages",
    "usr/local/lib/python{}/dist-packages",
    "usr/lib/python{}/site-packages",
    "usr/share/python-wheels",
];
/// What runs the tests.
const RUNNER: &str = "pytest";
/// Changes whenever the folders are put together in another way.
const FORM: &str = "1";
/// Exit code of `fetch.py` where there is no such archive.
const NONE: i32 = 3;

/// A Python with pip, in an environment of its own.
#[derive(Clone, Debug)]
pub(super) struct Pip(PathBuf);

impl Pip {
    /// Made where it is not there. Blocks.
    pub(super) fn ready(cache: &Path) -> Result<Pip, SdistError> {
        let folder = cache.join("pip");
        let python = folder.join("bin/python");
        if !python.exists() {
            let partial = cache.join(format!("pip-{}", std::process::id()));
            let _ = std::fs::remove_dir_all(&partial);
            std::fs::create_dir_all(cache).map_err(SdistError::machine(cache.display().to_string()))?;
            run(Command::new("python3").args(["-m", "venv"]).arg(&partial), "python3 -m venv")?;
            if std::fs::rename(&partial, &folder).is_err() {
                // Another was quicker.
                let _ = std::fs::remove_dir_all(&partial);
            }
        }
        Ok(Pip(python))
    }

    fn command(&self) -> Command {
        Command::new(&self.0)
    }

    /// What packages say of versions of Python, pip reads as of its own: refused where that is not of the tests' minor version.
    fn suits(&self, tests: &str) -> Result<(), SdistError> {
        let pip = version(&self.0)?;
        if minor_of(&pip) == minor_of(tests) {
            return Ok(());
        }
        let folder = self.0.ancestors().nth(2).unwrap_or(&self.0).to_owned();
        Err(SdistError::OtherPython { pip, tests: tests.to_owned(), folder })
    }
}

/// Brings an archive into the folder. Blocks.
pub(super) fn fetch(pip: &Pip, name: &str, version: &str, archives: &Path) -> Result<PathBuf, SdistError> {
    std::fs::create_dir_all(archives).map_err(SdistError::machine(archives.display().to_string()))?;
    let mut command = pip.command();
    command.args(["-c", include_str!("fetch.py"), name, version]).arg(archives);
    let what = format!("fetching {name} {version}");
    let output = command.output().map_err(SdistError::machine(&what))?;
    match output.status.code() {
        Some(0) => Ok(archives.join(String::from_utf8_lossy(&output.stdout).trim())),
        Some(NONE) => {
            let why = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            Err(SdistError::NotThere { name: name.to_owned(), version: version.to_owned(), why })
        }
        _ => Err(failed(&what, &output)),
    }
}

/// What tests need, as a folder that lies over a root file system.
#[derive(Clone, Debug)]
pub(super) struct Installed {
    /// The folder.
    pub(super) upper: PathBuf,
    /// Where packages lie in it.
    pub(super) packages: PathBuf,
}

impl Installed {
    /// The `dist-info` of a package, where it is among them.
    fn known(&self, name: &str) -> Option<PathBuf> {
        let entries = std::fs::read_dir(self.upper.join(&self.packages)).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).find(|path| {
            let file = path.file_name().and_then(|file| file.to_str()).unwrap_or_default();
            let stem = file.strip_suffix(".dist-info").and_then(|stem| stem.rsplit_once('-'));
            stem.is_some_and(|(package, _)| plain(package) == plain(name))
        })
    }

    /// Whether a package is this runner, or one without which it does not start: as their metadata say it.
    fn needs(&self, runner: &str, library: &str) -> bool {
        let (mut seen, mut next) = (BTreeSet::new(), vec![plain(runner)]);
        while let Some(name) = next.pop() {
            if name == plain(library) {
                return true;
            }
            let metadata = self.known(&name).map(|folder| std::fs::read_to_string(folder.join("METADATA")));
            if seen.insert(name) {
                next.extend(metadata.and_then(Result::ok).iter().flat_map(|text| requirements(text)));
            }
        }
        false
    }

    /// Takes a package away again.
    fn remove(&self, known: &Path) -> std::io::Result<()> {
        let packages = self.upper.join(&self.packages);
        let record = std::fs::read_to_string(known.join("RECORD"))?;
        for line in record.lines() {
            let path = Path::new(line.split(',').next().unwrap_or_default());
            // Programs lie outside; they are gone already.
            if path.components().all(|part| matches!(part, std::path::Component::Normal(_))) {
                let _ = std::fs::remove_file(packages.join(path));
            }
        }
        std::fs::remove_dir_all(known)
    }
}

/// Names of the packages that a package's metadata ask for, but for its extras.
fn requirements(metadata: &str) -> Vec<String> {
    let head = metadata.split("\n\n").next().unwrap_or_default();
    let asked = head.lines().filter_map(|line| line.strip_prefix("Requires-Dist:"));
    let asked = asked.filter(|asked| !asked.split(';').skip(1).any(|when| when.contains("extra")));
    let name = |asked: &str| {
        let ends = |letter: char| !(letter.is_ascii_alphanumeric() || "-_.".contains(letter));
        plain(asked.trim().split(ends).next().unwrap_or_default())
    };
    asked.map(name).collect()
}

/// Those packages and all they need (none: this machine's own), for the interpreter of the image; without the library under test,
/// which may be among what they need: its tests shall see no other than the one in the tree. Made once. Blocks.
pub(super) fn installed(
    requires: &[String],
    library: &str,
    folders: &Folders,
) -> Result<Installed, SdistError> {
    let all = made(requires, None, folders)?;
    if all.known(library).is_none() {
        return Ok(all);
    }
    if all.needs(RUNNER, library) {
        return Err(Refusal::RunnerNeeds(library.to_owned()).into());
    }
    made(requires, Some(library), folders)
}

fn made(requires: &[String], without: Option<&str>, folders: &Folders) -> Result<Installed, SdistError> {
    let version = version(Path::new(INTERPRETER))?;
    let text = [FORM, &version, &requires.join("\n"), without.unwrap_or_default()].join("\n");
    let key = &blake3::hash(text.as_bytes()).to_hex()[..16];
    let upper = folders.cache.join("python").join(key);
    let minor = minor_of(&version);
    let packages = Path::new(HOME).join(format!("lib/python{minor}/site-packages"));
    if !upper.is_dir() {
        let partial = folders.cache.join("python").join(format!("{key}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&partial);
        let installed = Installed { upper: partial.clone(), packages: packages.clone() };
        fill(&installed, requires, without, &version, folders)?;
        if std::fs::rename(&partial, &upper).is_err() {
            let _ = std::fs::remove_dir_all(&partial);
        }
    }
    Ok(Installed { upper, packages })
}

fn fill(
    installed: &Installed,
    requires: &[String],
    without: Option<&str>,
    version: &str,
    folders: &Folders,
) -> Result<(), SdistError> {
    let minor = minor_of(version);
    let upper = &installed.upper;
    let machine = || SdistError::machine(upper.display().to_string());
    let site = upper.join(&installed.packages);
    std::fs::create_dir_all(&site).map_err(machine())?;
    if !requires.is_empty() {
        let pip = Pip::ready(&folders.cache)?;
        pip.suits(version)?;
        let mut command = pip.command();
        // Wheels alone: nothing of a package runs.
        command.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]);
        command
            .args(["--only-binary", ":all:", "--python-version", minor, "--target"])
            .arg(&site)
            .args(requires);
        run(&mut command, "pip install").map_err(|error| match error {
            SdistError::Machine { source, .. } => SdistError::Requires(source.to_string()),
            other => other,
        })?;
    }
    // Programs of packages name pip's own interpreter.
    let _ = std::fs::remove_dir_all(site.join("bin"));
    if let Some(known) = without.and_then(|library| installed.known(library)) {
        installed.remove(&known).map_err(machine())?;
    }
    let compile = ["-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash"];
    // Packages hold templates and files for other versions, which do not compile and need not.
    let compiled = Command::new(INTERPRETER).args(compile).arg(&site).output();
    compiled.map_err(SdistError::machine("compileall"))?;
    let home = upper.join(HOME);
    let write = || {
        std::fs::create_dir_all(home.join("bin"))?;
        let own = requires.is_empty();
        let said = format!("home = /usr/bin\ninclude-system-site-packages = {own}\nversion = {version}\n");
        std::fs::write(home.join("pyvenv.cfg"), said)?;
        std::os::unix::fs::symlink(INTERPRETER, home.join("bin/python3"))?;
        std::os::unix::fs::symlink("python3", home.join("bin/python"))?;
        let pytest = home.join("bin/pytest");
        std::fs::write(&pytest, format!("#!/bin/sh\nexec /{HOME}/bin/python3 -m pytest \"$@\"\n"))?;
        std::fs::set_permissions(&pytest, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
        for folder in OWN.iter().filter(|_| !own) {
            let folder = upper.join(folder.replace("{}", minor));
            std::fs::create_dir_all(&folder)?;
            // As the upper folder of an overlay marks a folder that hides those below it.
            rustix::fs::setxattr(&folder, "user.overlay.opaque", b"y", rustix::fs::XattrFlags::empty())?;
        }
        Ok(())
    };
    write().map_err(machine())
}

/// `3.11` of `3.11.2`.
fn minor_of(version: &str) -> &str {
    version.rsplit_once('.').map_or(version, |(minor, _)| minor)
}

/// An interpreter's version, as `3.11.2`. Blocks.
pub(super) fn version(interpreter: &Path) -> Result<String, SdistError> {
    let said = run(Command::new(interpreter).arg("--version"), &interpreter.display().to_string())?;
    Ok(said.trim().trim_start_matches("Python ").to_owned())
}

fn run(command: &mut Command, what: &str) -> Result<String, SdistError> {
    let output = command.output().map_err(SdistError::machine(what))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(failed(what, &output))
}

/// What a program printed last, as an error.
fn failed(what: &str, output: &Output) -> SdistError {
    let printed = [&output.stderr[..], &output.stdout[..]].concat();
    let text = String::from_utf8_lossy(&printed);
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let told = lines[lines.len().saturating_sub(4)..].join(" ");
    SdistError::Machine {
        what: what.to_owned(),
        source: std::io::Error::other(format!("{}: {told}", output.status)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_runner_needs_follows_from_metadata() {
        let upper = tempfile::tempdir().expect("a temporary folder");
        let installed = Installed { upper: upper.path().to_owned(), packages: PathBuf::from("site") };
        for (folder, metadata) in [
            (
                "pytest-8.4.2",
                "Name: pytest\nRequires-Dist: pluggy<2,>=1.5\nRequires-Dist: attrs; extra == \"dev\"\n\nRequires-Dist: calc\n",
            ),
            (
                "pluggy-1.6.0",
                "Name: pluggy\nRequires-Dist: Typing.Extensions (>4) ; python_version < '3.8'\nRequires-Dist: pytest\n",
            ),
            ("typing_extensions-4", "Name: typing_extensions\n"),
            ("calc-1", "Name: calc\nRequires-Dist: pytest\n"),
        ] {
            let folder = upper.path().join("site").join(format!("{folder}.dist-info"));
            std::fs::create_dir_all(&folder).expect("a folder");
            std::fs::write(folder.join("METADATA"), metadata).expect("a file");
        }
        for (library, expect) in [
            ("pytest", true),
            ("pluggy", true),
            ("typing-extensions", true),
            ("calc", false),
            ("attrs", false),
        ] {
            assert_eq!(installed.needs(RUNNER, library), expect, "{library}");
        }
    }
}

//! Programs that builds run: found in the project or in PATH, bounded in time, with their output for errors.

use super::BuildError;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The longest one program may take: the first build of a large crate on a slow machine.
const TIME_MAX: Duration = Duration::from_secs(30 * 60);
/// The longest a program may take that runs the author's code, which may never end: some twenty times what the slowest needs.
const CODE_TIME_MAX: Duration = Duration::from_secs(5 * 60);

/// What a build runs its programs with.
pub struct Tools<'a> {
    folder: PathBuf,
    say: &'a mut dyn FnMut(&str),
}

impl<'a> Tools<'a> {
    /// For a project's folder.
    pub fn new(folder: &Path, say: &'a mut dyn FnMut(&str)) -> Tools<'a> {
        Tools { folder: folder.to_owned(), say }
    }

    /// Tells the author what takes a while.
    pub fn say(&mut self, text: &str) {
        (self.say)(text);
    }

    /// A program in PATH.
    pub fn in_path(name: &str) -> Option<PathBuf> {
        let path = std::env::var_os("PATH")?;
        std::env::split_paths(&path).map(|folder| folder.join(name)).find(|file| file.is_file())
    }

    /// A path of the project as an argument that no program takes for an option.
    pub fn argument(path: &Path) -> PathBuf {
        if path.as_os_str().as_encoded_bytes().starts_with(b"-") {
            return Path::new(".").join(path);
        }
        path.to_owned()
    }

    /// Runs a program in the project's folder and gives back its standard output. Errors: `Failed` with all that it printed, `Slow`.
    pub fn run(&mut self, command: &mut Command) -> Result<String, BuildError> {
        self.run_within(command, TIME_MAX)
    }

    /// The same of a program that runs the author's code outside of functions.
    pub fn run_code(&mut self, command: &mut Command) -> Result<String, BuildError> {
        self.run_within(command, CODE_TIME_MAX)
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "builds run on a thread of their own, never on a runtime's"
    )]
    fn run_within(&mut self, command: &mut Command, time: Duration) -> Result<String, BuildError> {
        let program = Path::new(command.get_program())
            .file_name()
            .map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        let failed = |output: String| BuildError::Failed { program: program.clone(), output };
        let out = tempfile::tempfile().map_err(super::in_file(Path::new("a temporary file")))?;
        let err = out.try_clone().map_err(super::in_file(Path::new("a temporary file")))?;
        let read = out.try_clone().map_err(super::in_file(Path::new("a temporary file")))?;
        if command.get_current_dir().is_none() {
            command.current_dir(&self.folder);
        }
        let mut child = command
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(err)
            .spawn()
            .map_err(|error| failed(error.to_string()))?;
        let began = Instant::now();
        let mut pause = Duration::from_millis(2);
        let status = loop {
            if let Some(status) = child.try_wait().map_err(|error| failed(error.to_string()))? {
                break status;
            }
            if began.elapsed() > time {
                let _ = child.kill();
                let _ = child.wait();
                let runs_code = time == CODE_TIME_MAX;
                return Err(BuildError::Slow { program, seconds: time.as_secs(), runs_code });
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(50));
        };
        let output = everything(read);
        if status.success() { Ok(output) } else { Err(failed(output.trim_end().to_owned())) }
    }
}

/// All that was printed, from the beginning.
fn everything(mut file: std::fs::File) -> String {
    use std::io::{Read, Seek};
    let mut bytes = Vec::new();
    let _ = file.rewind();
    let _ = file.read_to_end(&mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}

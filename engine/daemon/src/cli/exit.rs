//! Exit codes, the same for every command.

/// How a command ended, for the shell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// All that was asked for was done.
    Done,
    /// It was carried out, and the answer is no.
    Negative,
    /// The command line or a file must be changed.
    Input,
    /// The store holds something else under this name, or another engine works on it.
    Conflict,
    /// A model or the store cannot be used now.
    Unavailable,
    /// A defect of the engine.
    Internal,
    /// Stopped by a signal or a command after saving what was finished.
    Interrupted,
    /// Exit code of a command in a sandbox.
    Command(u8),
}

impl Exit {
    /// The number.
    pub fn code(self) -> u8 {
        match self {
            Exit::Done => 0,
            Exit::Negative => 1,
            Exit::Input => 2,
            Exit::Conflict => 3,
            Exit::Unavailable => 4,
            Exit::Internal => 5,
            Exit::Interrupted => 130,
            Exit::Command(code) => code,
        }
    }
}

/// For `--help` and docs/cli.md.
pub const TABLE: &str = "Exit codes:
    0  done
    1  completed with a negative result: groups failed, or a check found a problem
    2  invalid input: the command line, an experiment, a task file or a plugin
    3  conflict: the experiment changed, another engine works on the run, or no engine does
    4  unavailable: a model or the store cannot be used at the moment
    5  internal error of the engine
  130  stopped by a signal or `espalier stop`; finished work is kept, and the same command resumes";

impl From<Exit> for std::process::ExitCode {
    fn from(exit: Exit) -> Self {
        exit.code().into()
    }
}

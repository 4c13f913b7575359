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
    /// Of a command in a sandbox: its own.
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
    1  carried out, and the answer is no: groups failed, a check found something
    2  bad input: the command line, an experiment, a task file or a plugin
    3  conflict: the run means something else now, another engine works on it, or none does that could be asked
    4  unavailable: a model or the store cannot be used now
    5  a defect of the engine
  130  stopped by a signal or `espalier stop`; what was finished is kept, the same command resumes";

impl From<Exit> for std::process::ExitCode {
    fn from(exit: Exit) -> Self {
        exit.code().into()
    }
}

//! What can go wrong before a guest runs: reading, recognising, compiling and configuring a plugin.

use crate::Exceeded;
use std::path::PathBuf;

/// Why a plugin cannot be used. Each variant is a defect of the plugin, of its settings or of this machine; none is
/// worth an immediate retry.
#[derive(Debug, thiserror::Error)]
pub enum PluginError {
    /// The file cannot be read.
    #[error("plugin {}: cannot be read", path.display())]
    Read {
        /// Which file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// No component of a known world for this engine.
    #[error("plugin {}: {reason}", path.display())]
    Refused {
        /// Which file.
        path: PathBuf,
        /// What it is or asks for, what the engine has, and what to do.
        reason: String,
    },
    /// The compiler or the linker refused it.
    #[error("plugin {}: {reason}", path.display())]
    Compile {
        /// Which file.
        path: PathBuf,
        /// What the compiler or linker said.
        reason: String,
    },
    /// It has more of something than is compiled.
    #[error("plugin {}: {exceeded}", path.display())]
    Bound {
        /// Which file.
        path: PathBuf,
        /// Which bound, and how far it is exceeded.
        exceeded: Exceeded,
    },
    /// The compiler took more memory or time than it may.
    #[error("plugin {}: {reason}", path.display())]
    TooLarge {
        /// Which file.
        path: PathBuf,
        /// Which limit.
        reason: String,
    },
    /// `settings-schema` trapped, or is not a valid JSON Schema.
    #[error("plugin {}: settings-schema: {reason}", path.display())]
    Schema {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The experiment's settings break the plugin's schema.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// A reference that names no plugin.
    #[error(transparent)]
    Unknown(#[from] UnknownPlugin),
    /// The engine of the host cannot be built on this machine.
    #[error("plugin host: {what}")]
    Host {
        /// What it could not do.
        what: String,
        /// Why.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The folder of compiled code cannot be used.
    #[error("plugin host: cache folder {}", folder.display())]
    CacheFolder {
        /// Which.
        folder: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
}

impl PluginError {
    /// The host could not do something.
    pub(crate) fn host(
        what: impl Into<String>,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> PluginError {
        PluginError::Host { what: what.into(), source: source.into() }
    }

    /// The same, of a component that its users know by another name than that of its file.
    pub fn called(mut self, name: &str) -> PluginError {
        if let PluginError::Read { path, .. }
        | PluginError::Refused { path, .. }
        | PluginError::Bound { path, .. }
        | PluginError::TooLarge { path, .. }
        | PluginError::Compile { path, .. }
        | PluginError::Schema { path, .. } = &mut self
        {
            *path = PathBuf::from(name);
        }
        self
    }
}

/// Settings that break the plugin's schema: every place, not just the first.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("settings of plugin {plugin}: {}", problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
pub struct SettingsError {
    /// Name of the plugin.
    pub plugin: String,
    /// At least one.
    pub problems: Vec<SettingProblem>,
}

/// One place where settings break their schema.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{key}`: {text}")]
pub struct SettingProblem {
    /// Dotted path of the key, `.` for the whole.
    pub key: String,
    /// The value, what is asked for, and what to do.
    pub text: String,
}

/// A plugin reference that leads nowhere.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no plugin `{reference}`: {looked}{near}")]
pub struct UnknownPlugin {
    /// As written.
    pub reference: String,
    /// The file that it names; `None`: it is the name of a plugin.
    pub path: Option<PathBuf>,
    /// Where was looked.
    pub looked: String,
    /// `; did you mean ...?`, or what there is, or how to build some.
    pub near: String,
}

//! The worlds of `wit/` that this engine knows by name.

/// What kind of plugin a component is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum World {
    /// Drives the turns of a rollout.
    Harness,
    /// Holds a small simulated world.
    Environment,
    /// Scores one rollout.
    Reward,
    /// Scores the rollouts of a group together.
    GroupReward,
    /// Scores by a model.
    Judge,
    /// Makes and adapts tasks.
    TaskGenerator,
}

impl World {
    /// All worlds, in the order of `wit/plugin.wit`.
    pub const ALL: [World; 6] = [
        World::Harness,
        World::Environment,
        World::Reward,
        World::GroupReward,
        World::Judge,
        World::TaskGenerator,
    ];

    /// Its name in `wit/`.
    pub fn as_str(self) -> &'static str {
        match self {
            World::Harness => "harness-plugin",
            World::Environment => "environment-plugin",
            World::Reward => "reward-plugin",
            World::GroupReward => "group-reward-plugin",
            World::Judge => "judge-plugin",
            World::TaskGenerator => "task-generator-plugin",
        }
    }

    /// The interface whose export makes a component one of this world, without its version.
    pub fn export(self) -> &'static str {
        match self {
            World::Harness => "espalier:plugin/harness",
            World::Environment => "espalier:environment/provider",
            World::Reward => "espalier:plugin/reward",
            World::GroupReward => "espalier:plugin/group-reward",
            World::Judge => "espalier:plugin/judge",
            World::TaskGenerator => "espalier:plugin/task-generator",
        }
    }

    /// The capabilities it has: interfaces with functions that its components may import, without version.
    pub fn capabilities(self) -> &'static [&'static str] {
        const LOG: &str = "espalier:base/log";
        const BLOBS: &str = "espalier:base/blobs";
        const SETTINGS: &str = "espalier:base/settings";
        const CLOCK: &str = "espalier:base/clock";
        const RANDOM: &str = "espalier:base/random";
        const CONVERSATIONS: &str = "espalier:model/conversations";
        const SANDBOXES: &str = "espalier:sandbox/sandboxes";
        const SCORING: &str = "espalier:sandbox/scoring";
        const BROWSERS: &str = "espalier:browser/browsers";
        const SERVICES: &str = "espalier:service/services";
        const DIAGNOSTICS: &str = "espalier:plugin/diagnostics";
        match self {
            World::Harness => &[
                LOG,
                BLOBS,
                SETTINGS,
                CLOCK,
                RANDOM,
                CONVERSATIONS,
                "espalier:environment/environments",
                SANDBOXES,
                BROWSERS,
                DIAGNOSTICS,
            ],
            World::Environment => &[LOG, SETTINGS, CLOCK, RANDOM, DIAGNOSTICS],
            World::Reward => {
                &[LOG, BLOBS, SETTINGS, CLOCK, RANDOM, SANDBOXES, SCORING, BROWSERS, SERVICES, DIAGNOSTICS]
            }
            World::GroupReward => {
                &[LOG, BLOBS, SETTINGS, CLOCK, RANDOM, CONVERSATIONS, SANDBOXES, SCORING, DIAGNOSTICS]
            }
            World::Judge => &[
                LOG,
                BLOBS,
                SETTINGS,
                CLOCK,
                RANDOM,
                CONVERSATIONS,
                SANDBOXES,
                SCORING,
                BROWSERS,
                SERVICES,
                DIAGNOSTICS,
            ],
            World::TaskGenerator => &[
                LOG,
                BLOBS,
                SETTINGS,
                CLOCK,
                RANDOM,
                CONVERSATIONS,
                SANDBOXES,
                "espalier:sandbox/creation",
                DIAGNOSTICS,
            ],
        }
    }
}

impl std::fmt::Display for World {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

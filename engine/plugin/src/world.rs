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
    /// Scores by a model. Recognised, not run by this engine.
    Judge,
    /// Makes and adapts tasks. Recognised, not run by this engine.
    TaskGenerator,
}

impl World {
    /// All worlds, in the order of `wit/plugin.wit` and `wit/unreleased.wit`.
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
        const BASE: [&str; 5] = [
            "espalier:base/log",
            "espalier:base/blobs",
            "espalier:base/settings",
            "espalier:base/clock",
            "espalier:base/random",
        ];
        match self {
            World::Harness => &[
                BASE[0],
                BASE[1],
                BASE[2],
                BASE[3],
                BASE[4],
                "espalier:model/conversations",
                "espalier:environment/environments",
                "espalier:sandbox/sandboxes",
            ],
            World::Environment => &[BASE[0], BASE[2], BASE[3], BASE[4]],
            World::Reward => &[
                BASE[0],
                BASE[1],
                BASE[2],
                BASE[3],
                BASE[4],
                "espalier:sandbox/sandboxes",
                "espalier:sandbox/scoring",
            ],
            World::GroupReward => &BASE,
            World::Judge | World::TaskGenerator => {
                &[BASE[0], BASE[1], BASE[2], BASE[3], BASE[4], "espalier:model/conversations"]
            }
        }
    }

    /// Whether runs of this engine drive it. Of the others it says what they are, and nothing more.
    pub fn is_run(self) -> bool {
        !matches!(self, World::Judge | World::TaskGenerator)
    }
}

impl std::fmt::Display for World {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

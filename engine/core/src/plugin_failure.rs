//! How a plugin failed in one rollout: whose code, where, in which way. What is counted for people, and what the circuit
//! breaker ([`crate::breaker`]) goes by.

use serde::{Deserialize, Serialize};
use std::fmt;

/// World of rewards, in [`PluginFailure::world`].
pub const REWARD: &str = "reward";

/// The same of a judge.
pub const JUDGE: &str = "judge";

/// Whether a plugin of this word scores: its failure leaves a rollout without a reward, and it can be asked again.
pub fn is_scoring(world: &str) -> bool {
    [REWARD, JUDGE].contains(&world)
}

/// One failure of one plugin in one rollout.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PluginFailure {
    /// World of the plugin: `harness`, `environment`, `reward`.
    pub world: String,
    /// The name by which the experiment calls it.
    pub plugin: String,
    /// Digest of its component, hex.
    pub digest: String,
    /// The export that was called: `reward.score-rollout`.
    pub export: String,
    /// In which way.
    pub class: PluginFailureClass,
    /// File and line in the plugin's source where it says so; else its innermost functions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub place: Option<String>,
    /// What it said, whole.
    pub message: String,
    /// Whether a limit, a cancel or something that was lost came before it: then it says little of the plugin.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub excused: bool,
}

/// In which way a plugin failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PluginFailureClass {
    /// A trap or an uncaught exception.
    Panic,
    /// It returned, or passed to an import, what its type allows and its contract does not.
    InvalidData,
    /// It returned a failure of its own.
    Returned,
    /// `limits.guest_cpu`.
    Cpu,
    /// `limits.guest_memory`.
    Memory,
    /// Its call stack was exhausted.
    Stack,
    /// It went on after its budget error and its grace.
    BudgetIgnored,
    /// `limits.scoring_wall`.
    Wall,
    /// The engine stopped it.
    Stopped,
    /// The machine could not run it.
    Host,
}

impl PluginFailureClass {
    /// The word for programs.
    pub fn as_str(self) -> &'static str {
        match self {
            PluginFailureClass::Panic => "panic",
            PluginFailureClass::InvalidData => "invalid-data",
            PluginFailureClass::Returned => "returned",
            PluginFailureClass::Cpu => "cpu",
            PluginFailureClass::Memory => "memory",
            PluginFailureClass::Stack => "stack",
            PluginFailureClass::BudgetIgnored => "budget-ignored",
            PluginFailureClass::Wall => "wall",
            PluginFailureClass::Stopped => "stopped",
            PluginFailureClass::Host => "host",
        }
    }

    /// What it did, for people: stands behind the plugin's name.
    fn verb(self) -> &'static str {
        match self {
            PluginFailureClass::Panic => "panicked",
            PluginFailureClass::InvalidData => "passed invalid data",
            PluginFailureClass::Returned => "failed",
            PluginFailureClass::Cpu => "exceeded limits.guest_cpu",
            PluginFailureClass::Memory => "exceeded limits.guest_memory",
            PluginFailureClass::Stack => "exhausted its call stack",
            PluginFailureClass::BudgetIgnored => "ignored an exhausted budget",
            PluginFailureClass::Wall => "exceeded limits.scoring_wall",
            PluginFailureClass::Stopped => "was stopped",
            PluginFailureClass::Host => "could not be run",
        }
    }
}

impl PluginFailure {
    /// Whether it is a defect of the plugin, and of nothing else: a trap, an uncaught exception or invalid data. Limits are
    /// no defect, since a policy can use them up; nor is a failure that the plugin returned, which may be right.
    pub fn is_defect(&self) -> bool {
        let own = matches!(self.class, PluginFailureClass::Panic | PluginFailureClass::InvalidData);
        own && !self.excused
    }

    /// Whether another component in its place may do better: after a defect, or a failure that it returned; a reward, which sees
    /// the same rollout again, also after a limit.
    pub fn is_repairable(&self) -> bool {
        use PluginFailureClass::{BudgetIgnored, Cpu, Memory, Returned, Stack, Wall};
        let limit = matches!(self.class, Cpu | Memory | Stack | BudgetIgnored | Wall);
        let own = self.class == Returned || (limit && is_scoring(&self.world));
        self.is_defect() || (own && !self.excused)
    }

    /// Where and how, without what differs from rollout to rollout. Two failures with equal ones are one way to fail.
    pub fn signature(&self) -> Signature {
        let place = self.place.clone().unwrap_or_else(|| normalised(&self.message));
        Signature { digest: self.digest.clone(), export: self.export.clone(), class: self.class, place }
    }
}

/// `reward brevity panicked at src/lib.rs:31:5: called ...`: the whole message, and the export where no line is known.
impl fmt::Display for PluginFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.world, self.plugin, self.class.verb())?;
        match &self.place {
            Some(place) => write!(f, " at {place}")?,
            None => write!(f, " in {}", self.export)?,
        }
        if self.message.is_empty() { Ok(()) } else { write!(f, ": {}", self.message) }
    }
}

/// One way of one component to fail.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Signature {
    /// The component.
    pub digest: String,
    /// Its export.
    pub export: String,
    /// In which way.
    pub class: PluginFailureClass,
    /// Where, or what it said where that is not known.
    pub place: String,
}

/// Longest text that is compared, characters.
const COMPARED_CHARS_MAX: usize = 2_000;
/// Hexadecimal words of at least so many digits are taken for ids.
const ID_DIGITS: usize = 8;

/// A message without what differs from one rollout to the next: numbers and ids become `#`.
pub fn normalised(message: &str) -> String {
    let mut out = String::new();
    let mut word = String::new();
    let mut end = |word: &mut String| {
        let id = word.len() >= ID_DIGITS
            && word.bytes().all(|byte| byte.is_ascii_hexdigit())
            && word.bytes().any(|byte| byte.is_ascii_digit());
        if id {
            out.push('#');
        } else {
            let mut in_number = false;
            for c in word.chars() {
                if !c.is_ascii_digit() {
                    out.push(c);
                } else if !in_number {
                    out.push('#');
                }
                in_number = c.is_ascii_digit();
            }
        }
        word.clear();
    };
    for c in message.chars().take(COMPARED_CHARS_MAX) {
        if c.is_alphanumeric() {
            word.push(c);
        } else {
            end(&mut word);
            word.push(c);
            end(&mut word);
        }
    }
    end(&mut word);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failure(class: PluginFailureClass, excused: bool) -> PluginFailure {
        PluginFailure {
            world: "reward".into(),
            plugin: "brevity".into(),
            digest: "ab".into(),
            export: "reward.score-rollout".into(),
            class,
            place: Some("src/lib.rs:31:5".into()),
            message: "called `Option::unwrap()` on a `None` value".into(),
            excused,
        }
    }

    #[test]
    fn a_failure_reads_as_a_sentence() {
        let one = failure(PluginFailureClass::Panic, false);
        assert_eq!(
            one.to_string(),
            "reward brevity panicked at src/lib.rs:31:5: called `Option::unwrap()` on a `None` value"
        );
        let nowhere = PluginFailure { place: None, ..failure(PluginFailureClass::Returned, false) };
        assert!(nowhere.to_string().starts_with("reward brevity failed in reward.score-rollout: called"));
    }

    #[test]
    fn only_defects_of_the_plugin_alone_count() {
        use PluginFailureClass as C;
        let all = [
            C::Panic,
            C::InvalidData,
            C::Returned,
            C::Cpu,
            C::Memory,
            C::Stack,
            C::BudgetIgnored,
            C::Wall,
            C::Stopped,
            C::Host,
        ];
        let defects: Vec<C> = all.into_iter().filter(|class| failure(*class, false).is_defect()).collect();
        assert_eq!(defects, [C::Panic, C::InvalidData]);
        assert!(!all.into_iter().any(|class| failure(class, true).is_defect()));
    }

    #[test]
    fn what_differs_from_rollout_to_rollout_is_left_out() {
        for (one, other, same) in [
            ("index 7 of 12", "index 31 of 4", true),
            ("rollout 0a1b2c3d4e5f fell", "rollout 99aabbccddee fell", true),
            ("no key a", "no key b", false),
            ("decade", "facade", false),
        ] {
            assert_eq!(normalised(one) == normalised(other), same, "{one} {other}");
        }
        assert_eq!(normalised("a-12 b3c (0)"), "a-# b#c (#)");
    }
}

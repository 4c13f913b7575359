//! `[limits]`: every bound a rollout runs under, with its default and the most that may be asked for.

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::time::Duration;

/// The limits of one rollout, resolved: experiment over task over default.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Sampled answers of the policy. 1..=10,000, default 50.
    pub turns: u32,
    /// Prompt and sampled tokens of one conversation; `None`: the model's context.
    pub tokens: Option<u64>,
    /// Sampled tokens of the whole rollout; `None`: no bound.
    pub sampled_tokens: Option<u64>,
    /// From the harness's start. At most 7 d, default 30 min.
    pub rollout_wall: Duration,
    /// From one answer of a model that is asked for to the next. At most 7 d; `None`: no bound of its own.
    pub turn_wall: Option<Duration>,
    /// One command of the harness in a sandbox. At most 7 d; `None`: no bound of its own.
    pub command_wall: Option<Duration>,
    /// One import. At most 1 h, default 10 min.
    pub import_wall: Duration,
    /// Every import but log. At most 10 M, default 100,000.
    pub host_calls: u64,
    /// Running time of the guest between two host calls. At most 10 min, default 30 s.
    pub guest_cpu: Duration,
    /// Linear memory of one instance, bytes. At most 4 GiB, default 256 MiB.
    pub guest_memory: u64,
    /// Log bytes kept; more is counted and dropped. At most 64 MiB, default 1 MiB.
    pub log_bytes: u64,
    /// Blob bytes of one rollout. Default 1 GiB.
    pub blob_bytes: u64,
    /// Each reward plugin. At most 1 d, default 30 min.
    pub scoring_wall: Duration,
}

/// Host calls a guest may still make after its budget error.
pub const GRACE_CALLS: u32 = 16;
/// Time a guest may still run after its budget error.
pub const GRACE: Duration = Duration::from_secs(5);

impl Default for Limits {
    fn default() -> Self {
        Limits {
            turns: 50,
            tokens: None,
            sampled_tokens: None,
            rollout_wall: Duration::from_secs(30 * 60),
            turn_wall: None,
            command_wall: None,
            import_wall: Duration::from_secs(10 * 60),
            host_calls: 100_000,
            guest_cpu: Duration::from_secs(30),
            guest_memory: 256 << 20,
            log_bytes: 1 << 20,
            blob_bytes: 1 << 30,
            scoring_wall: Duration::from_secs(30 * 60),
        }
    }
}

/// Limits of one rollout; every key is optional. Durations are written `"90s"`, `"10m"`; sizes in bytes or `"256MiB"`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LimitsFile {
    /// Sampled answers of the policy.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turns: Option<u32>,
    /// Tokens of one conversation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    /// Sampled tokens of the rollout.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sampled_tokens: Option<u64>,
    /// Time of the rollout.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollout_wall: Option<DurationText>,
    /// Time from one answer of a model to the next.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub turn_wall: Option<DurationText>,
    /// Time of one command of the harness in a sandbox.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command_wall: Option<DurationText>,
    /// Time of one import.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub import_wall: Option<DurationText>,
    /// Imports but log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host_calls: Option<u64>,
    /// Running time of the guest between two host calls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guest_cpu: Option<DurationText>,
    /// Linear memory of one instance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub guest_memory: Option<SizeText>,
    /// Log bytes kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log_bytes: Option<SizeText>,
    /// Blob bytes of one rollout.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub blob_bytes: Option<SizeText>,
    /// Time of each reward plugin.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scoring_wall: Option<DurationText>,
}

/// A limit that is out of range.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("limit `{key}` is {value}, expected {least} to {most}")]
pub struct LimitError {
    /// Which key.
    pub key: &'static str,
    /// What was asked.
    pub value: String,
    /// Lower bound.
    pub least: String,
    /// Upper bound.
    pub most: String,
}

impl Limits {
    /// What holds for one rollout: a limit named by the experiment is an upper bound that the task may lower; where the
    /// experiment is silent the task may raise it, up to the most that is allowed.
    pub fn resolve(experiment: &LimitsFile, task: &LimitsFile) -> Result<Limits, LimitError> {
        fn pick<T: Ord + Copy>(experiment: Option<T>, task: Option<T>, default: T) -> T {
            match (experiment, task) {
                (Some(experiment), Some(task)) => experiment.min(task),
                (Some(one), None) | (None, Some(one)) => one,
                (None, None) => default,
            }
        }
        fn pick_optional<T: Ord>(experiment: Option<T>, task: Option<T>) -> Option<T> {
            match (experiment, task) {
                (Some(experiment), Some(task)) => Some(experiment.min(task)),
                (one, None) | (None, one) => one,
            }
        }
        let duration = |value: &Option<DurationText>| value.map(|text| text.0);
        let size = |value: &Option<SizeText>| value.map(|text| text.0);
        let default = Limits::default();
        let limits = Limits {
            turns: pick(experiment.turns, task.turns, default.turns),
            tokens: pick_optional(experiment.tokens, task.tokens),
            sampled_tokens: pick_optional(experiment.sampled_tokens, task.sampled_tokens),
            rollout_wall: pick(
                duration(&experiment.rollout_wall),
                duration(&task.rollout_wall),
                default.rollout_wall,
            ),
            turn_wall: pick_optional(duration(&experiment.turn_wall), duration(&task.turn_wall)),
            command_wall: pick_optional(duration(&experiment.command_wall), duration(&task.command_wall)),
            import_wall: pick(
                duration(&experiment.import_wall),
                duration(&task.import_wall),
                default.import_wall,
            ),
            host_calls: pick(experiment.host_calls, task.host_calls, default.host_calls),
            guest_cpu: pick(duration(&experiment.guest_cpu), duration(&task.guest_cpu), default.guest_cpu),
            guest_memory: pick(
                size(&experiment.guest_memory),
                size(&task.guest_memory),
                default.guest_memory,
            ),
            log_bytes: pick(size(&experiment.log_bytes), size(&task.log_bytes), default.log_bytes),
            blob_bytes: pick(size(&experiment.blob_bytes), size(&task.blob_bytes), default.blob_bytes),
            scoring_wall: pick(
                duration(&experiment.scoring_wall),
                duration(&task.scoring_wall),
                default.scoring_wall,
            ),
        };
        limits.check()?;
        Ok(limits)
    }

    fn check(&self) -> Result<(), LimitError> {
        fn number(key: &'static str, value: u64, least: u64, most: u64) -> Result<(), LimitError> {
            if (least..=most).contains(&value) {
                return Ok(());
            }
            Err(LimitError {
                key,
                value: value.to_string(),
                least: least.to_string(),
                most: most.to_string(),
            })
        }
        fn duration(key: &'static str, value: Duration, most: Duration) -> Result<(), LimitError> {
            let least = Duration::from_millis(1);
            if (least..=most).contains(&value) {
                return Ok(());
            }
            let text = |value| DurationText(value).to_string();
            Err(LimitError { key, value: text(value), least: text(least), most: text(most) })
        }
        const HOUR: Duration = Duration::from_secs(3600);
        number("turns", self.turns.into(), 1, 10_000)?;
        number("tokens", self.tokens.unwrap_or(1), 1, 1 << 40)?;
        number("sampled_tokens", self.sampled_tokens.unwrap_or(1), 1, 1 << 40)?;
        duration("rollout_wall", self.rollout_wall, HOUR * 24 * 7)?;
        duration("turn_wall", self.turn_wall.unwrap_or(HOUR), HOUR * 24 * 7)?;
        duration("command_wall", self.command_wall.unwrap_or(HOUR), HOUR * 24 * 7)?;
        duration("import_wall", self.import_wall, HOUR)?;
        number("host_calls", self.host_calls, 1, 10_000_000)?;
        duration("guest_cpu", self.guest_cpu, HOUR / 6)?;
        number("guest_memory", self.guest_memory, 1 << 16, 4 << 30)?;
        number("log_bytes", self.log_bytes, 0, 64 << 20)?;
        number("blob_bytes", self.blob_bytes, 0, 1 << 50)?;
        duration("scoring_wall", self.scoring_wall, HOUR * 24)
    }
}

/// A duration, such as `250ms`, `90s`, `10m`, `2h` or `7d`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, JsonSchema)]
#[schemars(with = "String")]
pub struct DurationText(pub Duration);

impl std::fmt::Display for DurationText {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ms = self.0.as_millis();
        let units = [(86_400_000, "d"), (3_600_000, "h"), (60_000, "m"), (1_000, "s")];
        match units.into_iter().find(|(unit, _)| ms >= *unit && ms.is_multiple_of(*unit)) {
            Some((unit, word)) => write!(f, "{}{word}", ms / unit),
            None => write!(f, "{ms}ms"),
        }
    }
}

impl std::str::FromStr for DurationText {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (digits, unit) = split_unit(text);
        let factor_ms: u64 = match unit {
            "ms" => 1,
            "s" => 1_000,
            "m" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            _ => {
                return Err(format!(
                    "invalid duration `{text}`: write it like \"250ms\", \"90s\", \"10m\", \"2h\" or \"7d\""
                ));
            }
        };
        let count: u64 = digits.parse().map_err(|_| {
            format!("invalid duration `{text}`: write a whole number and a unit, like \"90s\"")
        })?;
        let ms = count.checked_mul(factor_ms).ok_or_else(|| format!("`{text}` is too long"))?;
        Ok(DurationText(Duration::from_millis(ms)))
    }
}

/// A size in bytes, such as `65536`, `64KiB`, `256MiB` or `1GiB`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, JsonSchema)]
#[schemars(with = "String")]
pub struct SizeText(pub u64);

impl std::fmt::Display for SizeText {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let units = [(1u64 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
        match units.into_iter().find(|(unit, _)| self.0 >= *unit && self.0.is_multiple_of(*unit)) {
            Some((unit, word)) => write!(f, "{}{word}", self.0 / unit),
            None => write!(f, "{}", self.0),
        }
    }
}

impl std::str::FromStr for SizeText {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (digits, unit) = split_unit(text);
        let factor: u64 = match unit {
            "" | "B" => 1,
            "KiB" => 1 << 10,
            "MiB" => 1 << 20,
            "GiB" => 1 << 30,
            _ => {
                return Err(format!(
                    "invalid size `{text}`: write it like 65536, \"64KiB\", \"256MiB\" or \"1GiB\""
                ));
            }
        };
        let count: u64 = digits.parse().map_err(|_| {
            format!("invalid size `{text}`: write a whole number and a unit, like \"256MiB\"")
        })?;
        count.checked_mul(factor).map(SizeText).ok_or_else(|| format!("`{text}` is too large"))
    }
}

fn split_unit(text: &str) -> (&str, &str) {
    let at = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    (&text[..at], text[at..].trim_start())
}

impl Serialize for DurationText {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for DurationText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

impl Serialize for SizeText {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for SizeText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Either {
            Number(u64),
            Text(String),
        }
        match Either::deserialize(deserializer)? {
            Either::Number(bytes) => Ok(SizeText(bytes)),
            Either::Text(text) => text.parse().map_err(serde::de::Error::custom),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_named_limit_is_an_upper_bound_and_a_silent_one_may_be_raised() {
        let file = |turns: Option<u32>| LimitsFile { turns, ..LimitsFile::default() };
        let turns =
            |experiment, task| Limits::resolve(&file(experiment), &file(task)).map(|limits| limits.turns);
        assert_eq!(turns(Some(20), Some(30)), Ok(20));
        assert_eq!(turns(Some(20), Some(5)), Ok(5));
        assert_eq!(turns(None, Some(200)), Ok(200));
        assert_eq!(turns(None, None), Ok(50));
        let error = turns(None, Some(10_001)).unwrap_err();
        assert_eq!(error.to_string(), "limit `turns` is 10001, expected 1 to 10000");
    }

    #[test]
    fn durations_and_sizes_read_back_as_they_are_written() {
        for text in ["250ms", "90s", "10m", "2h", "7d"] {
            assert_eq!(text.parse::<DurationText>().unwrap().to_string(), text);
        }
        for text in ["100", "64KiB", "256MiB", "4GiB"] {
            assert_eq!(text.parse::<SizeText>().unwrap().to_string(), text);
        }
        assert!("10 parsecs".parse::<DurationText>().is_err());
        assert!("99999999999999999999s".parse::<DurationText>().is_err());
        assert!("18446744073709551615GiB".parse::<SizeText>().is_err());
    }
}

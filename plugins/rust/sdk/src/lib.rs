//! What every Rust plugin would otherwise write itself: bindings of its world, a panic hook that reports, settings as a
//! type with its schema.
//!
//! A plugin keeps its thinking in ordinary modules, tested on the host, and its glue in one module that is compiled for
//! WebAssembly alone and opens with [`bindings!`].

pub use {schemars, serde, serde_json, wit_bindgen};

use schemars::JsonSchema;
use serde::Deserialize;

/// The settings of a plugin without settings: an empty object.
#[derive(Clone, Copy, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NoSettings {}

/// A time as tasks write it, in milliseconds: a number of seconds, or a text like `"90s"`; never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "serde_json::Value")]
pub struct Timeout(pub u64);

impl TryFrom<serde_json::Value> for Timeout {
    type Error = String;

    fn try_from(value: serde_json::Value) -> Result<Timeout, String> {
        let text = value.as_str().unwrap_or_default();
        let units = [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000)];
        let with_unit = || {
            let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
            let unit = units.iter().find(|(unit, _)| *unit == &text[digits.len()..])?;
            digits.parse::<u64>().ok()?.checked_mul(unit.1)
        };
        let ms = value.as_u64().and_then(|seconds| seconds.checked_mul(1_000)).or_else(with_unit);
        ms.filter(|ms| *ms > 0).map(Timeout).ok_or_else(|| {
            format!("invalid timeout {value}: expected a number of seconds, or text like \"90s\" or \"10m\"")
        })
    }
}

/// JSON Schema of a settings type: descriptions from its doc comments, defaults from serde.
pub fn schema_of<T: JsonSchema>() -> String {
    schemars::generate::SchemaSettings::draft2020_12()
        .with(|settings| settings.inline_subschemas = true)
        .into_generator()
        .into_root_schema_for::<T>()
        .as_value()
        .to_string()
}

/// Puts values in the place of `{name}`; a value is never searched again, and an unknown name stays.
pub fn fill(template: &str, values: &[(&str, &str)]) -> String {
    let mut out = String::with_capacity(template.len());
    let mut rest = template;
    while let Some(open) = rest.find('{') {
        out.push_str(&rest[..open]);
        rest = &rest[open..];
        let named = values.iter().find_map(|(name, value)| {
            let after = rest[1..].strip_prefix(name)?.strip_prefix('}')?;
            Some((*value, after))
        });
        match named {
            Some((value, after)) => {
                out.push_str(value);
                rest = after;
            }
            None => {
                out.push('{');
                rest = &rest[1..];
            }
        }
    }
    out.push_str(rest);
    out
}

/// Generates the bindings of a world as module `bindings`, and beside it
///
/// - `settings::<T>()`: the experiment's settings, or a failure `invalid` that says what is wrong with them;
/// - `report_panics()`: from now on a panic is logged with its place before the trap;
/// - `invalid(text)`: a failure `invalid`.
#[macro_export]
macro_rules! bindings {
    ($world:literal) => {
        #[allow(missing_docs, unreachable_pub, clippy::all)]
        pub(crate) mod bindings {
            $crate::wit_bindgen::generate!({
                path: "../../../wit",
                world: $world,
                runtime_path: "espalier_sdk::wit_bindgen::rt",
                generate_all,
            });
        }

        use bindings::espalier::base::types::Failure;

        /// A failure that blames the guest's side, with the reason.
        #[allow(dead_code)]
        fn invalid(text: impl ::core::fmt::Display) -> Failure {
            Failure::Invalid(::std::string::ToString::to_string(&text))
        }

        /// The experiment's settings for this plugin.
        #[allow(dead_code)]
        fn settings<T: $crate::serde::de::DeserializeOwned>() -> ::core::result::Result<T, Failure> {
            let text = bindings::espalier::base::settings::get();
            $crate::serde_json::from_str(&text)
                .map_err(|error| invalid(::core::format_args!("settings: {error}")))
        }

        /// Logs a panic with its place; the trap that follows says only `unreachable`.
        #[allow(dead_code)]
        fn report_panics() {
            ::std::panic::set_hook(::std::boxed::Box::new(|panic| {
                use bindings::espalier::base::log::{write, Level};
                write(Level::Error, &::std::string::ToString::to_string(panic), None);
            }));
        }
    };
}

/// The exports of a reward, of the type of its settings and a function `(RolloutView, Settings) -> Result<Vec<Score>, Failure>`.
/// To be called where [`bindings!`] was, with the world `reward-plugin`.
#[macro_export]
macro_rules! reward {
    ($settings:ty, $score:path) => {
        struct Plugin;

        impl bindings::exports::espalier::base::configurable::Guest for Plugin {
            fn settings_schema() -> ::std::string::String {
                $crate::schema_of::<$settings>()
            }
        }

        impl bindings::exports::espalier::plugin::reward::Guest for Plugin {
            fn score_rollout(
                rollout: bindings::exports::espalier::plugin::reward::RolloutView,
            ) -> ::core::result::Result<
                ::std::vec::Vec<bindings::exports::espalier::plugin::reward::Score>,
                Failure,
            > {
                report_panics();
                $score(rollout, settings::<$settings>()?)
            }
        }

        bindings::export!(Plugin with_types_in bindings);
    };
}

/// The exports of a group reward, of the type of its settings and a function
/// `(Vec<RolloutView>, Settings) -> Result<Vec<Vec<Score>>, Failure>`: one list a rollout, in their order. To be called where
/// [`bindings!`] was, with the world `group-reward-plugin`.
#[macro_export]
macro_rules! group_reward {
    ($settings:ty, $score:path) => {
        struct Plugin;

        impl bindings::exports::espalier::base::configurable::Guest for Plugin {
            fn settings_schema() -> ::std::string::String {
                $crate::schema_of::<$settings>()
            }
        }

        impl bindings::exports::espalier::plugin::group_reward::Guest for Plugin {
            fn score_group(
                rollouts: ::std::vec::Vec<bindings::exports::espalier::plugin::group_reward::RolloutView>,
            ) -> ::core::result::Result<
                ::std::vec::Vec<::std::vec::Vec<bindings::exports::espalier::plugin::group_reward::Score>>,
                Failure,
            > {
                report_panics();
                $score(rollouts, settings::<$settings>()?)
            }
        }

        bindings::export!(Plugin with_types_in bindings);
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Deserialize, JsonSchema)]
    #[serde(deny_unknown_fields)]
    struct Example {
        /// How many, from 1.
        #[serde(default = "three")]
        #[schemars(range(min = 1))]
        #[allow(dead_code)]
        count: u32,
    }

    fn three() -> u32 {
        3
    }

    #[test]
    fn the_schema_has_defaults_and_descriptions_and_refuses_unknown_keys() {
        let schema: serde_json::Value = serde_json::from_str(&schema_of::<Example>()).unwrap();
        assert_eq!(schema["properties"]["count"]["default"], 3);
        assert_eq!(schema["properties"]["count"]["minimum"], 1);
        assert_eq!(schema["properties"]["count"]["description"], "How many, from 1.");
        assert_eq!(schema["additionalProperties"], false);
        let none: serde_json::Value = serde_json::from_str(&schema_of::<NoSettings>()).unwrap();
        assert_eq!(none["additionalProperties"], false);
    }
}

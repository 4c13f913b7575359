//! Values as Orchard's service takes them: its forms convert a number that is written as text, `7200.0` where a whole number is
//! meant, base64 that was wrapped or lost its padding.

use crate::problem::Problem;
use base64::Engine;
use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig};
use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer};
use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

/// Longest that one request waits, whatever it asks for.
pub(super) const REQUEST_MAX: Duration = Duration::from_secs(3600);
/// Longest bound of what goes on after its request: a command, a sandbox that is being made.
pub(super) const WORK_MAX: Duration = Duration::from_secs(7 * 24 * 3600);

/// A number: `7200`, `7200.0`, `"7200"`. Never NaN.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Number(pub(super) f64);

impl Number {
    /// As a whole number of a range; what lies outside of it becomes its nearest end.
    pub(super) fn within(self, least: u16, most: u16) -> u16 {
        self.0.clamp(least.into(), most.into()) as u16
    }
}

impl<'de> Deserialize<'de> for Number {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Number, D::Error> {
        struct Numbers;

        impl Visitor<'_> for Numbers {
            type Value = Number;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("a number")
            }

            fn visit_f64<E: de::Error>(self, number: f64) -> Result<Number, E> {
                Ok(Number(number))
            }

            fn visit_bool<E: de::Error>(self, flag: bool) -> Result<Number, E> {
                Ok(Number(f64::from(flag)))
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<Number, E> {
                Ok(Number(number as f64))
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Number, E> {
                Ok(Number(number as f64))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Number, E> {
                let number = text.trim().parse().ok().filter(|number: &f64| !number.is_nan());
                number.map(Number).ok_or_else(|| E::invalid_value(de::Unexpected::Str(text), &self))
            }
        }

        deserializer.deserialize_any(Numbers)
    }
}

/// Yes or no: `true`, `1`, `"true"`, `"on"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Flag(pub(super) bool);

impl<'de> Deserialize<'de> for Flag {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Flag, D::Error> {
        struct Flags;

        impl Visitor<'_> for Flags {
            type Value = Flag;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("true or false")
            }

            fn visit_bool<E: de::Error>(self, flag: bool) -> Result<Flag, E> {
                Ok(Flag(flag))
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<Flag, E> {
                match number {
                    0 => Ok(Flag(false)),
                    1 => Ok(Flag(true)),
                    _ => Err(E::invalid_value(de::Unexpected::Unsigned(number), &self)),
                }
            }

            fn visit_f64<E: de::Error>(self, number: f64) -> Result<Flag, E> {
                match number {
                    0.0 => Ok(Flag(false)),
                    1.0 => Ok(Flag(true)),
                    _ => Err(E::invalid_value(de::Unexpected::Float(number), &self)),
                }
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Flag, E> {
                match text.to_ascii_lowercase().as_str() {
                    "true" | "t" | "yes" | "y" | "on" | "1" => Ok(Flag(true)),
                    "false" | "f" | "no" | "n" | "off" | "0" => Ok(Flag(false)),
                    _ => Err(E::invalid_value(de::Unexpected::Str(text), &self)),
                }
            }
        }

        deserializer.deserialize_any(Flags)
    }
}

/// How long a request waits: what it asks for, never longer than [`REQUEST_MAX`]; below 0 is not at all.
pub(super) fn wait(asked: Option<Number>, default: Duration) -> Duration {
    asked.map_or(default, |asked| Duration::from_secs_f64(asked.0.clamp(0.0, REQUEST_MAX.as_secs_f64())))
}

/// How long work may take that goes on without its request. 0 is the default, below 0 ends it at once, and nothing takes longer
/// than [`WORK_MAX`].
pub(super) fn bound(asked: Option<Number>, default: Duration) -> Duration {
    let asked = asked.filter(|asked| asked.0 != 0.0);
    // A bound of no time at all would be none.
    asked.map_or(default, |asked| Duration::from_secs_f64(asked.0.clamp(0.001, WORK_MAX.as_secs_f64())))
}

/// An amount as Kubernetes writes it: `4`, `500m`, `16Gi`, `1e9`. `units` has the longest first.
fn amount(what: &str, text: &str, units: &[(&str, f64)]) -> Result<f64, Problem> {
    let text = text.trim();
    let number = |digits: &str| digits.trim().parse().ok().filter(|number: &f64| number.is_finite());
    let scaled = || units.iter().find_map(|(unit, factor)| Some(number(text.strip_suffix(unit)?)? * factor));
    number(text).or_else(scaled).ok_or_else(|| {
        let names: Vec<_> = units.iter().map(|(unit, _)| format!("`{unit}`")).collect();
        let wanted = format!("a number, optionally with {}", names.join(", "));
        Problem::invalid(what, crate::http::shown(text), &wanted)
    })
}

/// A number of cores.
pub(super) fn cores(what: &str, text: &str) -> Result<f64, Problem> {
    amount(what, text, &[("m", 1e-3), ("u", 1e-6), ("n", 1e-9), ("k", 1e3)])
}

/// A number of bytes.
pub(super) fn bytes(what: &str, text: &str) -> Result<u64, Problem> {
    const KIB: f64 = 1024.0;
    let units = [
        ("Ki", KIB),
        ("Mi", KIB * KIB),
        ("Gi", KIB * KIB * KIB),
        ("Ti", KIB * KIB * KIB * KIB),
        ("Pi", KIB * KIB * KIB * KIB * KIB),
        ("m", 1e-3),
        ("k", 1e3),
        ("M", 1e6),
        ("G", 1e9),
        ("T", 1e12),
        ("P", 1e15),
    ];
    let bytes = amount(what, text, &units)?;
    if !(0.0..=9e15).contains(&bytes) {
        return Err(Problem::invalid(what, bytes, "0 to 8Pi"));
    }
    Ok(bytes as u64)
}

/// Standard base64 with or without its padding, in one line or many.
pub(super) fn decode(text: &str) -> Result<Vec<u8>, base64::DecodeError> {
    const LENIENT: GeneralPurpose = GeneralPurpose::new(
        &STANDARD,
        GeneralPurposeConfig::new()
            .with_decode_padding_mode(DecodePaddingMode::Indifferent)
            .with_decode_allow_trailing_bits(true),
    );
    let bytes = text.as_bytes();
    let packed: Cow<'_, [u8]> = if bytes.iter().any(u8::is_ascii_whitespace) {
        bytes.iter().copied().filter(|byte| !byte.is_ascii_whitespace()).collect()
    } else {
        bytes.into()
    };
    LENIENT.decode(packed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn number(value: Value) -> Option<Number> {
        serde_json::from_value(value).ok()
    }

    #[test]
    fn a_number_is_a_number_however_it_is_written() {
        for same in [json!(7200), json!(7200.0), json!("7200"), json!("7200.0"), json!(" 7200 ")] {
            assert_eq!(number(same.clone()), Some(Number(7200.0)), "{same}");
        }
        for wrong in [json!("x"), json!(""), json!("nan"), json!([1])] {
            assert_eq!(number(wrong.clone()), None, "{wrong}");
        }
    }

    #[test]
    fn a_flag_is_yes_or_no_however_it_is_written() {
        let flag = |value: &Value| serde_json::from_value::<Flag>(value.clone()).ok().map(|flag| flag.0);
        for yes in [json!(true), json!(1), json!(1.0), json!("True"), json!("on"), json!("1")] {
            assert_eq!(flag(&yes), Some(true), "{yes}");
        }
        for no in [json!(false), json!(0), json!("FALSE"), json!("no"), json!("0")] {
            assert_eq!(flag(&no), Some(false), "{no}");
        }
        for wrong in [json!(2), json!("x"), json!([])] {
            assert_eq!(flag(&wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_request_waits_up_to_its_bound_and_work_goes_on_beyond_it() {
        let default = Duration::from_secs(300);
        let seconds = Duration::from_secs;
        let table = [
            // Asked for, waited for, how long it may run.
            (None, default, default),
            (Some(json!(0)), Duration::ZERO, default),
            (Some(json!(1.5)), Duration::from_millis(1500), Duration::from_millis(1500)),
            (Some(json!(3600)), seconds(3600), seconds(3600)),
            (Some(json!("7200.0")), REQUEST_MAX, seconds(7200)),
            (Some(json!(604_800)), REQUEST_MAX, WORK_MAX),
            (Some(json!("inf")), REQUEST_MAX, WORK_MAX),
            (Some(json!(1e300)), REQUEST_MAX, WORK_MAX),
            (Some(json!(-1)), Duration::ZERO, Duration::from_millis(1)),
        ];
        for (asked, waits, runs) in table {
            let given = asked.clone().and_then(number);
            assert_eq!((wait(given, default), bound(given, default)), (waits, runs), "{asked:?}");
        }
    }

    #[test]
    fn amounts_are_as_kubernetes_writes_them() {
        for (text, expected) in [("4", 4.0), ("2000m", 2.0), ("500m", 0.5), ("0.5", 0.5), ("1e0", 1.0)] {
            assert_eq!(cores("cpu", text).unwrap(), expected, "{text}");
        }
        let table = [
            ("16Gi", 16 << 30),
            ("512Mi", 512 << 20),
            ("1.5G", 1_500_000_000),
            ("1073741824", 1 << 30),
            ("1e9", 1_000_000_000),
            ("128000m", 128),
            ("1P", 1_000_000_000_000_000),
        ];
        for (text, expected) in table {
            assert_eq!(bytes("memory", text).unwrap(), expected, "{text}");
        }
        for wrong in ["", "x", "16GiB", "-1", "nan", "1e99", "Gi"] {
            assert!(bytes("memory", wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn base64_may_be_wrapped_and_unpadded() {
        for same in ["AP9ieXRlcw==", "AP9ieXRlcw", "AP9i\r\neXRl\ncw==\n", " AP9ieXRlcw= =", "AP9ieXRlcx=="] {
            assert_eq!(decode(same).unwrap(), b"\x00\xffbytes", "{same:?}");
        }
        assert_eq!(decode("").unwrap(), b"");
        for wrong in ["AP9!", "A", "AP9ieXRlc===", "AP-_"] {
            assert!(decode(wrong).is_err(), "{wrong:?}");
        }
    }
}

//! Numbers of JSON by value: whole ones exactly, others as doubles.

use espalier_sdk::serde_json::Number;
use std::cmp::Ordering;

/// The whole number that it is, however it is written: `1e15`, `-0`, `3.0`.
pub(crate) fn integer(number: &Number) -> Option<i128> {
    const END: f64 = (1_u128 << 127) as f64;
    let exact = number.as_i64().map(i128::from).or_else(|| number.as_u64().map(i128::from));
    exact.or_else(|| {
        number.as_f64().filter(|float| float.fract() == 0.0 && float.abs() < END).map(|float| float as i128)
    })
}

/// Whether it has no fraction.
pub(crate) fn is_whole(number: &Number) -> bool {
    number.as_f64().is_some_and(|float| float.fract() == 0.0)
}

pub(crate) fn order(one: &Number, other: &Number) -> Ordering {
    match (integer(one), integer(other)) {
        (Some(one), Some(other)) => one.cmp(&other),
        _ => float(one).total_cmp(&float(other)),
    }
}

pub(crate) fn is_multiple(number: &Number, step: &Number) -> bool {
    match (integer(number), integer(step)) {
        (Some(number), Some(step)) => step != 0 && number % step == 0,
        _ => {
            let times = float(number) / float(step);
            (times - times.round()).abs() <= 1e-9
        }
    }
}

/// The same text for the same number.
pub(crate) fn canonical(number: &Number) -> String {
    integer(number).map_or_else(|| number.to_string(), |integer| integer.to_string())
}

fn float(number: &Number) -> f64 {
    number.as_f64().unwrap_or(f64::NAN)
}

//! `Retry-After`: seconds or an HTTP date.

use std::time::{Duration, SystemTime};

/// How long the server asks to wait, seen from `now`; a date in the past is not a wait. `None` where it is neither form.
pub(super) fn parse(value: &str, now: SystemTime) -> Option<Duration> {
    let value = value.trim();
    if !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_digit()) {
        // More digits than u64 holds is a wait beyond any bound, not an unreadable one.
        return Some(Duration::from_secs(value.parse().unwrap_or(u64::from(u32::MAX))));
    }
    let date = httpdate::parse_http_date(value).ok()?;
    Some(date.duration_since(now).unwrap_or(Duration::ZERO))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_and_dates_are_read_and_nonsense_is_not() {
        let now = httpdate::parse_http_date("Sun, 06 Nov 1994 08:49:37 GMT").unwrap();
        let cases = [
            ("0", Some(0)),
            (" 120 ", Some(120)),
            ("99999999999999999999999", Some(u64::from(u32::MAX))),
            ("Sun, 06 Nov 1994 08:50:07 GMT", Some(30)),
            ("Sunday, 06-Nov-94 08:50:07 GMT", Some(30)),
            ("Sun Nov  6 08:50:07 1994", Some(30)),
            ("Sun, 06 Nov 1994 08:49:00 GMT", Some(0)),
            ("", None),
            ("-3", None),
            ("1.5", None),
            ("soon", None),
        ];
        for (value, seconds) in cases {
            assert_eq!(parse(value, now), seconds.map(Duration::from_secs), "{value:?}");
        }
    }
}

//! Cookies of answers from an archive: Chromium does not take those of every answer that is made for it.

use crate::har::set_cookie;
use crate::protocol::Raw;
use serde_json::{Value, json};
use std::time::{SystemTime, UNIX_EPOCH};

const MONTHS: [&str; 12] =
    ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"];

/// What stores the cookies of an answer from `url`; `None` where it sets none.
pub(super) fn store<'a>(context: &str, url: &str, lines: impl Iterator<Item = &'a str>) -> Option<Raw> {
    let cookies: Vec<Value> = lines.filter_map(|line| param(url, line)).collect();
    let params = json!({ "cookies": cookies, "browserContextId": context });
    (!cookies.is_empty()).then(|| Raw::new("Storage.setCookies", params))
}

fn param(url: &str, line: &str) -> Option<Value> {
    let read = set_cookie(line)?;
    let mut cookie = json!({
        "url": url, "name": read["name"], "value": read["value"], "httpOnly": read["httpOnly"],
        "secure": read["secure"],
    });
    for name in ["path", "domain"] {
        if let Some(value) = read[name].as_str().filter(|value| !value.is_empty()) {
            cookie[name] = json!(value);
        }
    }
    let same_site = read["sameSite"].as_str().unwrap_or_default().to_ascii_lowercase();
    match same_site.as_str() {
        "strict" => cookie["sameSite"] = json!("Strict"),
        "none" => cookie["sameSite"] = json!("None"),
        "lax" => cookie["sameSite"] = json!("Lax"),
        _ => {}
    }
    let mut parts = line.split(';').filter_map(|part| part.trim().split_once('='));
    let age = parts.rfind(|(name, _)| name.eq_ignore_ascii_case("max-age"));
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    let expires = match age.and_then(|(_, age)| age.trim().parse::<f64>().ok()) {
        Some(age) => Some(now + age),
        None => read["expires"].as_str().and_then(date),
    };
    if let Some(expires) = expires {
        // One that is past removes the cookie; 1 is the earliest that Chromium takes for a time.
        cookie["expires"] = json!(expires.max(1.0));
    }
    Some(cookie)
}

/// Seconds since 1970 of a date such as `Wed, 01 Jan 2031 00:00:00 GMT`.
fn date(text: &str) -> Option<f64> {
    let text = text.replace('-', " ").to_ascii_lowercase();
    let mut words = text.split_ascii_whitespace().skip(1);
    let day: i64 = words.next()?.parse().ok()?;
    let month = words.next()?;
    let month = MONTHS.iter().position(|name| *name == month)? as i64 + 1;
    let year: i64 = words.next()?.parse().ok()?;
    let clock: Vec<i64> = words.next()?.split(':').map_while(|part| part.parse().ok()).collect();
    let [hours, minutes, seconds] = clock.try_into().ok()?;
    // Days since 1970-01-01, with years that begin in March.
    let (shifted_year, shifted_month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let era = shifted_year.div_euclid(400);
    let of_era = shifted_year.rem_euclid(400);
    let of_year = (153 * shifted_month + 2) / 5 + day - 1;
    let days = era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468;
    Some((((days * 24 + hours) * 60 + minutes) * 60 + seconds) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read() {
        assert_eq!(date("Thu, 01 Jan 1970 00:00:00 GMT"), Some(0.0));
        assert_eq!(date("Tue, 29-Feb-2000 12:34:56 GMT"), Some(951_827_696.0));
        assert_eq!(date("tomorrow"), None);
        let cookie =
            param("http://a/", "a=b; Path=/x; Secure; SameSite=none; Expires=Thu, 01 Jan 1970 00:00:00 GMT");
        let expected = json!({ "url": "http://a/", "name": "a", "value": "b", "httpOnly": false, "secure": true,
            "path": "/x", "sameSite": "None", "expires": 1.0 });
        assert_eq!(cookie, Some(expected));
        assert!(param("http://a/", "a=b").expect("a cookie").get("expires").is_none());
        assert!(param("http://a/", "a=b; max-age=60").expect("a cookie")["expires"].as_f64() > Some(1e9));
    }
}

//! Places in a state: JSON Pointers (RFC 6901), and those with `{NAME}` in the place of a part.

use serde_json::Value;

/// A place, as the parts that lead to it.
pub(crate) type Place = Vec<String>;

/// The parts of a pointer; empty for the whole.
pub(crate) fn parse(text: &str) -> Result<Place, String> {
    if text.is_empty() {
        return Ok(Vec::new());
    }
    let rest =
        text.strip_prefix('/').ok_or_else(|| format!("path {text:?}: expected one that begins with `/`"))?;
    Ok(rest.split('/').map(|part| part.replace("~1", "/").replace("~0", "~")).collect())
}

/// A place as a pointer.
pub(crate) fn write(place: &[String]) -> String {
    place.iter().map(|part| format!("/{}", part.replace('~', "~0").replace('/', "~1"))).collect()
}

/// What stands at a place.
pub(crate) fn get<'a>(state: &'a Value, place: &[String]) -> Option<&'a Value> {
    place.iter().try_fold(state, |value, part| match value {
        Value::Object(map) => map.get(part),
        Value::Array(items) => items.get(index(part)?),
        _ => None,
    })
}

/// The same, to be changed.
pub(crate) fn get_mut<'a>(state: &'a mut Value, place: &[String]) -> Option<&'a mut Value> {
    place.iter().try_fold(state, |value, part| match value {
        Value::Object(map) => map.get_mut(part),
        Value::Array(items) => items.get_mut(index(part)?),
        _ => None,
    })
}

/// The place of an element, written as JSON Pointers do: `01` does not name one.
pub(crate) fn index(part: &str) -> Option<usize> {
    let plain = part == "0" || !part.starts_with('0');
    part.parse().ok().filter(|_| plain && part.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Puts objects into objects; all else takes the place of what was there.
pub(crate) fn merge(into: &mut Value, from: Value) {
    match (into, from) {
        (Value::Object(into), Value::Object(from)) => {
            for (key, value) in from {
                match into.get_mut(&key) {
                    Some(there) => merge(there, value),
                    None => drop(into.insert(key, value)),
                }
            }
        }
        (into, from) => *into = from,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn places_are_written_and_read_and_found() {
        let state = json!({"a/b": [{"~": 1}], "c": {}});
        let place = parse("/a~1b/0/~0").unwrap();
        assert_eq!(place, ["a/b", "0", "~"]);
        assert_eq!(write(&place), "/a~1b/0/~0");
        assert_eq!(get(&state, &place), Some(&json!(1)));
        assert_eq!(get(&state, &parse("").unwrap()), Some(&state));
        for nowhere in ["/a~1b/00", "/a~1b/-1", "/a~1b/+0", "/c/d", "/c/d/e"] {
            assert_eq!(get(&state, &parse(nowhere).unwrap()), None, "{nowhere}");
        }
        assert_eq!(parse("a").unwrap_err(), "path \"a\": expected one that begins with `/`");
    }

    #[test]
    fn objects_are_merged_and_lists_replaced() {
        let mut state = json!({"a": {"b": 1, "c": [1]}, "d": 1});
        merge(&mut state, json!({"a": {"c": [2], "e": null}, "d": {"f": 1}}));
        assert_eq!(state, json!({"a": {"b": 1, "c": [2], "e": null}, "d": {"f": 1}}));
    }
}

//! Ranges and paths.

use super::*;

#[test]
fn one_range_is_served_and_what_is_no_range_gets_all() {
    let asked = |text: &str| {
        let headers = HeaderMap::from_iter([(header::RANGE, HeaderValue::from_str(text).unwrap())]);
        range(&headers, 10, "\"e\"").map_err(|problem| problem.code)
    };
    assert_eq!(asked("bytes=0-3"), Ok(Some((0, 4))));
    assert_eq!(asked("bytes=4-"), Ok(Some((4, 10))));
    assert_eq!(asked("bytes=-3"), Ok(Some((7, 10))));
    assert_eq!(asked("bytes=8-99"), Ok(Some((8, 10))));
    assert_eq!(asked("bytes=-99"), Ok(Some((0, 10))));
    for all in ["bytes=3-1", "bytes=a-b", "lines=1-2", "bytes=0-1,3-4", "bytes=-"] {
        assert_eq!(asked(all), Ok(None), "{all}");
    }
    for none in ["bytes=10-", "bytes=99-100", "bytes=-0"] {
        assert_eq!(asked(none), Err(Code::RangeNotSatisfiable), "{none}");
    }
}

#[test]
fn a_path_of_the_query_is_bytes() {
    let path = |uri: &str| raw_path(&uri.parse().unwrap()).map_err(|problem| problem.code);
    assert_eq!(path("/f?path=/a%20b+c%ff&mode=644"), Ok(b"/a b c\xff".to_vec()));
    assert_eq!(path("/f?mode=644"), Err(Code::Invalid));
    assert_eq!(path("/f?path="), Err(Code::Invalid));
    assert_eq!(path("/f?path=%00"), Err(Code::Invalid));
}

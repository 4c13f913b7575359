use super::*;
use serde_json::json;

fn operation(value: Value) -> Operation {
    let operation: Operation = serde_json::from_value(value).unwrap();
    operation.check().unwrap();
    operation
}

fn apply(operation: &Operation, state: &Value, arguments: Value) -> Result<Done, String> {
    let Value::Object(arguments) = arguments else { panic!("an object") };
    let before = Before { initial: &json!({}), current: state, numbers: &Numbers::default() };
    operation.apply(before, &arguments).map_err(|Refused(why)| why)
}

fn mail() -> Value {
    json!({"now": "2026-01-05", "folders": {"inbox": {}, "trash": {}},
           "messages": {"m1": {"folder": "inbox"}, "m7": {"folder": "trash"}}, "log": []})
}

#[test]
fn effects_change_places_that_are_there() {
    let send = operation(json!({
        "arguments": {"to": {"type": "string", "form": "email"}, "text": {"type": "string", "default": ""}},
        "effects": [
            {"insert": {"path": "/messages", "prefix": "m", "value": {"id": {"$id": true}, "to": {"$argument": "to"},
                        "text": {"$argument": "text"}, "at": {"$state": "/now"}}}},
            {"append": {"path": "/log", "value": ["sent", {"$argument": "to"}]}},
        ]
    }));
    let done = apply(&send, &mail(), json!({"to": "ann@example.org"})).unwrap();
    assert_eq!(done.id.as_deref(), Some("m8"));
    let sent = json!({"id": "m8", "to": "ann@example.org", "text": "", "at": "2026-01-05"});
    assert_eq!(done.state["messages"]["m8"], sent);
    assert_eq!(done.state["log"], json!([["sent", "ann@example.org"]]));

    let file = operation(json!({
        "arguments": {"id": {"type": "string", "key_of": "/messages"}, "folder": {"type": "string", "key_of": "/folders"}},
        "requires": [{"differ": [{"$state": "/messages/{id}/folder"}, {"$argument": "folder"}], "message": "it is there"}],
        "effects": [{"set": {"path": "/messages/{id}/folder", "value": {"$argument": "folder"}}}]
    }));
    let moved = apply(&file, &mail(), json!({"id": "m1", "folder": "trash"})).unwrap();
    assert_eq!(moved.state["messages"]["m1"], json!({"folder": "trash"}));
    for (arguments, expect) in [
        (json!({"id": "m1", "folder": "inbox"}), "it is there"),
        (json!({"id": "m2", "folder": "inbox"}), "argument \"id\": there is no such entry in /messages"),
        (json!({"id": "m1"}), "argument \"folder\" is missing"),
        (json!({"id": "m1", "folder": 1}), "argument \"folder\": expected a text"),
        (json!({"id": "m1", "folder": "trash", "now": 1}), "unknown argument \"now\": expected folder, id"),
    ] {
        assert_eq!(apply(&file, &mail(), arguments.clone()).unwrap_err(), expect, "{arguments}");
    }
}

#[test]
fn a_number_is_given_once() {
    let put = operation(json!({"effects": [{"insert": {"path": "/messages", "prefix": "m", "value": {}}}]}));
    let initial = mail();
    let mut current = json!({"messages": {"m1": {}}});
    let mut numbers = Numbers::default();
    for expect in ["m8", "m9"] {
        let before = Before { initial: &initial, current: &current, numbers: &numbers };
        let done = put.apply(before, &Map::new()).unwrap();
        assert_eq!(done.id.as_deref(), Some(expect));
        numbers = done.numbers;
        // It is removed at once, as `m7` was before.
        current = json!({"messages": {"m1": {}}});
    }
}

#[test]
fn an_operation_happens_whole_or_not_at_all() {
    let broken = operation(json!({
        "arguments": {"id": {"type": "string"}},
        "effects": [{"clear": {"path": "/log"}}, {"remove": {"path": "/messages/{id}"}}]
    }));
    assert_eq!(
        apply(&broken, &mail(), json!({"id": "a/../b"})).unwrap_err(),
        "there is nothing at /messages/a~1..~1b"
    );
    assert_eq!(
        apply(&broken, &mail(), json!({"id": "m1"})).unwrap().state["messages"],
        json!({"m7": {"folder": "trash"}})
    );
}

#[test]
fn arguments_have_their_forms() {
    for (definition, good, bad, expect) in [
        (
            json!({"type": "integer", "min": 1, "max": 9}),
            json!(9),
            json!(10),
            "10: expected 1 at least, 9 at most",
        ),
        (json!({"type": "integer"}), json!(-1), json!(1.5), "expected a whole number"),
        (json!({"type": "number", "max": 1}), json!(0.5), json!(2), "2: expected 1 at most"),
        (json!({"type": "boolean"}), json!(true), json!("true"), "expected true or false"),
        (
            json!({"type": "string", "min": 1}),
            json!("ä"),
            json!(""),
            "0 characters: expected 1 at least, 10000 at most",
        ),
        (
            json!({"type": "string", "one_of": ["a", "b"]}),
            json!("b"),
            json!("c"),
            "expected one of \"a\", \"b\"",
        ),
        (json!({"type": "string", "form": "line"}), json!("a b"), json!("a\nb"), "expected one line"),
        (
            json!({"type": "string", "form": "email"}),
            json!("a.b@c.de"),
            json!("a@b"),
            "expected an address such as ann@example.org",
        ),
        (
            json!({"type": "string", "form": "email"}),
            json!("a+b@c.d.ef"),
            json!("a@b..c"),
            "expected an address such as ann@example.org",
        ),
        (
            json!({"type": "string", "form": "date"}),
            json!("2024-02-29"),
            json!("2026-02-29"),
            "expected a date such as 2026-01-31",
        ),
        (
            json!({"type": "string", "form": "time"}),
            json!("00:59"),
            json!("24:00"),
            "expected a time such as 09:30",
        ),
        (
            json!({"type": "list", "max": 2, "items": {"type": "string"}}),
            json!(["a"]),
            json!(["a", "b", "c"]),
            "3 elements: expected 2 at most",
        ),
        (json!({"type": "list", "items": {"type": "string"}}), json!([]), json!([1]), "expected a text"),
    ] {
        let argument: Argument = serde_json::from_value(definition.clone()).unwrap();
        assert_eq!(argument.check(), Ok(()), "{definition}");
        assert_eq!(argument.fits(&good, &Value::Null), Ok(()), "{definition}");
        assert_eq!(argument.fits(&bad, &Value::Null).unwrap_err(), expect, "{definition}");
    }
}

#[test]
fn what_could_never_be_carried_out_is_refused() {
    for (definition, expect) in [
        (json!({"effects": []}), "`effects` is empty"),
        (json!({"effects": [{"remove": {"path": "/a/{b}"}}]}), "there is no argument \"b\""),
        (json!({"effects": [{"set": {"path": "/a", "value": {"$id": true}}}]}), "`$id` outside of `insert`"),
        (
            json!({"arguments": {"a": {"type": "integer", "form": "date"}}, "effects": [{"clear": {"path": "/a"}}]}),
            "argument \"a\": `form` does not go with its `type`",
        ),
        (
            json!({"requires": [{"less": [{"$argument": "a"}, 1], "message": "m"}], "effects": [{"clear": {"path": "/a"}}]}),
            "there is no argument \"a\"",
        ),
    ] {
        let operation: Operation = serde_json::from_value(definition.clone()).unwrap();
        assert_eq!(operation.check().unwrap_err(), expect, "{definition}");
    }
    for (definition, expect) in [
        (json!({"effects": [{"set": {"path": "a", "value": 1}}]}), "expected one that begins with `/`"),
        (
            json!({"effects": [{"set": {"path": "/a", "value": {"$now": 1}}}]}),
            "expected `$argument` with a name",
        ),
        (json!({"effects": [{"jump": {"path": "/a"}}]}), "unknown variant `jump`"),
    ] {
        let error = serde_json::from_value::<Operation>(definition.clone()).unwrap_err().to_string();
        assert!(error.contains(expect), "{definition}: {error}");
    }
}

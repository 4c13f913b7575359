//! Schemas and checks come from one table; these tests hold them against each other and against what models write.

use super::*;
use crate::agent::action::Target;
use crate::input::Button;

const ALL: ToolOptions = ToolOptions { points: true, refs: true, call_user: true, terminate: true };

fn parsed(name: &str, arguments: Value) -> Result<Action, String> {
    parse(&ToolCall::new(name, arguments), &ALL).map_err(|failure| failure.text)
}

#[test]
fn every_schema_is_an_object_of_described_arguments() {
    for tool in tools(&ALL) {
        assert_eq!(tool.parameters["type"], "object", "{}", tool.name);
        assert_eq!(tool.parameters["additionalProperties"], false, "{}", tool.name);
        assert!(tool.description.ends_with('.'), "{}", tool.description);
        for (name, schema) in tool.parameters["properties"].as_object().expect("properties") {
            let description = schema["description"].as_str().expect("a description");
            assert!(description.ends_with('.') && schema["type"].is_string(), "{}.{name}", tool.name);
        }
    }
}

#[test]
fn required_arguments_of_a_schema_are_those_that_the_check_misses() {
    for tool in tools(&ToolOptions::default()) {
        let required = tool.parameters.get("required").and_then(Value::as_array).cloned().unwrap_or_default();
        let missing = parse(&ToolCall::new(tool.name.clone(), json!({})), &ToolOptions::default());
        match required.first().and_then(Value::as_str) {
            Some(first) => {
                let text = missing.expect_err("an argument is missing").text;
                assert!(text.starts_with(&format!("missing {}.{first}", tool.name)), "{text}");
            }
            None => assert!(missing.is_ok(), "{}", tool.name),
        }
    }
}

#[test]
fn defaults_of_a_schema_pass_its_own_check() {
    for row in &ROWS {
        for argument in row.arguments {
            let Presence::Default(preset) = argument.presence else { continue };
            let only = [&Argument { presence: Presence::Optional, ..*argument }];
            let given = json!({ argument.name: preset.json() });
            assert!(Arguments::check(row.name, &only, &given).is_ok(), "{}.{}", row.name, argument.name);
        }
    }
}

#[test]
fn calls_are_taken_as_models_write_them() {
    let point = Target::Point(501.0, 213.0);
    let click = |target, clicks, button| Ok(Action::Click { target, clicks, button });
    let rows = [
        ("click", json!({ "point_2d": [501, 213] }), click(point, 1, Button::Left)),
        ("CLICK", json!({ "Point_2D": ["501", "213.0"], "clicks": "2" }), click(point, 2, Button::Left)),
        (
            "click",
            json!("{\"point_2d\": \"[501, 213]\", \"button\": \"Right\"}"),
            click(point, 1, Button::Right),
        ),
        ("click", json!({ "point_2d": "(501,213)", "ref": null }), click(point, 1, Button::Left)),
        ("click", json!({ "ref": "E7" }), click(Target::Ref(7), 1, Button::Left)),
        ("click", json!({ "ref": "[ref=e7]".replace("ref=", "") }), click(Target::Ref(7), 1, Button::Left)),
        ("click", json!({ "ref": 7, "clicks": 1.0 }), click(Target::Ref(7), 1, Button::Left)),
        (
            "press_keys",
            json!({ "keys": ["ctrl", "RETURN"], "is_hotkey": "True" }),
            Ok(Action::PressKeys {
                keys: vec!["Control".into(), "Enter".into()],
                together: true,
                presses: 1,
            }),
        ),
        ("go_back", Value::Null, Ok(Action::GoBack)),
        ("go_back", json!(""), Ok(Action::GoBack)),
        ("switch_tab", json!({ "tab_index": "1" }), Ok(Action::SwitchTab { index: 1 })),
        (
            "goto_url",
            json!({ "url": "example.com" }),
            Ok(Action::GotoUrl { url: "https://example.com".into() }),
        ),
    ];
    for (name, arguments, expected) in rows {
        assert_eq!(parsed(name, arguments.clone()), expected, "{name} {arguments}");
    }
}

#[test]
fn values_out_of_their_bounds_are_refused() {
    let rows = [
        ("click", json!({ "point_2d": [-1, 0] })),
        ("click", json!({ "point_2d": [0, 1000.5] })),
        ("click", json!({ "point_2d": [1] })),
        ("click", json!({ "point_2d": [1, 2, 3] })),
        ("click", json!({ "point_2d": ["NaN", 1] })),
        ("click", json!({ "point_2d": [true, 1] })),
        ("click", json!({ "ref": "e" })),
        ("click", json!({ "ref": "e1e" })),
        ("click", json!({ "ref": "e99999999999999999999" })),
        ("click", json!({ "ref": -1 })),
        ("click", json!({ "ref": "e1", "clicks": 1.5 })),
        ("drag", json!({ "start_point_2d": [1, 1], "end_point_2d": [2, 2], "steps": 0 })),
        ("scroll", json!({ "amount": 1.01 })),
        ("scroll", json!({ "direction": "sideways" })),
        ("scroll", json!({ "point_2d": [1, 1], "ref": "e1" })),
        ("press_keys", json!({ "keys": [] })),
        ("press_keys", json!({ "keys": ["Enter", {}] })),
        ("press_keys", json!({ "keys": ["a"], "presses": 101 })),
        ("switch_tab", json!({ "tab_index": -1 })),
        ("write", json!({ "message": ["a"] })),
        ("write", json!("not json")),
    ];
    for (name, arguments) in rows {
        let said = parsed(name, arguments.clone()).expect_err("it is out of bounds");
        assert!(said.starts_with("invalid ") && said.contains("expected"), "{name} {arguments}: {said}");
    }
    let long = parsed("wait", json!({ "seconds": "x".repeat(1000) })).expect_err("not a number");
    assert!(long.len() < 200, "{long}");
}

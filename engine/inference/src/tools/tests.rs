use super::ToolParser;
use espalier_core::chat::{Message, Part, Role, ToolCall};

/// Parses and writes what was found, one line each.
fn found(parser: &str, text: &str) -> String {
    let parsed = ToolParser::by_name(parser).expect("a known name").parse(text, 7);
    let mut lines: Vec<String> =
        parsed.calls.iter().map(|call| format!("{} {}{}", call.id, call.name, call.arguments)).collect();
    lines.extend(parsed.malformed.map(|reason| format!("malformed: {reason}")));
    lines.join("\n")
}

#[track_caller]
fn check(parser: &str, text: &str, expected: &str) {
    assert_eq!(found(parser, text), expected, "{parser}: {text}");
}

#[test]
fn hermes() {
    let call = r#"<tool_call>{"name": "look", "arguments": {"at": "door", "n": 2}}</tool_call>"#;
    check("hermes", call, r#"call00007 look{"at":"door","n":2}"#);
    check(
        "hermes",
        &format!("I look.\n{call}\n{call}"),
        "call00007 look{\"at\":\"door\",\"n\":2}\ncall00008 look{\"at\":\"door\",\"n\":2}",
    );
    check("hermes", "no call at all", "");
    check("hermes", r#"<tool_call>{"name": "wait"}</tool_call>"#, "call00007 wait{}");
    // The stop text or the limit took the closing tag.
    check("hermes", r#"<tool_call>{"name": "wait", "arguments": {}}"#, "call00007 wait{}");
    check(
        "hermes",
        r#"<tool_call>{"name": "look", "argum"#,
        r#"malformed: not JSON: EOF while parsing a string at line 1 column 23: "{\"name\": \"look\", \"argum"; the answer ends inside <tool_call>"#,
    );
    check(
        "hermes",
        r#"<tool_call>{"name": "look", "arguments": [1]}</tool_call>"#,
        r#"malformed: arguments of look are not a JSON object: "[1]""#,
    );
    check(
        "hermes",
        r#"<tool_call>{"arguments": {}}</tool_call>"#,
        r#"malformed: no name: "{\"arguments\":{}}""#,
    );
    // Arguments written as text; a malformed call beside a good one.
    let mixed =
        r#"<tool_call>oops</tool_call><tool_call>{"name": "a", "arguments": "{\"x\": 1}"}</tool_call>"#;
    check(
        "hermes",
        mixed,
        "call00007 a{\"x\":1}\nmalformed: not JSON: expected value at line 1 column 1: \"oops\"",
    );
    check("hermes", "<think>a <tool_call> would do</think>Done.", "");
}

#[test]
fn qwen() {
    let json = r#"<tool_call>{"name": "look", "arguments": {}}</tool_call>"#;
    check("qwen", json, "call00007 look{}");
    let xml = "<tool_call>\n<function=edit>\n<parameter=path>\na b.txt\n</parameter>\n<parameter=line>\n12\n</parameter>\n\
               <parameter=text>\n  two\nlines\n</parameter>\n</function>\n</tool_call>";
    check("qwen", xml, r#"call00007 edit{"path":"a b.txt","line":12,"text":"  two\nlines"}"#);
    check(
        "qwen",
        "<tool_call><function=edit><parameter=path>x</tool_call>",
        "malformed: <parameter=path> of edit is not closed",
    );
    check("qwen", "<tool_call><function=edit></tool_call>", "malformed: <function=edit> is not closed");
    check("qwen", "<tool_call><function=wait></function></tool_call>", "call00007 wait{}");
}

#[test]
fn llama3() {
    check("llama3", r#"{"name": "look", "parameters": {"at": "door"}}"#, r#"call00007 look{"at":"door"}"#);
    check("llama3", r#"<|python_tag|>{"name": "look", "parameters": {}}<|eom_id|>"#, "call00007 look{}");
    let two = r#"{"name": "a", "parameters": {}}; {"name": "b", "parameters": {}}"#;
    check("llama3", two, "call00007 a{}\ncall00008 b{}");
    // JSON that names no tool is an answer, and so is text.
    check("llama3", r#"{"answer": 3}"#, "");
    check("llama3", "The door.", "");
    check(
        "llama3",
        "<|python_tag|>print(1)",
        r#"malformed: no JSON object after <|python_tag|>: "print(1)""#,
    );
    check(
        "llama3",
        r#"{"name": "look", "para"#,
        r#"malformed: not JSON: EOF while parsing a string at line 1 column 22: "{\"name\": \"look\", \"para""#,
    );
}

#[test]
fn fenced() {
    let call = "Now:\n```json\n{\"name\": \"look\", \"arguments\": {\"at\": \"door\"}}\n```\n";
    check("fenced", call, r#"call00007 look{"at":"door"}"#);
    check("fenced", "```tool\n{\"name\": \"wait\"}\n```", "call00007 wait{}");
    check("fenced", "```json\n[{\"name\": \"a\"}, {\"name\": \"b\"}]\n```", "call00007 a{}\ncall00008 b{}");
    check("fenced", "```json\n{\"answer\": 1}\n```", "");
    check("fenced", "```python\nprint({\"name\": 1})\n```", "");
    check("fenced", "```tool\n{\"answer\": 1}\n```", r#"malformed: no name: "{\"answer\":1}""#);
    check(
        "fenced",
        "```tool\n{\"name\"",
        r#"malformed: not JSON: EOF while parsing an object at line 1 column 7: "{\"name\""; the block is not closed"#,
    );
}

#[test]
fn none_finds_nothing() {
    check("none", r#"<tool_call>{"name": "look"}</tool_call>"#, "");
}

#[test]
fn every_parser_reads_what_it_writes() {
    let arguments = r#"{"text":"a \"b\"\n```x <tool_call>","n":1.5,"list":[null,true]}"#;
    let call =
        ToolCall { id: "call00007".to_owned(), name: "look".to_owned(), arguments: arguments.to_owned() };
    for name in ["hermes", "qwen", "llama3", "fenced"] {
        let parser = ToolParser::by_name(name).expect("a known name");
        assert_eq!(parser.name(), name);
        let parsed = parser.parse(&parser.write(&call), 7);
        assert_eq!((parsed.calls, parsed.malformed), (vec![call.clone()], None), "{name}");
    }
}

#[test]
fn raw_text_holds_each_call_once() {
    let call = ToolCall { id: "x".to_owned(), name: "look".to_owned(), arguments: "{\"at\": 1}".to_owned() };
    let message = |text: &str| Message {
        role: Role::Assistant,
        parts: vec![Part::Text(text.to_owned()), Part::ToolCall(call.clone())],
        extra: None,
    };
    let whole = r#"I look. <tool_call>{"name":"look","arguments":{"at":1}}</tool_call>"#;
    assert_eq!(ToolParser::Hermes.raw_text(&message(whole)), whole);
    let written = "I look.\n<tool_call>\n{\"name\": \"look\", \"arguments\": {\"at\": 1}}\n</tool_call>";
    assert_eq!(ToolParser::Hermes.raw_text(&message("I look.")), written);
}

#[test]
fn parser_by_template() {
    let cases = [
        ("x <tool_call> y <tool_response>", "qwen"),
        ("<tool_call>", "hermes"),
        (
            "Respond in the format {\"name\": function name, \"parameters\": dictionary of argument name and its value}",
            "llama3",
        ),
        ("{{ messages[0].content }}", "fenced"),
    ];
    for (template, expected) in cases {
        assert_eq!(ToolParser::for_template(template).name(), expected, "{template}");
    }
}

/// What is left of a text without its calls, and how many calls there are.
#[track_caller]
fn apart(parser: &str, text: &str, left: &str, calls: usize) {
    let parsed = ToolParser::by_name(parser).expect("a known name").parse(text, 0);
    let mut rest = String::new();
    let mut from = 0;
    for (start, end) in &parsed.calls_at {
        rest.push_str(&text[from..*start as usize]);
        from = *end as usize;
    }
    rest.push_str(&text[from..]);
    assert_eq!((rest.as_str(), parsed.calls.len()), (left, calls), "{parser}: {text}");
}

#[test]
fn calls_have_their_places_in_the_text() {
    let call = r#"<tool_call>{"name": "look", "arguments": {}}</tool_call>"#;
    apart("hermes", &format!("é first\n{call} and {call}\n"), "é first\n and \n", 2);
    apart(
        "hermes",
        &format!("<think>a <tool_call> or so</think>x{call}"),
        "<think>a <tool_call> or so</think>x",
        1,
    );
    apart("hermes", &call[..call.len() - 12], "", 1);
    apart("hermes", &format!("<tool_call>oops</tool_call>{call}"), "<tool_call>oops</tool_call>", 1);
    apart("qwen", "go\n<tool_call>\n<function=look>\n</function>\n</tool_call>", "go\n", 1);
    let two = r#"{"name": "a", "parameters": {}}; {"name": "b", "parameters": {}}"#;
    apart("llama3", two, "", 2);
    apart("llama3", &format!("I go.<|python_tag|>{two}<|eom_id|>"), "I go.", 2);
    apart("llama3", &format!("<|python_tag|>{two} and more"), &format!("<|python_tag|>{two} and more"), 2);
    let block = "```json\n[{\"name\": \"a\"}, {\"name\": \"b\"}]\n```\n";
    apart("fenced", &format!("One:\r\n{block}two.\n```py\nx\n```"), "One:\r\ntwo.\n```py\nx\n```", 2);
    apart("fenced", "```tool\n{\"name\": \"a\"}", "", 1);
    apart("none", call, call, 0);
}

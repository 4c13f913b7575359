use super::*;
use espalier_core::task::Task;

/// A record in each set's published form.
fn record(set: WebSet) -> Value {
    match set {
        WebSet::WebVoyager => json!({
            "web_name": "Dictionary", "id": "Dictionary--29", "web": "https://dictionary.example.org/",
            "ques": "Find the quizzes, do an easy one and tell the score.",
        }),
        WebSet::OnlineMind2Web => json!({
            "task_id": "fb7b4f784cfde003e2548fdf4e8d6b4f", "website": "https://www.example.com/shopping?udm=28",
            "confirmed_task": "Find the cheapest tent for four.", "reference_length": 7, "level": "medium",
        }),
        WebSet::DeepShop => json!({
            "web_name": "Shop", "id": "Shop--14", "web": "https://www.shop.example/?language=en_US&currency=USD",
            "ques": "Find a surge protector with 6 to 8 outlets under 25 dollars with reviews above 4 stars.",
            "attribute": "Surge protector with 6 to 8 outlets under 25 dollars",
            "filter": "Surge protector with reviews above 4 stars", "sort": "None",
            "category": "Electronics", "difficulty": "easy",
        }),
    }
}

fn one_with(set: WebSet, row: &Value, options: &WebOptions) -> Result<Value, String> {
    let text = row.to_string();
    let mut read: Vec<_> = read_web(set, &text, options).collect();
    assert_eq!(read.len(), 1);
    read.remove(0).map(|line| serde_json::from_str(&line).unwrap()).map_err(|error| error.to_string())
}

fn one(set: WebSet, row: &Value) -> Result<Value, String> {
    one_with(set, row, &WebOptions::default())
}

fn answers() -> Answers {
    Answers::read(
        r#"{"Dictionary": {"notice": "", "answers": [
            {"id": 29, "type": "possible", "ans": "6/6"}, {"id": 30, "type": "golden", "ans": "a noun"}]}}"#,
    )
    .unwrap()
}

#[test]
fn a_record_of_each_set_is_a_task() {
    let tasks: Vec<Value> = WebSet::ALL
        .into_iter()
        .map(|(_, set)| {
            let options = WebOptions { answers: Some(answers()), ..WebOptions::default() };
            one_with(set, &record(set), &options).unwrap()
        })
        .collect();
    insta::assert_snapshot!(serde_json::to_string_pretty(&tasks).unwrap());
    for task in tasks {
        let parsed = Task::parse(&task.to_string()).unwrap();
        let shown = serde_json::to_string(&parsed.view(false)).unwrap();
        for hidden in ["6/6", "reference_length", "reviews above 4 stars\","] {
            assert!(!shown.contains(hidden), "{shown}");
        }
    }
}

#[test]
fn sites_are_reached_with_what_is_below_them() {
    let check = |url: &str, expect: &[&str]| {
        let mut row = record(WebSet::WebVoyager);
        row["web"] = json!(url);
        let task = one(WebSet::WebVoyager, &row).unwrap();
        assert_eq!(task["browser"]["start_url"], url);
        assert_eq!(task["browser"]["network"]["allow"], json!(expect), "{url}");
    };
    check("https://WWW.example.org", &["www.example.org:443", "example.org:443", "*.example.org:443"]);
    check(
        "http://maps.example.org/a",
        &["maps.example.org:80", "*.maps.example.org:80", "maps.example.org:443", "*.maps.example.org:443"],
    );
    check("http://shop.example:8080?x=1", &["shop.example:8080", "*.shop.example:8080"]);
    check("http://192.0.2.7:8000/", &["192.0.2.7:8000"]);
    let more = WebOptions {
        allow: vec!["*.cdn.example:443".to_owned(), "dictionary.example.org:443".to_owned()],
        answers: None,
    };
    let task = one_with(WebSet::WebVoyager, &record(WebSet::WebVoyager), &more).unwrap();
    let expect = ["dictionary.example.org:443", "*.dictionary.example.org:443", "*.cdn.example:443"];
    assert_eq!(task["browser"]["network"]["allow"], json!(expect));
}

#[test]
fn broken_records_name_record_key_and_value() {
    let mut told = Vec::new();
    let mut check = |set: WebSet, key: &str, value: Value| {
        let mut row = record(set);
        row[key] = value;
        told.push(one(set, &row).unwrap_err());
    };
    check(WebSet::WebVoyager, "ques", Value::Null);
    check(WebSet::WebVoyager, "ques", json!(["a"]));
    check(WebSet::WebVoyager, "id", json!(3));
    check(WebSet::WebVoyager, "web_name", json!(" "));
    for url in [
        "dictionary.example.org",
        "ftp://example.org/",
        "https://",
        "https://a b/",
        "https://ann@example.org/",
    ] {
        check(WebSet::WebVoyager, "web", json!(url));
    }
    check(WebSet::WebVoyager, "web", json!("https://*.example.org/"));
    check(WebSet::WebVoyager, "web", json!("https://example.org:99999/"));
    check(WebSet::OnlineMind2Web, "level", json!("expert"));
    check(WebSet::OnlineMind2Web, "reference_length", json!("7"));
    check(WebSet::OnlineMind2Web, "reference_length", json!(0));
    check(WebSet::OnlineMind2Web, "reference_length", Value::Null);
    check(WebSet::OnlineMind2Web, "confirmed_task", json!(""));
    check(WebSet::DeepShop, "difficulty", Value::Null);
    check(WebSet::DeepShop, "category", json!(1));
    check(WebSet::DeepShop, "filter", json!(true));
    let mut empty = record(WebSet::DeepShop);
    (empty["attribute"], empty["filter"]) = (json!("None"), Value::Null);
    told.push(one(WebSet::DeepShop, &empty).unwrap_err());
    insta::assert_snapshot!(told.join("\n"));
}

#[test]
fn lists_and_lines_reject_single_records() {
    let (set, options) = (WebSet::OnlineMind2Web, WebOptions::default());
    let good = record(set).to_string();
    let text = format!("[{good}, {{\"task_id\": \"x\"}}, 3, {good}]");
    let read: Vec<Option<String>> =
        read_web(set, &text, &options).map(|read| read.err().map(|error| error.to_string())).collect();
    assert_eq!(
        read,
        [
            None,
            Some("record 2 (x): `confirmed_task` is missing".to_owned()),
            Some("record 3: expected an object, found 3".to_owned()),
            None
        ]
    );
}

#[test]
fn broken_answers_say_where() {
    let mut told = Vec::new();
    for text in [
        "[]",
        r#"{"Site": []}"#,
        r#"{"Site": {"answers": [{"id": 0, "type": "golden", "ans": "x"}, {"id": "1"}]}}"#,
        r#"{"Site": {"answers": [{"id": 0, "type": "sure", "ans": "x"}]}}"#,
        r#"{"Site": {"answers": [{"id": 0, "type": "golden"}]}}"#,
    ] {
        told.push(Answers::read(text).unwrap_err());
    }
    insta::assert_snapshot!(told.join("\n"));
    assert_eq!(answers().0.len(), 2);
}

//! `espalier browser mcp`: a client's lines in, the tools of a real browser behind them.

use crate::browsers::{serve, serve_page};
use crate::whole::Store;
use espalier_tests::place::espalier;
use serde_json::{Value, json};
use std::process::Stdio;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout};
use tokio::time::timeout;

/// The longest wait for an answer.
const ANSWER_MAX: Duration = Duration::from_secs(120);

/// Says by its title what was done last.
const PAGE: &str = "<!doctype html><title>Start</title><h1>Tools</h1>
<button onmouseover=\"document.title = 'hovered'\" onclick=\"document.title = 'clicked'\">Press</button>
<label>Name <input oninput=\"document.title = 'wrote ' + value\" onkeydown=\"if (event.key === 'Enter') document.title = 'entered'\"></label>
<label>Size <input type=range min=0 max=100 value=0 style=width:500px></label>
<p style=height:5000px></p>";

struct Client {
    program: Child,
    input: Option<ChildStdin>,
    lines: Lines<BufReader<ChildStdout>>,
    id: u64,
}

impl Client {
    async fn start(store: &Store, arguments: &[&str]) -> Client {
        let mut command = espalier(store.path());
        let mut program =
            command.args(["browser", "mcp"]).args(arguments).stdin(Stdio::piped()).spawn().unwrap();
        let (input, output) = (program.stdin.take(), program.stdout.take().unwrap());
        let mut client = Client { program, input, lines: BufReader::new(output).lines(), id: 0 };
        let about = json!({ "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": { "name": "test", "version": "1" } });
        let begun = client.ask("initialize", about).await;
        assert_eq!(begun["result"]["serverInfo"]["name"], "espalier", "{begun}");
        client.send(json!({ "jsonrpc": "2.0", "method": "notifications/initialized" })).await;
        client
    }

    async fn send(&mut self, message: Value) {
        let line = format!("{message}\n");
        self.input.as_mut().unwrap().write_all(line.as_bytes()).await.unwrap();
    }

    async fn ask(&mut self, method: &str, params: Value) -> Value {
        self.id += 1;
        self.send(json!({ "jsonrpc": "2.0", "id": self.id, "method": method, "params": params })).await;
        loop {
            let line = timeout(ANSWER_MAX, self.lines.next_line()).await.unwrap().unwrap().unwrap();
            let answer: Value = serde_json::from_str(&line).unwrap();
            if answer["id"] == self.id {
                return answer;
            }
        }
    }

    /// Whether the call failed, and all its text.
    async fn call(&mut self, name: &str, arguments: Value) -> (bool, String) {
        let answer = self.ask("tools/call", json!({ "name": name, "arguments": arguments })).await;
        let result = &answer["result"];
        let content = result["content"].as_array().unwrap_or_else(|| panic!("{name}: {answer}"));
        let texts: Vec<&str> = content.iter().filter_map(|part| part["text"].as_str()).collect();
        (result["isError"] == true, texts.join("\n"))
    }

    /// The text of a call that goes well.
    async fn done(&mut self, name: &str, arguments: Value) -> String {
        let (failed, text) = self.call(name, arguments).await;
        assert!(!failed, "{name}: {text}");
        text
    }

    /// Closes the stream, as a client does that has no more to ask.
    async fn end(mut self) {
        drop(self.input.take());
        let status = timeout(ANSWER_MAX, self.program.wait()).await.unwrap().unwrap();
        assert!(status.success(), "{status}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_tool_acts_and_tells_what_it_led_to() {
    let store = Store::new();
    let port = serve_page(PAGE, |_| ()).await;
    let (start, allow) = (format!("http://127.0.0.1:{port}/"), format!("127.0.0.1:{port}"));
    let mut client = Client::start(&store, &["--allow", &allow, "--start-url", &start, "--done"]).await;

    let listed = client.ask("tools/list", json!({})).await;
    let tools = listed["result"]["tools"].as_array().unwrap();
    let names: Vec<&str> = tools.iter().filter_map(|tool| tool["name"].as_str()).collect();
    assert!(tools.iter().all(|tool| tool["inputSchema"]["type"] == "object"), "{listed}");

    let page = client.done("snapshot", json!({})).await;
    assert!(page.contains("tab 0 (active): \"Start\"") && page.contains("button \"Press\" e1"), "{page}");
    let mut used = vec!["snapshot"];
    for (name, arguments, expect) in [
        ("hover", json!({ "ref": "e1" }), "hovered"),
        ("click", json!({ "ref": "e1" }), "clicked"),
        ("click", json!({ "ref": "e2" }), "textbox \"Name\""),
        ("write", json!({ "message": "Zoë" }), "wrote Zoë"),
        ("press_keys", json!({ "keys": ["Enter"] }), "entered"),
        ("drag", json!({ "start_ref": "e3", "end_point_2d": [200, 60] }), "slider"),
        ("scroll", json!({ "direction": "down" }), "Scrolled"),
        ("wait", json!({ "seconds": 0.1 }), ""),
        ("goto_url", json!({ "url": format!("{start}?second") }), "?second"),
        ("go_back", json!({}), &start),
        ("new_tab", json!({}), "tab 1 (active)"),
        ("switch_tab", json!({ "tab_index": 0 }), "tab 0 (active)"),
        ("close_tab", json!({}), "about:blank"),
        ("done", json!({ "response": "all of them" }), "ended: all of them"),
    ] {
        let text = client.done(name, arguments).await;
        assert!(text.contains(expect), "{name}: {text}");
        used.push(name);
    }
    let shown =
        client.ask("tools/call", json!({ "name": "screenshot", "arguments": { "format": "jpeg" } })).await;
    let picture = &shown["result"]["content"][0];
    assert_eq!((picture["type"].as_str(), picture["mimeType"].as_str()), (Some("image"), Some("image/jpeg")));
    assert!(picture["data"].as_str().unwrap().starts_with("/9j/"), "a picture in base64");
    used.push("screenshot");
    assert!(names.iter().all(|name| used.contains(name)), "of {names:?} were used {used:?}");
    client.end().await;
    assert!(store.sandboxes().await.is_empty(), "the browser's sandbox is ended");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_done_is_said_and_the_next_call_goes_on() {
    let store = Store::new();
    let port = serve(|_| ()).await;
    let mut client = Client::start(&store, &["--allow", &format!("127.0.0.1:{port}")]).await;
    let unknown = client.ask("tools/call", json!({ "name": "browser_click", "arguments": {} })).await;
    assert!(
        unknown["error"]["message"]
            .as_str()
            .unwrap()
            .contains("no tool \"browser_click\": expected one of click"),
        "{unknown}"
    );
    for (name, arguments, expect) in [
        ("click", json!({ "ref": "e99" }), "e99"),
        ("click", json!({}), "point_2d"),
        ("snapshot", json!({ "tokens_max": 5 }), "expected 100 to 100000"),
        ("screenshot", json!({ "format": "gif" }), "unknown variant `gif`"),
        ("goto_url", json!({ "url": "file:///etc/passwd" }), "http"),
        ("goto_url", json!({ "url": "http://127.0.0.1:1/" }), ""),
    ] {
        let (failed, text) = client.call(name, arguments.clone()).await;
        assert!(failed && text.contains(expect), "{name} {arguments}: {text}");
    }
    let text = client.done("goto_url", json!({ "url": format!("http://127.0.0.1:{port}/") })).await;
    assert!(text.contains("Orders"), "{text}");
    crate::browsers::kill_browsers(store.path());
    // Whether the loss is told by this call or by one after it is up to when it is noticed.
    let mut lost = false;
    for _ in 0..5 {
        let (failed, text) = client.call("snapshot", json!({})).await;
        lost |= failed && text.contains("The browser is lost");
        if lost && !failed {
            assert!(text.contains("about:blank"), "another browser, at its start page: {text}");
            break;
        }
    }
    assert!(lost);
    client.done("snapshot", json!({})).await;
    client.end().await;
}

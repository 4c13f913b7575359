use super::*;
use crate::chat::{Completion, Finish, Message, Role, ToolCall, Usage};
use crate::failure::{BudgetKind, Failure};
use crate::host::sandbox::{Command, Ended, Outcome, Output, Program, Show};
use std::borrow::Cow;
use std::time::Duration;

fn command() -> Command {
    Command {
        program: Program::Shell("make test".to_owned()),
        cwd: Some(b"/src".to_vec()),
        env: vec![("A".to_owned(), "b".to_owned())],
        stdin: vec![0xff, 0],
        user: None,
        timeout: Some(Duration::from_secs(60)),
        show: Show::default(),
        merge_stderr: false,
        terminal: None,
    }
}

fn completion() -> Completion {
    Completion {
        message: Message::text(Role::Assistant, "look"),
        tool_calls: vec![ToolCall { id: "1".to_owned(), name: "go".to_owned(), arguments: "{}".to_owned() }],
        malformed: None,
        finish: Finish::Other("tired".to_owned()),
        usage: Usage { prompt_tokens: 7, turns_left: Some(3), ..Usage::default() },
        call: None,
    }
}

fn outcome() -> Outcome {
    let stdout = Output { head: "ok".to_owned(), total: 2, ..Output::default() };
    Outcome {
        ended: Ended::ExitCode(0),
        stdout,
        stderr: Output::default(),
        duration: Duration::from_millis(5),
        left_running: 0,
        extra: None,
    }
}

/// In a record, and in what people read, each comes back as it was, and under the name that calls are shown by.
#[test]
fn calls_and_replies_come_back_as_they_were() {
    let messages = vec![Message::text(Role::User, "go")];
    let calls = [
        Call::ClockNow {},
        Call::Append { conversation: Handle(3), messages: Cow::Borrowed(&messages) },
        Call::Exec { sandbox: Handle(0), command: Cow::Owned(command()) },
        Call::BlobPut { bytes: Bytes(Cow::Borrowed(b"\xffbytes")), media_type: Cow::Borrowed("a/b") },
        Call::Changes { sandbox: Handle(1), root: Some(Bytes(Cow::Borrowed(b"/src"))) },
        Call::WaitAny { processes: vec![Handle(1), Handle(2)], timeout_ms: 5 },
        Call::Invalid {
            import: Cow::Borrowed("sandbox.exec"),
            failure: Cow::Owned(Failure::Invalid("argv is empty".to_owned())),
        },
    ];
    for call in calls {
        let json = serde_json::to_value(&call).expect("it can be written");
        let key = json.as_object().and_then(|object| object.keys().next()).cloned();
        let invalid = matches!(call, Call::Invalid { .. });
        assert!(invalid || key.as_deref() == Some(call.name()), "{key:?}");
        let read: Call<'static> = serde_json::from_value(json).expect("it can be read");
        assert_eq!(read, call);
        assert_eq!((measure(&read), call.clone().into_owned()), (measure(&call), read));
    }
    let replies = [
        Reply::Failed(Cow::Owned(Failure::Budget(BudgetKind::Turns))),
        Reply::Done,
        Reply::Bytes(Bytes(Cow::Borrowed(b"text"))),
        Reply::Completion(Cow::Owned(completion())),
        Reply::Branches(vec![(Handle(2), Cow::Owned(completion()))]),
        Reply::Outcome(Some(Cow::Owned(outcome()))),
    ];
    for reply in replies {
        let json = serde_json::to_string(&reply).expect("it can be written");
        let read: Reply<'static> = serde_json::from_str(&json).expect("it can be read");
        assert_eq!((&read, measure(&read)), (&reply, measure(&reply)));
        assert_eq!(reply.clone().into_owned(), read);
    }
}

/// Records are held against these by later engines.
#[test]
fn digests_stay_what_they_are() {
    let digests = [
        measure(&Call::ClockNow {}),
        measure(&Call::Step { environment: Handle(1), action: Cow::Borrowed("look around the room") }),
        measure(&Call::Exec { sandbox: Handle(0), command: Cow::Owned(command()) }),
        measure(&Reply::Number(7)),
        measure(&Reply::Completion(Cow::Owned(completion()))),
        measure(&Reply::Outcome(Some(Cow::Owned(outcome())))),
    ];
    let told: Vec<String> = digests.iter().map(|one| format!("{} {} bytes", one.digest, one.bytes)).collect();
    insta::assert_snapshot!(told.join("\n"));
}

#[test]
fn what_differs_in_one_place_has_another_digest() {
    let step = |environment, action: &'static str| {
        measure(&Call::Step { environment: Handle(environment), action: Cow::Borrowed(action) }).digest
    };
    let different = [step(0, "look"), step(1, "look"), step(0, "lool"), step(0, "look "), step(0, "")];
    for (index, one) in different.iter().enumerate() {
        assert!(different[..index].iter().all(|other| other != one), "{index}");
    }
    assert_eq!(step(0, "look"), different[0]);
}

use super::*;
use crate::tools::{Did, Stuck};
use serde_json::Value;

/// Pages one after the other: each action leads to the next, the last one stays.
struct Script {
    pages: Vec<&'static str>,
    place: usize,
    acts: Vec<String>,
    /// Tools that are not carried out.
    refused: Option<&'static str>,
}

impl Tools for Script {
    fn act(&mut self, tool: &str, arguments: Value) -> Play<Did> {
        self.acts.push(format!("{tool} {arguments}"));
        self.place = (self.place + 1).min(self.pages.len() - 1);
        let is_done = self.refused != Some(tool);
        Ok(Did { is_done, text: format!("`{tool}`"), ..Did::default() })
    }

    fn describe(&mut self) -> Play<String> {
        Ok(self.pages[self.place].to_owned())
    }

    fn say(&mut self, _: &str) {}
}

fn played(name: &str, pages: &[&'static str], refused: Option<&'static str>) -> (Play, Vec<String>) {
    let mut script = Script { pages: pages.to_vec(), place: 0, acts: Vec::new(), refused };
    let ended = play(name, &mut script).expect("a policy");
    (ended, script.acts)
}

fn check(name: &str, pages: &[&'static str], expect: &[&str]) {
    let (ended, acts) = played(name, pages, None);
    assert_eq!(ended, Ok(()), "{name}: {acts:?}");
    assert_eq!(acts, expect, "{name}");
}

#[test]
fn policies_act_on_what_the_page_says() {
    check(
        "click-checkboxes",
        &[
            "\"Select b, C and click Submit.\"\ncheckbox \"a\" e1\ncheckbox \"b\" e2\ncheckbox \"C\" e3\nbutton \"Submit\" e4",
        ],
        &[r#"click {"ref":"e2"}"#, r#"click {"ref":"e3"}"#, r#"click {"ref":"e4"}"#],
    );
    check(
        "buy-ticket",
        &[
            "\"Buy the ticket with the shortest duration.\"\n\"Duration:\"\n\"2h 1m\"\nbutton \"Book for $7\" e1\n\"Duration:\"\n\"1h 59m\"\nbutton \"Book for $9\" e2",
        ],
        &[r#"click {"ref":"e2"}"#],
    );
    check(
        "simple-algebra",
        &["\"Solve for x.\"\n\"3 - x = 12\"\n\"x =\" textbox e1\nbutton \"Submit\" e2"],
        &[r#"write {"ref":"e1","message":"-9"}"#, r#"click {"ref":"e2"}"#],
    );
    check(
        "read-table-2",
        &[
            "\"Enter the value.\"\ntable\n \"Gender\" | \"Male\"\n \"Name\" | \"Amy\"\n\"Name:\"\ntextbox e1\n\"Gender:\"\ntextbox e2\nbutton \"Submit\" e3",
        ],
        &[
            r#"write {"ref":"e1","message":"Amy"}"#,
            r#"write {"ref":"e2","message":"Male"}"#,
            r#"click {"ref":"e3"}"#,
        ],
    );
}

#[test]
fn policies_follow_a_page_that_changes() {
    let ask = "\"Guess the number between 0-9 and press Submit.\"\nspinbutton e1 button \"Submit\" e2";
    let low = "\"Guess the number between 0-9 and press Submit.\"\n\"The number is higher than 4.\"\nspinbutton e1 button \"Submit\" e2";
    let end = "\"Guess the number between 0-9 and press Submit.\"\n\"Correct!\"\nspinbutton e1 button \"Submit\" e2";
    check(
        "guess-number",
        &[ask, ask, low, low, end],
        &[
            r#"write {"ref":"e1","message":"4"}"#,
            r#"click {"ref":"e2"}"#,
            r#"write {"ref":"e1","message":"7"}"#,
            r#"click {"ref":"e2"}"#,
        ],
    );
    let calendar = |month: &str| {
        format!(
            "\"Select 10/2/2016 as the date and hit submit.\"\n\"Date:\" textbox e1\nlink \"Prev\" e2\n\"{month}\" \"2016\"\nlink \"2\" e3\nbutton \"Submit\" e4"
        )
    };
    let (december, october): (&'static str, &'static str) =
        (calendar("November").leak(), calendar("October").leak());
    check(
        "choose-date",
        &[december, december, october],
        &[r#"click {"ref":"e1"}"#, r#"click {"ref":"e2"}"#, r#"click {"ref":"e3"}"#, r#"click {"ref":"e4"}"#],
    );
}

#[test]
fn a_policy_that_cannot_go_on_says_why() {
    let page = "\"Click on the \\\"No\\\" button.\"\nbutton \"Yes\" e1";
    let (ended, acts) = played("click-button", &[page], None);
    assert_eq!((ended, acts), (Err(Stuck::NoWay("no button \"No\" on the page".to_owned())), Vec::new()));
    let page = "\"Click on the \\\"Yes\\\" button.\"\nbutton \"Yes\" e1";
    let (ended, _) = played("click-button", &[page], Some("click"));
    assert_eq!(ended, Err(Stuck::NoWay("`click`".to_owned())));
    assert!(
        play("no-such-page", &mut Script { pages: vec![page], place: 0, acts: vec![], refused: None })
            .is_none()
    );
}

#[test]
fn each_page_has_one_policy() {
    let names: Vec<&str> = names().collect();
    assert!(names.is_sorted() && names.len() >= 70, "{names:?}");
    let mut once = names.clone();
    once.dedup();
    assert_eq!(once, names);
}

//! What a run of the tests comes to, as a score with its reason.

use crate::Settings;
use crate::guard::{Guard, together};
use crate::task::Job;
use espalier_test_logs::{
    Grade, Invalid, Kind, Resolution, Results, Share, Status, grade, marks, parse, read_log,
};
use serde_json::{Value, json};

/// Most names that a reason tells.
const NAMES_MAX: usize = 5;
/// Most names of tests kept beside the score.
const KEPT_MAX: usize = 200;

/// What the tests' command did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// How it ended.
    pub ended: Ended,
    /// What it printed, standard error among it.
    pub output: String,
    /// The report, where it left one.
    pub report: Option<String>,
}

/// How a command ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// By itself, with this code.
    ExitCode(i32),
    /// In another way, in words.
    Otherwise(String),
}

/// A score.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// 0 to 1.
    pub value: f64,
    /// Why, for people.
    pub reason: String,
    /// For programs.
    pub extra: Value,
}

impl Verdict {
    /// Nothing, for this cause.
    pub fn zero(cause: &str, reason: impl Into<String>) -> Verdict {
        Verdict { value: 0.0, reason: reason.into(), extra: json!({ "cause": cause }) }
    }
}

/// The verdict on a run.
pub fn verdict(job: &Job, run: &Run, guard: Option<&Guard>, settings: &Settings) -> Verdict {
    let code = match &run.ended {
        Ended::ExitCode(code) => *code,
        Ended::Otherwise(how) => {
            return Verdict::zero("tests-cut", format!("{how}: {}", end_of(&run.output)));
        }
    };
    let (mut results, code) = match results(job, run, code, guard) {
        Ok(read) => read,
        Err(verdict) => return verdict,
    };
    if let Some(why) = guard.and_then(|guard| guard.take_checks(&mut results, Some(code))) {
        return Verdict::zero("not-credible", format!("{why}: {}", end_of(&run.output)));
    }
    // The guard's own checks are the failures that its exit code speaks of.
    let told = if guard.is_some() { None } else { Some(code) };
    match grade(&results, told, &job.expected()) {
        Ok(grade) => {
            let mut verdict = graded(&grade, &run.output, settings.partial);
            if settings.list {
                verdict.extra["tests"] = json!(results.tests);
            }
            verdict
        }
        Err(why) => invalid(&why, run, code),
    }
}

fn invalid(why: &Invalid, run: &Run, code: i32) -> Verdict {
    Verdict::zero("invalid", format!("{why} (exit code {code}): {}", end_of(&run.output)))
}

fn results(job: &Job, run: &Run, code: i32, guard: Option<&Guard>) -> Result<(Results, i32), Verdict> {
    let wanted = guard.map(|_| Kind::JunitXml).or(job.report.as_ref().map(|(_, kind)| *kind));
    if let Some(kind) = wanted {
        let Some(report) = &run.report else {
            let reason = format!("the tests left no report (exit code {code}): {}", end_of(&run.output));
            return Err(Verdict::zero("no-report", reason));
        };
        let report = parse(kind, report);
        let log = parse(job.kind, &run.output);
        return Ok((together(report, &log, |name| job.kind.name_of_node(name)), code));
    }
    // A command may mark its part, as evaluation scripts do; marks that it does not print itself are somebody else's.
    if job.command.contains(marks::START) {
        let log = read_log(job.kind, &run.output).map_err(|why| invalid(&why, run, code))?;
        return Ok((log.results, log.exit_code.unwrap_or(code)));
    }
    Ok((parse(job.kind, &run.output), code))
}

fn graded(grade: &Grade, output: &str, partial: bool) -> Verdict {
    let of = |share: &Share| format!("{} of {}", share.good, share.good + share.bad.len());
    let resolution = grade.resolution();
    let value = match resolution {
        Resolution::Full => 1.0,
        Resolution::Partial if partial => grade.fail_to_pass.value(),
        _ => 0.0,
    };
    let bad = |share: &Share| -> Vec<String> {
        let word = |status: &Option<Status>| match status {
            None => "not reported".to_owned(),
            Some(status) => serde_json::to_value(status)
                .ok()
                .and_then(|word| Some(word.as_str()?.to_ascii_lowercase()))
                .unwrap_or_default(),
        };
        share.bad.iter().take(KEPT_MAX).map(|(name, status)| format!("{name} ({})", word(status))).collect()
    };
    let (not_fixed, broken) = (bad(&grade.fail_to_pass), bad(&grade.pass_to_pass));
    let mut reason = format!("{} to fix pass, {} to keep", of(&grade.fail_to_pass), of(&grade.pass_to_pass));
    for (title, names) in [("not fixed", &not_fixed), ("broken", &broken)] {
        if !names.is_empty() {
            let more = if names.len() > NAMES_MAX { ", ..." } else { "" };
            reason += &format!("; {title}: {}{more}", names[..names.len().min(NAMES_MAX)].join(", "));
        }
    }
    let none = grade.fail_to_pass.good + grade.pass_to_pass.good == 0;
    if none {
        // Nothing ran at all: why, the output says last.
        reason += &format!("; the output ends: {}", end_of(output));
    }
    let word = match resolution {
        Resolution::Full => "full",
        Resolution::Partial => "partial",
        Resolution::No => "no",
    };
    let extra = json!({
        "resolution": word,
        "fail_to_pass": grade.fail_to_pass.value(),
        "pass_to_pass": grade.pass_to_pass.value(),
        "not_fixed": not_fixed,
        "broken": broken,
    });
    Verdict { value, reason, extra }
}

/// The verdict of a command that scores itself: what it wrote, or `None`.
pub fn own_verdict(run: &Run, written: Option<&str>) -> Verdict {
    if let Ended::Otherwise(how) = &run.ended {
        return Verdict::zero("tests-cut", format!("{how}: {}", end_of(&run.output)));
    }
    let Some(written) = written else {
        return Verdict::zero("no-report", format!("no score was written: {}", end_of(&run.output)));
    };
    let json = || serde_json::from_str::<Value>(written).ok()?.get("reward")?.as_f64();
    match written.trim().parse().ok().or_else(json).filter(|value: &f64| value.is_finite()) {
        Some(value) => Verdict {
            value,
            reason: "as the tests scored it".to_owned(),
            extra: json!({ "cause": "own-score" }),
        },
        None => Verdict::zero("no-report", format!("the written score is not a number: {}", end_of(written))),
    }
}

/// The last lines of a text, at most 500 bytes.
pub fn end_of(text: &str) -> &str {
    let text = text.trim_end();
    if text.is_empty() {
        return "nothing was printed";
    }
    let mut start = text.len().saturating_sub(500);
    while !text.is_char_boundary(start) {
        start += 1;
    }
    text[start..].trim_start()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn partial() -> Settings {
        Settings { partial: true, ..Settings::default() }
    }

    fn job(more: &str) -> Job {
        let private = format!(
            r#"{{"tests":{{"command":"x","fail_to_pass":["t.py::a","t.py::b"],"pass_to_pass":["t.py::c"],{more}}}}}"#
        );
        Job::read(Some(&private), &Settings::default()).unwrap()
    }

    fn run(code: i32, output: &str) -> Run {
        Run { ended: Ended::ExitCode(code), output: output.to_owned(), report: None }
    }

    #[track_caller]
    fn check(job: &Job, run: &Run, guard: Option<&Guard>, value: f64, reason: &str) {
        let verdict = verdict(job, run, guard, &partial());
        assert_eq!(verdict.value, value, "{verdict:?}");
        assert!(verdict.reason.contains(reason), "{verdict:?}");
    }

    #[test]
    fn output_alone_is_graded_with_its_exit_code() {
        let job = job(r#""parser":"pytest","guard":false"#);
        let lines = |a: &str, b: &str, c: &str| format!("t.py::a {a}\nt.py::b {b}\nt.py::c {c}\n");
        check(
            &job,
            &run(0, &lines("PASSED", "PASSED", "PASSED")),
            None,
            1.0,
            "2 of 2 to fix pass, 1 of 1 to keep",
        );
        check(&job, &run(1, &lines("PASSED", "FAILED", "PASSED")), None, 0.5, "not fixed: t.py::b (failed)");
        check(&job, &run(1, &lines("PASSED", "PASSED", "ERROR")), None, 0.0, "broken: t.py::c (error)");
        check(
            &job,
            &run(1, &lines("PASSED", "PASSED", "PASSED")),
            None,
            0.0,
            "exit code 1, and no test that failed",
        );
        check(&job, &run(0, "t.py::a PASSED\nt.py::c PASSED"), None, 0.5, "t.py::b (not reported)");
        check(
            &job,
            &run(4, "SyntaxError: conftest.py"),
            None,
            0.0,
            "no test was reported (exit code 4): SyntaxError",
        );
        let cut = Run {
            ended: Ended::Otherwise("not done after 5000 ms".to_owned()),
            ..run(0, &lines("PASSED", "PASSED", "PASSED"))
        };
        check(&job, &cut, None, 0.0, "not done after 5000 ms: t.py::a");
        assert_eq!(
            super::verdict(&job, &run(1, &lines("PASSED", "FAILED", "PASSED")), None, &Settings::default())
                .value,
            0.0
        );
        let listing = Settings { list: true, ..Settings::default() };
        let listed = super::verdict(&job, &run(1, &lines("PASSED", "FAILED", "PASSED")), None, &listing);
        assert_eq!(
            listed.extra["tests"],
            json!({ "t.py::a": "PASSED", "t.py::b": "FAILED", "t.py::c": "PASSED" })
        );
    }

    #[test]
    fn with_the_guard_report_output_and_exit_code_have_to_agree() {
        let (job, guard) = (job(r#""parser":"pytest""#), Guard::new(&[1]));
        let case = |name: &str, inner: &str| {
            format!(r#"<testcase classname="t" name="{name}" file="t.py">{inner}</testcase>"#)
        };
        let report = |inner: &str, checks: usize| {
            let checks: String = (0..checks)
                .map(|number| {
                    format!(r#"<testcase classname="" name="espalier_01_{number}"><failure/></testcase>"#)
                })
                .collect();
            Some(format!("<testsuite>{inner}{checks}</testsuite>"))
        };
        let good = case("a", "") + &case("b", "") + &case("c", "");
        let with = |code, output: &str, report| Run { report, ..run(code, output) };
        check(&job, &with(1, "", report(&good, 9)), Some(&guard), 1.0, "2 of 2");
        check(&job, &with(0, "", report(&good, 9)), Some(&guard), 0.0, "exit code 0 although checks failed");
        check(&job, &with(1, "", report(&good, 8)), Some(&guard), 0.0, "1 of 9 checks");
        check(
            &job,
            &with(0, "t.py::a PASSED\nt.py::b PASSED\nt.py::c PASSED", None),
            Some(&guard),
            0.0,
            "left no report (exit code 0)",
        );
        check(&job, &with(1, "t.py::b FAILED", report(&good, 9)), Some(&guard), 0.5, "t.py::b (failed)");
        let bad = good.replace(r#"name="a" file="t.py">"#, r#"name="a" file="t.py"><failure/>"#);
        check(&job, &with(1, "t.py::a PASSED", report(&bad, 9)), Some(&guard), 0.5, "t.py::a (failed)");
    }

    #[test]
    fn a_command_may_score_itself() {
        let own = |written: Option<&str>| own_verdict(&run(7, "why"), written);
        assert_eq!(own(Some(" 0.25\n")).value, 0.25);
        assert_eq!(own(Some(r#"{"reward": 1, "more": 3}"#)).value, 1.0);
        for (written, reason) in [
            (None, "no score was written: why"),
            (Some("NaN"), "is not a number: NaN"),
            (Some("{}"), "is not a number: {}"),
        ] {
            let verdict = own(written);
            assert!(verdict.value == 0.0 && verdict.reason.contains(reason), "{verdict:?}");
        }
    }

    #[test]
    fn a_report_or_marks_of_the_commands_own() {
        let reported = job(r#""parser":"pytest","report":{"path":"out.xml","parser":"junit-xml"}"#);
        let xml = r#"<testcase name="t.py::a"/><testcase name="t.py::b"/><testcase name="t.py::c"/>"#;
        check(&reported, &Run { report: Some(xml.to_owned()), ..run(0, "") }, None, 1.0, "2 of 2");
        let with_marks = |command: &str| {
            let private = format!(
                r#"{{"tests":{{"command":"{command}","parser":"swebench-pytest","guard":false,"fail_to_pass":["t.py::a","t.py::b"],"pass_to_pass":["t.py::c"]}}}}"#
            );
            Job::read(Some(&private), &Settings::default()).unwrap()
        };
        let marked = with_marks("set -x; : '>>>>> Start Test Output'; pytest");
        let log = ">>>>> Start Test Output\nPASSED t.py::a\nPASSED t.py::b\nPASSED t.py::c\n>>>>> End Test Output\n";
        check(&marked, &run(0, log), None, 1.0, "2 of 2");
        check(&marked, &run(0, &log.replace(">>>>> End", "")), None, 0.0, "does not mark");
        check(&marked, &run(0, log.split_once("Output").unwrap().1), None, 0.0, "does not mark");
        let forged = format!("{log}FAILED t.py::a\n");
        check(&with_marks("pytest"), &run(1, &forged), None, 0.5, "t.py::a (failed)");
    }
}

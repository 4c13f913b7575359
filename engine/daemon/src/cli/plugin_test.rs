//! `espalier plugin test`: runs the cases of a project against its component.

use super::authoring::built;
use super::plugins::{host, load};
use super::{Context, plugin_dev};
use crate::cli::exit::Exit;
use crate::engine::off_runtime;
use crate::experiment::source;
use crate::output::problem::Problem;
use crate::output::text::{harmless, one_line, wrap};
use crate::output::{Look, styles};
use crate::project::{build_line, shown};
use clap::Args;
use espalier_authoring::Project;
use espalier_cases::{Case, CaseReport, Change, Report, cases_in, run_cases};
use espalier_plugin::{Plugin, PluginHost};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::sync::Arc;

/// `espalier plugin test`
#[derive(Debug, Args)]
pub struct PluginTestArgs {
    /// A folder of the project.
    #[arg(default_value = ".")]
    pub dir: PathBuf,
    /// Run only this case; may be repeated.
    #[arg(long = "case", value_name = "NAME")]
    pub cases: Vec<String>,
}

/// Lines of a log shown of a case that failed.
const LOGS_SHOWN: usize = 20;
/// Lines of a difference shown.
const DIFF_SHOWN: usize = 60;

pub(super) async fn test(context: &mut Context, args: PluginTestArgs) -> Result<Exit, Problem> {
    let project = Project::find(&args.dir)?;
    let cases = cases_of(&project, &args.cases).await?;
    let host = host()?;
    let plugin = component(context, &host, &project).await?;
    warn_if_stale(context, &project).await?;
    let report = run_cases(&host, &plugin, &project.manifest.name, &cases).await;
    if context.common.json {
        context.out.json(&report_json(&report))?;
    } else {
        for line in lines(&report, &context.out.look) {
            context.out.line(&line)?;
        }
    }
    Ok(exit(&report))
}

/// The cases of a project, or those that are named.
pub(super) async fn cases_of(project: &Project, names: &[String]) -> Result<Vec<Case>, Problem> {
    let folder = project.folder.join("cases");
    let read = folder.clone();
    let cases = off_runtime("cases", move || cases_in(&read)).await?;
    let hint = "a case is a file cases/NAME.toml: docs/authoring-cases.md";
    let none = || Problem::new(Exit::Input, format!("no cases in {}", shown(&folder))).hint(hint);
    let mut cases = cases.map_err(|_| none())?;
    if cases.is_empty() {
        return Err(none());
    }
    if let Some(unknown) = names.iter().find(|name| !cases.iter().any(|case| case.name == **name)) {
        let known: Vec<&str> = cases.iter().map(|case| case.name.as_str()).collect();
        let problem = Problem::new(Exit::Input, format!("no case {unknown:?}"));
        return Err(problem.hint(format!("the cases are {}", known.join(", "))));
    }
    cases.retain(|case| names.is_empty() || names.contains(&case.name));
    Ok(cases)
}

/// What a project has built, loaded.
pub(super) async fn component(
    context: &Context,
    host: &PluginHost,
    project: &Project,
) -> Result<Arc<Plugin>, Problem> {
    let output = built(project)?;
    let plugin = load(context, host, &output).await?;
    if plugin.world().as_str() != project.manifest.kind.world() {
        let kind = project.manifest.kind.as_str();
        let text = format!("{} is a {}; plugin.toml says kind = \"{kind}\"", shown(&output), plugin.world());
        return Err(Problem::new(Exit::Input, text).hint(build_line(project)));
    }
    Ok(plugin)
}

/// Says so where a source of the project is newer than its component.
pub(super) async fn warn_if_stale(context: &mut Context, project: &Project) -> Result<(), Problem> {
    if let Some(source) = plugin_dev::newer_source(project).await? {
        let output = shown(&project.output());
        context.screen.say(&format!(
            "warning: {} is newer than {output}; {}",
            shown(&source),
            build_line(project)
        ));
    }
    Ok(())
}

/// A case that cannot be read has to be changed; one that fails is an answer.
pub(super) fn exit(report: &Report) -> Exit {
    match report.failed() {
        0 => Exit::Done,
        _ if report.cases.iter().any(|case| case.refused.is_some()) => Exit::Input,
        _ => Exit::Negative,
    }
}

/// A line for each case, below it what is wrong, and the sums.
pub(super) fn lines(report: &Report, look: &Look) -> Vec<String> {
    let mut lines: Vec<String> = report.cases.iter().flat_map(|case| case_lines(case, look)).collect();
    let sums = format!("{} passed, {} failed", report.passed(), report.failed());
    let style = if report.failed() == 0 { styles::GOOD } else { styles::BAD };
    lines.push(look.paint(style, &sums));
    lines
}

fn case_lines(case: &CaseReport, look: &Look) -> Vec<String> {
    let took = look.paint(styles::FAINT, &format!("{} ms", case.took.as_millis()));
    if case.passed() {
        return vec![format!("{}    {} {took}", look.paint(styles::GOOD, "ok"), one_line(&case.name))];
    }
    let file = one_line(&shown(&case.path));
    let mut lines =
        vec![format!("{}  {} {took}", look.paint(styles::BAD, "FAIL"), look.paint(styles::STRONG, &file))];
    if let Some(refused) = case.refused.as_deref() {
        let columns = look.width.saturating_sub(6);
        let wrapped = refused.lines().flat_map(|line| wrap(&harmless(line), columns));
        lines.extend(wrapped.map(|line| format!("      {line}").trim_end().to_owned()));
        if let Some(hint) = refusal_hint(refused) {
            lines.push(format!("      {} {hint}", look.paint(styles::HINT, "hint:")));
        }
    }
    for problem in &case.problems {
        let text =
            format!("{}: {}", look.paint(styles::STRONG, &one_line(&problem.key)), harmless(&problem.text));
        lines.extend(wrap(&text, look.width.saturating_sub(6)).iter().map(|line| format!("      {line}")));
        for line in problem.diff.iter().take(DIFF_SHOWN) {
            let (sign, style) = match line.change {
                Change::Same => (' ', styles::FAINT),
                Change::Expected => ('-', styles::BAD),
                Change::Found => ('+', styles::GOOD),
            };
            let text = format!("{sign} {}", harmless(&line.text));
            lines.push(format!("        {}", look.paint(style, text.trim_end())));
        }
    }
    let skipped = case.logs.len().saturating_sub(LOGS_SHOWN);
    if !case.logs.is_empty() {
        let head = if skipped == 0 { "log".to_owned() } else { format!("log, {skipped} lines before these") };
        lines.push(format!("      {}", look.paint(styles::FAINT, &head)));
    }
    let logged = case.logs.iter().skip(skipped).flat_map(|line| line.lines());
    lines.extend(logged.map(|line| format!("        {}", harmless(line))));
    lines
}

/// The key that was meant.
fn refusal_hint(refused: &str) -> Option<String> {
    Some(format!("did you mean `{}`?", one_line(&source::meant(refused)?)))
}

fn report_json(report: &Report) -> Value {
    let case = |case: &CaseReport| {
        let problem = |problem: &espalier_cases::Problem| {
            let mark = |change| match change {
                Change::Same => " ",
                Change::Expected => "-",
                Change::Found => "+",
            };
            let diff: Vec<String> =
                problem.diff.iter().map(|line| format!("{} {}", mark(line.change), line.text)).collect();
            json!({ "key": problem.key, "text": problem.text, "diff": diff })
        };
        json!({
            "name": case.name,
            "file": shown(&case.path),
            "passed": case.passed(),
            "refused": case.refused,
            "hint": case.refused.as_deref().and_then(refusal_hint),
            "problems": case.problems.iter().map(problem).collect::<Vec<_>>(),
            "logs": case.logs,
            "result": case.result,
            "seconds": case.took.as_secs_f64(),
        })
    };
    json!({
        "passed": report.passed(),
        "failed": report.failed(),
        "cases": report.cases.iter().map(case).collect::<Vec<_>>(),
    })
}

//! The component's exports.

espalier_sdk::bindings!("harness-plugin");

use crate::Reference;
use bindings::espalier::base::types::TaskView;
use bindings::espalier::environment::environments;
use bindings::espalier::plugin::reports::{Outcome, Report};
use bindings::espalier::sandbox::sandboxes::{self, Command, Ending, PatchOptions, Program};
use bindings::exports::espalier::base::configurable;
use bindings::exports::espalier::plugin::harness::Guest;
use espalier_sdk::NoSettings;
use espalier_sdk::serde_json::{Value, json};

/// The sandbox in which scripts and patches are carried out.
const SANDBOX: &str = "main";

struct Plugin;

impl configurable::Guest for Plugin {
    fn settings_schema() -> String {
        espalier_sdk::schema_of::<NoSettings>()
    }
}

impl Guest for Plugin {
    fn run(task: TaskView) -> Result<Report, Failure> {
        report_panics();
        let private = task.private_data.ok_or_else(|| Failure::Denied("private-task".to_owned()))?;
        let (data, answer) = match crate::reference(&private).map_err(invalid)? {
            Reference::Actions(actions) => (act(&actions)?, None),
            Reference::Script(script) => (run_script(script)?, None),
            Reference::Patch(patch) => (apply(&patch)?, None),
            Reference::Answer(answer) => (Value::Null, Some(answer)),
        };
        Ok(Report { outcome: Outcome::Submitted, answer, data: data.to_string(), extra: None })
    }
}

fn act(actions: &[String]) -> Result<Value, Failure> {
    let world = environments::open()?;
    world.reset()?;
    let mut taken = 0;
    for action in actions {
        let step = world.step(action)?;
        taken += 1;
        if step.done {
            break;
        }
    }
    Ok(json!({ "actions": actions.len(), "taken": taken }))
}

fn run_script(script: String) -> Result<Value, Failure> {
    let outcome = sandboxes::open(SANDBOX)?.exec(&Command {
        program: Program::Shell(script),
        cwd: None,
        env: Vec::new(),
        stdin: None,
        user: None,
        timeout_ms: None,
        output_max: None,
        keep_whole: false,
        merge_stderr: true,
        terminal: None,
        extra: None,
    })?;
    match outcome.ending {
        Ending::ExitCode(0) => Ok(json!({ "script_ms": outcome.duration_ms })),
        ending => Err(invalid(format_args!(
            "`private.reference.script` ended with {ending:?}: {}{}",
            outcome.stdout.head, outcome.stdout.tail
        ))),
    }
}

fn apply(patch: &str) -> Result<Value, Failure> {
    let options =
        PatchOptions { root: None, strip: None, fuzz: None, reverse: false, dry_run: false, extra: None };
    let files = sandboxes::open(SANDBOX)?.apply_patch(patch, &options)?;
    Ok(json!({ "patched": files.len() }))
}

bindings::export!(Plugin with_types_in bindings);

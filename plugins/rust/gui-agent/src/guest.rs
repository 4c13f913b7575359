//! The component: carries between the model, the browser and the rules.

use crate::dialogue::{Dialogue, End, Told};
use crate::observation::{self, TabLine};
use crate::settings::{Format, Settings};
use espalier_sdk::wit::espalier::browser::browsers::{
    self, Outcome as Did, ScreenshotOptions, SnapshotOptions, Step,
};
use espalier_sdk::{
    Answer, Browser, BudgetKind, Conversation, Failure, Limit, Message, Outcome, Part, Report, Role,
    TaskView, invalid,
};
use serde_json::Value;

espalier_sdk::harness!(Settings, run);

fn run(task: TaskView, settings: Settings) -> Result<Report, Failure> {
    let browser = Browser::open(&settings.browser)?;
    let mut dialogue = Dialogue::new(settings, scripted_user(&task)?);
    let mut chat = Conversation::with(dialogue.settings.model.clone());
    chat.options.stop = dialogue.settings.stop.clone();
    chat.options.max_tokens = dialogue.settings.max_tokens;
    chat.options.temperature = dialogue.settings.temperature;
    chat.offer(browser.tools());
    if !dialogue.settings.system.is_empty() {
        chat.system(dialogue.settings.system.clone());
    }
    let seen = look(&browser, &dialogue.settings, true)?;
    let opening = dialogue.opening(&task.instruction, &seen.text);
    chat.user_with_images(opening, seen.picture);
    let end = loop {
        let answer = match chat.complete() {
            Ok(answer) => answer,
            // Met by the experiment's count: it ends as by the harness's own, with what rewards want to know of it.
            Err(Failure::Budget(BudgetKind::Turns)) => break End::Turns,
            Err(Failure::Budget(BudgetKind::Tokens | BudgetKind::SampledTokens)) => break End::Tokens,
            Err(failure) => return Err(failure),
        };
        if let Some(end) = turn(&mut dialogue, &mut chat, &browser, &answer)? {
            break end;
        }
    };
    let data = dialogue.data().to_string();
    let report = |outcome, answer: Option<String>| Report { outcome, answer, data, extra: None };
    Ok(match end {
        End::Done(answer) => report(Outcome::Submitted, Some(answer)),
        End::GaveUp(answer) => report(Outcome::GaveUp, Some(answer).filter(|answer| !answer.is_empty())),
        End::Turns => report(Outcome::Limit(Limit::Turns), None),
        End::Tokens => report(Outcome::Limit(Limit::Tokens), None),
        End::Format => report(Outcome::Limit(Limit::Format), None),
    })
}

/// One answer, carried out; how the rollout ended, if it did.
fn turn(
    dialogue: &mut Dialogue,
    chat: &mut Conversation,
    browser: &Browser,
    answer: &Answer,
) -> Result<Option<End>, Failure> {
    let calls = &answer.tool_calls;
    if let Some(problem) = dialogue.problem(&answer.text, calls.len(), answer.malformed.as_deref()) {
        let told = match dialogue.unparsed(&problem) {
            Ok(told) => told,
            Err(end) => return Ok(Some(end)),
        };
        for call in calls {
            chat.tool_result(call, told.clone(), true);
        }
        if calls.is_empty() {
            chat.user(told);
        }
        return Ok(None);
    }
    let steps = browser.act(calls)?;
    let told: Vec<Told> = steps.into_iter().map(told).collect();
    let lines = match dialogue.acted(&told) {
        Ok(lines) => lines,
        Err(end) => return Ok(Some(end)),
    };
    let seen = look(browser, &dialogue.settings, false)?;
    let is_error = |told: &Told| matches!(told, Told::Step { code: Some(_), .. });
    let last = calls.len() - 1;
    for (place, ((call, line), told)) in calls.iter().zip(&lines).zip(&told).enumerate() {
        // The last result has what the browser shows now.
        let text = match place == last {
            true => dialogue.reply(std::slice::from_ref(line), &seen.text),
            false => line.clone(),
        };
        chat.tool_result(call, text, is_error(told));
    }
    if let Some(picture) = seen.picture {
        let parts = vec![Part::Image(picture)];
        chat.message(Message { role: Role::User, parts, extra: None });
        chat.elide_images(dialogue.settings.screenshots)?;
    }
    Ok(None)
}

struct Seen {
    text: String,
    picture: Option<String>,
}

/// What the browser shows now.
fn look(browser: &Browser, settings: &Settings, is_first: bool) -> Result<Seen, Failure> {
    let tabs = browser.tabs()?.into_iter().map(|tab| TabLine {
        index: tab.index,
        url: tab.url,
        title: tab.title,
        is_active: tab.is_active,
    });
    let tabs: Vec<TabLine> = tabs.collect();
    let description = match settings.description_tokens {
        0 => None,
        tokens => {
            let changes = settings.description_changes && !is_first;
            let tokens_max = Some(tokens.max(100));
            let options = SnapshotOptions { tokens_max, changes, whole_page: false, extra: None };
            told_or(browser.0.snapshot(&options).map(|snapshot| snapshot.text))?
        }
    };
    let picture = match settings.screenshots {
        0 => None,
        _ => {
            let (format, quality) = match settings.format {
                Format::Png => (browsers::Format::Png, None),
                Format::Jpeg => (browsers::Format::Jpeg, Some(settings.quality)),
                Format::Webp => (browsers::Format::Webp, Some(settings.quality)),
            };
            let scale = Some(settings.scale).filter(|scale| *scale < 1.0 || *scale > 1.0);
            let options = ScreenshotOptions { format, quality, scale, full_page: false, extra: None };
            told_or(browser.0.screenshot(&options).map(|picture| picture.blob))?
        }
    };
    Ok(Seen { text: observation::text(&tabs, description.as_deref()), picture })
}

/// A page that cannot be looked at now, as one in an endless loop, is not shown; the model can still leave it.
fn told_or(seen: Result<String, Failure>) -> Result<Option<String>, Failure> {
    match seen {
        Ok(seen) => Ok(Some(seen)),
        Err(Failure::Other(_)) => Ok(None),
        Err(failure) => Err(failure),
    }
}

fn told(step: Step) -> Told {
    match step.outcome {
        Did::Failed(problem) => Told::Step { code: Some(problem.code), text: step.text },
        Did::Ended(end) => Told::Ended { response: end.response, status: end.status },
        Did::Asked(_) => Told::Asked,
        Did::Done | Did::Skipped(_) | Did::Other(_) => Told::Step { code: None, text: step.text },
    }
}

/// `data.user`: what the scripted user answers to `call_user`, in order.
fn scripted_user(task: &TaskView) -> Result<Vec<String>, Failure> {
    let data: Value = serde_json::from_str(&task.data).unwrap_or_default();
    match data.get("user") {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(user) => serde_json::from_value(user.clone()).map_err(|error| {
            invalid(format_args!("`data.user` of the task: expected a list of texts: {error}"))
        }),
    }
}

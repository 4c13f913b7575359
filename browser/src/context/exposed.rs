//! Rust functions that pages can call, and scripts that run before those of the page.

use crate::error::{BrowserError, Result};
use futures::future::BoxFuture;
use serde::Deserialize;
use serde_json::Value;
use std::collections::HashMap;
use std::sync::Arc;

/// The name under which Chromium adds the channel from pages to this library.
pub(crate) const BINDING: &str = "__espalier_call__";
/// Calls of one page under way at once; more are refused.
pub(crate) const CALLS_MAX: usize = 64;
/// Refusals of one page under way at once; calls beyond have no answer.
pub(crate) const REFUSALS_MAX: usize = 64;

/// What a page calls: gets its arguments, and answers with a value or with the message of an error that is thrown.
pub(crate) type Function = Arc<dyn Fn(Vec<Value>) -> BoxFuture<'static, Result<Value, String>> + Send + Sync>;

#[derive(Clone, Default)]
pub(crate) struct Exposed {
    init_scripts: Vec<String>,
    functions: HashMap<String, Function>,
}

/// What the page's side sends through the channel.
#[derive(Deserialize)]
pub(crate) struct BindingCall {
    pub(crate) name: String,
    pub(crate) call: u64,
    pub(crate) args: Vec<Value>,
}

impl Exposed {
    pub(crate) fn add_script(&mut self, script: String) {
        self.init_scripts.push(script);
    }

    pub(crate) fn add_function(&mut self, name: &str, function: Function) -> Result<String> {
        let mut chars = name.chars();
        let starts = chars.next().is_some_and(|first| first.is_alphabetic() || first == '_' || first == '$');
        if !starts || !chars.all(|char| char.is_alphanumeric() || char == '_' || char == '$') {
            return Err(BrowserError::invalid(format!("function name {name:?}: expected an identifier")));
        }
        if self.functions.contains_key(name) {
            return Err(BrowserError::invalid(format!("function name {name:?}: it is already exposed")));
        }
        self.functions.insert(name.to_owned(), function);
        Ok(page_side(name))
    }

    pub(crate) fn function(&self, name: &str) -> Option<Function> {
        self.functions.get(name).cloned()
    }

    pub(crate) fn has_functions(&self) -> bool {
        !self.functions.is_empty()
    }

    /// What new documents run first: functions, then scripts in the order in which they were added.
    pub(crate) fn scripts(&self) -> Vec<String> {
        let functions = self.functions.keys().map(|name| page_side(name));
        functions.chain(self.init_scripts.iter().cloned()).collect()
    }
}

/// The function that the page sees: it sends its arguments and returns a promise of the answer.
fn page_side(name: &str) -> String {
    format!(
        "(() => {{
  const name = {name:?}, channel = globalThis[{BINDING:?}];
  if (!channel || globalThis[name]?.__espalier) return;
  const store = globalThis.__espalier_calls__ ??= {{ next: 0, waiting: new Map() }};
  const exposed = (...args) => new Promise((resolve, reject) => {{
    const call = store.next++;
    store.waiting.set(call, {{ resolve, reject }});
    channel(JSON.stringify({{ name, call, args }}));
  }});
  exposed.__espalier = true;
  globalThis[name] = exposed;
}})()"
    )
}

/// Called in the page with the number of the call, the value and the message of an error, one of them null.
pub(crate) const ANSWER: &str = "(call, value, error) => {
  const waiting = globalThis.__espalier_calls__?.waiting, entry = waiting?.get(call);
  if (!entry) return;
  waiting.delete(call);
  if (error === null) entry.resolve(value); else entry.reject(new Error(error));
}";

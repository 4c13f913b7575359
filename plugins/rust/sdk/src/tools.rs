//! Tools that a model may call, declared from functions and the types of their arguments.

use crate::conversation::{Answer, Conversation};
use crate::wit::espalier::model::conversations;
use schemars::JsonSchema;
use serde::de::DeserializeOwned;

/// What carries out a call: arguments as JSON text, to the result or what the model is told is wrong.
type Handler<'a> = Box<dyn FnMut(&str) -> Result<String, String> + 'a>;

/// The tools of a conversation.
///
/// ```ignore
/// #[derive(Deserialize, JsonSchema)]
/// struct Sum { a: f64, b: f64 }
///
/// let mut tools = Tools::new().add("add", "Adds two numbers.", |Sum { a, b }| Ok((a + b).to_string()));
/// chat.tools(&tools);
/// let answer = chat.complete()?;
/// tools.answer(&answer, &mut chat);
/// ```
#[derive(Default)]
pub struct Tools<'a> {
    tools: Vec<(conversations::Tool, Handler<'a>)>,
}

impl<'a> Tools<'a> {
    /// None yet.
    pub fn new() -> Tools<'a> {
        Tools::default()
    }

    /// Adds one. Its JSON Schema follows from the type of its arguments, descriptions from doc comments. An error is what the model
    /// is told.
    pub fn add<A: DeserializeOwned + JsonSchema>(
        mut self,
        name: &str,
        description: &str,
        mut call: impl FnMut(A) -> Result<String, String> + 'a,
    ) -> Tools<'a> {
        let tool = conversations::Tool {
            name: name.to_owned(),
            description: description.to_owned(),
            parameters: crate::schema_of::<A>(),
        };
        let handler = move |arguments: &str| match serde_json::from_str(arguments) {
            Ok(arguments) => call(arguments),
            Err(error) => Err(format!("invalid arguments: {error}")),
        };
        self.tools.push((tool, Box::new(handler)));
        self
    }

    pub(crate) fn declared(&self) -> Vec<conversations::Tool> {
        self.tools.iter().map(|(tool, _)| tool.clone()).collect()
    }

    /// Carries out one call. An unknown tool and arguments that do not fit are errors for the model.
    pub fn call(&mut self, name: &str, arguments: &str) -> Result<String, String> {
        let known: Vec<String> = self.tools.iter().map(|(tool, _)| tool.name.clone()).collect();
        match self.tools.iter_mut().find(|(tool, _)| tool.name == name) {
            Some((_, handler)) => handler(arguments),
            None => Err(format!("unknown tool `{name}`; there is: {}", known.join(", "))),
        }
    }

    /// Carries out the calls of an answer and appends their results. Returns how many there were.
    pub fn answer(&mut self, answer: &Answer, conversation: &mut Conversation) -> usize {
        for call in &answer.tool_calls {
            match self.call(&call.name, &call.arguments) {
                Ok(text) => conversation.tool_result(call, text, false),
                Err(text) => conversation.tool_result(call, text, true),
            };
        }
        answer.tool_calls.len()
    }
}

impl std::fmt::Debug for Tools<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.tools.iter().map(|(tool, _)| &tool.name)).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;

    #[derive(Deserialize, JsonSchema)]
    struct Sum {
        /// The first.
        a: f64,
        b: f64,
    }

    #[test]
    fn what_a_model_calls_wrongly_is_told_to_the_model() {
        let mut tools = Tools::new().add("add", "Adds two numbers.", |Sum { a, b }| Ok((a + b).to_string()));
        let schema: serde_json::Value = serde_json::from_str(&tools.declared()[0].parameters).unwrap();
        assert_eq!(schema["required"], serde_json::json!(["a", "b"]));
        assert_eq!(schema["properties"]["a"]["description"], "The first.");
        assert_eq!(tools.call("add", r#"{"a": 2, "b": 3}"#), Ok("5".to_owned()));
        assert_eq!(tools.call("sub", "{}"), Err("unknown tool `sub`; there is: add".to_owned()));
        assert!(tools.call("add", "{}").unwrap_err().contains("missing field `a`"));
    }
}

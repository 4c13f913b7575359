//! Scripts in the execution contexts of frames.

use crate::connection::Session;
use crate::console::message_and_stack;
use crate::deadline::Deadline;
use crate::error::{BrowserError, Result};
use crate::page::state::World;
use crate::protocol::{Evaluated, RemoteObject};
use crate::value::JsArg;
use chromiumoxide::cdp::js_protocol::runtime::{
    CallFunctionOnParams, EvaluateParams, ExecutionContextId, SerializationOptions,
    SerializationOptionsSerialization, TimeDelta,
};
use std::sync::Arc;

/// What a call waits for that the page does not answer.
pub(crate) const SCRIPT: &str = "the script to return";

/// How a script's result comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Return {
    /// As JSON.
    Json,
    /// With what JSON cannot say.
    Deep,
    /// As a handle.
    Handle,
}

/// One execution context: a world of a frame's present document.
#[derive(Clone)]
pub(crate) struct Place {
    pub(crate) session: Arc<Session>,
    pub(crate) context: i64,
    pub(crate) world: World,
}

impl Place {
    pub(crate) async fn evaluate(
        &self,
        expression: &str,
        returns: Return,
        deadline: Deadline,
    ) -> Result<RemoteObject> {
        let mut command = EvaluateParams::new(expression);
        command.context_id = Some(ExecutionContextId::new(self.context));
        command.await_promise = Some(true);
        command.user_gesture = Some(self.world == World::Main);
        // Ends a script that never returns a little before the call itself gives up.
        command.timeout = Some(TimeDelta::new(deadline.remaining().as_secs_f64() * 1000.0));
        command.return_by_value = (returns == Return::Json).then_some(true);
        command.serialization_options = (returns == Return::Deep).then(deep);
        self.run(command, deadline).await
    }

    /// Calls a function declaration, such as `(a, b) => a + b` or `function () { ... }`.
    pub(crate) async fn call(
        &self,
        function: &str,
        args: &[JsArg],
        returns: Return,
        deadline: Deadline,
    ) -> Result<RemoteObject> {
        let mut command = CallFunctionOnParams::new(function);
        command.execution_context_id = Some(ExecutionContextId::new(self.context));
        self.call_command(command, args, returns, deadline).await
    }

    /// Calls a function declaration with `this` being an object.
    pub(crate) async fn call_on(
        &self,
        object_id: &str,
        function: &str,
        args: &[JsArg],
        returns: Return,
        deadline: Deadline,
    ) -> Result<RemoteObject> {
        let mut command = CallFunctionOnParams::new(function);
        command.object_id = Some(object_id.to_owned().into());
        self.call_command(command, args, returns, deadline).await
    }

    async fn call_command(
        &self,
        mut command: CallFunctionOnParams,
        args: &[JsArg],
        returns: Return,
        deadline: Deadline,
    ) -> Result<RemoteObject> {
        command.arguments = Some(args.iter().map(JsArg::to_cdp).collect());
        command.await_promise = Some(true);
        command.user_gesture = Some(self.world == World::Main);
        command.return_by_value = (returns == Return::Json).then_some(true);
        command.serialization_options = (returns == Return::Deep).then(deep);
        self.run(command, deadline).await
    }

    async fn run(&self, command: impl chromiumoxide::Command, deadline: Deadline) -> Result<RemoteObject> {
        let evaluated: Evaluated = match self.session.call_as(command, deadline).await {
            Ok(evaluated) => evaluated,
            Err(error) => return Err(understand(error, deadline)),
        };
        match evaluated.exception_details {
            None => Ok(evaluated.result),
            Some(details) => {
                let (message, stack) = message_and_stack(&details);
                Err(BrowserError::Script { message, stack })
            }
        }
    }
}

fn deep() -> SerializationOptions {
    SerializationOptions::new(SerializationOptionsSerialization::Deep)
}

fn understand(error: BrowserError, deadline: Deadline) -> BrowserError {
    match error {
        BrowserError::Protocol { message, .. } if message.contains("Promise was collected") => {
            BrowserError::Navigated
        }
        BrowserError::Protocol { message, .. } if message.contains("Execution was terminated") => {
            deadline.timeout(SCRIPT)
        }
        BrowserError::Protocol { message, .. } if message.contains("reference chain is too long") => {
            BrowserError::invalid("result of the script: it has cycles, or is nested too deep for JSON")
        }
        BrowserError::Protocol { message, .. } if message.contains("couldn't be returned by value") => {
            BrowserError::invalid("result of the script: it cannot be written as JSON")
        }
        other => other.waiting_for(|| SCRIPT.to_owned()),
    }
}

//! What `wit/` looks like in Rust: generated, one module for each world that this engine runs.
//!
//! The worlds share the types of their imports, which are generated once, with the harness.

#![allow(missing_docs, unreachable_pub, clippy::all, clippy::pedantic, reason = "generated code")]

pub(crate) mod harness {
    wasmtime::component::bindgen!({
        path: "../../wit",
        world: "espalier:plugin/harness-plugin",
        imports: {
            "espalier:base/log": trappable,
            "espalier:base/settings": trappable,
            "espalier:base/clock": trappable,
            "espalier:base/random": trappable,
            "espalier:plugin/diagnostics": trappable,
            "espalier:model/conversations.[drop]conversation": trappable,
            "espalier:environment/environments.[drop]environment": trappable,
            "espalier:sandbox/sandboxes.[drop]sandbox": trappable,
            "espalier:sandbox/sandboxes.[drop]process": trappable,
            "espalier:sandbox/sandboxes.[drop]shell": trappable,
            "espalier:sandbox/sandboxes.[method]process.pid": trappable,
            "espalier:browser/browsers.[drop]session": trappable,
            "espalier:browser/browsers.[method]session.tools": trappable,
            default: async | trappable,
        },
        exports: { default: async },
        with: {
            "espalier:model/conversations.conversation": crate::guest::OpenConversation,
            "espalier:environment/environments.environment": crate::guest::OpenEnvironment,
            "espalier:sandbox/sandboxes.sandbox": crate::guest::OpenSandbox,
            "espalier:sandbox/sandboxes.process": crate::guest::OpenProcess,
            "espalier:sandbox/sandboxes.shell": crate::guest::OpenShell,
            "espalier:browser/browsers.session": crate::guest::OpenBrowser,
        },
        require_store_data_send: true,
    });
}

pub(crate) mod environment {
    wasmtime::component::bindgen!({
        path: "../../wit",
        world: "espalier:plugin/environment-plugin",
        imports: { default: trappable },
        exports: { default: async },
        with: {
            "espalier:base": crate::bindings::harness::espalier::base,
            "espalier:environment/types": crate::bindings::harness::espalier::environment::types,
            "espalier:plugin/diagnostics": crate::bindings::harness::espalier::plugin::diagnostics,
        },
        require_store_data_send: true,
    });
}

pub(crate) mod reward {
    wasmtime::component::bindgen!({
        path: "../../wit",
        world: "espalier:plugin/reward-plugin",
        imports: { default: async | trappable },
        exports: { default: async },
        with: {
            "espalier:base": crate::bindings::harness::espalier::base,
            "espalier:browser": crate::bindings::harness::espalier::browser,
            "espalier:model/messages": crate::bindings::harness::espalier::model::messages,
            "espalier:sandbox/sandboxes": crate::bindings::harness::espalier::sandbox::sandboxes,
            "espalier:plugin/reports": crate::bindings::harness::espalier::plugin::reports,
            "espalier:plugin/diagnostics": crate::bindings::harness::espalier::plugin::diagnostics,
        },
        require_store_data_send: true,
    });
}

pub(crate) mod group_reward {
    wasmtime::component::bindgen!({
        path: "../../wit",
        world: "espalier:plugin/group-reward-plugin",
        exports: { default: async },
        with: {
            "espalier:base": crate::bindings::harness::espalier::base,
            "espalier:model": crate::bindings::harness::espalier::model,
            "espalier:plugin/reports": crate::bindings::harness::espalier::plugin::reports,
            "espalier:plugin/scores": crate::bindings::reward::espalier::plugin::scores,
            "espalier:plugin/diagnostics": crate::bindings::harness::espalier::plugin::diagnostics,
            "espalier:sandbox/sandboxes": crate::bindings::harness::espalier::sandbox::sandboxes,
            "espalier:sandbox/scoring": crate::bindings::reward::espalier::sandbox::scoring,
        },
        require_store_data_send: true,
    });
}

pub(crate) mod judge {
    wasmtime::component::bindgen!({
        path: "../../wit",
        world: "espalier:plugin/judge-plugin",
        exports: { default: async },
        with: {
            "espalier:base": crate::bindings::harness::espalier::base,
            "espalier:browser": crate::bindings::harness::espalier::browser,
            "espalier:model": crate::bindings::harness::espalier::model,
            "espalier:plugin/reports": crate::bindings::harness::espalier::plugin::reports,
            "espalier:plugin/scores": crate::bindings::reward::espalier::plugin::scores,
            "espalier:plugin/diagnostics": crate::bindings::harness::espalier::plugin::diagnostics,
            "espalier:sandbox/sandboxes": crate::bindings::harness::espalier::sandbox::sandboxes,
            "espalier:sandbox/scoring": crate::bindings::reward::espalier::sandbox::scoring,
            "espalier:service": crate::bindings::reward::espalier::service,
        },
        require_store_data_send: true,
    });
}

pub(crate) mod task_generator {
    wasmtime::component::bindgen!({
        path: "../../wit",
        world: "espalier:plugin/task-generator-plugin",
        imports: { default: async | trappable },
        exports: { default: async },
        with: {
            "espalier:base": crate::bindings::harness::espalier::base,
            "espalier:model": crate::bindings::harness::espalier::model,
            "espalier:sandbox/sandboxes": crate::bindings::harness::espalier::sandbox::sandboxes,
            "espalier:plugin/diagnostics": crate::bindings::harness::espalier::plugin::diagnostics,
        },
        require_store_data_send: true,
    });
}

//! The interfaces of `wit/` as Rust: generated. What plugins import is generated once, in [`espalier`], and shared by all that they
//! export.

#![allow(missing_docs, unreachable_pub, clippy::all, clippy::pedantic, reason = "generated code")]

wit_bindgen::generate!({
    inline: "
        package espalier:sdk;
        world imports {
            import espalier:base/log@0.1.0;
            import espalier:base/blobs@0.1.0;
            import espalier:base/settings@0.1.0;
            import espalier:base/clock@0.1.0;
            import espalier:base/random@0.1.0;
            import espalier:model/conversations@0.1.0;
            import espalier:environment/environments@0.1.0;
            import espalier:sandbox/sandboxes@0.1.1;
            import espalier:browser/browsers@0.1.0;
            import espalier:service/services@0.1.0;
            import espalier:sandbox/scoring@0.1.1;
            import espalier:sandbox/creation@0.1.1;
            import espalier:plugin/scores@0.1.2;
            import espalier:plugin/diagnostics@0.1.2;
        }
    ",
    path: "wit",
    world: "espalier:sdk/imports",
    generate_all,
});

/// One exported interface as a module of its own, with the macro that exports it.
macro_rules! exported {
    ($name:ident, $inline:literal, $world:literal, $export:literal, { $($interface:literal: $($path:ident)::+,)* }) => {
        pub mod $name {
            wit_bindgen::generate!({
                inline: $inline,
                path: "wit",
                world: $world,
                pub_export_macro: true,
                export_macro_name: $export,
                with: { $($interface: crate::wit::espalier::$($path)::+,)* },
                generate_all,
            });
        }
    };
}

exported!(
    configurable,
    "package espalier:sdk; world configurable { export espalier:base/configurable@0.1.0; }",
    "espalier:sdk/configurable",
    "export_configurable",
    {}
);
exported!(
    harness,
    "package espalier:sdk; world harness { export espalier:plugin/harness@0.1.2; }",
    "espalier:sdk/harness",
    "export_harness",
    {
        "espalier:base/types@0.1.0": base::types,
        "espalier:plugin/reports@0.1.2": plugin::reports,
    }
);
exported!(
    environment,
    "package espalier:sdk; world environment { export espalier:environment/provider@0.1.0; }",
    "espalier:sdk/environment",
    "export_environment",
    {
        "espalier:base/types@0.1.0": base::types,
        "espalier:environment/types@0.1.0": environment::types,
    }
);
exported!(
    reward,
    "package espalier:sdk; world reward { export espalier:plugin/reward@0.1.2; }",
    "espalier:sdk/reward",
    "export_reward",
    {
        "espalier:base/types@0.1.0": base::types,
        "espalier:model/messages@0.1.0": model::messages,
        "espalier:plugin/reports@0.1.2": plugin::reports,
        "espalier:plugin/scores@0.1.2": plugin::scores,
    }
);
exported!(
    group_reward,
    "package espalier:sdk; world group-reward { export espalier:plugin/group-reward@0.1.2; }",
    "espalier:sdk/group-reward",
    "export_group_reward",
    {
        "espalier:base/types@0.1.0": base::types,
        "espalier:model/messages@0.1.0": model::messages,
        "espalier:plugin/reports@0.1.2": plugin::reports,
        "espalier:plugin/scores@0.1.2": plugin::scores,
    }
);
exported!(
    judge,
    "package espalier:sdk; world judge { export espalier:plugin/judge@0.1.2; }",
    "espalier:sdk/judge",
    "export_judge",
    {
        "espalier:base/types@0.1.0": base::types,
        "espalier:model/messages@0.1.0": model::messages,
        "espalier:plugin/reports@0.1.2": plugin::reports,
        "espalier:plugin/scores@0.1.2": plugin::scores,
    }
);
exported!(
    task_generator,
    "package espalier:sdk; world task-generator { export espalier:plugin/task-generator@0.1.2; }",
    "espalier:sdk/task-generator",
    "export_task_generator",
    { "espalier:base/types@0.1.0": base::types, }
);

//! What makes a component of a function: one macro for each kind of plugin.

/// A harness, of the type of its settings and a function `(TaskView, Settings) -> Result<Report, Failure>`.
///
/// ```ignore
/// fn run(task: TaskView, settings: Settings) -> Result<Report, Failure> { ... }
/// espalier_sdk::harness!(Settings, run);
/// ```
#[macro_export]
macro_rules! harness {
    ($settings:ty, $run:path) => {
        $crate::plugin!($settings, harness::plugin::harness, export_harness, {
            fn run(task: $crate::TaskView) -> ::core::result::Result<$crate::Report, $crate::Failure> {
                $crate::begin();
                $run(task, $crate::settings::<$settings>()?)
            }
        });
    };
}

/// An environment, of a type that is an [`Environment`](crate::Environment).
#[macro_export]
macro_rules! environment {
    ($world:ty) => {
        #[cfg(target_arch = "wasm32")]
        ::std::thread_local! {
            static WORLD: ::core::cell::RefCell<::core::option::Option<$world>> =
                const { ::core::cell::RefCell::new(None) };
        }

        $crate::plugin!(
            <$world as $crate::Environment>::Settings,
            environment::environment::provider,
            export_environment,
            {
                fn reset(task: $crate::TaskView) -> ::core::result::Result<$crate::Observation, $crate::Failure> {
                    $crate::begin();
                    let settings = $crate::settings()?;
                    let (world, seen) = <$world as $crate::Environment>::reset(task, settings)?;
                    WORLD.set(Some(world));
                    Ok(seen)
                }

                fn step(
                    action: ::std::string::String,
                ) -> ::core::result::Result<$crate::StepResult, $crate::Failure> {
                    WORLD.with_borrow_mut(|world| match world {
                        Some(world) => $crate::Environment::step(world, &action),
                        None => Err($crate::invalid("step before reset")),
                    })
                }

                fn actions() -> ::core::result::Result<::std::vec::Vec<::std::string::String>, $crate::Failure> {
                    WORLD.with_borrow(|world| match world {
                        Some(world) => $crate::Environment::actions(world),
                        None => Err($crate::invalid("actions before reset")),
                    })
                }

                fn close() {
                    WORLD.set(None);
                }
            }
        );
    };
}

/// A reward, of the type of its settings and a function `(RolloutView, Settings) -> Result<Vec<Score>, Failure>`.
#[macro_export]
macro_rules! reward {
    ($settings:ty, $score:path) => {
        $crate::plugin!($settings, reward::plugin::reward, export_reward, {
            fn score_rollout(
                rollout: $crate::RolloutView,
            ) -> ::core::result::Result<::std::vec::Vec<$crate::Score>, $crate::Failure> {
                $crate::begin();
                $score(rollout, $crate::settings::<$settings>()?)
            }
        });
    };
}

/// A group reward, of the type of its settings and a function
/// `(Vec<RolloutView>, Settings) -> Result<Vec<Vec<Score>>, Failure>`: one list for each rollout, in their order.
#[macro_export]
macro_rules! group_reward {
    ($settings:ty, $score:path) => {
        $crate::plugin!($settings, group_reward::plugin::group_reward, export_group_reward, {
            fn score_group(
                rollouts: ::std::vec::Vec<$crate::RolloutView>,
            ) -> ::core::result::Result<::std::vec::Vec<::std::vec::Vec<$crate::Score>>, $crate::Failure>
            {
                $crate::begin();
                $score(rollouts, $crate::settings::<$settings>()?)
            }
        });
    };
}

/// A judge, of the type of its settings and a function `(RolloutView, Settings) -> Result<Judgement, Failure>`.
#[macro_export]
macro_rules! judge {
    ($settings:ty, $judge:path) => {
        $crate::plugin!($settings, judge::plugin::judge, export_judge, {
            fn judge(
                rollout: $crate::RolloutView,
            ) -> ::core::result::Result<$crate::Judgement, $crate::Failure> {
                $crate::begin();
                $judge(rollout, $crate::settings::<$settings>()?)
            }
        });
    };
}

/// A task generator, of the type of its settings and two functions: `(Request, Settings) -> Result<Vec<Value>, Failure>` makes
/// tasks, `(Value, Statistics, Settings) -> Result<Vec<Value>, Failure>` makes variants of one. Tasks are `serde_json` values, as a
/// line of a task file has them.
#[macro_export]
macro_rules! task_generator {
    ($settings:ty, $generate:path, $adapt:path) => {
        $crate::plugin!($settings, task_generator::plugin::task_generator, export_task_generator, {
            fn generate(
                request: $crate::Request,
            ) -> ::core::result::Result<::std::vec::Vec<::std::string::String>, $crate::Failure> {
                $crate::begin();
                $generate(request, $crate::settings::<$settings>()?).map($crate::as_lines)
            }

            fn adapt(
                task: ::std::string::String,
                statistics: $crate::Statistics,
            ) -> ::core::result::Result<::std::vec::Vec<::std::string::String>, $crate::Failure> {
                $crate::begin();
                let task = $crate::serde_json::from_str(&task).map_err($crate::invalid)?;
                $adapt(task, statistics, $crate::settings::<$settings>()?).map($crate::as_lines)
            }
        });
    };
}

/// The exports of one kind, beside the schema of its settings. Compiled for WebAssembly alone, so that the rest can be tested on
/// the host.
#[doc(hidden)]
#[macro_export]
macro_rules! plugin {
    ($settings:ty, $world:ident::$package:ident::$interface:ident, $export:ident, { $($functions:item)* }) => {
        #[cfg(target_arch = "wasm32")]
        const _: () = {
            struct Plugin;

            impl $crate::wit::configurable::exports::espalier::base::configurable::Guest for Plugin {
                fn settings_schema() -> ::std::string::String {
                    $crate::schema_of::<$settings>()
                }
            }

            impl $crate::wit::$world::exports::espalier::$package::$interface::Guest for Plugin {
                $($functions)*
            }

            $crate::wit::configurable::export_configurable!(Plugin with_types_in $crate::wit::configurable);
            $crate::wit::$world::$export!(Plugin with_types_in $crate::wit::$world);
        };
    };
}

/// Generated bindings by the name of a world, for a plugin that does without the rest of this crate: module `bindings` with what
/// the world imports in `bindings::espalier`, what it exports in `bindings::exports`, and the macro `bindings::export!`; beside it
/// `settings::<T>()`, `report_panics()` and `invalid(text)`.
#[macro_export]
macro_rules! bindings {
    ("harness-plugin") => {
        $crate::bindings!(@ harness::plugin::harness, export_harness);
    };
    ("environment-plugin") => {
        $crate::bindings!(@ environment::environment::provider, export_environment);
    };
    ("reward-plugin") => {
        $crate::bindings!(@ reward::plugin::reward, export_reward);
    };
    ("group-reward-plugin") => {
        $crate::bindings!(@ group_reward::plugin::group_reward, export_group_reward);
    };
    ("judge-plugin") => {
        $crate::bindings!(@ judge::plugin::judge, export_judge);
    };
    ("task-generator-plugin") => {
        $crate::bindings!(@ task_generator::plugin::task_generator, export_task_generator);
    };
    (@ $world:ident::$package:ident::$interface:ident, $export:ident) => {
        #[allow(missing_docs, unused_imports, unreachable_pub)]
        pub(crate) mod bindings {
            pub use $crate::wit::espalier;
            pub use $crate::wit::$world::$export as export_interface;
            pub mod exports {
                pub mod espalier {
                    pub mod base {
                        pub use $crate::wit::configurable::exports::espalier::base::configurable;
                    }
                    pub mod $package {
                        pub use $crate::wit::$world::exports::espalier::$package::$interface;
                    }
                }
            }
            macro_rules! export {
                ($plugin:ident with_types_in $bindings:ident) => {
                    $crate::wit::configurable::export_configurable!($plugin with_types_in $crate::wit::configurable);
                    $crate::wit::$world::$export!($plugin with_types_in $crate::wit::$world);
                };
            }
            pub(crate) use export;
        }

        #[allow(unused_imports)]
        use $crate::{Failure, begin as report_panics, invalid, settings};
    };
}

//! The group reward `unit-tests`: each solution of a group is run against each test, each time in a fresh sandbox; a rollout is worth
//! the share of tests that it passes.
//!
//! The tests are those of the task and those that the rollouts wrote themselves. What a written test is worth is RLAnything's
//! ([`matrix`]): it must let every right solution pass and is worth the wrong ones that it finds. What a test is, and where a solution
//! is found in a rollout, is in [`tests`].

pub mod allowance;
pub mod matrix;
pub mod run;
pub mod settings;
pub mod tests;

espalier_sdk::group_reward!(crate::settings::Settings, crate::run::score);

//! The library against real Chromium, with pages from a server of the test.
//!
//! Faults that controllers of browsers are known for, and the test whose page provokes each: `docs/faults.md`.
#![allow(missing_docs)]

mod agent;
mod agent_pages;
mod agent_snapshots;

mod chaos;
mod clipboard;
mod clocks;
mod conformance;
mod dialogs;
mod docs;
mod episodes;
mod exchanges;
mod floods;
mod frames;
mod input;
mod locators;
mod navigation;
mod pool;
mod records;
mod remote;
mod scripts;
mod server;
mod start;
mod storage;
mod support;
mod traffic;

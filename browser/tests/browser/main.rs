//! The library against real Chromium, with pages from a server of the test.
#![allow(missing_docs)]

mod chaos;
mod conformance;
mod dialogs;
mod frames;
mod input;
mod locators;
mod navigation;
mod pool;
mod records;
mod scripts;
mod server;
mod start;
mod storage;
mod support;
mod traffic;
mod views;

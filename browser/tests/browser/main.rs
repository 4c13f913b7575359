//! The library against real Chromium, with pages from a server of the test.
//!
//! Faults that controllers of browsers are known for, and the test whose page provokes each:
//!
//! | fault | test |
//! |---|---|
//! | an open `confirm` wedges click, evaluate and screenshot | `dialogs::a_held_dialog_fails_calls_in_place_of_hanging` |
//! | `beforeunload` wedges navigation | `navigation::beforeunload_does_not_wedge_navigation` |
//! | going to a download hangs, and the next navigation too | `navigation::navigating_to_a_download_is_typed_and_the_next_navigation_works` |
//! | a second `#hash` navigation hangs | `navigation::a_second_hash_navigation_does_not_hang` |
//! | `load` is the only wait; waits for navigations race | `navigation::goto_waits_as_far_as_asked`, `navigation::client_redirects_end_at_the_last_page` |
//! | a crash is never reported | `frames::a_crashed_page_is_reported_and_neighbours_go_on`, `start::a_killed_browser_is_told_to_all_at_once` |
//! | a command on a closed context waits | `start::calls_on_closed_contexts_fail_at_once_and_neighbours_go_on` |
//! | frames of other processes are invisible | `frames::frames_of_other_processes_are_frames`, `input::input_reaches_frames_of_other_processes` |
//! | text beyond ASCII, other buttons, modifiers, drags and the wheel fail | `input` |
//! | full-page pictures change the viewport; touch is always on; queues have no bound | `views::full_page_pictures_do_not_change_the_viewport`, `input::touch_needs_a_touch_screen`, `traffic::a_flood_of_console_messages_loses_the_oldest` |
#![allow(missing_docs)]

mod agent;
mod agent_pages;
mod agent_snapshots;
mod chaos;
mod clocks;
mod conformance;
mod dialogs;
mod episodes;
mod exchanges;
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
mod views;

//! What tests of whole runs share: the engine as a process, what it left, and how that is held against what went over
//! the wire. Everything here panics where something does not hold, with the place.

pub mod accounts;
pub mod export;
pub mod place;
pub mod processes;
pub mod recording;
pub mod results;

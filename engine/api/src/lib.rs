//! `espalier serve`: sandboxes and runs for programs, over HTTP.
//!
//! A caller shows a key; a sandbox belongs to the key that made it, and is not there for any other. The service holds no truth
//! that a sandbox does not hold itself, but for the names of requests, which the store has: killed and started again, it finds
//! sandboxes by their labels, and clients attach to what runs. Calls that change something have ids, so that a client repeats them
//! and nothing runs twice.
//!
//! Reading order: [`Server`] -> `listen` (connections) -> `http` (what routes share) -> [`keys`] -> [`registry`] -> `calls` ->
//! [`runs`] -> `routes`. Only this crate names axum.

mod calls;
pub mod client;
mod http;
pub mod keys;
mod listen;
mod metrics;
pub mod problem;
pub mod registry;
mod routes;
pub mod runs;
mod shares;

pub use listen::local::GroupsSocket;
pub use listen::{ListenError, Server, Tls};

use std::path::PathBuf;
use std::time::Duration;

/// How the service behaves; its bounds on sandboxes are in [`registry::Bounds`].
#[derive(Clone, Debug)]
pub struct Settings {
    /// What sandboxes of Orchard's clients reach that ask for a network; empty: nothing but themselves.
    pub open_network: Vec<String>,
    /// Whether requests may ask for user namespaces in sandboxes; default false.
    pub user_namespaces: bool,
    /// Where bodies wait that are too large for memory.
    pub spool: PathBuf,
    /// Largest body of JSON, and largest input at once.
    pub json_bytes_max: usize,
    /// Bodies in memory, of all keys: what of requests that are under way is not yet answered.
    pub bodies_bytes_max: u64,
    /// Largest file that is sent.
    pub file_bytes_max: u64,
    /// Connections at once; more wait to be taken. As many requests may be open at once, which keys share.
    pub connections_max: usize,
    /// For a body of JSON to arrive whole, and for the next part of a file.
    pub body_max: Duration,
    /// The head of a request, from the end of the one before: so a connection that is idle for longer is closed, too.
    pub head_max: Duration,
    /// From being told to stop until what still runs is cut.
    pub drain: Duration,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            open_network: Vec::new(),
            user_namespaces: false,
            spool: std::env::temp_dir(),
            json_bytes_max: 16 << 20,
            bodies_bytes_max: 256 << 20,
            file_bytes_max: 16 << 30,
            connections_max: 20_000,
            body_max: Duration::from_secs(60),
            head_max: Duration::from_secs(60),
            drain: Duration::from_secs(30),
        }
    }
}

/// The description of all routes, as `/openapi.json` has it.
pub fn openapi() -> String {
    let (_, described) = routes::all();
    described.to_pretty_json().unwrap_or_default()
}

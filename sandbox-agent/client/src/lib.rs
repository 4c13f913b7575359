//! The engine's side of a sandbox's agent: one [`Agent`] for each sandbox. It connects, allots the ids of changing calls and
//! keeps their floor, repeats a call after a cut with the same id (so that nothing runs twice), streams output on from where
//! it stopped, and keeps the lease. It never starts or ends sandboxes; backends do.
//!
//! ```no_run
//! # async fn example() -> Result<(), espalier_agent_client::AgentError> {
//! use espalier_agent_client::{Agent, Config, Endpoint, Excerpts, Secret, command};
//! let config = Config::new(Endpoint::Unix("/run/s1.sock".into()), Secret::new("secret"), "rollout-1");
//! let agent = Agent::connect(config).await?;
//! let answer = agent.run(&agent.allot(), command::script("make test"), Excerpts::default()).await?;
//! println!("{:?}", answer.ended);
//! # Ok(())
//! # }
//! ```

mod agent;
pub mod changes;
pub mod command;
mod connection;
mod error;
pub mod files;
pub mod forward;
mod ids;
mod output;
mod pipe;
mod tls;

pub use agent::{Agent, Config, Excerpts};
pub use connection::{Endpoint, Secret};
pub use error::{AgentError, Loss};
pub use espalier_agent_protocol::USER_FIELD;
pub use espalier_agent_protocol::v1 as wire;
pub use espalier_agent_protocol::v1::{Id, Reason};
pub use ids::Identity;
pub use output::{Event, Follow, Offsets};
pub use pipe::{Pipe, PipeEnd, PipeEnded, PipeError, PipeReader, PipeWriter};
pub use tls::Tls;

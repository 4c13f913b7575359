//! `[delivery]`: the groups of a run on their way to trainers.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `[delivery]`: how groups are delivered to trainers while the run goes on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DeliveryConfig {
    /// Maximum number of groups that no trainer has acknowledged or dropped, open ones included: no further group opens until there are
    /// fewer. At least 1. Default: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub undelivered_max: Option<u64>,
    /// Whether a Unix socket beside the store delivers groups while the run goes on, as `espalier serve` does, without a key. At its end
    /// the run waits until trainers are done with all groups. Default: false.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub socket: bool,
}

//! What a command can be and how it ends.

use crate::support::{Sandbox, Way, ways};
use espalier_agent_client::wire::outcome::Outcome;

#[tokio::test]
async fn a_command_prints_and_exits() {
    for way in ways() {
        let sandbox = Sandbox::start(way).await;
        let ran = sandbox.sh("echo out; echo err >&2; exit 3").await;
        assert_eq!((ran.outcome, &*ran.out, &*ran.err), (Outcome::ExitCode(3), "out\n", "err\n"), "{way:?}");
        let hello = sandbox.agent.hello();
        assert_eq!(hello.capabilities.contains(&"process-1".to_owned()), matches!(way, Way::ProcessOne | Way::Cgroup));
    }
}

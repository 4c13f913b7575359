//! What no sandbox can have, refused as that: another try, or another machine, would not help.

use crate::support::Place;
use espalier_agent_client::wire;
use espalier_core::cause::with_causes;
use espalier_core::sandbox::SandboxSpec;
use espalier_images::{Draft, ImageConfig, Rights, Upper, write_layout};

use espalier_sandbox::error::SandboxError;
use espalier_sandbox::service::Purpose;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

fn image(place: &Place, name: &str, env: &[(&str, &str)], fill: impl FnOnce(&Path)) -> String {
    let folder = place.folder.join(format!("{name}-files"));
    std::fs::create_dir_all(&folder).unwrap();
    fill(&folder);
    let env = env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    let config = ImageConfig {
        env: env.collect(),
        os: "linux".to_owned(),
        architecture: "amd64".to_owned(),
        workdir: "/".to_owned(),
        ..ImageConfig::default()
    };
    let uppers = [Upper { at: "/".into(), folder }];
    let layout = place.folder.join(name);
    let draft = Draft { tag: "v1", base: None, uppers: &uppers, rights: Rights::Root, config: Some(&config) };
    write_layout(&layout, &draft).unwrap();
    format!("oci:{}", layout.display())
}

#[tokio::test]
async fn what_no_sandbox_can_have_is_bad_input() {
    let place = Place::new();
    let service = place.service(None);
    let small = SandboxSpec { memory: 64 << 20, ..SandboxSpec::default() };
    let long = "x".repeat(300_000);
    let variable = "invalid sandbox.env \"A\": expected a variable without a NUL byte, of less than 128KiB with its name";
    let of = |image: String| SandboxSpec { image, ..small.clone() };
    let device = |folder: &Path| std::os::unix::fs::symlink("/tmp", folder.join("dev")).unwrap();
    let process = |folder: &Path| std::fs::write(folder.join("proc"), "x").unwrap();
    let minute = Duration::from_secs(60);
    for (spec, lease, expect) in [
        (small.clone(), Duration::ZERO, "invalid sandbox.lease \"0ms\": expected 1s to 24h"),
        (small.clone(), Duration::from_secs(1000 * 3600), "expected 1s to 24h"),
        (of(image(&place, "nul", &[("A", "x\0y")], |_| ())), minute, variable),
        (of(image(&place, "long", &[("A", &long)], |_| ())), minute, variable),
        (of(image(&place, "dev", &[], device)), minute, "its /dev is not a directory"),
        (of(image(&place, "proc", &[], process)), minute, "its /proc is not a directory"),
        (
            SandboxSpec { env: BTreeMap::from([("A".to_owned(), long.clone())]), ..small.clone() },
            minute,
            variable,
        ),
        (
            SandboxSpec { workdir: Some("/etc/passwd".to_owned()), ..small.clone() },
            minute,
            "invalid sandbox.workdir \"/etc/passwd\": expected a folder",
        ),
        (
            SandboxSpec { user: Some("stranger".to_owned()), ..small.clone() },
            minute,
            "sandbox.user \"stranger\": user `stranger`: not in /etc/passwd",
        ),
    ] {
        let error = service.create(&spec, &Purpose { lease, ..Purpose::new("test") }).await.unwrap_err();
        assert!(
            matches!(error, SandboxError::Invalid { .. } | SandboxError::Rejected(_)),
            "{expect}: {error:?}"
        );
        assert!(with_causes(&error).contains(expect), "{}", with_causes(&error));
    }
    service.close().await;
    assert!(place.local.list().await.unwrap().is_empty(), "what could not be made left nothing");
}

#[tokio::test]
async fn nobody_runs_as_the_agent() {
    let place = Place::new();
    let sandbox = place.host("agent").await;
    let spec =
        wire::CommandSpec { user: "64998".to_owned(), ..espalier_agent_client::command::script("id -u") };
    let id = sandbox.agent.allot();
    let call = sandbox.agent.run(&id, spec, espalier_agent_client::Excerpts::default());
    let said = match call.await {
        Ok(answer) => format!("{:?}", answer.ended),
        Err(error) => error.to_string(),
    };
    assert!(said.contains("this user is reserved for the agent"), "{said}");
}

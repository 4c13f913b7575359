//! The OCI image, read by the engine's own code and started as a sandbox: its root holds what the image brings and nothing else.

use crate::{folder, good, made};
use espalier_tests::place::espalier;
use xtask::dist::Form;

#[tokio::test(flavor = "multi_thread")]
async fn the_image_starts_in_an_empty_root() {
    let folder = folder();
    let archive = made(Form::Image, &folder.path().join("dist"), ".oci.tar").await;
    let store = folder.path().join("store");
    let inside = async |id: &str, arguments: &[&str]| {
        let mut command = espalier(&store);
        command.args(["sandbox", "exec", id, "--"]).args(arguments);
        good(&mut command).await
    };
    let image = format!("oci-archive:{}", archive.display());
    let id = good(espalier(&store).args(["sandbox", "create", &image])).await;
    let id = id.trim();
    let version = good(espalier(&store).arg("--version")).await;
    assert_eq!(inside(id, &["/usr/bin/espalier", "--version"]).await, version);
    inside(id, &["/usr/bin/espalier", "init", "textcraft", "/work/game"]).await;
    let checked =
        inside(id, &["/usr/bin/espalier", "task", "check", "/work/game/experiment.toml", "--limit", "2"])
            .await;
    assert!(checked.contains('2'), "{checked}");
    good(espalier(&store).args(["sandbox", "delete", id])).await;
}

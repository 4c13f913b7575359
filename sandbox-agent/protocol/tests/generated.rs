//! The code in `src/generated` is what `proto/agent.proto` makes, and the protocol changes only on purpose.
//!
//! `UPDATE_GENERATED=1 cargo test -p espalier-agent-protocol` writes it anew.

use std::path::Path;

#[test]
fn generated_code_is_that_of_the_proto_file() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let kept = here.join("src/generated/espalier.agent.v1.rs");
    let scratch = Path::new(env!("CARGO_TARGET_TMPDIR")).join("generated");
    std::fs::create_dir_all(&scratch).unwrap();
    let files = protox::compile([here.join("proto/agent.proto")], [here.join("proto")]).unwrap();
    tonic_prost_build::configure()
        .out_dir(&scratch)
        .build_transport(false)
        .bytes(".")
        .compile_fds(files)
        .unwrap();
    let made = std::fs::read_to_string(scratch.join("espalier.agent.v1.rs")).unwrap();
    if std::env::var_os("UPDATE_GENERATED").is_some() {
        std::fs::write(&kept, &made).unwrap();
    }
    let kept = std::fs::read_to_string(&kept).unwrap_or_default();
    assert!(kept == made, "run: UPDATE_GENERATED=1 cargo test -p espalier-agent-protocol");
}

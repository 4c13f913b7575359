//! The adapter of WASI's first preview is what its text says. `ESPALIER_UPDATE_ADAPTER=1 cargo test -p espalier-authoring` makes it anew.

use espalier_authoring::component;
use std::path::Path;

#[test]
fn the_adapter_is_made_of_its_text() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let text = root.join("plugins/adapter/wasi_snapshot_preview1.wat");
    let wit = tempfile::tempdir().unwrap();
    let base = wit.path().join("deps/base");
    std::fs::create_dir_all(&base).unwrap();
    std::fs::copy(root.join("wit/deps/base/base.wit"), base.join("base.wit")).unwrap();
    let world = "package espalier:adapter; world wasi { import espalier:base/log@0.1.0; }";
    std::fs::write(wit.path().join("world.wit"), world).unwrap();
    let mut adapter = wat::parse_file(&text).unwrap();
    component::embed(&mut adapter, wit.path(), "wasi").unwrap();
    let kept = text.with_extension("wasm");
    if std::env::var_os("ESPALIER_UPDATE_ADAPTER").is_some() {
        std::fs::write(&kept, &adapter).unwrap();
    }
    assert!(std::fs::read(&kept).unwrap() == adapter, "{} is not what its text says", kept.display());
}

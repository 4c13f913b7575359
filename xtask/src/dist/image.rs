//! The OCI image: the tree below `/usr`, the libraries that the programs load, certificates, and nothing else.

use super::{Release, create, elf, tree, write};
use crate::place;
use crate::shell::quietly;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

const CERTIFICATES: &str = "/etc/ssl/certs/ca-certificates.crt";
/// Debian's packages of what is copied from this machine, for their licences.
const PACKAGES: [&str; 3] = ["libc6", "libgcc-s1", "ca-certificates"];

pub(super) fn make(release: &Release) -> Result<PathBuf, String> {
    let root = release.scratch.join("root");
    fill(release, &root)?;
    let layer = release.scratch.join("layer.tar");
    tree::pack(&root, &layer, false)?;
    let inside = digest(&std::fs::read(&layer).map_err(|error| format!("{}: {error}", layer.display()))?);
    quietly(Command::new("gzip").arg("--no-name").arg(&layer))?;
    let packed = layer.with_extension("tar.gz");
    let packed = std::fs::read(&packed).map_err(|error| format!("{}: {error}", packed.display()))?;

    let layout = release.scratch.join("layout");
    let blobs = layout.join("blobs/sha256");
    create(&blobs)?;
    let blob = |kind: &str, bytes: &[u8]| -> Result<Value, String> {
        let hash = digest(bytes);
        write(&blobs.join(&hash), bytes)?;
        let media = format!("application/vnd.oci.image.{kind}");
        Ok(json!({ "mediaType": media, "digest": format!("sha256:{hash}"), "size": bytes.len() }))
    };
    let layer = blob("layer.v1.tar+gzip", &packed)?;
    let config = blob("config.v1+json", config(release, &inside).to_string().as_bytes())?;
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": config,
        "layers": [layer],
    });
    let mut manifest = blob("manifest.v1+json", manifest.to_string().as_bytes())?;
    manifest["annotations"] = json!({ "org.opencontainers.image.ref.name": release.version });
    manifest["platform"] = json!({ "architecture": architecture(), "os": "linux" });
    let index = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [manifest],
    });
    write(&layout.join("index.json"), index.to_string())?;
    write(&layout.join("oci-layout"), json!({ "imageLayoutVersion": "1.0.0" }).to_string())?;
    let file = release.out.join(format!("{}.oci.tar", release.name()));
    tree::pack(&layout, &file, false)?;
    Ok(file)
}

/// The files of the image.
fn fill(release: &Release, root: &Path) -> Result<(), String> {
    tree::copy_all(&release.tree, &root.join("usr"))?;
    let below = |path: &Path| root.join(path.strip_prefix("/").unwrap_or(path));
    let programs = super::PROGRAMS.map(|program| release.tree.join("bin").join(program));
    for library in elf::libraries(&programs)? {
        tree::copy(&library, &below(&library))?;
    }
    if !Path::new(CERTIFICATES).is_file() {
        return Err(format!("{CERTIFICATES} is missing; run: apt-get install -y ca-certificates"));
    }
    tree::copy(Path::new(CERTIFICATES), &below(Path::new(CERTIFICATES)))?;
    let notices = root.join("usr/share/doc");
    for package in PACKAGES {
        let copyright = Path::new("/usr/share/doc").join(package).join("copyright");
        tree::copy(&copyright, &notices.join(package).join("copyright"))?;
    }
    tree::copy(&place::root().join("LICENSE"), &notices.join("espalier/LICENSE"))?;
    tree::copy(&release.notices, &notices.join("espalier/THIRD-PARTY.txt"))?;
    // Where runtimes mount, and what programs look for.
    for folder in ["proc", "sys", "dev", "run", "root", "tmp", "work"] {
        create(&root.join(folder))?;
    }
    std::fs::set_permissions(root.join("tmp"), std::fs::Permissions::from_mode(0o1777))
        .map_err(|error| format!("tmp: {error}"))?;
    write(&root.join("etc/passwd"), "root:x:0:0:root:/root:/\nnobody:x:65534:65534:nobody:/:/\n")?;
    write(&root.join("etc/group"), "root:x:0:\nnogroup:x:65534:\n")?;
    write(&root.join("etc/nsswitch.conf"), "passwd: files\ngroup: files\nhosts: files dns\n")
}

fn config(release: &Release, layer: &str) -> Value {
    json!({
        "architecture": architecture(),
        "os": "linux",
        "config": {
            "Entrypoint": ["/usr/bin/espalier"],
            "Cmd": ["--help"],
            "Env": ["PATH=/usr/bin", "HOME=/root", format!("SSL_CERT_FILE={CERTIFICATES}")],
            "WorkingDir": "/work",
            "Labels": {
                "org.opencontainers.image.title": "espalier",
                "org.opencontainers.image.version": release.version,
                "org.opencontainers.image.licenses": "Apache-2.0",
            },
        },
        "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{layer}")] },
        "history": [{ "created_by": "make dist" }],
    })
}

/// As OCI calls it.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

fn digest(bytes: &[u8]) -> String {
    hex::encode(Sha256::digest(bytes))
}

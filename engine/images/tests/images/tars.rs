//! Layers and layouts written byte by byte, legal ones and such as no tool would make.

use serde_json::{Value, json};
use sha2::Digest as _;
use std::io::Write;
use std::path::Path;

/// A tar in the making.
#[derive(Clone, Default)]
pub(crate) struct Tar {
    pub(crate) bytes: Vec<u8>,
}

/// What an entry has beside its name.
#[derive(Clone)]
pub(crate) struct Of<'a> {
    pub(crate) kind: u8,
    pub(crate) link: &'a [u8],
    pub(crate) mode: u32,
    pub(crate) owner: (u64, u64),
    pub(crate) mtime: u64,
    pub(crate) data: &'a [u8],
    pub(crate) pax: Vec<(&'a str, Vec<u8>)>,
    pub(crate) device: (u32, u32),
}

impl Default for Of<'_> {
    fn default() -> Self {
        let (link, data): (&[u8], &[u8]) = (b"", b"");
        Of {
            kind: b'0',
            link,
            mode: 0o644,
            owner: (0, 0),
            mtime: 1_500_000_000,
            data,
            pax: vec![],
            device: (0, 0),
        }
    }
}

impl Tar {
    pub(crate) fn new() -> Tar {
        Tar::default()
    }

    pub(crate) fn add(mut self, name: impl AsRef<[u8]>, of: &Of<'_>) -> Tar {
        self.push(name.as_ref(), of);
        self
    }

    pub(crate) fn file(self, name: impl AsRef<[u8]>, data: impl AsRef<[u8]>) -> Tar {
        self.add(name, &Of { data: data.as_ref(), ..Of::default() })
    }

    pub(crate) fn folder(self, name: impl AsRef<[u8]>) -> Tar {
        self.add(name, &Of { kind: b'5', mode: 0o755, ..Of::default() })
    }

    pub(crate) fn symlink(self, name: impl AsRef<[u8]>, target: impl AsRef<[u8]>) -> Tar {
        self.add(name, &Of { kind: b'2', link: target.as_ref(), mode: 0o777, ..Of::default() })
    }

    pub(crate) fn hard_link(self, name: impl AsRef<[u8]>, target: impl AsRef<[u8]>) -> Tar {
        self.add(name, &Of { kind: b'1', link: target.as_ref(), ..Of::default() })
    }

    pub(crate) fn push(&mut self, name: &[u8], of: &Of<'_>) {
        let mut records = Vec::new();
        let mut pax = of.pax.clone();
        if name.len() > 100 {
            pax.push(("path", name.to_vec()));
        }
        if of.link.len() > 100 {
            pax.push(("linkpath", of.link.to_vec()));
        }
        for (key, value) in &pax {
            let body = key.len() + value.len() + 3;
            let mut length = body;
            while length != body + length.to_string().len() {
                length = body + length.to_string().len();
            }
            records.extend_from_slice(format!("{length} {key}=").as_bytes());
            records.extend_from_slice(value);
            records.push(b'\n');
        }
        if !records.is_empty() {
            self.block(b"pax", b'x', &Of { data: &records, ..Of::default() });
        }
        self.block(name, of.kind, of);
    }

    fn block(&mut self, name: &[u8], kind: u8, of: &Of<'_>) {
        let mut header = tar::Header::new_ustar();
        let cut = |bytes: &[u8]| bytes[..bytes.len().min(100)].to_vec();
        let ustar = header.as_ustar_mut().unwrap();
        let name = cut(name);
        ustar.name[..name.len()].copy_from_slice(&name);
        let link = cut(of.link);
        ustar.linkname[..link.len()].copy_from_slice(&link);
        ustar.typeflag = [kind];
        header.set_mode(of.mode);
        header.set_uid(of.owner.0);
        header.set_gid(of.owner.1);
        header.set_mtime(of.mtime);
        header.set_size(of.data.len() as u64);
        header.set_device_major(of.device.0).unwrap();
        header.set_device_minor(of.device.1).unwrap();
        header.set_cksum();
        self.bytes.extend_from_slice(header.as_bytes());
        self.bytes.extend_from_slice(of.data);
        self.bytes.resize(self.bytes.len().next_multiple_of(512), 0);
    }

    pub(crate) fn end(mut self) -> Vec<u8> {
        self.bytes.resize(self.bytes.len() + 1024, 0);
        self.bytes
    }
}

/// How a layer is compressed.
#[derive(Clone, Copy, Debug)]
pub(crate) enum As {
    Tar,
    Gzip,
    Zstd,
}

pub(crate) fn digest(bytes: &[u8]) -> String {
    format!("sha256:{}", hex::encode(sha2::Sha256::digest(bytes)))
}

/// An image in the making: its blobs, and the descriptor of its manifest.
pub(crate) struct Made {
    pub(crate) blobs: Vec<Vec<u8>>,
    pub(crate) manifest: Vec<u8>,
    /// Digests of the compressed layers.
    pub(crate) layers: Vec<String>,
}

pub(crate) fn image(layers: &[(Vec<u8>, As)], architecture: &str, config: &Value) -> Made {
    let mut made = Made { blobs: vec![], manifest: vec![], layers: vec![] };
    let (mut entries, mut diff_ids) = (vec![], vec![]);
    for (tar, how) in layers {
        let (kind, blob) = match how {
            As::Tar => ("application/vnd.oci.image.layer.v1.tar", tar.clone()),
            As::Gzip => {
                let mut gzip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::new(1));
                gzip.write_all(tar).unwrap();
                ("application/vnd.oci.image.layer.v1.tar+gzip", gzip.finish().unwrap())
            }
            As::Zstd => {
                ("application/vnd.oci.image.layer.v1.tar+zstd", zstd::encode_all(&tar[..], 1).unwrap())
            }
        };
        diff_ids.push(digest(tar));
        entries.push(json!({"mediaType": kind, "digest": digest(&blob), "size": blob.len()}));
        made.layers.push(digest(&blob));
        made.blobs.push(blob);
    }
    let config = json!({
        "architecture": architecture, "os": "linux", "config": config,
        "rootfs": {"type": "layers", "diff_ids": diff_ids},
        "history": vec![json!({"created_by": "test"}); layers.len()],
    });
    let config = serde_json::to_vec(&config).unwrap();
    made.manifest = serde_json::to_vec(&json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": {
            "mediaType": "application/vnd.oci.image.config.v1+json",
            "digest": digest(&config), "size": config.len(),
        },
        "layers": entries,
    }))
    .unwrap();
    made.blobs.push(config);
    made
}

impl Made {
    /// As an entry of an index.
    pub(crate) fn descriptor(&self) -> Value {
        json!({
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "digest": digest(&self.manifest), "size": self.manifest.len(),
        })
    }

    /// Writes a layout with this image by this tag.
    pub(crate) fn layout(&self, folder: &Path, tag: &str) {
        let mut entry = self.descriptor();
        entry["annotations"] = json!({"org.opencontainers.image.ref.name": tag});
        layout(folder, &[self], &[entry]);
    }
}

pub(crate) fn layout(folder: &Path, images: &[&Made], entries: &[Value]) {
    let blobs = folder.join("blobs/sha256");
    std::fs::create_dir_all(&blobs).unwrap();
    for blob in images.iter().flat_map(|made| made.blobs.iter().chain([&made.manifest])) {
        std::fs::write(blobs.join(&digest(blob)[7..]), blob).unwrap();
    }
    let index = json!({"schemaVersion": 2, "manifests": entries});
    std::fs::write(folder.join("index.json"), index.to_string()).unwrap();
    std::fs::write(folder.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#).unwrap();
}

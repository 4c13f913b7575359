//! What index, manifest and configuration of an image say, as far as we need it.

use crate::{Digest, ImageError};
use oci_client::manifest::{ImageIndexEntry, OciDescriptor, OciImageIndex, OciImageManifest};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fmt;

/// Most bytes of an index or manifest, as registries bound them.
pub(crate) const MANIFEST_BYTES_MAX: u64 = 4 << 20;
/// Most bytes of a configuration.
pub(crate) const CONFIG_BYTES_MAX: u64 = 8 << 20;
/// Most layers: what the kernel stacks.
const LAYERS_MAX: usize = 500;

/// The annotation that names an image within a layout.
pub(crate) const TAG: &str = "org.opencontainers.image.ref.name";

/// What an image is made for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Platform {
    /// `linux`.
    pub os: String,
    /// As Go names it: `amd64`, `arm64`.
    pub architecture: String,
    /// Such as `v7`; `None` takes what comes first.
    pub variant: Option<String>,
}

impl Platform {
    /// This machine.
    pub fn this_machine() -> Platform {
        let architecture = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "x86" => "386",
            "aarch64" => "arm64",
            "powerpc64" => "ppc64le",
            "loongarch64" => "loong64",
            other => other,
        };
        Platform { os: "linux".to_owned(), architecture: architecture.to_owned(), variant: None }
    }

    fn fits(&self, os: &str, architecture: &str, variant: Option<&str>) -> bool {
        let variant_fits = self.variant.is_none() || self.variant.as_deref() == variant;
        self.os == os && self.architecture == architecture && variant_fits
    }
}

impl fmt::Display for Platform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.os, self.architecture)?;
        self.variant.as_ref().map_or(Ok(()), |variant| write!(f, "/{variant}"))
    }
}

/// An index or an image's manifest.
pub(crate) enum Document {
    Index(OciImageIndex),
    Image(Box<OciImageManifest>),
}

/// Reads either, by what it holds and not by what it was said to be.
pub(crate) fn document(bytes: &[u8], what: &str) -> Result<Document, ImageError> {
    let bad = |error: serde_json::Error| ImageError::bad(what, format!("not a manifest: {error}"));
    let value: serde_json::Value = serde_json::from_slice(bytes).map_err(bad)?;
    if value["schemaVersion"] == 1 {
        return Err(ImageError::bad(what, "it is a manifest of version 1, which cannot be verified"));
    }
    match (value.get("manifests").is_some(), value.get("layers").is_some()) {
        (true, true) => Err(ImageError::bad(what, "it has both layers and manifests")),
        (true, false) => serde_json::from_value(value).map(Document::Index).map_err(bad),
        (false, true) => {
            serde_json::from_value(value).map(|image| Document::Image(Box::new(image))).map_err(bad)
        }
        (false, false) => Err(ImageError::bad(what, "it has neither layers nor manifests")),
    }
}

/// The entry of an index that is for this platform.
pub(crate) fn choose<'a>(
    entries: &[&'a ImageIndexEntry],
    wanted: &Platform,
    image: &str,
) -> Result<&'a ImageIndexEntry, ImageError> {
    if let [only] = entries
        && only.platform.is_none()
    {
        return Ok(only);
    }
    let platforms =
        || entries.iter().filter_map(|entry| entry.platform.as_ref().map(|platform| (*entry, platform)));
    let found = platforms().find(|(_, platform)| {
        wanted.fits(&platform.os.to_string(), &platform.architecture.to_string(), platform.variant.as_deref())
    });
    if let Some((entry, _)) = found {
        return Ok(entry);
    }
    let mut available: Vec<String> = platforms()
        .map(|(_, platform)| Platform {
            os: platform.os.to_string(),
            architecture: platform.architecture.to_string(),
            variant: platform.variant.clone(),
        })
        // Attestations and the like are for no platform.
        .filter(|platform| platform.os != "unknown")
        .map(|platform| platform.to_string())
        .collect();
    available.sort();
    available.dedup();
    let available =
        if available.is_empty() { "nothing that says so".to_owned() } else { available.join(", ") };
    Err(ImageError::NoPlatform { image: image.to_owned(), wanted: wanted.to_string(), available })
}

/// One layer as a manifest and a configuration describe it.
#[derive(Clone, Debug)]
pub(crate) struct LayerOf {
    /// Digest of what is fetched.
    pub(crate) blob: Digest,
    /// Bytes of what is fetched.
    pub(crate) size: u64,
    /// Digest of the tar in it.
    pub(crate) diff_id: Digest,
}

/// A manifest with its configuration.
#[derive(Clone, Debug)]
pub(crate) struct Resolved {
    /// Digest of the manifest.
    pub(crate) digest: Digest,
    /// Lowest first.
    pub(crate) layers: Vec<LayerOf>,
    /// The configuration as it was written.
    pub(crate) config: serde_json::Value,
}

/// What a descriptor points at.
pub(crate) fn target(
    descriptor: &OciDescriptor,
    bytes_max: u64,
    what: &str,
) -> Result<(Digest, u64), ImageError> {
    let size = u64::try_from(descriptor.size).ok().filter(|size| *size <= bytes_max);
    let size = size.ok_or_else(|| {
        ImageError::bad(
            what,
            format!("{} bytes of {}, at most {bytes_max}", descriptor.size, descriptor.media_type),
        )
    })?;
    Ok((Digest::parse(&descriptor.digest, what)?, size))
}

/// Puts manifest and configuration together.
pub(crate) fn resolved(
    digest: Digest,
    manifest: &OciImageManifest,
    config: &[u8],
    wanted: &Platform,
    layer_bytes_max: u64,
    image: &str,
) -> Result<Resolved, ImageError> {
    let bad = |why: String| ImageError::bad(format!("image {image}"), why);
    let value: serde_json::Value = serde_json::from_slice(config)
        .map_err(|error| bad(format!("its configuration is not valid JSON: {error}")))?;
    let read: ConfigFile =
        Deserialize::deserialize(&value).map_err(|error| bad(format!("its configuration: {error}")))?;
    if !read.os.is_empty() && !read.architecture.is_empty() {
        let variant = read.variant.as_deref().filter(|variant| !variant.is_empty());
        if !wanted.fits(&read.os, &read.architecture, variant.or(wanted.variant.as_deref())) {
            let available = format!("{}/{}", read.os, read.architecture);
            return Err(ImageError::NoPlatform {
                image: image.to_owned(),
                wanted: wanted.to_string(),
                available,
            });
        }
    }
    let (layers, diff_ids) = (&manifest.layers, &read.rootfs.diff_ids);
    if layers.len() > LAYERS_MAX {
        return Err(ImageError::TooLarge {
            what: format!("image {image}"),
            bound: format!("{LAYERS_MAX} layers"),
        });
    }
    if layers.len() != diff_ids.len() {
        let (layers, diff_ids) = (layers.len(), diff_ids.len());
        return Err(bad(format!("its manifest has {layers} layers, its configuration {diff_ids}")));
    }
    let pairs = layers.iter().zip(diff_ids);
    let layers = pairs.map(|(layer, diff_id)| {
        let kind = &layer.media_type;
        if !kind.contains("tar") || kind.ends_with("encrypted") {
            return Err(bad(format!("a layer of type {kind}, which is not a tar archive")));
        }
        let what = format!("a layer of image {image}");
        let (blob, size) = target(layer, layer_bytes_max, &what)?;
        Ok(LayerOf { blob, size, diff_id: Digest::parse(diff_id, &what)? })
    });
    Ok(Resolved { digest, layers: layers.collect::<Result<_, _>>()?, config: value })
}

#[derive(Deserialize)]
struct ConfigFile {
    #[serde(default)]
    os: String,
    #[serde(default)]
    architecture: String,
    #[serde(default)]
    variant: Option<String>,
    #[serde(default)]
    config: Option<Execution>,
    rootfs: RootFs,
}

#[derive(Deserialize)]
struct RootFs {
    diff_ids: Vec<String>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Execution {
    user: Option<String>,
    env: Option<Vec<String>>,
    entrypoint: Option<Vec<String>>,
    cmd: Option<Vec<String>>,
    volumes: Option<BTreeMap<String, serde_json::Value>>,
    working_dir: Option<String>,
    labels: Option<BTreeMap<String, String>>,
    stop_signal: Option<String>,
}

/// How the image wants to be run. What an image leaves out is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImageConfig {
    /// Environment; of two settings of one name the later.
    pub env: BTreeMap<String, String>,
    /// Where commands start; `/` if it says nothing.
    pub workdir: String,
    /// `USER`, `UID`, `USER:GROUP` or `UID:GID`, as in the image's own `/etc/passwd`; empty is root.
    pub user: String,
    /// Put before every command.
    pub entrypoint: Vec<String>,
    /// What is run if nothing is said.
    pub command: Vec<String>,
    /// Folders that hold data beside the image.
    pub volumes: Vec<String>,
    /// Notes of those who made it.
    pub labels: BTreeMap<String, String>,
    /// Such as `SIGINT`; empty is SIGTERM.
    pub stop_signal: String,
    /// `linux`, where it says so.
    pub os: String,
    /// As Go names it, where it says so.
    pub architecture: String,
}

impl ImageConfig {
    /// Reads a configuration that [`resolved`] accepted.
    pub(crate) fn read(value: &serde_json::Value) -> ImageConfig {
        let Ok(file) = ConfigFile::deserialize(value) else { return ImageConfig::default() };
        let said = file.config.unwrap_or_default();
        let pair =
            |text: &String| text.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()));
        ImageConfig {
            env: said
                .env
                .unwrap_or_default()
                .iter()
                .filter_map(pair)
                .filter(|(name, _)| !name.is_empty())
                .collect(),
            workdir: said.working_dir.filter(|folder| !folder.is_empty()).unwrap_or_else(|| "/".to_owned()),
            user: said.user.unwrap_or_default(),
            entrypoint: said.entrypoint.unwrap_or_default(),
            command: said.cmd.unwrap_or_default(),
            volumes: said.volumes.unwrap_or_default().into_keys().collect(),
            labels: said.labels.unwrap_or_default(),
            stop_signal: said.stop_signal.unwrap_or_default(),
            os: file.os,
            architecture: file.architecture,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_of_nulls_is_an_empty_one() {
        let text =
            r#"{"rootfs":{"diff_ids":[]},"config":{"Env":null,"Cmd":null,"Volumes":null,"User":"1000:5"}}"#;
        let config = ImageConfig::read(&serde_json::from_str(text).unwrap());
        assert_eq!(
            config,
            ImageConfig { user: "1000:5".to_owned(), workdir: "/".to_owned(), ..Default::default() }
        );
        let text =
            r#"{"rootfs":{"diff_ids":[]},"config":{"Env":["A=1=2","A=3","B","=x"],"Volumes":{"/data":{}}}}"#;
        let config = ImageConfig::read(&serde_json::from_str(text).unwrap());
        assert_eq!(config.env, BTreeMap::from([("A".to_owned(), "3".to_owned())]));
        assert_eq!(config.volumes, ["/data"]);
    }

    #[test]
    fn of_an_index_the_entry_of_the_platform_is_taken() {
        let index = |platforms: &[&str]| -> OciImageIndex {
            let entry = |(number, platform): (usize, &&str)| {
                let mut parts = platform.split('/');
                let (os, architecture) = (parts.next(), parts.next());
                let mut platform = serde_json::json!({"os": os, "architecture": architecture});
                if let Some(variant) = parts.next() {
                    platform["variant"] = variant.into();
                }
                serde_json::json!({"mediaType": "m", "size": number, "digest": "d", "platform": platform})
            };
            let manifests: Vec<_> = platforms.iter().enumerate().map(entry).collect();
            serde_json::from_value(serde_json::json!({"schemaVersion": 2, "manifests": manifests})).unwrap()
        };
        let check = |platforms: &[&str], wanted: &str, expect: Result<i64, &str>| {
            let mut parts = wanted.split('/').map(str::to_owned);
            let mut part = || parts.next();
            let wanted = Platform { os: part().unwrap(), architecture: part().unwrap(), variant: part() };
            let index = index(platforms);
            let entries: Vec<_> = index.manifests.iter().collect();
            let found =
                choose(&entries, &wanted, "a").map(|entry| entry.size).map_err(|error| error.to_string());
            assert_eq!(found, expect.map_err(str::to_owned));
        };
        let both = ["linux/arm/v6", "linux/arm/v7", "linux/amd64", "unknown/unknown"];
        check(&both, "linux/amd64", Ok(2));
        check(&both, "linux/arm", Ok(0));
        check(&both, "linux/arm/v7", Ok(1));
        check(
            &both,
            "linux/s390x",
            Err("image a is not available for linux/s390x, only for linux/amd64, linux/arm/v6, linux/arm/v7"),
        );
        check(
            &[],
            "linux/amd64",
            Err("image a is not available for linux/amd64, only for nothing that says so"),
        );
    }
}

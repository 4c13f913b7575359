//! Where an image comes from, as people write it.

use crate::ImageError;
use oci_client::Reference;
use std::fmt;
use std::path::PathBuf;

/// The name of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// This machine's own root, read-only below the sandbox. Not the store's: the backend knows it.
    Host,
    /// In a registry, by tag, by digest or by both (then the digest counts).
    Registry(Reference),
    /// A folder in the OCI layout.
    Layout {
        /// The folder.
        folder: PathBuf,
        /// `None` where the folder has one image only.
        tag: Option<String>,
    },
    /// A tar of an OCI layout.
    Archive {
        /// The file.
        file: PathBuf,
        /// `None` where the file has one image only.
        tag: Option<String>,
    },
    /// A checkpoint of a sandbox. Not the store's: the backend knows it.
    Checkpoint(String),
}

impl Source {
    /// Reads `host`, `NAME[:TAG][@DIGEST]`, `oci:FOLDER[:TAG]`, `oci-archive:FILE[:TAG]` or `checkpoint:ID`.
    pub fn parse(text: &str) -> Result<Source, ImageError> {
        let refused = |why: &str| ImageError::BadName { text: text.to_owned(), why: why.to_owned() };
        if text == "host" {
            return Ok(Source::Host);
        }
        if let Some(rest) = text.strip_prefix("oci:") {
            let (folder, tag) = path_and_tag(rest).ok_or_else(|| refused("the folder is missing"))?;
            return Ok(Source::Layout { folder, tag });
        }
        if let Some(rest) = text.strip_prefix("oci-archive:") {
            let (file, tag) = path_and_tag(rest).ok_or_else(|| refused("the file is missing"))?;
            return Ok(Source::Archive { file, tag });
        }
        if let Some(id) = text.strip_prefix("checkpoint:") {
            let letter = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
            if id.is_empty() || id.starts_with('.') || id.len() > 128 || !id.chars().all(letter) {
                return Err(refused("a checkpoint's id is up to 128 letters, digits, `-`, `_` and `.`"));
            }
            return Ok(Source::Checkpoint(id.to_owned()));
        }
        let name = text.strip_prefix("docker://").unwrap_or(text);
        if name.contains("://") {
            return Err(refused("write the name of an image in a registry without a scheme"));
        }
        match Reference::try_from(name) {
            Ok(reference) => Ok(Source::Registry(reference)),
            Err(error) => Err(refused(&error.to_string())),
        }
    }
}

/// A tag holds no slash, so that what follows the last colon is one only where it could be.
fn path_and_tag(text: &str) -> Option<(PathBuf, Option<String>)> {
    let letter = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let (path, tag) = match text.rsplit_once(':') {
        Some((path, tag)) if !tag.is_empty() && tag.len() <= 128 && tag.chars().all(letter) => {
            (path, Some(tag))
        }
        _ => (text, None),
    };
    if path.is_empty() { None } else { Some((PathBuf::from(path), tag.map(str::to_owned))) }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tagged = |f: &mut fmt::Formatter<'_>, scheme, path: &PathBuf, tag: &Option<String>| {
            write!(f, "{scheme}:{}", path.display())?;
            tag.as_ref().map_or(Ok(()), |tag| write!(f, ":{tag}"))
        };
        match self {
            Source::Host => f.write_str("host"),
            Source::Registry(reference) => write!(f, "{reference}"),
            Source::Layout { folder, tag } => tagged(f, "oci", folder, tag),
            Source::Archive { file, tag } => tagged(f, "oci-archive", file, tag),
            Source::Checkpoint(id) => write!(f, "checkpoint:{id}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_is_read_and_written_back() {
        let check = |text: &str, back: &str| {
            let source = Source::parse(text).unwrap();
            assert_eq!(source.to_string(), back);
            assert_eq!(Source::parse(back).unwrap(), source);
        };
        check("host", "host");
        check("debian", "docker.io/library/debian:latest");
        check("debian:12", "docker.io/library/debian:12");
        check("docker://a/b:1", "docker.io/a/b:1");
        check("127.0.0.1:5000/a/b:t", "127.0.0.1:5000/a/b:t");
        let digest = format!("ghcr.io/a/b:t@sha256:{}", "0a".repeat(32));
        check(&digest, &digest);
        check("oci:/tmp/folder", "oci:/tmp/folder");
        check("oci:/tmp/fol:der/x:v1.2", "oci:/tmp/fol:der/x:v1.2");
        check("oci-archive:a.tar:latest", "oci-archive:a.tar:latest");
        check("checkpoint:c-1", "checkpoint:c-1");
        let Source::Layout { folder, tag } = Source::parse("oci:/a:b/c").unwrap() else { panic!("a layout") };
        assert_eq!((folder, tag), (PathBuf::from("/a:b/c"), None));
    }

    #[test]
    fn what_names_nothing_says_why() {
        let why = |text: &str| match Source::parse(text) {
            Err(ImageError::BadName { why, .. }) => why,
            other => panic!("{text}: {other:?}"),
        };
        assert_eq!(why("oci:"), "the folder is missing");
        assert_eq!(why("oci-archive::tag"), "the file is missing");
        assert_eq!(why("https://a/b"), "write the name of an image in a registry without a scheme");
        assert_eq!(why("Debian"), "invalid reference format");
        assert_eq!(why("a@sha256:12345678901234567890123456789012"), "invalid checksum digest length");
        assert!(why("checkpoint:../x").starts_with("a checkpoint's id"));
    }
}

//! Images that models are shown: what they may be.

/// Kinds of images.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImageKind {
    /// `image/png`.
    Png,
    /// `image/jpeg`.
    Jpeg,
    /// `image/webp`.
    Webp,
}

/// What a model is shown in the place of an image that was left out.
pub const PLACEHOLDER: &str = "[an earlier image]";
/// Bytes of a file that tell its kind.
pub const SIGNATURE_BYTES: u32 = 12;

impl ImageKind {
    /// All of them.
    pub const ALL: [ImageKind; 3] = [ImageKind::Png, ImageKind::Jpeg, ImageKind::Webp];

    /// The kind of a file, by its first [`SIGNATURE_BYTES`].
    pub fn of(bytes: &[u8]) -> Option<ImageKind> {
        match bytes {
            [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1a, b'\n', ..] => Some(ImageKind::Png),
            [0xff, 0xd8, 0xff, ..] => Some(ImageKind::Jpeg),
            [b'R', b'I', b'F', b'F', _, _, _, _, b'W', b'E', b'B', b'P', ..] => Some(ImageKind::Webp),
            _ => None,
        }
    }

    /// `image/png`, `image/jpeg`, `image/webp`.
    pub fn media_type(self) -> &'static str {
        match self {
            ImageKind::Png => "image/png",
            ImageKind::Jpeg => "image/jpeg",
            ImageKind::Webp => "image/webp",
        }
    }

    /// Ending of a file's name, without the dot.
    pub fn extension(self) -> &'static str {
        match self {
            ImageKind::Png => "png",
            ImageKind::Jpeg => "jpg",
            ImageKind::Webp => "webp",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_told_apart_by_their_beginning() {
        let cases: [(&[u8], Option<ImageKind>); 6] = [
            (b"\x89PNG\r\n\x1a\n", Some(ImageKind::Png)),
            (b"\xff\xd8\xff\xe0\0\x10JFIF", Some(ImageKind::Jpeg)),
            (b"RIFF\x24\0\0\0WEBPVP8 ", Some(ImageKind::Webp)),
            (b"RIFF\x24\0\0\0WAVEfmt ", None),
            (b"GIF89a", None),
            (b"", None),
        ];
        for (bytes, kind) in cases {
            assert_eq!(ImageKind::of(bytes), kind, "{bytes:?}");
        }
    }
}

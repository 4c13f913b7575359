//! Images in messages: checked when they are appended, left out by [`elide`], read when they are sent.
//!
//! What was said stays as it is. A conversation knows how many of its images, from the first, are left out; [`shown`] is what the model
//! is shown then.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use espalier_core::chat::{Message, Part, Role};
use espalier_core::failure::Failure;
use espalier_core::host::Blobs;
use espalier_core::image::{ImageKind, SIGNATURE_BYTES};
use std::borrow::Cow;
use std::collections::BTreeMap;

pub use espalier_core::image::PLACEHOLDER;

/// Largest image, bytes.
pub const BYTES_MAX: u64 = 20 << 20;
/// Most images of one request.
pub const COUNT_MAX: usize = 64;
/// Most bytes of the images of one request.
pub const TOTAL_BYTES_MAX: u64 = 64 << 20;
/// In what a model is shown: the reference of an image that was left out.
pub(crate) const ELIDED: &str = "";
/// A white square of 64 pixels, for finding out whether a model takes images.
pub(crate) const SQUARE: &str = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAEAAAABACAIAAAAlC+aJAAAAS0lEQVR42u3PMQ0AAAwDoPo33UrYvQQckD4XAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAQEBAYHLAMpT0sIcNbcEAAAAAElFTkSuQmCC";

/// Bytes of a blob that are read at a time.
const READ_BYTES: u32 = 1 << 20;

/// What each image of these messages is: a `data:` URL by its reference.
pub(crate) type DataUrls = BTreeMap<String, String>;

/// The images of these messages, each with the index and role of its message.
pub(crate) fn of(messages: &[Message]) -> impl Iterator<Item = (usize, Role, &str)> {
    messages.iter().enumerate().flat_map(|(index, message)| {
        message.parts.iter().filter_map(move |part| match part {
            Part::Image(blob) => Some((index, message.role, blob.as_str())),
            _ => None,
        })
    })
}

/// Refuses what cannot be sent, from message `from` on. Errors: `Invalid`.
pub(crate) async fn check(
    messages: &[Message],
    from: usize,
    blobs: Option<&dyn Blobs>,
) -> Result<(), Failure> {
    for (index, role, blob) in of(messages).filter(|(index, ..)| *index >= from) {
        let invalid = |text: String| Err(Failure::Invalid(format!("message {index}: {text}")));
        if !matches!(role, Role::User | Role::Tool) {
            return invalid(format!(
                "an image in a message of the role {}; images are for `user` and `tool`",
                role.as_str()
            ));
        }
        let Some(blobs) = blobs else { return invalid("an image, but there are no blobs here".to_owned()) };
        let info = blobs.stat(blob).await?;
        let Some(kind) = ImageKind::ALL.into_iter().find(|kind| kind.media_type() == info.media_type) else {
            let kinds = ImageKind::ALL.map(ImageKind::media_type).join(", ");
            return invalid(format!("blob {blob} is {:?}, expected one of {kinds}", info.media_type));
        };
        if info.length > BYTES_MAX {
            return invalid(format!("an image of {} bytes; at most {BYTES_MAX}", info.length));
        }
        let found = ImageKind::of(&blobs.read(blob, 0, SIGNATURE_BYTES).await?);
        if found != Some(kind) {
            let found = found.map_or("no image", ImageKind::media_type);
            return invalid(format!("blob {blob} is said to be {}, its bytes are {found}", info.media_type));
        }
    }
    Ok(())
}

/// Reads the images of messages that were checked. Errors: `Invalid` for more than one request may carry.
pub(crate) async fn read(messages: &[Message], blobs: Option<&dyn Blobs>) -> Result<DataUrls, Failure> {
    let mut urls = DataUrls::new();
    let (mut count, mut total) = (0, 0);
    for (_, _, blob) in of(messages).filter(|(_, _, blob)| *blob != ELIDED) {
        count += 1;
        let Some(blobs) = blobs.filter(|_| !urls.contains_key(blob) && count <= COUNT_MAX) else { continue };
        let info = blobs.stat(blob).await?;
        total += info.length;
        if total > TOTAL_BYTES_MAX {
            return Err(too_much(&format!("more than {TOTAL_BYTES_MAX} bytes of images")));
        }
        urls.insert(blob.to_owned(), read_one(blob, blobs).await?);
    }
    check_count(count)?;
    Ok(urls)
}

/// Refuses more images than one request may carry. Errors: `Invalid`.
pub(crate) fn check_count(count: usize) -> Result<(), Failure> {
    if count > COUNT_MAX {
        return Err(too_much(&format!("{count} images, at most {COUNT_MAX}")));
    }
    Ok(())
}

fn too_much(what: &str) -> Failure {
    Failure::Invalid(format!("{what} in one request; `elide-images` leaves the last ones"))
}

/// One image as a `data:` URL.
pub(crate) async fn read_one(blob: &str, blobs: &dyn Blobs) -> Result<String, Failure> {
    let info = blobs.stat(blob).await?;
    let mut bytes = Vec::new();
    while (bytes.len() as u64) < info.length {
        let piece = blobs.read(blob, bytes.len() as u64, READ_BYTES).await?;
        if piece.is_empty() {
            break;
        }
        bytes.extend(piece);
    }
    Ok(format!("data:{};base64,{}", info.media_type, STANDARD.encode(&bytes)))
}

/// How many images, from the first, are left out where the last `keep` stay; never fewer than `elided` before.
pub(crate) fn elide(messages: &[Message], keep: u32, elided: u32) -> u32 {
    let count = of(messages).count();
    elided.max(u32::try_from(count).unwrap_or(u32::MAX).saturating_sub(keep))
}

/// What the model is shown: the first `elided` images are left out.
pub(crate) fn shown(messages: &[Message], elided: u32) -> Cow<'_, [Message]> {
    if elided == 0 {
        return Cow::Borrowed(messages);
    }
    let mut shown = messages.to_vec();
    let parts = shown.iter_mut().flat_map(|message| &mut message.parts);
    let images = parts.filter_map(|part| match part {
        Part::Image(blob) => Some(blob),
        _ => None,
    });
    for blob in images.take(elided as usize) {
        ELIDED.clone_into(blob);
    }
    Cow::Owned(shown)
}

#[cfg(test)]
mod tests {
    use super::*;
    use async_trait::async_trait;
    use espalier_core::host::BlobInfo;

    const PNG: &[u8] = b"\x89PNG\r\n\x1a\n";

    /// `png` is the beginning of one, read at most five bytes at a time behind its signature; `large` and others are less.
    struct Fake;

    #[async_trait]
    impl Blobs for Fake {
        async fn put(&self, _: Vec<u8>, _: &str) -> Result<String, Failure> {
            Err(Failure::Invalid("read only".to_owned()))
        }

        async fn stat(&self, blob: &str) -> Result<BlobInfo, Failure> {
            let (length, media_type) = match blob {
                "text" => (3, "text/plain"),
                "gif" => (3, "image/gif"),
                "huge" => (BYTES_MAX + 1, "image/png"),
                "large" => (BYTES_MAX, "image/png"),
                "jpeg" => (8, "image/jpeg"),
                _ if blob.starts_with("png") => (8, "image/png"),
                _ => return Err(Failure::Invalid(format!("no blob {blob}"))),
            };
            Ok(BlobInfo { length, media_type: media_type.to_owned() })
        }

        async fn read(&self, blob: &str, offset: u64, length: u32) -> Result<Vec<u8>, Failure> {
            if blob == "large" {
                return Ok(vec![0; length as usize]);
            }
            let rest = &PNG[offset as usize..];
            Ok(rest[..rest.len().min(5.max(length as usize % 1024))].to_vec())
        }
    }

    fn with(role: Role, blob: &str) -> Message {
        let parts = vec![Part::Text("look".to_owned()), Part::Image(blob.to_owned())];
        Message { role, parts, extra: None }
    }

    #[tokio::test]
    async fn what_cannot_be_sent_is_refused_by_name() {
        let check = |message: Message, blobs: bool| async move {
            let blobs: Option<&dyn Blobs> = if blobs { Some(&Fake) } else { None };
            super::check(&[message], 0, blobs).await.map_err(|failure| failure.to_string())
        };
        assert_eq!(check(with(Role::User, "png"), true).await, Ok(()));
        assert_eq!(check(with(Role::Tool, "png"), true).await, Ok(()));
        assert_eq!(check(Message::text(Role::Tool, "no image"), false).await, Ok(()));
        for (message, blobs, told) in [
            (with(Role::System, "png"), true, "message 0: an image in a message of the role system"),
            (with(Role::Assistant, "png"), true, "images are for `user` and `tool`"),
            (
                with(Role::User, "text"),
                true,
                "blob text is \"text/plain\", expected one of image/png, image/jpeg, image/webp",
            ),
            (with(Role::User, "gif"), true, "blob gif is \"image/gif\""),
            (with(Role::User, "jpeg"), true, "is said to be image/jpeg, its bytes are image/png"),
            (with(Role::User, "large"), true, "is said to be image/png, its bytes are no image"),
            (with(Role::User, "huge"), true, "an image of 20971521 bytes; at most 20971520"),
            (with(Role::User, "png"), false, "there are no blobs here"),
            (with(Role::User, "foreign"), true, "no blob foreign"),
        ] {
            let error = check(message, blobs).await.unwrap_err();
            assert!(error.contains(told), "{error}");
        }
    }

    #[tokio::test]
    async fn images_are_read_whole_and_earlier_ones_left_out() {
        let messages = vec![with(Role::User, "png1"), with(Role::Tool, "png2"), with(Role::User, "png1")];
        let url = "data:image/png;base64,iVBORw0KGgo=".to_owned();
        let urls = read(&messages, Some(&Fake)).await.unwrap();
        assert_eq!(urls, DataUrls::from([("png1".to_owned(), url.clone()), ("png2".to_owned(), url)]));
        assert_eq!((elide(&messages, 1, 0), elide(&messages, 9, 2), elide(&messages, 0, 0)), (2, 2, 3));
        let left: Vec<String> = of(&shown(&messages, 2)).map(|(_, _, blob)| blob.to_owned()).collect();
        assert_eq!(left, [ELIDED, ELIDED, "png1"]);
        assert_eq!(read(&shown(&messages, 2), Some(&Fake)).await.unwrap().len(), 1);
    }

    #[tokio::test]
    async fn a_request_carries_only_so_many() {
        let many: Vec<Message> = (0..=COUNT_MAX).map(|_| with(Role::User, "png")).collect();
        assert_eq!(read(&many[1..], Some(&Fake)).await.unwrap().len(), 1);
        let error = read(&many, Some(&Fake)).await.unwrap_err().to_string();
        assert!(error.contains("65 images, at most 64 in one request; `elide-images`"), "{error}");
    }
}

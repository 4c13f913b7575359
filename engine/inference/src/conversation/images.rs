//! Images in messages, for endpoints that take them: checked when they are appended, read when they are sent.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use espalier_core::chat::{Message, Part, Role};
use espalier_core::failure::Failure;
use espalier_core::host::Blobs;
use std::collections::BTreeMap;

/// Largest image, bytes.
const BYTES_MAX: u64 = 20 << 20;
/// Bytes of a blob that are read at a time.
const READ_BYTES: u32 = 1 << 20;
/// What stands in the place of an image that was left out.
const PLACEHOLDER: &str = "[an earlier image]";

/// What each image of these messages is: a `data:` URL by its reference.
pub(super) type DataUrls = BTreeMap<String, String>;

fn of(messages: &[Message]) -> impl Iterator<Item = (usize, Role, &str)> {
    messages.iter().enumerate().flat_map(|(index, message)| {
        message.parts.iter().filter_map(move |part| match part {
            Part::Image(blob) => Some((index, message.role, blob.as_str())),
            _ => None,
        })
    })
}

/// Refuses what cannot be sent. Errors: `Invalid`.
pub(super) async fn check(messages: &[Message], blobs: Option<&dyn Blobs>) -> Result<(), Failure> {
    for (index, role, blob) in of(messages) {
        let invalid = |text: String| Err(Failure::Invalid(format!("message {index}: {text}")));
        if role != Role::User {
            return invalid(format!(
                "an image in a message of the role {}; images are for `user`",
                role.as_str()
            ));
        }
        let Some(blobs) = blobs else { return invalid("an image, but there are no blobs here".to_owned()) };
        let info = blobs.stat(blob).await?;
        if !info.media_type.starts_with("image/") {
            return invalid(format!("blob {blob} is {:?}, expected an image", info.media_type));
        }
        if info.length > BYTES_MAX {
            return invalid(format!("an image of {} bytes is over {BYTES_MAX}", info.length));
        }
    }
    Ok(())
}

/// Reads the images of messages that were checked.
pub(super) async fn read(messages: &[Message], blobs: Option<&dyn Blobs>) -> Result<DataUrls, Failure> {
    let mut urls = DataUrls::new();
    for (_, _, blob) in of(messages) {
        let Some(blobs) = blobs.filter(|_| !urls.contains_key(blob)) else { continue };
        let info = blobs.stat(blob).await?;
        let mut bytes = Vec::new();
        while (bytes.len() as u64) < info.length {
            let piece = blobs.read(blob, bytes.len() as u64, READ_BYTES).await?;
            if piece.is_empty() {
                break;
            }
            bytes.extend(piece);
        }
        let url = format!("data:{};base64,{}", info.media_type, STANDARD.encode(&bytes));
        urls.insert(blob.to_owned(), url);
    }
    Ok(urls)
}

/// Replaces all images but the last `keep`. Returns how many.
pub(super) fn elide(messages: &mut [Message], keep: u32) -> u32 {
    let parts = messages.iter_mut().rev().flat_map(|message| message.parts.iter_mut().rev());
    let images = parts.filter(|part| matches!(part, Part::Image(_)));
    let mut elided = 0;
    for part in images.skip(keep as usize) {
        *part = Part::Text(PLACEHOLDER.to_owned());
        elided += 1;
    }
    elided
}

#[cfg(test)]
mod tests {
    use super::*;
    use async_trait::async_trait;
    use espalier_core::host::BlobInfo;

    /// `png` is an image of three bytes, read one at a time; `text` is none; `huge` is too large.
    struct Fake;

    #[async_trait]
    impl Blobs for Fake {
        async fn put(&self, _: Vec<u8>, _: &str) -> Result<String, Failure> {
            Err(Failure::Invalid("read only".to_owned()))
        }

        async fn stat(&self, blob: &str) -> Result<BlobInfo, Failure> {
            let (length, media_type) = match blob {
                "png" => (3, "image/png"),
                "text" => (3, "text/plain"),
                "huge" => (BYTES_MAX + 1, "image/png"),
                _ => return Err(Failure::Invalid(format!("no blob {blob}"))),
            };
            Ok(BlobInfo { length, media_type: media_type.to_owned() })
        }

        async fn read(&self, _: &str, offset: u64, _: u32) -> Result<Vec<u8>, Failure> {
            Ok(vec![b'a' + offset as u8])
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
            super::check(&[message], blobs).await.map_err(|failure| failure.to_string())
        };
        assert_eq!(check(with(Role::User, "png"), true).await, Ok(()));
        assert_eq!(check(Message::text(Role::Tool, "no image"), false).await, Ok(()));
        for (message, blobs, told) in [
            (with(Role::Tool, "png"), true, "message 0: an image in a message of the role tool"),
            (with(Role::User, "text"), true, "blob text is \"text/plain\", expected an image"),
            (with(Role::User, "huge"), true, "is over 20971520"),
            (with(Role::User, "png"), false, "there are no blobs here"),
            (with(Role::User, "foreign"), true, "no blob foreign"),
        ] {
            let error = check(message, blobs).await.unwrap_err();
            assert!(error.contains(told), "{error}");
        }
    }

    #[tokio::test]
    async fn images_are_read_whole_and_earlier_ones_left_out() {
        let mut messages = vec![with(Role::User, "png"), with(Role::User, "png"), with(Role::User, "png")];
        let urls = read(&messages, Some(&Fake)).await.unwrap();
        assert_eq!(urls, DataUrls::from([("png".to_owned(), "data:image/png;base64,YWJj".to_owned())]));
        assert_eq!((elide(&mut messages, 1), elide(&mut messages, 1)), (2, 0));
        assert_eq!(messages[0].joined_text(), "look[an earlier image]");
        assert_eq!(messages[2], with(Role::User, "png"));
    }
}

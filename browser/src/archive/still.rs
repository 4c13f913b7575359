//! Images that move by themselves: no clock of ours reaches them, so that pages of deterministic episodes get their first
//! picture only.

use bytes::{BufMut, Bytes, BytesMut};

/// What a page of a deterministic episode may get of a body.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Still {
    /// All of it.
    Same,
    /// The first picture of an animation.
    First(Bytes),
    /// Nothing: the name of what moves.
    Refused(&'static str),
}

const PNG: &[u8] = b"\x89PNG\r\n\x1a\n";
/// What a block of a GIF begins with.
const GIF_EXTENSION: u8 = 0x21;
const GIF_IMAGE: u8 = 0x2c;
const GIF_END: u8 = 0x3b;

pub(super) fn still(body: &Bytes) -> Still {
    if body.starts_with(b"GIF8") {
        return first_of_gif(body).map_or(Still::Same, Still::First);
    }
    if body.starts_with(PNG) {
        return without_animation(body).map_or(Still::Same, Still::First);
    }
    let is_webp = body.starts_with(b"RIFF") && body.get(8..12) == Some(b"WEBP");
    // The extended header, whose second bit says that it moves.
    if is_webp && body.get(12..16) == Some(b"VP8X") && body.get(20).is_some_and(|flags| flags & 2 != 0) {
        return Still::Refused("animated WebP image");
    }
    Still::Same
}

/// The GIF up to the end of its first picture; `None` where it has one only, or cannot be read.
fn first_of_gif(body: &Bytes) -> Option<Bytes> {
    let table = |flags: u8| if flags & 0x80 == 0 { 0 } else { 3 << ((flags & 7) + 1) };
    let mut at = 13 + table(*body.get(10)?);
    let skip_blocks = |mut at: usize| loop {
        let length = usize::from(*body.get(at)?);
        at += 1 + length;
        if length == 0 {
            return Some(at);
        }
    };
    let mut first = None;
    loop {
        match *body.get(at)? {
            GIF_EXTENSION => at = skip_blocks(at + 2)?,
            GIF_IMAGE if first.is_some() => break,
            GIF_IMAGE => {
                // The descriptor, its table of colours, and the size of the first code.
                at = skip_blocks(at + 10 + table(*body.get(at + 9)?) + 1)?;
                first = Some(at);
            }
            _ => return None,
        }
    }
    let mut cut = BytesMut::from(&body[..first?]);
    cut.put_u8(GIF_END);
    Some(cut.freeze())
}

/// The PNG without the chunk that says that it moves; `None` where it has none.
fn without_animation(body: &Bytes) -> Option<Bytes> {
    let mut at = PNG.len();
    loop {
        let length = u32::from_be_bytes(body.get(at..at + 4)?.try_into().ok()?);
        let end = at.checked_add(12)?.checked_add(usize::try_from(length).ok()?)?;
        match body.get(at + 4..at + 8)? {
            b"acTL" => return Some([body.get(..at)?, body.get(end..)?].concat().into()),
            b"IDAT" => return None,
            _ => at = end,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gif(pictures: &[&[u8]]) -> Bytes {
        let mut gif = b"GIF89a\x01\0\x01\0\x80\0\0\xff\0\0\0\0\xff".to_vec();
        gif.extend_from_slice(b"\x21\xff\x0bNETSCAPE2.0\x03\x01\0\0\0");
        for picture in pictures {
            gif.extend_from_slice(b"\x21\xf9\x04\0\x05\0\0\0\x2c\0\0\0\0\x01\0\x01\0\0");
            gif.extend_from_slice(picture);
        }
        gif.push(GIF_END);
        gif.into()
    }

    fn png(chunks: &[(&[u8; 4], &[u8])]) -> Bytes {
        let mut png = PNG.to_vec();
        for (name, data) in chunks {
            png.extend_from_slice(&(data.len() as u32).to_be_bytes());
            png.extend_from_slice(*name);
            png.extend_from_slice(data);
            png.extend_from_slice(&[0; 4]);
        }
        png.into()
    }

    #[test]
    fn animations_are_cut_to_their_first_picture() {
        let (red, blue): (&[u8], &[u8]) = (b"\x02\x02\x44\x01\0", b"\x02\x02\x4c\x01\0");
        let table = [
            (gif(&[red]), Still::Same),
            (gif(&[red, blue]), Still::First(gif(&[red]))),
            (gif(&[red, blue, red]), Still::First(gif(&[red]))),
            (gif(&[red, blue]).slice(..60), Still::Same),
            (png(&[(b"IHDR", b"x"), (b"IDAT", b"yz")]), Still::Same),
            (
                png(&[(b"IHDR", b"x"), (b"acTL", b"8 bytes."), (b"IDAT", b"yz")]),
                Still::First(png(&[(b"IHDR", b"x"), (b"IDAT", b"yz")])),
            ),
            (
                Bytes::from_static(b"RIFF\0\0\0\0WEBPVP8X\x0a\0\0\0\x02\0\0\0"),
                Still::Refused("animated WebP image"),
            ),
            (Bytes::from_static(b"RIFF\0\0\0\0WEBPVP8X\x0a\0\0\0\x10\0\0\0"), Still::Same),
            (Bytes::from_static(b"<html>"), Still::Same),
        ];
        for (body, expected) in table {
            assert_eq!(still(&body), expected, "{body:?}");
        }
    }
}

//! Pictures of cases: the size of a file, and white ones that are made.

use espalier_core::image::ImageKind;
use flate2::Compression;
use flate2::write::ZlibEncoder;
use std::io::Write;

/// Width and height of a PNG, JPEG or WebP file; `None`: it is none.
pub(crate) fn size(bytes: &[u8]) -> Option<(u32, u32)> {
    match ImageKind::of(bytes)? {
        ImageKind::Png => Some((be(bytes, 16, 4)?, be(bytes, 20, 4)?)),
        ImageKind::Jpeg => jpeg(bytes),
        ImageKind::Webp => webp(bytes),
    }
    .filter(|(width, height)| *width > 0 && *height > 0)
}

fn be(bytes: &[u8], at: usize, length: usize) -> Option<u32> {
    let digits = bytes.get(at..at + length)?;
    Some(digits.iter().fold(0, |sum, byte| (sum << 8) | u32::from(*byte)))
}

fn le(bytes: &[u8], at: usize, length: usize) -> Option<u32> {
    let digits = bytes.get(at..at + length)?;
    Some(digits.iter().rev().fold(0, |sum, byte| (sum << 8) | u32::from(*byte)))
}

/// From the first frame header; those are the markers C0 to CF but for three.
fn jpeg(bytes: &[u8]) -> Option<(u32, u32)> {
    let mut at = 2;
    loop {
        let marker = be(bytes, at, 2)?;
        match marker {
            0xffff => at += 1,
            0xffc4 | 0xffc8 | 0xffcc => at += 2 + be(bytes, at + 2, 2)? as usize,
            0xffc0..=0xffcf => return Some((be(bytes, at + 7, 2)?, be(bytes, at + 5, 2)?)),
            0xff00.. => at += 2 + be(bytes, at + 2, 2)? as usize,
            _ => return None,
        }
    }
}

/// Of the three forms: with losses, without, and the one with a header of its own.
fn webp(bytes: &[u8]) -> Option<(u32, u32)> {
    match bytes.get(12..16)? {
        b"VP8 " => Some((le(bytes, 26, 2)? & 0x3fff, le(bytes, 28, 2)? & 0x3fff)),
        b"VP8L" => {
            let bits = le(bytes, 21, 4)?;
            Some(((bits & 0x3fff) + 1, ((bits >> 14) & 0x3fff) + 1))
        }
        b"VP8X" => Some((le(bytes, 24, 3)? + 1, le(bytes, 27, 3)? + 1)),
        _ => None,
    }
}

/// A white picture as PNG. Bytes are the same wherever it is made.
pub(crate) fn white(width: u32, height: u32) -> std::io::Result<Vec<u8>> {
    let mut pixels = ZlibEncoder::new(Vec::new(), Compression::fast());
    // One bit a pixel, white is 1; each line begins with the number of its filter.
    let mut line = vec![0xff; 1 + width.div_ceil(8) as usize];
    line[0] = 0;
    for _ in 0..height {
        pixels.write_all(&line)?;
    }
    let mut header = Vec::from(width.to_be_bytes());
    header.extend(height.to_be_bytes());
    header.extend([1, 0, 0, 0, 0]);
    let mut png = Vec::from(*b"\x89PNG\r\n\x1a\n");
    for (name, data) in [(b"IHDR", header), (b"IDAT", pixels.finish()?), (b"IEND", Vec::new())] {
        png.extend((data.len() as u32).to_be_bytes());
        let mut sum = flate2::Crc::new();
        sum.update(name);
        sum.update(&data);
        png.extend(name);
        png.extend(&data);
        png.extend(sum.sum().to_be_bytes());
    }
    Ok(png)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_size_of_a_picture_is_read_from_its_header() {
        let riff =
            |form: &[u8; 4], rest: &[u8]| [b"RIFF\0\0\0\0WEBP", form.as_slice(), b"\0\0\0\0", rest].concat();
        let jpeg = b"\xff\xd8\xff\xe0\0\x04JF\xff\xff\xc4\0\x02\xff\xc2\0\x0b\x08\0\x30\x01\0\x01";
        let lossless = ((640u32 - 1) | ((480 - 1) << 14)).to_le_bytes();
        let cases = [
            (white(1280, 1000).unwrap(), Some((1280, 1000))),
            (jpeg.to_vec(), Some((256, 48))),
            (jpeg[..14].to_vec(), None),
            (riff(b"VP8 ", b"\0\0\0\x9d\x01\x2a\x80\x02\xe0\x41"), Some((640, 480))),
            (riff(b"VP8L", &[b"\x2f".as_slice(), &lossless].concat()), Some((640, 480))),
            (riff(b"VP8X", b"\0\0\0\0\x7f\x02\0\xdf\x01\0"), Some((640, 480))),
            (riff(b"ALPH", b""), None),
            (b"GIF89a".to_vec(), None),
        ];
        for (bytes, expect) in cases {
            assert_eq!(size(&bytes), expect, "{bytes:?}");
        }
    }
}

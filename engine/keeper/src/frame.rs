//! How what engine and keeper say travels: each text after its length, 4 bytes with the highest first. Whoever reads is never left
//! within a text that it cannot use.

use serde::Serialize;

/// Longest text of a frame. Whoever announces a longer one is cut off.
pub const FRAME_BYTES_MAX: usize = 16 << 20;
/// Longest first line of a connection.
const LINE_BYTES_MAX: usize = 64 << 10;
/// Size of a frame's length.
const LENGTH_BYTES: usize = 4;

/// Why there is no frame.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// Longer than whoever reads would take.
    #[error("it has {bytes} bytes, at most {bytes_max}")]
    TooLong {
        /// Size of the text; of a line, as far as it has come.
        bytes: usize,
        /// What would do.
        bytes_max: usize,
    },
    /// It cannot be written as JSON.
    #[error("{0}")]
    Unwritable(String),
}

/// A value as a frame of at most so many bytes.
pub fn frame(value: &impl Serialize, bytes_max: usize) -> Result<Vec<u8>, FrameError> {
    let mut frame = vec![0; LENGTH_BYTES];
    serde_json::to_writer(&mut frame, value).map_err(|error| FrameError::Unwritable(error.to_string()))?;
    let bytes = frame.len() - LENGTH_BYTES;
    match u32::try_from(bytes) {
        Ok(length) if bytes <= bytes_max.min(FRAME_BYTES_MAX) => {
            frame[..LENGTH_BYTES].copy_from_slice(&length.to_be_bytes());
            Ok(frame)
        }
        _ => Err(FrameError::TooLong { bytes, bytes_max }),
    }
}

/// A value as the first line of a connection.
pub fn line(value: &impl Serialize) -> Result<Vec<u8>, FrameError> {
    let mut line = serde_json::to_vec(value).map_err(|error| FrameError::Unwritable(error.to_string()))?;
    line.push(b'\n');
    if line.len() > LINE_BYTES_MAX {
        return Err(FrameError::TooLong { bytes: line.len(), bytes_max: LINE_BYTES_MAX });
    }
    Ok(line)
}

/// What has come over a connection and was not looked at yet.
#[derive(Debug, Default)]
pub struct ReceiveBuffer {
    bytes: Vec<u8>,
    /// Those before it are done with.
    from: usize,
}

impl ReceiveBuffer {
    /// More has come.
    pub fn push(&mut self, bytes: &[u8]) {
        if self.from > 0 {
            self.bytes.drain(..self.from);
            self.from = 0;
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// The first line of the connection, without its end; `None`: it is not whole yet.
    pub fn line(&mut self) -> Result<Option<&[u8]>, FrameError> {
        let rest = &self.bytes[self.from..];
        match rest.iter().position(|byte| *byte == b'\n') {
            Some(end) => {
                self.from += end + 1;
                Ok(Some(&self.bytes[self.from - end - 1..self.from - 1]))
            }
            None if rest.len() > LINE_BYTES_MAX => {
                Err(FrameError::TooLong { bytes: rest.len(), bytes_max: LINE_BYTES_MAX })
            }
            None => Ok(None),
        }
    }

    /// The next text; `None`: it is not whole yet.
    pub fn frame(&mut self) -> Result<Option<&[u8]>, FrameError> {
        let rest = &self.bytes[self.from..];
        let Some((length, rest)) = rest.split_first_chunk::<LENGTH_BYTES>() else { return Ok(None) };
        let bytes = usize::try_from(u32::from_be_bytes(*length)).unwrap_or(usize::MAX);
        if bytes > FRAME_BYTES_MAX {
            return Err(FrameError::TooLong { bytes, bytes_max: FRAME_BYTES_MAX });
        }
        if rest.len() < bytes {
            return Ok(None);
        }
        let begin = self.from + LENGTH_BYTES;
        self.from = begin + bytes;
        Ok(Some(&self.bytes[begin..self.from]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_and_frames_come_out_as_they_were_put_in_however_they_are_cut() {
        let texts = ["", "\u{1}\n\0", "three"];
        let mut sent = line(&"hello").unwrap();
        sent.extend(texts.iter().flat_map(|text| frame(text, 100).unwrap()));
        for piece in 1..=sent.len() {
            let (mut heard, mut found) = (ReceiveBuffer::default(), Vec::new());
            let mut greeted = false;
            for bytes in sent.chunks(piece) {
                heard.push(bytes);
                if !greeted {
                    let Some(text) = heard.line().unwrap() else { continue };
                    assert_eq!(text, b"\"hello\"");
                    greeted = true;
                }
                while let Some(text) = heard.frame().unwrap() {
                    found.push(serde_json::from_slice::<String>(text).unwrap());
                }
            }
            assert_eq!(found, texts, "in pieces of {piece}");
        }
    }

    #[test]
    fn what_is_too_long_is_refused_where_it_is_written_and_where_it_is_read() {
        let long = "x".repeat(100);
        let error = frame(&long, 100).unwrap_err().to_string();
        assert_eq!(error, "it has 102 bytes, at most 100");
        assert!(frame(&long, 102).is_ok());
        assert!(line(&"x".repeat(LINE_BYTES_MAX)).is_err());
        let mut heard = ReceiveBuffer::default();
        heard.push(&u32::MAX.to_be_bytes());
        assert!(heard.frame().is_err());
        let mut heard = ReceiveBuffer::default();
        heard.push(&vec![b'x'; LINE_BYTES_MAX + 1]);
        assert!(heard.line().is_err());
    }
}

//! The data of a core module in few segments. Go's linker leaves out each run of zeros, which makes some 46,000 segments of a small
//! plugin; the engine allows 65,536. Written out, the zeros make the component a tenth larger.

/// The section of data.
const DATA: u8 = 11;
/// The section that says how many segments there are, where code names them; then they stay as they are.
const DATA_COUNT: u8 = 12;
/// The longest run of zeros that is written out.
const ZEROS_MAX: u64 = 64;
/// The magic number and the version.
const HEADER_BYTES: usize = 8;

/// Joins segments that lie close to each other. A module that is not laid out as Go's are stays as it is.
pub(super) fn join(module: &[u8]) -> Vec<u8> {
    joined(module).unwrap_or_else(|| module.to_owned())
}

fn joined(module: &[u8]) -> Option<Vec<u8>> {
    let mut out = module.get(..HEADER_BYTES)?.to_owned();
    let mut rest = &module[HEADER_BYTES..];
    while let Some((&id, mut behind)) = rest.split_first() {
        let length = usize::try_from(unsigned(&mut behind)?).ok()?;
        let (content, next) = behind.split_at_checked(length)?;
        match id {
            DATA_COUNT => return None,
            DATA => {
                let content = section(content)?;
                out.push(DATA);
                put_unsigned(&mut out, content.len() as u64);
                out.extend_from_slice(&content);
            }
            _ => out.extend_from_slice(&rest[..rest.len() - next.len()]),
        }
        rest = next;
    }
    Some(out)
}

/// The section of data with segments joined.
fn section(mut content: &[u8]) -> Option<Vec<u8>> {
    let count = unsigned(&mut content)?;
    let mut segments: Vec<(u64, Vec<u8>)> = Vec::new();
    for _ in 0..count {
        // Active, in the first memory, at a constant.
        content = content.strip_prefix(&[0x00, 0x41])?;
        let start = u64::try_from(signed(&mut content)?).ok()?;
        content = content.strip_prefix(&[0x0B])?;
        let length = usize::try_from(unsigned(&mut content)?).ok()?;
        let (bytes, next) = content.split_at_checked(length)?;
        content = next;
        let gap = segments.last().and_then(|(from, held)| start.checked_sub(from + held.len() as u64));
        match (segments.last_mut(), gap) {
            (Some((_, held)), Some(gap)) if gap <= ZEROS_MAX => {
                held.resize(held.len() + usize::try_from(gap).ok()?, 0);
                held.extend_from_slice(bytes);
            }
            _ => segments.push((start, bytes.to_owned())),
        }
    }
    let mut out = Vec::new();
    put_unsigned(&mut out, segments.len() as u64);
    for (start, bytes) in segments {
        out.extend_from_slice(&[0x00, 0x41]);
        put_signed(&mut out, i64::try_from(start).ok()?);
        out.push(0x0B);
        put_unsigned(&mut out, bytes.len() as u64);
        out.extend_from_slice(&bytes);
    }
    Some(out)
}

/// A number in LEB128, seven bits a byte.
fn unsigned(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..35).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(byte & 0x7F) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

/// The same with a sign, which is the second bit of the last byte.
fn signed(bytes: &mut &[u8]) -> Option<i64> {
    let before = *bytes;
    let value = i64::try_from(unsigned(bytes)?).ok()?;
    let length = before.len() - bytes.len();
    let negative = before[length - 1] & 0x40 != 0;
    Some(if negative { value - (1 << (7 * length)) } else { value })
}

fn put_unsigned(out: &mut Vec<u8>, mut value: u64) {
    loop {
        let byte = (value & 0x7F) as u8;
        value >>= 7;
        if value == 0 {
            return out.push(byte);
        }
        out.push(byte | 0x80);
    }
}

fn put_signed(out: &mut Vec<u8>, mut value: i64) {
    loop {
        let byte = (value & 0x7F) as u8;
        value >>= 7;
        if (value == 0 && byte & 0x40 == 0) || (value == -1 && byte & 0x40 != 0) {
            return out.push(byte);
        }
        out.push(byte | 0x80);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_segments_are_joined_and_far_ones_stay() {
        let text = r#"(module (memory 1) (func) (data (i32.const 100) "ab") (data (i32.const 104) "cd")
            (data (i32.const 1000) "e") (data (i32.const 40) "f") (data (i32.const 41) "g"))"#;
        let expected = r#"(module (memory 1) (func) (data (i32.const 100) "ab\00\00cd") (data (i32.const 1000) "e")
            (data (i32.const 40) "fg"))"#;
        assert_eq!(join(&wat::parse_str(text).unwrap()), wat::parse_str(expected).unwrap());
    }

    #[test]
    fn what_is_laid_out_in_another_way_stays() {
        for text in [
            r#"(module (memory 1) (data (i32.const -8) "a") (data (i32.const -6) "b"))"#,
            r#"(module (memory 1) (global $g i32 (i32.const 0)) (data (global.get $g) "a") (data (i32.const 2) "b"))"#,
            r#"(module (memory 1) (data "a") (func (memory.init 0 (i32.const 0) (i32.const 0) (i32.const 1))))"#,
        ] {
            let module = wat::parse_str(text).unwrap();
            assert_eq!(join(&module), module, "{text}");
        }
        assert_eq!(join(b"\0asm"), b"\0asm");
    }
}

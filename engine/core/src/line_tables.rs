//! Line tables apart from the component that they belong to.
//!
//! A compiler writes them into the core modules of a component (custom sections `.debug_*`), where they are most of its bytes. A
//! component is given away without them; the same component with them is kept beside it, in `NAME.lines`, and is what the host
//! compiles where it is there: code and offsets are the same, since the sections stand behind the code.

const MAGIC: &[u8; 4] = b"\0asm";
const MODULE: [u8; 4] = [1, 0, 0, 0];
const COMPONENT: [u8; 4] = [0x0d, 0, 1, 0];
/// Of both encodings.
const CUSTOM_SECTION: u8 = 0;
const MODULE_SECTION: u8 = 1;
const COMPONENT_SECTION: u8 = 4;
/// How the names of custom sections with line tables begin.
const LINES: &[u8] = b".debug_";
/// Nested components: more than the host takes.
const DEPTH_MAX: u32 = 32;

/// The same component or core module without line tables; one that has none is returned byte for byte. `None`: damaged.
pub fn without_line_tables(wasm: &[u8]) -> Option<Vec<u8>> {
    strip(wasm, 0)
}

fn strip(wasm: &[u8], depth: u32) -> Option<Vec<u8>> {
    let (header, mut rest) = wasm.split_at_checked(8)?;
    let is_component = header[4..] == COMPONENT;
    if &header[..4] != MAGIC || !(is_component || header[4..] == MODULE) || depth > DEPTH_MAX {
        return None;
    }
    let mut out = Vec::with_capacity(wasm.len());
    out.extend_from_slice(header);
    while let Some((&id, after)) = rest.split_first() {
        let (size, payload) = leb128(after)?;
        let (payload, next) = payload.split_at_checked(size)?;
        let section = &rest[..rest.len() - next.len()];
        match id {
            MODULE_SECTION | COMPONENT_SECTION if is_component => {
                let stripped = strip(payload, depth + 1)?;
                if stripped.len() == payload.len() {
                    out.extend_from_slice(section);
                } else {
                    out.push(id);
                    push_leb128(&mut out, stripped.len());
                    out.extend_from_slice(&stripped);
                }
            }
            CUSTOM_SECTION if !is_component && has_lines(payload)? => {}
            _ => out.extend_from_slice(section),
        }
        rest = next;
    }
    Some(out)
}

/// Whether the payload of a custom section is a line table.
fn has_lines(payload: &[u8]) -> Option<bool> {
    let (length, rest) = leb128(payload)?;
    Some(rest.get(..length)?.starts_with(LINES))
}

/// An unsigned 32-bit LEB128, and what is behind it.
fn leb128(bytes: &[u8]) -> Option<(usize, &[u8])> {
    let mut value = 0u64;
    for (at, byte) in bytes.iter().enumerate().take(5) {
        value |= u64::from(byte & 0x7f) << (7 * at);
        if byte & 0x80 == 0 {
            return Some((u32::try_from(value).ok()?.try_into().ok()?, &bytes[at + 1..]));
        }
    }
    None
}

fn push_leb128(out: &mut Vec<u8>, mut value: usize) {
    while value >= 0x80 {
        out.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn section(id: u8, payload: &[u8]) -> Vec<u8> {
        let mut out = vec![id];
        push_leb128(&mut out, payload.len());
        [out, payload.to_vec()].concat()
    }

    fn custom(name: &str, bytes: usize) -> Vec<u8> {
        let mut payload = Vec::new();
        push_leb128(&mut payload, name.len());
        payload.extend_from_slice(name.as_bytes());
        payload.resize(payload.len() + bytes, 7);
        section(CUSTOM_SECTION, &payload)
    }

    fn module(sections: &[Vec<u8>]) -> Vec<u8> {
        [MAGIC.to_vec(), MODULE.to_vec(), sections.concat()].concat()
    }

    fn component(sections: &[Vec<u8>]) -> Vec<u8> {
        [MAGIC.to_vec(), COMPONENT.to_vec(), sections.concat()].concat()
    }

    #[test]
    fn only_line_tables_are_left_out_wherever_they_are() {
        let (code, name) = (section(10, &[0]), custom("name", 300));
        let plain = module(&[code.clone(), name.clone()]);
        let with = module(&[code, custom(".debug_line", 400), name, custom(".debug_info", 3)]);
        assert_eq!(without_line_tables(&with), Some(plain.clone()));
        let nested = |inner: &[u8]| {
            let inner = component(&[section(MODULE_SECTION, inner), custom(".debug_line", 2)]);
            component(&[section(MODULE_SECTION, &with), section(COMPONENT_SECTION, &inner)])
        };
        let expected = component(&[
            section(MODULE_SECTION, &plain),
            section(
                COMPONENT_SECTION,
                &component(&[section(MODULE_SECTION, &plain), custom(".debug_line", 2)]),
            ),
        ]);
        assert_eq!(without_line_tables(&nested(&with)), Some(expected.clone()));
        assert_eq!(without_line_tables(&expected), Some(expected));
    }

    #[test]
    fn what_has_none_stays_byte_for_byte() {
        // A length that a linker has padded.
        let padded = [vec![10, 0x81, 0x80, 0x80, 0x80, 0], vec![0]].concat();
        let wasm = component(&[section(MODULE_SECTION, &module(&[padded]))]);
        assert_eq!(without_line_tables(&wasm), Some(wasm));
    }

    #[test]
    fn damage_is_seen() {
        let whole = component(&[section(MODULE_SECTION, &module(&[custom("name", 5)]))]);
        for end in (0..whole.len()).filter(|end| *end != 8) {
            assert_eq!(without_line_tables(&whole[..end]), None, "cut at {end}");
        }
        assert_eq!(without_line_tables(b"\0asm\x02\0\0\0"), None);
        assert_eq!(without_line_tables(&component(&[vec![10, 0xff, 0xff, 0xff, 0xff, 0xff]])), None);
    }
}

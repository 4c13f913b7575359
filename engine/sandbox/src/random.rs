//! Random bytes of the kernel: for secrets, and for names that nobody else has.

/// So many of them.
pub(crate) fn bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    let mut filled = 0;
    while filled < N {
        match rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty()) {
            Ok(count) => filled += count,
            Err(error) => panic!("the kernel has no random bytes: {error}"),
        }
    }
    bytes
}

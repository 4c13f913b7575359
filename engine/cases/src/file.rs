//! Reading files of a project, which may be anything.

use std::io::Read;
use std::path::Path;

/// The bytes of a regular file of at most `max` bytes. Errors: what else it is, or its size.
pub(crate) fn read(path: &Path, max: u64) -> Result<Vec<u8>, String> {
    let failed = |error: std::io::Error| error.to_string();
    // Before it is opened: a named pipe would be waited for.
    let known = std::fs::metadata(path).map_err(failed)?;
    if !known.is_file() {
        return Err("it is not a regular file".to_owned());
    }
    let mut bytes = Vec::new();
    std::fs::File::open(path).map_err(failed)?.take(max + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > max {
        return Err(format!("it has more than {} MiB", max >> 20));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    #[test]
    fn only_regular_files_of_a_bounded_size_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        std::fs::write(&path, "text").unwrap();
        assert_eq!(super::read(&path, 4), Ok(b"text".to_vec()));
        assert_eq!(super::read(&path, 3), Err("it has more than 0 MiB".to_owned()));
        let pipe = folder.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        assert_eq!(super::read(&pipe, 4), Err("it is not a regular file".to_owned()));
        assert_eq!(super::read(folder.path(), 4), Err("it is not a regular file".to_owned()));
    }
}

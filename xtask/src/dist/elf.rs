//! Programs: stripped, with their debug files apart; the glibc that they ask for.

use crate::shell::quietly;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Copies a program without its symbols; `debug` gets them, and debuggers find it by its name.
pub(super) fn strip(program: &Path, stripped: &Path, debug: &Path) -> Result<(), String> {
    let objcopy = || Command::new("objcopy");
    quietly(objcopy().arg("--only-keep-debug").arg(program).arg(debug))?;
    quietly(objcopy().arg("--strip-all").arg(program).arg(stripped))?;
    let mut link = std::ffi::OsString::from("--add-gnu-debuglink=");
    link.push(debug);
    quietly(objcopy().arg(link).arg(stripped)).map(drop)
}

/// The oldest glibc that a program runs with: X of 2.X, by the versions of the symbols that it asks for.
pub(super) fn glibc(program: &Path) -> Result<u32, String> {
    let symbols = quietly(Command::new("objdump").arg("--dynamic-syms").arg(program))?;
    newest(&symbols).ok_or_else(|| format!("{}: does not need glibc", program.display()))
}

fn newest(symbols: &str) -> Option<u32> {
    let versions = symbols.split("GLIBC_2.").skip(1);
    versions.filter_map(|rest| rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()).max()
}

/// The shared libraries that programs load, the loader among them, by their paths on this machine.
pub(super) fn libraries(programs: &[PathBuf]) -> Result<Vec<PathBuf>, String> {
    let mut found = Vec::new();
    for program in programs {
        let listed = quietly(Command::new("ldd").arg(program))?;
        if let Some(missing) = listed.lines().find(|line| line.contains("not found")) {
            return Err(format!("{}: {}", program.display(), missing.trim()));
        }
        found.extend(loaded(&listed).map(PathBuf::from));
    }
    found.sort();
    found.dedup();
    Ok(found)
}

/// The paths in what ldd prints: `libc.so.6 => /lib/libc.so.6 (0x..)`, `/lib64/ld.so (0x..)`.
fn loaded(listed: &str) -> impl Iterator<Item = &str> {
    listed.lines().filter_map(|line| {
        let path = line.rsplit("=> ").next()?.split(" (").next()?.trim();
        path.starts_with('/').then_some(path)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_symbol_decides() {
        let symbols =
            "0 DF *UND* 0 (GLIBC_2.2.5) free\n0 DF *UND* 0 (GLIBC_2.34) pthread_join\n0 (GLIBC_2.17) x";
        assert_eq!(newest(symbols), Some(34));
        assert_eq!(newest("no symbols"), None);
    }

    #[test]
    fn libraries_are_read_off_ldd() {
        let listed = "\tlinux-vdso.so.1 (0x1)\n\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x2)\n\t/lib64/ld-linux-x86-64.so.2 (0x3)\n";
        let paths: Vec<&str> = loaded(listed).collect();
        assert_eq!(paths, ["/lib/x86_64-linux-gnu/libc.so.6", "/lib64/ld-linux-x86-64.so.2"]);
    }
}

//! Pseudo-terminals.

use espalier_agent_protocol::v1::Terminal;
use rustix::fs::{Mode, OFlags};
use rustix::pty::OpenptFlags;
use rustix::termios::Winsize;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

/// A new terminal: the agent's side, not blocking, and the command's.
pub fn open(size: &Terminal) -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
    let controller = rustix::pty::openpt(flags).map_err(|error| {
        io::Error::new(io::Error::from(error).kind(), format!("no terminal (/dev/ptmx): {error}"))
    })?;
    rustix::pty::grantpt(&controller)?;
    rustix::pty::unlockpt(&controller)?;
    let name = rustix::pty::ptsname(&controller, Vec::new())?;
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    let side = rustix::fs::open(name.as_c_str(), flags, Mode::empty())?;
    resize(&controller, size)?;
    rustix::io::ioctl_fionbio(&controller, true)?;
    Ok((controller, side))
}

/// Tells the programs on a terminal its size; 24 by 80 where a number is missing.
pub fn resize(controller: impl AsFd, size: &Terminal) -> io::Result<()> {
    let number =
        |wanted: u32, default| if wanted == 0 { default } else { u16::try_from(wanted).unwrap_or(u16::MAX) };
    let size = Winsize {
        ws_row: number(size.rows, 24),
        ws_col: number(size.columns, 80),
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    Ok(rustix::termios::tcsetwinsize(controller, size)?)
}

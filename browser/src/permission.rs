//! What pages may be allowed to do.

use chromiumoxide::cdp::browser_protocol::browser::PermissionDescriptor;

/// What a page may be allowed to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Permission {
    /// Know where the device is.
    Geolocation,
    /// Show notifications.
    Notifications,
    /// Read the clipboard, which is the context's own.
    ClipboardRead,
    /// Write to the clipboard.
    ClipboardWrite,
    /// Use cameras.
    Camera,
    /// Use microphones.
    Microphone,
    /// Use MIDI devices, with system messages too.
    Midi,
    /// Synchronise in the background.
    BackgroundSync,
    /// Read motion and light sensors.
    Sensors,
    /// Keep the screen awake.
    WakeLock,
    /// Keep storage for good.
    PersistentStorage,
    /// Read which fonts are installed.
    LocalFonts,
    /// Place windows on all screens.
    WindowManagement,
}

impl Permission {
    /// Chromium's descriptors; one permission of ours may be several of its own.
    pub(crate) fn descriptors(self) -> Vec<PermissionDescriptor> {
        let names: &[&str] = match self {
            Permission::Geolocation => &["geolocation"],
            Permission::Notifications => &["notifications"],
            Permission::ClipboardRead => &["clipboard-read"],
            Permission::ClipboardWrite => &["clipboard-write"],
            Permission::Camera => &["camera"],
            Permission::Microphone => &["microphone"],
            Permission::Midi => &["midi"],
            Permission::BackgroundSync => &["background-sync"],
            Permission::Sensors => &["accelerometer", "gyroscope", "magnetometer", "ambient-light-sensor"],
            Permission::WakeLock => &["screen-wake-lock"],
            Permission::PersistentStorage => &["persistent-storage"],
            Permission::LocalFonts => &["local-fonts"],
            Permission::WindowManagement => &["window-management"],
        };
        let describe = |name: &&str| {
            let mut descriptor = PermissionDescriptor::new(*name);
            descriptor.sysex = (self == Permission::Midi).then_some(true);
            descriptor
        };
        names.iter().map(describe).collect()
    }
}

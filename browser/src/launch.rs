//! Starting a browser process: which program, with which flags, and how it ends.

pub(crate) mod process;

use crate::deadline::TIMEOUT_DEFAULT;
use crate::error::{BrowserError, Result};
use chromiumoxide::detection::{DetectionOptions, default_executable};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How to start a browser.
#[derive(Clone, Debug)]
pub struct LaunchOptions {
    /// The program. Default: the first of `chromium-headless-shell`, `chrome-headless-shell`, `chromium`, `chrome` and
    /// their usual places; without the headless shell in [`Headless::New`].
    pub executable: Option<PathBuf>,
    /// More arguments, after those of this library.
    pub args: Vec<String>,
    /// With or without a window.
    pub headless: Headless,
    /// Whether Chromium's own sandbox is off. Default: false. Chromium does not start as root with its sandbox on.
    pub no_sandbox: bool,
    /// The profile folder. Default: a fresh one in the folder for temporary files, removed when the browser ends.
    pub user_data_dir: Option<PathBuf>,
    /// More environment variables.
    pub env: Vec<(String, String)>,
    /// Until when the browser must have answered. Default: 30 s.
    pub timeout: Duration,
    /// The proxy of every context that names none.
    pub proxy: Option<Proxy>,
}

impl Default for LaunchOptions {
    fn default() -> Self {
        LaunchOptions {
            executable: None,
            args: Vec::new(),
            headless: Headless::Shell,
            no_sandbox: false,
            user_data_dir: None,
            env: Vec::new(),
            timeout: TIMEOUT_DEFAULT,
            proxy: None,
        }
    }
}

/// With or without a window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Headless {
    /// The headless shell where it is installed (quicker, smaller), else like `New`.
    #[default]
    Shell,
    /// Full Chromium without a window.
    New,
    /// Full Chromium with windows; needs a display.
    Off,
}

/// A proxy for the requests of a browser or a context.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proxy {
    /// Such as `http://127.0.0.1:3128` or `socks5://127.0.0.1:1080`.
    pub server: String,
    /// Comma-separated hosts that are reached directly. `<-loopback>` sends even loopback addresses to the proxy.
    pub bypass: Option<String>,
}

const SHELLS: [&str; 3] = ["chromium-headless-shell", "chrome-headless-shell", "headless_shell"];

/// Always given: no first-run questions, no traffic of the browser's own, no throttling of pages in the background,
/// the same colours and fonts everywhere.
const FLAGS: [&str; 37] = [
    "--allow-pre-commit-input",
    // What is selected would be pasted by a click of the middle button, in all contexts.
    "--blink-settings=middleClickPasteAllowed=false",
    "--disable-back-forward-cache",
    "--disable-background-networking",
    "--disable-background-timer-throttling",
    "--disable-backgrounding-occluded-windows",
    "--disable-breakpad",
    "--disable-client-side-phishing-detection",
    "--disable-component-extensions-with-background-pages",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-dev-shm-usage",
    "--disable-domain-reliability",
    "--disable-extensions",
    "--disable-features=AcceptCHFrame,AutoDeElevate,DestroyProfileOnBrowserClose,DialMediaRouteProvider,\
     GlobalMediaControls,HttpsUpgrades,LensOverlay,MediaRouter,OptimizationHints,PaintHolding,Translate",
    "--disable-field-trial-config",
    "--disable-hang-monitor",
    "--disable-ipc-flooding-protection",
    "--disable-popup-blocking",
    "--disable-prompt-on-repost",
    "--disable-quic",
    "--disable-renderer-backgrounding",
    "--disable-search-engine-choice-screen",
    "--disable-sync",
    "--enable-automation",
    // What pages write to the console would be written to standard error too, one line after the other by the process that all share.
    "--enable-logging=none",
    "--export-tagged-pdf",
    "--font-render-hinting=none",
    "--force-color-profile=srgb",
    "--hide-scrollbars",
    "--metrics-recording-only",
    "--mute-audio",
    "--no-default-browser-check",
    "--no-first-run",
    "--no-service-autorun",
    "--password-store=basic",
    "--use-mock-keychain",
];

/// Puts standard input and output where `--remote-debugging-pipe` expects the pipes: 3 and 4.
const MOVE_PIPES: &str = "exec 3<&0 4>&1 </dev/null >/dev/null; exec \"$@\"";

/// The command that starts a browser: see [`LaunchOptions::command_line`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandLine {
    /// The program: a path, or a name to be looked up in `PATH`.
    pub program: PathBuf,
    /// Its arguments. Chromium then reads commands from file descriptor 3 and writes answers to 4.
    pub args: Vec<String>,
}

impl CommandLine {
    /// Program and arguments of a command, with `/bin/sh`, whose standard input takes the commands and whose standard
    /// output gives the answers; messages of the browser itself go to standard error. For starters that carry the
    /// standard streams of a process only; its streams are then those of [`Browser::over`](crate::Browser::over).
    pub fn over_standard_streams(&self) -> Vec<OsString> {
        let shell = ["/bin/sh", "-c", MOVE_PIPES, "sh"].map(OsString::from);
        let args = self.args.iter().map(OsString::from);
        shell.into_iter().chain([self.program.clone().into_os_string()]).chain(args).collect()
    }
}

impl LaunchOptions {
    /// The command that starts a browser with these options and its profile in the folder `profile`, for those who start
    /// it themselves. `user_data_dir`, `env` and `timeout` are left to them. Without `executable` the program is looked
    /// for on this machine.
    pub fn command_line(&self, profile: &Path) -> Result<CommandLine> {
        let (program, is_shell) = self.program()?;
        let mut args: Vec<String> = FLAGS.iter().map(ToString::to_string).collect();
        match (self.headless, is_shell) {
            (Headless::Off, _) => {}
            (Headless::Shell, true) => args.push("--headless".to_owned()),
            _ => args.push("--headless=new".to_owned()),
        }
        if self.no_sandbox {
            args.push("--no-sandbox".to_owned());
        }
        if let Some(proxy) = &self.proxy {
            args.push(format!("--proxy-server={}", proxy.server));
            if let Some(bypass) = &proxy.bypass {
                args.push(format!("--proxy-bypass-list={}", bypass.replace(',', ";")));
            }
        }
        args.push(format!("--user-data-dir={}", profile.display()));
        args.push("--remote-debugging-pipe".to_owned());
        args.push("--no-startup-window".to_owned());
        args.extend(self.args.iter().cloned());
        Ok(CommandLine { program, args })
    }

    fn program(&self) -> Result<(PathBuf, bool)> {
        if let Some(program) = &self.executable {
            let name =
                program.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            return Ok((program.clone(), name.contains("headless")));
        }
        if self.headless == Headless::Shell
            && let Some(program) = SHELLS.iter().find_map(|name| in_path(name))
        {
            return Ok((program, true));
        }
        let options = DetectionOptions { msedge: false, unstable: false };
        match default_executable(options) {
            Ok(program) => Ok((program, false)),
            Err(_) => Err(BrowserError::Launch {
                reason: format!("no browser found (looked for {} and chromium in PATH)", SHELLS.join(", ")),
            }),
        }
    }
}

fn in_path(name: &str) -> Option<PathBuf> {
    let folders = std::env::var_os("PATH")?;
    std::env::split_paths(&folders).map(|folder| folder.join(name)).find(|program| program.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_follows_the_options() {
        let options = LaunchOptions {
            executable: Some("/opt/headless_shell".into()),
            args: vec!["--lang=de".into()],
            no_sandbox: true,
            proxy: Some(Proxy { server: "http://p:1".into(), bypass: Some("a,b".into()) }),
            ..LaunchOptions::default()
        };
        let line = options.command_line(Path::new("/p")).expect("a command line");
        assert_eq!(line.program, Path::new("/opt/headless_shell"));
        let whole = line.over_standard_streams();
        assert_eq!(whole[..2], ["/bin/sh", "-c"]);
        assert_eq!(whole[4], "/opt/headless_shell");
        assert_eq!(whole.len(), 5 + line.args.len());
        for arg in
            ["--headless", "--no-sandbox", "--proxy-bypass-list=a;b", "--user-data-dir=/p", "--lang=de"]
        {
            assert!(line.args.iter().any(|given| given == arg), "{arg} is missing");
        }
        let sandboxed = LaunchOptions { no_sandbox: false, ..options };
        let line = sandboxed.command_line(Path::new("/p")).expect("a command line");
        assert!(!line.args.iter().any(|given| given == "--no-sandbox"));
    }
}

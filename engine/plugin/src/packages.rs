//! The WIT packages that this engine provides, in one table: the linker, the refusals and `plugin check` are made from it.
//!
//! A package has a track (major and minor version) and a newest patch on it; after a break it has two, the older one answered through
//! conversions. A patch is the one before, word for word, with
//! functions, interfaces or imports of worlds added (`cargo xtask tidy` holds released ones against it), so the implementation
//! of the newest serves every component of its track: wasmtime answers an import of `@0.1.0` from `@0.1.1`. It also answers
//! the other way round, without what was added; a component that wants a newer patch is therefore refused here, before it is
//! compiled. A function that is added to an interface which plugins *export* would be missing from older plugins: such a
//! function comes in an interface of its own.

use crate::bindings::{harness, reward, task_generator};
use crate::guest::Guest;
use wasmtime::component::{HasSelf, Linker};

/// A package on one track.
#[derive(Clone, Copy)]
pub(crate) struct Package {
    /// `espalier:base`.
    pub(crate) name: &'static str,
    /// Major and minor version, within which nothing is taken away or changed.
    pub(crate) track: &'static str,
    /// The newest patch on the track.
    pub(crate) patch: u64,
    pub(crate) interfaces: &'static [Interface],
}

/// An interface of a package.
#[derive(Clone, Copy)]
pub(crate) struct Interface {
    pub(crate) name: &'static str,
    pub(crate) part: Part,
}

/// Puts an interface into the linker.
type Link = fn(&mut Linker<Guest>) -> wasmtime::Result<()>;

/// What plugins do with an interface.
#[derive(Clone, Copy)]
pub(crate) enum Part {
    /// Any world may import it: types without functions.
    Types(Link),
    /// Worlds that have the capability may import it.
    Capability(Link),
    /// Plugins export it.
    Export,
}

macro_rules! link {
    ($($module:ident)::+) => {
        |linker| $($module)::+::add_to_linker::<_, HasSelf<_>>(linker, |guest: &mut Guest| guest)
    };
}

const fn types(name: &'static str, link: Link) -> Interface {
    Interface { name, part: Part::Types(link) }
}

const fn capability(name: &'static str, link: Link) -> Interface {
    Interface { name, part: Part::Capability(link) }
}

const fn export(name: &'static str) -> Interface {
    Interface { name, part: Part::Export }
}

/// What this engine provides.
pub(crate) const PACKAGES: Packages = Packages(&[
    Package {
        name: "espalier:base",
        track: "0.1",
        patch: 0,
        interfaces: &[
            types("types", link!(harness::espalier::base::types)),
            capability("log", link!(harness::espalier::base::log)),
            capability("blobs", link!(harness::espalier::base::blobs)),
            capability("settings", link!(harness::espalier::base::settings)),
            capability("clock", link!(harness::espalier::base::clock)),
            capability("random", link!(harness::espalier::base::random)),
            export("configurable"),
        ],
    },
    Package {
        name: "espalier:model",
        track: "0.1",
        patch: 0,
        interfaces: &[
            types("messages", link!(harness::espalier::model::messages)),
            capability("conversations", link!(harness::espalier::model::conversations)),
        ],
    },
    Package {
        name: "espalier:environment",
        track: "0.1",
        patch: 0,
        interfaces: &[
            types("types", link!(harness::espalier::environment::types)),
            capability("environments", link!(harness::espalier::environment::environments)),
            export("provider"),
        ],
    },
    Package {
        name: "espalier:sandbox",
        track: "0.1",
        patch: 1,
        interfaces: &[
            capability("sandboxes", link!(harness::espalier::sandbox::sandboxes)),
            capability("scoring", link!(reward::espalier::sandbox::scoring)),
            capability("creation", link!(task_generator::espalier::sandbox::creation)),
        ],
    },
    Package {
        name: "espalier:browser",
        track: "0.1",
        patch: 0,
        interfaces: &[capability("browsers", link!(harness::espalier::browser::browsers))],
    },
    Package {
        name: "espalier:service",
        track: "0.1",
        patch: 0,
        interfaces: &[capability("services", link!(reward::espalier::service::services))],
    },
    Package {
        name: "espalier:plugin",
        track: "0.1",
        patch: 2,
        interfaces: &[
            types("reports", link!(harness::espalier::plugin::reports)),
            export("harness"),
            types("scores", link!(reward::espalier::plugin::scores)),
            export("reward"),
            export("group-reward"),
            export("judge"),
            export("task-generator"),
            capability("diagnostics", link!(harness::espalier::plugin::diagnostics)),
        ],
    },
]);

/// A table of packages, each track once, an older one of a name before a newer.
#[derive(Clone, Copy)]
pub(crate) struct Packages(pub(crate) &'static [Package]);

impl Packages {
    /// Puts everything that components import of these packages into the linker.
    pub(crate) fn link(self, linker: &mut Linker<Guest>) -> wasmtime::Result<()> {
        for interface in self.0.iter().flat_map(|package| package.interfaces) {
            match interface.part {
                Part::Types(link) | Part::Capability(link) => link(linker)?,
                Part::Export => {}
            }
        }
        Ok(())
    }

    /// The interface behind `espalier:base/log@0.1.0`, which a component `verb`s (`imports`, `exports`).
    ///
    /// Errors: what the component asks for, what this engine provides, and what to do.
    pub(crate) fn find(self, verb: &str, full: &str) -> Result<&'static Interface, String> {
        let (name, version) = split_version(full);
        let (package_name, interface) = name.split_once('/').unwrap_or((name, ""));
        let tracks: Vec<&Package> = self.0.iter().filter(|package| package.name == package_name).collect();
        let is_on = |package: &&&Package| version.is_some_and(|version| package.patch_of(version).is_some());
        // Where it is on none of the tracks, the newest tells what there is.
        let Some(package) = tracks.iter().find(is_on).or(tracks.last()) else {
            return Err(format!(
                "{verb} {full}; this engine does not provide the package {package_name}, only {}; use an engine that \
                 provides it, or build the plugin without it",
                self.provided()
            ));
        };
        package.check_version(verb, full, version, &Packages::versions(&tracks))?;
        package.interfaces.iter().find(|known| known.name == interface).ok_or_else(|| {
            let known: Vec<&str> = package.interfaces.iter().map(|known| known.name).collect();
            format!(
                "{verb} {full}; {} has no interface `{interface}`, only {}; rebuild the plugin against the wit/ of \
                 this engine",
                package.version(),
                known.join(", ")
            )
        })
    }

    /// An interface with the newest version of its package: by that name wasmtime finds the export of every older patch.
    pub(crate) fn newest(self, interface: &str) -> String {
        let (name, known) = interface.split_once('/').unwrap_or((interface, ""));
        let has = |package: &&Package| {
            package.name == name && package.interfaces.iter().any(|one| one.name == known)
        };
        let package = self.0.iter().find(has).expect("an interface of the table");
        format!("{interface}@{}.{}", package.track, package.patch)
    }

    /// `espalier:base@0.1.0, espalier:model@0.1.0, ...`
    pub(crate) fn provided(self) -> String {
        Packages::versions(&self.0.iter().collect::<Vec<_>>())
    }

    fn versions(packages: &[&Package]) -> String {
        let all: Vec<String> = packages.iter().map(|package| package.version()).collect();
        all.join(", ")
    }
}

impl Package {
    /// `espalier:base@0.1.0`.
    fn version(&self) -> String {
        format!("{}@{}.{}", self.name, self.track, self.patch)
    }

    /// The patch of a version on this track; a pre-release (`0.1.0-rc.1`) is none.
    fn patch_of(&self, version: &str) -> Option<u64> {
        let (_, patch) = version.rsplit_once('.').filter(|(track, _)| *track == self.track)?;
        patch.parse().ok()
    }

    fn check_version(
        &self,
        verb: &str,
        full: &str,
        version: Option<&str>,
        provided: &str,
    ) -> Result<(), String> {
        let Some(version) = version else {
            return Err(format!(
                "{verb} {full} without a version; this engine provides {provided}; rebuild the plugin against its wit/"
            ));
        };
        match self.patch_of(version) {
            Some(patch) if patch <= self.patch => Ok(()),
            Some(_) => Err(format!(
                "{verb} {full}; this engine provides {}, which is older; use a newer engine, or rebuild the \
                 plugin against the wit/ of this one",
                self.version()
            )),
            None => {
                let released = version.split_once('-').is_none();
                let track = version.rsplit_once('.').filter(|_| released).map_or(version, |(track, _)| track);
                Err(format!(
                    "{verb} {full}; this engine provides {provided}; use an engine that provides {}@{track}, or \
                     rebuild the plugin against the wit/ of this one",
                    self.name
                ))
            }
        }
    }
}

/// `espalier:model/conversations@0.1.0` as name and version.
pub(crate) fn split_version(name: &str) -> (&str, Option<&str>) {
    match name.split_once('@') {
        Some((name, version)) => (name, Some(version)),
        None => (name, None),
    }
}

#[cfg(test)]
mod tests;

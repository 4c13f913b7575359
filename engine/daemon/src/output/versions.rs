//! Which components a run's plugins were: in words where one changed, as a table where several stand behind one name.

use super::styles;
use super::table::{Align, Cell, Table};
use crate::engine::short;
use crate::progress::PluginChange;
use espalier_store::GroupRow;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Ranges of groups shown of one component; `--json` has them all.
const RANGES_SHOWN: usize = 4;

/// `react-text changed: 089081 to 78c77f, from group 4`.
pub fn change_line(change: &PluginChange) -> String {
    let (was, is) = (short(&change.was), short(&change.is));
    match change.from_group {
        Some(group) => format!("{} changed: {was} to {is}, from group {group}", change.plugin),
        None => format!("{} has changed since: {was} to {is}", change.plugin),
    }
}

/// For programs.
pub fn change_json(change: &PluginChange) -> Value {
    json!({ "plugin": change.plugin, "was": change.was, "is": change.is, "from_group": change.from_group })
}

/// The components behind the names of one run's plugins.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Versions {
    /// By alias, in the order of their first groups.
    plugins: BTreeMap<String, Vec<Version>>,
}

/// One component, and where it ran.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Version {
    digest: String,
    /// First and last group, ascending.
    groups: Vec<(u64, u64)>,
}

impl Versions {
    /// Versions of all groups of a run, in their order.
    pub fn of(groups: &[GroupRow]) -> Versions {
        let mut plugins: BTreeMap<String, Vec<Version>> = BTreeMap::new();
        for group in groups {
            let index = group.opened.group_index;
            for (plugin, digest) in &group.opened.plugins {
                let versions = plugins.entry(plugin.clone()).or_default();
                let at = versions.iter().position(|version| version.digest == *digest).unwrap_or_else(|| {
                    versions.push(Version { digest: digest.clone(), groups: Vec::new() });
                    versions.len() - 1
                });
                match versions[at].groups.last_mut() {
                    Some((_, last)) if *last + 1 == index => *last = index,
                    _ => versions[at].groups.push((index, index)),
                }
            }
        }
        Versions { plugins }
    }

    /// Names of the plugins.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.plugins.keys().map(String::as_str)
    }

    /// `089081, 78c77f`; `None` where the run has no such plugin.
    pub fn cell(&self, plugin: &str) -> Option<String> {
        let digests = self.plugins.get(plugin)?.iter().map(|version| short(&version.digest));
        Some(digests.collect::<Vec<_>>().join(", "))
    }

    /// A table of the plugins that had several components; empty where none had.
    pub fn mixed(&self) -> Table {
        let mut table =
            Table::new(&[("mixed plugin", Align::Left), ("digest", Align::Left), ("groups", Align::Left)]);
        for (plugin, versions) in self.plugins.iter().filter(|(_, versions)| versions.len() > 1) {
            for (place, version) in versions.iter().enumerate() {
                let name = if place == 0 { plugin.as_str() } else { "" };
                table.row(vec![
                    Cell::styled(name, styles::WARN),
                    short(&version.digest).into(),
                    version.groups_text().into(),
                ]);
            }
        }
        table
    }

    /// For programs.
    pub fn json(&self) -> Value {
        let version = |version: &Version| json!({ "digest": version.digest, "groups": version.groups });
        let plugins = self.plugins.iter().map(|(plugin, versions)| {
            (plugin.clone(), versions.iter().map(version).collect::<Vec<_>>().into())
        });
        Value::Object(plugins.collect())
    }
}

impl Version {
    fn groups_text(&self) -> String {
        let range = |(first, last): &(u64, u64)| match first == last {
            true => format!("g{first}"),
            false => format!("g{first} to g{last}"),
        };
        let mut text = self.groups.iter().take(RANGES_SHOWN).map(range).collect::<Vec<_>>().join(", ");
        if self.groups.len() > RANGES_SHOWN {
            text.push_str(", ...");
        }
        text
    }
}

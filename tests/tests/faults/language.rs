//! The languages: where their sources are, and what is changed in them for a variant.

use espalier_tests::place::repository;
use std::fs;

/// One language.
pub(crate) struct Language {
    /// As `--lang` has it.
    pub(crate) name: &'static str,
    pub(crate) title: &'static str,
    /// The source, as its author names it.
    pub(crate) source: &'static str,
    /// What exports the plugin, and what is left of it in a project that forgets to.
    pub(crate) export: (&'static str, &'static str),
    /// What code outside of functions is replaced by, to fail at the build; `None`: such code runs in the component.
    pub(crate) at_build: Option<(&'static str, &'static str)>,
    /// Folders and files of the repository that its build depends on.
    pub(crate) sdk: &'static str,
}

pub(crate) const LANGUAGES: [Language; 6] = [
    Language {
        name: "rust",
        title: "Rust",
        source: "src/lib.rs",
        export: ("espalier_sdk::harness!(Settings, run);", ""),
        at_build: None,
        sdk: "rust",
    },
    Language {
        name: "javascript",
        title: "JavaScript",
        source: "plugin.js",
        export: ("export default harness(", "harness("),
        at_build: Some(("let counted = 0;", "let counted = unknown;")),
        sdk: "javascript",
    },
    Language {
        name: "typescript",
        title: "TypeScript",
        source: "plugin.ts",
        export: ("export default harness(", "harness("),
        at_build: Some(("let counted = 0;", "let counted = JSON.parse('no JSON');")),
        sdk: "javascript",
    },
    Language {
        name: "python",
        title: "Python",
        source: "plugin.py",
        export: ("@harness\n", ""),
        at_build: Some(("COUNTED = sum(", "COUNTED = int(\"no number\") + sum(")),
        sdk: "python",
    },
    Language {
        name: "go",
        title: "Go",
        source: "plugin.go",
        export: ("func init() { espalier.Harness(run) }", "var _ = run"),
        at_build: None,
        sdk: "go",
    },
    Language {
        name: "c",
        title: "C",
        source: "plugin.c",
        export: ("ESPALIER_HARNESS(run);", ""),
        at_build: None,
        sdk: "c",
    },
];

impl Language {
    /// The name of its project.
    pub(crate) fn plugin(&self) -> String {
        format!("faults-{}", self.name)
    }

    /// The source as it is kept.
    pub(crate) fn text(&self) -> String {
        let path = repository().join("tests/faults").join(self.name).join(self.source);
        fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    }

    /// The number of the first line with this text.
    pub(crate) fn line(&self, part: &str) -> usize {
        let text = self.text();
        let index = text.lines().position(|line| line.contains(part));
        index.unwrap_or_else(|| panic!("{}: no line with {part:?}", self.source)) + 1
    }

    /// The lines of a function, named as in Rust.
    pub(crate) fn lines_of(&self, function: &str) -> (usize, usize) {
        let plain = |name: &str| name.replace('_', "").to_lowercase();
        let wanted = format!("{}(", plain(function));
        let text = self.text();
        let lines: Vec<&str> = text.lines().collect();
        let begins = |line: &&str| plain(line).contains(&wanted) && line.trim_end().ends_with(['{', ':']);
        let first = lines.iter().position(begins).unwrap_or_else(|| panic!("{}: no {function}", self.source));
        let ends = |line: &&str| {
            let closed = line.starts_with('}');
            closed || (self.name == "python" && !line.is_empty() && !line.starts_with(' '))
        };
        let length = lines[first + 1..].iter().position(ends).expect("a function ends");
        (first + 1, first + 1 + length + usize::from(self.name != "python"))
    }
}

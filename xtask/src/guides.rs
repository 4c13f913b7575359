//! Guides that show templates of projects: what stands between two marks is taken from `plugins/templates`.
//!
//! ```text
//! <!-- template: rust/reward/src/lib.rs my-reward -->     the file, filled in for a project of that name
//! <!-- template: rust/README.md my-reward -->             the notes on a language, without their heading
//! <!-- end -->
//! ```

use crate::place::root;
use crate::shell::say;
use std::path::{Path, PathBuf};

const BEGIN: &str = "<!-- template: ";
const END: &str = "<!-- end -->";

/// Every guide with templates, as it should be.
pub(crate) fn guides(root: &Path) -> Result<Vec<(PathBuf, String)>, String> {
    let at = |path: &Path, error: std::io::Error| format!("{}: {error}", path.display());
    let docs = root.join("docs");
    let mut guides = Vec::new();
    for entry in std::fs::read_dir(&docs).map_err(|error| at(&docs, error))?.flatten() {
        let path = entry.path();
        if path.extension().is_none_or(|ending| ending != "md") {
            continue;
        }
        let text = std::fs::read_to_string(&path).map_err(|error| at(&path, error))?;
        if text.contains(BEGIN) {
            let filled = fill(&text, &root.join("plugins/templates"));
            guides.push((path.clone(), filled.map_err(|error| format!("{}: {error}", path.display()))?));
        }
    }
    guides.sort();
    Ok(guides)
}

/// Writes them.
pub fn write() -> Result<(), String> {
    for (path, text) in guides(&root())? {
        if std::fs::read_to_string(&path).is_ok_and(|before| before == text) {
            continue;
        }
        say(&format!("writing {}", path.display()));
        std::fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    Ok(())
}

/// A page with what its marks name.
fn fill(page: &str, templates: &Path) -> Result<String, String> {
    let mut out = String::with_capacity(page.len());
    let mut rest = page;
    while let Some(begin) = rest.find(BEGIN) {
        let mark = rest[begin..].lines().next().unwrap_or_default();
        let named = mark.strip_prefix(BEGIN).and_then(|mark| mark.strip_suffix(" -->"));
        let (file, name) =
            named.and_then(|named| named.split_once(' ')).ok_or_else(|| format!("not a mark: {mark}"))?;
        let end = rest[begin..].find(END).ok_or_else(|| format!("no {END} behind {mark}"))?;
        out.push_str(&rest[..begin]);
        out.push_str(&format!("{mark}\n\n{}\n\n{END}", shown(templates, file, name)?));
        rest = &rest[begin + end + END.len()..];
    }
    out.push_str(rest);
    Ok(out)
}

/// A template as the page shows it.
fn shown(templates: &Path, file: &str, name: &str) -> Result<String, String> {
    let text = std::fs::read_to_string(templates.join(file)).map_err(|error| format!("{file}: {error}"))?;
    let pascal: String = name.split('-').map(|word| word[..1].to_uppercase() + &word[1..]).collect();
    let text = text.replace("{{name}}", name).replace("{{snake}}", &name.replace('-', "_"));
    let text = text.replace("{{pascal}}", &pascal);
    Ok(match file.rsplit('.').next() {
        Some("md") => text.lines().skip(1).collect::<Vec<_>>().join("\n").trim().to_owned(),
        Some("rs") => format!("```rust\n{}\n```", text.trim_end()),
        Some("py") => format!("```python\n{}\n```", text.trim_end()),
        ending => format!("```{}\n{}\n```", ending.unwrap_or_default(), text.trim_end()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_between_marks_is_the_template() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(folder.path().join("go/reward")).unwrap();
        std::fs::write(folder.path().join("go/reward/plugin.go"), "// {{name}} {{pascal}}\n").unwrap();
        std::fs::write(folder.path().join("go/README.md"), "## Go\n\nNeeded: Go.\n").unwrap();
        let page = "# Go\n\n<!-- template: go/reward/plugin.go my-one -->\nold\n<!-- end -->\n\n\
                    <!-- template: go/README.md my-one -->\n<!-- end -->\n";
        let filled = fill(page, folder.path()).unwrap();
        assert_eq!(
            filled,
            "# Go\n\n<!-- template: go/reward/plugin.go my-one -->\n\n```go\n// my-one MyOne\n```\n\n<!-- end -->\n\n\
             <!-- template: go/README.md my-one -->\n\nNeeded: Go.\n\n<!-- end -->\n"
        );
        assert_eq!(fill(&filled, folder.path()), Ok(filled.clone()));
        assert!(
            fill("<!-- template: x -->\n<!-- end -->", folder.path()).unwrap_err().contains("not a mark")
        );
    }
}

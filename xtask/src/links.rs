//! Links of Markdown pages to files and headings beside them.

use std::collections::HashMap;
use std::path::{Component, Path, PathBuf};

/// Links of these pages, all below `root`, that lead nowhere: as `PAGE:LINE: what is wrong`.
pub fn broken(root: &Path, pages: &[PathBuf]) -> Vec<String> {
    let mut headings = HashMap::new();
    let mut faults = Vec::new();
    for page in pages {
        let text = std::fs::read_to_string(page).unwrap_or_default();
        let name = page.strip_prefix(root).unwrap_or(page).display();
        for (number, link) in links(&text) {
            let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = match path {
                "" => page.clone(),
                path => plain(&page.parent().unwrap_or(root).join(path)),
            };
            if !target.starts_with(root) || !target.exists() {
                faults.push(format!("{name}:{number}: links to {link}, which does not exist"));
                continue;
            }
            if anchor.is_empty() || target.extension().is_none_or(|ending| ending != "md") {
                continue;
            }
            let known = headings
                .entry(target)
                .or_insert_with_key(|page| anchors(&std::fs::read_to_string(page).unwrap_or_default()));
            if !known.iter().any(|known| known == anchor) {
                faults.push(format!("{name}:{number}: links to {link}, where no heading is called so"));
            }
        }
    }
    faults
}

/// What a page links to in files, with the line.
fn links(text: &str) -> Vec<(usize, &str)> {
    let targets = lines(text).flat_map(|(number, line)| {
        let after = line.match_indices("](").map(|(at, mark)| &line[at + mark.len()..]);
        after.filter_map(|rest| rest.split_once(')')).map(move |(target, _)| (number, target))
    });
    targets.filter(|(_, target)| !target.contains("://") && !target.starts_with("mailto:")).collect()
}

/// Lines with their numbers, without code blocks.
fn lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut in_block = false;
    text.lines().enumerate().filter_map(move |(number, line)| {
        let is_fence = line.trim_start().starts_with("```");
        in_block ^= is_fence;
        (!in_block && !is_fence).then_some((number + 1, line))
    })
}

/// What headings are called in links: lower case, dashes for spaces, and neither other signs nor code marks.
fn anchors(text: &str) -> Vec<String> {
    let titles = lines(text).filter_map(|(_, line)| {
        let rest = line.trim_start_matches('#');
        (rest.len() < line.len()).then(|| rest.strip_prefix(' ')).flatten()
    });
    let mut anchors: Vec<String> = Vec::new();
    for title in titles {
        let kept = title.trim().to_lowercase();
        let kept = kept.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
        let anchor: String = kept.map(|c| if c == ' ' { '-' } else { c }).collect();
        let before = anchors.iter().filter(|known| **known == anchor).count();
        anchors.push(if before == 0 { anchor } else { format!("{anchor}-{before}") });
    }
    anchors
}

/// Without `.` and `..`.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for component in path.components() {
        match component {
            Component::CurDir => {}
            Component::ParentDir => {
                plain.pop();
            }
            other => plain.push(other),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_lead_to_files_and_headings() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        std::fs::create_dir(folder.path().join("docs")).unwrap();
        write("SPEC.md", "# Spec\n");
        write("docs/b.md", "# The `x` of y, and z\n```\n# no heading\n```\n## Twice\n## Twice\n");
        write(
            "docs/a.md",
            "# A\n[1](b.md) [2](b.md#the-x-of-y-and-z), [3](#a)\n[4](../SPEC.md#spec) [5](https://a.org/b.md)\n[6](b.md#twice-1)\n\
             ```\n[in code](no.md)\n```\n[7](no.md) [8](b.md#no-heading)\n[9](../../x.md)\n",
        );
        let page = folder.path().join("docs/a.md");
        assert_eq!(
            broken(folder.path(), &[page]),
            [
                "docs/a.md:8: links to no.md, which does not exist",
                "docs/a.md:8: links to b.md#no-heading, where no heading is called so",
                "docs/a.md:9: links to ../../x.md, which does not exist",
            ]
        );
    }
}

//! A hunk's place in a file, and the file after it. Pure.

use super::parse::{Hunk, Line};

/// A file after its hunks.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// Its content.
    pub content: Vec<u8>,
    /// Hunks that were found elsewhere than at their line.
    pub shifted: u32,
    /// Hunks that were found with less context.
    pub fuzzy: u32,
}

/// Applies hunks in order. `Err`: the number of the one that does not apply, from 1.
pub fn apply(content: &[u8], hunks: &[Hunk], fuzz: usize) -> Result<Applied, usize> {
    let lines = super::parse::split(content);
    let mut applied = Applied::default();
    let (mut done, mut drift) = (0, 0isize);
    for (number, hunk) in hunks.iter().enumerate() {
        let found = find(&lines, done, drift, hunk, fuzz).ok_or(number + 1)?;
        let Found { at, trimmed_start, trimmed_end, shift } = found;
        applied.shifted += u32::from(shift != 0);
        applied.fuzzy += u32::from(trimmed_start + trimmed_end > 0);
        drift += shift;
        for line in &lines[done..at] {
            applied.content.extend_from_slice(line);
        }
        let middle = &hunk.lines[trimmed_start..hunk.lines.len() - trimmed_end];
        let mut next = at;
        for line in middle {
            match line {
                // As the file has it: at its end the newline may differ.
                Line::Context(_) => {
                    applied.content.extend_from_slice(lines[next]);
                    next += 1;
                }
                Line::Removed(_) => next += 1,
                Line::Added(text) => {
                    // A line added after one without newline.
                    if !applied.content.is_empty() && !applied.content.ends_with(b"\n") {
                        applied.content.push(b'\n');
                    }
                    applied.content.extend_from_slice(text);
                }
            }
        }
        done = next;
    }
    for line in &lines[done..] {
        applied.content.extend_from_slice(line);
    }
    Ok(applied)
}

struct Found {
    /// Line of the first one that is compared.
    at: usize,
    trimmed_start: usize,
    trimmed_end: usize,
    shift: isize,
}

fn find(lines: &[&[u8]], done: usize, drift: isize, hunk: &Hunk, fuzz: usize) -> Option<Found> {
    let leading = hunk.lines.iter().take_while(|line| matches!(line, Line::Context(_))).count();
    let trailing = hunk.lines.iter().rev().take_while(|line| matches!(line, Line::Context(_))).count();
    let has_old = hunk.lines.iter().any(|line| !matches!(line, Line::Added(_)));
    // Without old lines the number names the line before.
    let stated = if has_old { hunk.old_start.checked_sub(1)? } else { hunk.old_start };
    for allowed in 0..=fuzz.min(leading.max(trailing)) {
        let (trimmed_start, trimmed_end) = (allowed.min(leading), allowed.min(trailing));
        // All context and nothing else: there would be nothing to find it by.
        if trimmed_start + trimmed_end > hunk.lines.len() {
            break;
        }
        let middle = &hunk.lines[trimmed_start..hunk.lines.len() - trimmed_end];
        let wanted: Vec<&[u8]> = middle
            .iter()
            .filter_map(|line| match line {
                Line::Context(text) | Line::Removed(text) => Some(&text[..]),
                Line::Added(_) => None,
            })
            .collect();
        let last = lines.len().checked_sub(wanted.len())?;
        let expected = isize::try_from(stated + trimmed_start).ok()?.checked_add(drift)?;
        let fits = |at: usize| {
            lines[at..at + wanted.len()].iter().zip(&wanted).all(|(line, wanted)| same(line, wanted))
        };
        if wanted.is_empty() {
            // An insertion without context stands where it says.
            let at = usize::try_from(expected).ok().filter(|at| *at >= done && *at <= lines.len())?;
            return Some(Found { at, trimmed_start, trimmed_end, shift: 0 });
        }
        if last < done {
            continue;
        }
        let nearest = (done..=last)
            .filter(|at| fits(*at))
            .min_by_key(|at| isize::try_from(*at).unwrap_or(isize::MAX).abs_diff(expected));
        if let Some(at) = nearest {
            let shift = isize::try_from(at).ok()? - expected;
            return Some(Found { at, trimmed_start, trimmed_end, shift });
        }
    }
    None
}

/// The same line; the last one of a file may lack the newline that a patch says it has.
fn same(line: &[u8], wanted: &[u8]) -> bool {
    line == wanted || (!line.ends_with(b"\n") && wanted.strip_suffix(b"\n") == Some(line))
}

#[cfg(test)]
mod tests;

//! A patch's text as files and hunks. Lenient where tools are (prose between files, a lost blank at an empty line of context),
//! strict in what a hunk says: its counts must be right, so that nothing is applied that was cut short.

/// How the names are to be read.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Leading parts to drop; `None`: `a/` and `b/` where both are there.
    pub strip: Option<u32>,
    /// Take the patch back.
    pub reverse: bool,
}

/// What becomes of one file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FilePatch {
    /// Its name before; `None`: it is new.
    pub old: Option<Vec<u8>>,
    /// Its name after; `None`: it is deleted.
    pub new: Option<Vec<u8>>,
    /// Mode before, as git writes it.
    pub old_mode: Option<u32>,
    /// Mode after.
    pub new_mode: Option<u32>,
    /// The old one stays too.
    pub copy: bool,
    /// Changes, in order.
    pub hunks: Vec<Hunk>,
}

/// One change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hunk {
    /// First line before, from 1; 0 in an empty file.
    pub old_start: usize,
    /// First line after.
    pub new_start: usize,
    /// Context, removed and added lines.
    pub lines: Vec<Line>,
}

/// A line of a hunk, with its newline if it has one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Line {
    /// Before and after.
    Context(Vec<u8>),
    /// Before only.
    Removed(Vec<u8>),
    /// After only.
    Added(Vec<u8>),
}

/// Reads a patch. The error names line, file and hunk.
pub fn parse(text: &[u8], options: Options) -> Result<Vec<FilePatch>, String> {
    let lines: Vec<&[u8]> = split(text);
    let mut reader = Reader { lines, at: 0, strip: options.strip };
    let mut files = Vec::new();
    while reader.at < reader.lines.len() {
        if let Some(file) = reader.file()? {
            files.push(if options.reverse { reverse(file) } else { file });
        }
    }
    Ok(files)
}

/// Lines with their newlines.
pub fn split(text: &[u8]) -> Vec<&[u8]> {
    text.split_inclusive(|byte| *byte == b'\n').collect()
}

fn reverse(file: FilePatch) -> FilePatch {
    let hunks = file.hunks.into_iter().map(|hunk| Hunk {
        old_start: hunk.new_start,
        new_start: hunk.old_start,
        lines: hunk
            .lines
            .into_iter()
            .map(|line| match line {
                Line::Removed(text) => Line::Added(text),
                Line::Added(text) => Line::Removed(text),
                context => context,
            })
            .collect(),
    });
    FilePatch {
        old: if file.copy { file.new.clone() } else { file.new },
        new: if file.copy { None } else { file.old },
        old_mode: file.new_mode,
        new_mode: file.old_mode,
        copy: false,
        hunks: hunks.collect(),
    }
}

struct Reader<'a> {
    lines: Vec<&'a [u8]>,
    at: usize,
    strip: Option<u32>,
}

fn shown(text: &[u8]) -> String {
    String::from_utf8_lossy(text).trim_end().to_owned()
}

fn trimmed(line: &[u8]) -> &[u8] {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    line.strip_suffix(b"\r").unwrap_or(line)
}

impl<'a> Reader<'a> {
    fn peek(&self) -> Option<&'a [u8]> {
        self.lines.get(self.at).copied()
    }

    /// The next file, or one line of prose skipped.
    fn file(&mut self) -> Result<Option<FilePatch>, String> {
        let Some(line) = self.peek() else { return Ok(None) };
        if let Some(names) = trimmed(line).strip_prefix(b"diff --git ") {
            self.at += 1;
            return self.git(names).map(Some);
        }
        let next = self.lines.get(self.at + 1).copied().unwrap_or_default();
        if line.starts_with(b"--- ") && next.starts_with(b"+++ ") {
            let mut file = FilePatch::default();
            self.names(&mut file)?;
            self.hunks(&mut file)?;
            if file.hunks.is_empty() {
                return Err(format!("patch line {}: a file without a hunk", self.at));
            }
            return Ok(Some(file));
        }
        if line.starts_with(b"@@ -") {
            return Err(format!("patch line {}: a hunk without a file", self.at + 1));
        }
        self.at += 1;
        Ok(None)
    }

    /// A file of a git diff, after its first line.
    fn git(&mut self, names: &[u8]) -> Result<FilePatch, String> {
        let first = self.at;
        let mut file = FilePatch::default();
        let (mut new, mut deleted) = (false, false);
        while let Some(line) = self.peek() {
            let text = trimmed(line);
            let mode = |text: &[u8]| -> Result<Option<u32>, String> {
                let mode = std::str::from_utf8(text).ok().and_then(|text| u32::from_str_radix(text, 8).ok());
                mode.map(Some)
                    .ok_or_else(|| format!("patch line {}: `{}` is not a mode", self.at + 1, shown(text)))
            };
            if let Some(text) = text.strip_prefix(b"old mode ") {
                file.old_mode = mode(text)?;
            } else if let Some(text) = text.strip_prefix(b"new mode ") {
                file.new_mode = mode(text)?;
            } else if let Some(text) = text.strip_prefix(b"deleted file mode ") {
                (deleted, file.old_mode) = (true, mode(text)?);
            } else if let Some(text) = text.strip_prefix(b"new file mode ") {
                (new, file.new_mode) = (true, mode(text)?);
            } else if let Some(text) = text.strip_prefix(b"rename from ").or(text.strip_prefix(b"copy from "))
            {
                file.old = Some(self.name(text, true)?.unwrap_or_default());
            } else if let Some(text) = text.strip_prefix(b"rename to ") {
                file.new = Some(self.name(text, true)?.unwrap_or_default());
            } else if let Some(text) = text.strip_prefix(b"copy to ") {
                (file.copy, file.new) = (true, Some(self.name(text, true)?.unwrap_or_default()));
            } else if let Some(text) = text.strip_prefix(b"index ") {
                // An unchanged mode stands at the end.
                if let Some((_, last)) = shown(text).split_once(' ') {
                    let last = mode(last.as_bytes())?;
                    (file.old_mode, file.new_mode) = (file.old_mode.or(last), file.new_mode.or(last));
                }
            } else if text == b"GIT binary patch" || text.starts_with(b"Binary files ") {
                let name = shown(names);
                return Err(format!("patch line {}: `{name}` is binary: send it as a file", self.at + 1));
            } else if !text.starts_with(b"similarity index ") && !text.starts_with(b"dissimilarity index ") {
                break;
            }
            self.at += 1;
        }
        let follows = self.peek().is_some_and(|line| line.starts_with(b"--- "));
        if follows {
            let renamed = file.new.is_some();
            let mut named = FilePatch::default();
            self.names(&mut named)?;
            if !renamed {
                (file.old, file.new) = (named.old, named.new);
            }
            self.hunks(&mut file)?;
        } else if file.new.is_none() {
            // Nothing but a mode, or an empty file.
            let (old, after) = self.both(names).ok_or_else(|| {
                format!("patch line {first}: the names in `{}` are ambiguous", shown(names))
            })?;
            (file.old, file.new) = (Some(old), Some(after));
        }
        if new {
            file.old = None;
        }
        if deleted {
            file.new = None;
        }
        Ok(file)
    }

    /// The two names of `diff --git`, which are the same but for their first part.
    fn both(&self, names: &[u8]) -> Option<(Vec<u8>, Vec<u8>)> {
        let plain = |old: &[u8], new: &[u8]| {
            let (old, new) = (self.name(old, false).ok()??, self.name(new, false).ok()??);
            (old == new).then_some((old, new))
        };
        if names.starts_with(b"\"") {
            let end = 2 + names[1..].windows(2).position(|pair| pair == b"\" ")?;
            return plain(&names[..end], names.get(end + 1..)?);
        }
        let half = names.len() / 2;
        (names.get(half) == Some(&b' ')).then(|| plain(&names[..half], &names[half + 1..]))?
    }

    /// `---` and `+++`.
    fn names(&mut self, file: &mut FilePatch) -> Result<(), String> {
        let old = self.peek().and_then(|line| trimmed(line).strip_prefix(b"--- ")).unwrap_or_default();
        self.at += 1;
        let Some(new) = self.peek().and_then(|line| trimmed(line).strip_prefix(b"+++ ")) else {
            return Err(format!("patch line {}: no `+++` after `---`", self.at + 1));
        };
        self.at += 1;
        (file.old, file.new) = (self.name(old, false)?, self.name(new, false)?);
        if file.old.is_none() && file.new.is_none() {
            return Err(format!("patch line {}: both names are /dev/null", self.at));
        }
        Ok(())
    }

    /// A name without quotes, time stamp and leading parts; `None` for /dev/null. A bare one has no `a/` in front.
    fn name(&self, text: &[u8], bare: bool) -> Result<Option<Vec<u8>>, String> {
        let text = match text.iter().position(|byte| *byte == b'\t') {
            Some(tab) if !text.starts_with(b"\"") => &text[..tab],
            _ => text,
        };
        let name = if text.starts_with(b"\"") { unquote(text) } else { Some(text.to_vec()) };
        let wrong = |why: &str| format!("patch line {}: name `{}`: {why}", self.at + 1, shown(text));
        let name = name.ok_or_else(|| wrong("unterminated quotes"))?;
        if name == b"/dev/null" {
            return Ok(None);
        }
        let mut rest = &name[..];
        let parts = match (self.strip, bare) {
            (Some(strip), false) => strip,
            (Some(strip), true) => strip.saturating_sub(1),
            (None, false) => u32::from(name.starts_with(b"a/") || name.starts_with(b"b/")),
            (None, true) => 0,
        };
        for _ in 0..parts {
            let slash = rest.iter().position(|byte| *byte == b'/');
            rest = &rest[slash.ok_or_else(|| wrong("too few leading parts to strip"))? + 1..];
        }
        let outside = rest.is_empty() || rest.starts_with(b"/") || rest.contains(&0);
        if outside || rest.split(|byte| *byte == b'/').any(|part| part == b"..") {
            return Err(wrong("outside of the directory"));
        }
        Ok(Some(rest.to_vec()))
    }

    fn hunks(&mut self, file: &mut FilePatch) -> Result<(), String> {
        while let Some(line) = self.peek()
            && line.starts_with(b"@@ -")
        {
            let number = file.hunks.len() + 1;
            let name = file.new.as_ref().or(file.old.as_ref()).map(|name| shown(name)).unwrap_or_default();
            let ranges = ranges(line);
            let at = self.at + 1;
            let ranges =
                ranges.ok_or_else(|| format!("patch line {at}: `{}` is not a hunk header", shown(line)))?;
            self.at += 1;
            let hunk = self
                .hunk(ranges)
                .map_err(|why| format!("patch line {}: hunk {number} of `{name}`: {why}", self.at + 1))?;
            file.hunks.push(hunk);
        }
        Ok(())
    }

    fn hunk(&mut self, [old_start, old_count, new_start, new_count]: [usize; 4]) -> Result<Hunk, String> {
        let (mut old, mut new) = (0, 0);
        let mut lines: Vec<Line> = Vec::new();
        loop {
            let full = old == old_count && new == new_count;
            let Some(line) = self.peek() else {
                if full {
                    break;
                }
                return Err(format!(
                    "it ends early: {old} of {old_count} old and {new} of {new_count} new lines"
                ));
            };
            if line.starts_with(b"\\") {
                match lines.last_mut() {
                    Some(Line::Context(text) | Line::Removed(text) | Line::Added(text))
                        if text.ends_with(b"\n") =>
                    {
                        text.pop();
                    }
                    _ => return Err("`No newline at end of file` without a line before it".to_owned()),
                }
                self.at += 1;
                continue;
            }
            if full {
                break;
            }
            // A blank at the end of a line is often lost on the way.
            let (kind, text) = match line.split_first() {
                Some((b'\n' | b'\r', _)) | None => (b' ', line),
                Some((kind, text)) => (*kind, text),
            };
            let text = if text.ends_with(b"\n") { text.to_vec() } else { [text, b"\n"].concat() };
            match kind {
                b' ' => {
                    (old, new) = (old + 1, new + 1);
                    lines.push(Line::Context(text));
                }
                b'-' => {
                    old += 1;
                    lines.push(Line::Removed(text));
                }
                b'+' => {
                    new += 1;
                    lines.push(Line::Added(text));
                }
                _ => {
                    return Err(format!(
                        "it ends early: {old} of {old_count} old and {new} of {new_count} new lines"
                    ));
                }
            }
            if old > old_count || new > new_count {
                return Err(format!(
                    "more lines than its header declares ({old_count} old, {new_count} new)"
                ));
            }
            self.at += 1;
        }
        Ok(Hunk { old_start, new_start, lines })
    }
}

/// `@@ -1,2 +3,4 @@`.
fn ranges(line: &[u8]) -> Option<[usize; 4]> {
    let text = std::str::from_utf8(line.get(..line.len().min(100))?).ok().or_else(|| {
        // What follows the second @@ may be cut within a letter.
        let end = line.windows(3).skip(3).position(|three| three == b" @@")?;
        std::str::from_utf8(&line[..end + 6]).ok()
    })?;
    let (ranges, _) = text.strip_prefix("@@ -")?.split_once(" @@")?;
    let (old, new) = ranges.split_once(" +")?;
    let range = |text: &str| {
        let (start, count) = text.split_once(',').unwrap_or((text, "1"));
        Some((start.parse::<usize>().ok()?, count.parse::<usize>().ok()?))
    };
    let ((old_start, old_count), (new_start, new_count)) = (range(old)?, range(new)?);
    Some([old_start, old_count, new_start, new_count])
}

/// A name in quotes, with escapes as in C.
fn unquote(text: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = text.strip_prefix(b"\"")?.iter();
    let mut name = Vec::new();
    loop {
        match bytes.next()? {
            b'"' => return Some(name),
            b'\\' => name.push(match bytes.next()? {
                b'a' => 7,
                b'b' => 8,
                b't' => b'\t',
                b'n' => b'\n',
                b'v' => 11,
                b'f' => 12,
                b'r' => b'\r',
                digit @ b'0'..=b'3' => {
                    let (second, third) = (bytes.next()?, bytes.next()?);
                    let value = |digit: &u8| digit.checked_sub(b'0').filter(|value| *value < 8);
                    value(digit)? << 6 | value(second)? << 3 | value(third)?
                }
                other => *other,
            }),
            other => name.push(*other),
        }
    }
}

//! What a guest said before it trapped: the place and the message of a panic, as the runtimes of languages print them.

/// The last words in parts; what cannot be read is left to the whole.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Said {
    /// File and line, with the function where it is named.
    pub(super) place: Option<String>,
    /// The message, without the stack.
    pub(super) message: Option<String>,
}

impl Said {
    /// Reads Rust's panics, Python's tracebacks, JavaScript's stacks and what Go says of its own death; of anything else the words are the message.
    pub(super) fn read(words: &str) -> Said {
        let words = words.trim();
        if words.is_empty() {
            return Said::default();
        }
        // Python's runtime panics in Rust behind the traceback.
        python(words)
            .or_else(|| rust(words))
            .or_else(|| go(words))
            .or_else(|| javascript(words))
            .unwrap_or_else(|| Said { place: None, message: Some(words.to_owned()) })
    }
}

/// `thread '...' panicked at src/lib.rs:31:5:`, then the message and a note on backtraces.
fn rust(words: &str) -> Option<Said> {
    let (_, behind) = words.rsplit_once("panicked at ")?;
    let (place, message) = behind.split_once('\n').unwrap_or((behind, ""));
    let message: Vec<&str> = message.lines().take_while(|line| !line.starts_with("note: run with")).collect();
    let place = place.trim_end_matches(':');
    let named = place.contains(':') && !place.contains(' ');
    let message = message.join("\n").trim().to_owned();
    Some(Said { place: named.then(|| place.to_owned()), message: (!message.is_empty()).then_some(message) })
}

/// `Traceback ...`, `File "app.py", line 31, in run`, innermost last, then the exception.
fn python(words: &str) -> Option<Said> {
    if !words.contains("Traceback (most recent call last)") {
        return None;
    }
    let frame = |line: &str| {
        let (file, rest) = line.trim_start().strip_prefix("File \"")?.split_once("\", line ")?;
        let (number, function) = rest.split_once(", in ").unwrap_or((rest, ""));
        let function = if function.is_empty() { String::new() } else { format!(" ({function})") };
        Some(format!("{file}:{number}{function}"))
    };
    let lines: Vec<&str> = words.lines().collect();
    let last = lines.iter().rposition(|line| frame(line).is_some());
    let behind = last.map_or(0, |last| last + 1);
    // Below a frame stands its source, indented.
    let message: Vec<&str> = (lines[behind..].iter().copied())
        .skip_while(|line| line.starts_with(' '))
        .take_while(|line| !line.contains("panicked at "))
        .collect();
    let message = message.join("\n").trim().to_owned();
    let place = last.and_then(|last| frame(lines[last]));
    Some(Said { place, message: (!message.is_empty()).then_some(message) })
}

/// `panic: ...` or `fatal error: ...`, then a goroutine, innermost first: `main.run(0x1)`, and below it, indented, `mine/plugin.go:31 +0x2`.
fn go(words: &str) -> Option<Said> {
    let lines: Vec<&str> = words.lines().collect();
    let first =
        lines.iter().position(|line| line.starts_with("panic: ") || line.starts_with("fatal error: "))?;
    let goroutine = first + lines[first..].iter().position(|line| line.starts_with("goroutine "))?;
    let frame = |pair: &[&str]| {
        let (function, place) = (pair.first()?, pair.get(1)?.strip_prefix(['\t', ' '])?.trim_start());
        let place = place.split(' ').next()?;
        let name = function.split('(').next()?;
        // The files of package `main` lie in the project's folder, as its author names them.
        let place = if name.starts_with("main.") { place.rsplit('/').next()? } else { place };
        (!name.is_empty() && place.contains(".go:")).then(|| (name.to_owned(), format!("{place} ({name})")))
    };
    let frames: Vec<(String, String)> = lines[goroutine + 1..].windows(2).filter_map(frame).collect();
    // What of the standard library was called stands in front of the author's own.
    let own = frames.iter().find(|(name, _)| name.starts_with("main.")).or(frames.first());
    let message = lines[first..goroutine].join("\n").trim().to_owned();
    Some(Said { place: own.map(|(_, place)| place.clone()), message: Some(message) })
}

/// The error, then `at run (app.js:31:5)` or `run@app.js:31:5`, innermost first.
fn javascript(words: &str) -> Option<Said> {
    let located = |text: &str| {
        let parts: Vec<&str> = text.rsplitn(3, ':').collect();
        let number = |part: &&str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        parts.len() > 1 && parts.first().is_some_and(number)
    };
    let frame = |line: &str| {
        let line = line.trim();
        if let Some(rest) = line.strip_prefix("at ") {
            let (function, place) = rest.split_once(" (").unwrap_or(("", rest));
            let place = place.trim_end_matches(')');
            let function = if function.is_empty() { String::new() } else { format!(" ({function})") };
            return located(place).then(|| format!("{place}{function}"));
        }
        let (function, place) = line.split_once('@')?;
        let plain = !function.contains(' ') && !place.contains(' ');
        let function = if function.is_empty() { String::new() } else { format!(" ({function})") };
        (plain && located(place)).then(|| format!("{place}{function}"))
    };
    let lines: Vec<&str> = words.lines().collect();
    let first = lines.iter().position(|line| frame(line).is_some())?;
    let message = lines[..first].join("\n").trim().to_owned();
    Some(Said { place: frame(lines[first]), message: (!message.is_empty()).then_some(message) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_of_each_language_has_its_place_and_message() {
        let cases = [
            (
                "\nthread '<unnamed>' (1) panicked at src/lib.rs:31:5:\nindex out of bounds: 7\nof 0\n\
                 note: run with `RUST_BACKTRACE=1` environment variable to display a backtrace",
                Some("src/lib.rs:31:5"),
                Some("index out of bounds: 7\nof 0"),
            ),
            (
                "Traceback (most recent call last):\n  File \"/0/app.py\", line 9, in run\n    return guess()\n  \
                 File \"/0/app.py\", line 31, in guess\n    raise ValueError(\"no\")\n           ^^^\nValueError: no\n\n\
                 thread '<unnamed>' (1) panicked at runtime/src/lib.rs:1293:29:\nPython function threw",
                Some("/0/app.py:31 (guess)"),
                Some("ValueError: no"),
            ),
            (
                "TypeError: a panic on purpose\n    at panic (app.js:25:11)\n    at run (app.js:64)\n",
                Some("app.js:25:11 (panic)"),
                Some("TypeError: a panic on purpose"),
            ),
            ("Error: x\npanic@app.js:25:11\nrun@app.js:64:3", Some("app.js:25:11 (panic)"), Some("Error: x")),
            (
                "fatal error: all goroutines are asleep - deadlock!\n\ngoroutine 1 [chan receive]:\n\
                 main.run(0x364000, {{0x30e0d0, 0x8}})\n\tmine/plugin.go:67 +0xc9",
                Some("plugin.go:67 (main.run)"),
                Some("fatal error: all goroutines are asleep - deadlock!"),
            ),
            (
                "panic: strings: negative Repeat count\n\ngoroutine 7 [running]:\nstrings.Repeat({0x1, 0x2}, 0x3)\n\
                 \tstrings/strings.go:624 +0x2\nmain.run.func1()\n\tmine/plugin.go:64 +0x2\ncreated by main.run in goroutine 1",
                Some("plugin.go:64 (main.run.func1)"),
                Some("panic: strings: negative Repeat count"),
            ),
            ("    at <anonymous> (app.js:3)", Some("app.js:3 (<anonymous>)"), None),
            ("giving up: mail a@b at noon", None, Some("giving up: mail a@b at noon")),
            ("", None, None),
        ];
        for (words, place, message) in cases {
            let said = Said::read(words);
            assert_eq!((said.place.as_deref(), said.message.as_deref()), (place, message), "{words}");
        }
    }
}

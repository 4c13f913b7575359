//! An error with what caused it, told once.
//!
//! A message says what happened at its own level; what caused it is its `source()`. Whoever shows an error, or keeps it as text,
//! asks here for the whole of it.

use std::error::Error;

/// The messages of an error and its causes, outermost first. A cause that the message before it ends with already, as in errors
/// of other libraries that tell their causes themselves, is left out.
pub fn chain(error: &dyn Error) -> Vec<String> {
    let mut told = vec![error.to_string()];
    let mut source = error.source();
    while let Some(cause) = source {
        let text = cause.to_string();
        if !told.iter().any(|effect| effect.ends_with(&text)) {
            told.push(text);
        }
        source = cause.source();
    }
    told
}

/// The same in one line.
pub fn with_causes(error: &dyn Error) -> String {
    chain(error).join(": ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    enum Sample {
        #[error("the store failed")]
        Store(#[source] std::io::Error),
        #[error("{0}: told by itself")]
        Whole(String, #[source] Box<Sample>),
        #[error(transparent)]
        Passed(Box<Sample>),
    }

    #[test]
    fn each_cause_is_told_once() {
        let disk = || std::io::Error::other("disk on fire");
        let check = |error: Sample, expect: &str| assert_eq!(with_causes(&error), expect);
        check(Sample::Store(disk()), "the store failed: disk on fire");
        check(Sample::Passed(Box::new(Sample::Store(disk()))), "the store failed: disk on fire");
        let outer = Sample::Whole("outer".to_owned(), Box::new(Sample::Store(disk())));
        check(outer, "outer: told by itself: the store failed: disk on fire");
        let foreign = std::io::Error::other(Sample::Store(std::io::Error::other("x")));
        check(Sample::Store(foreign), "the store failed: x");
    }
}

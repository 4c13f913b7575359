//! An error with what caused it, told once.
//!
//! A message says what happened at its own level; what caused it is its `source()`. Whoever shows an error, or keeps it as text,
//! asks here for the whole of it.

use std::error::Error;
use std::fmt::{self, Display, Formatter};
use std::sync::Arc;

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

/// What failed, in words, and the error that caused it, where one did. Copies share the cause; two are equal when they tell the
/// same.
#[derive(Clone, Debug)]
pub struct Failed {
    what: String,
    cause: Option<Arc<dyn Error + Send + Sync>>,
}

impl Failed {
    /// With its cause, which stands behind the words wherever the whole is told.
    pub fn by(what: impl Into<String>, cause: impl Into<Box<dyn Error + Send + Sync>>) -> Failed {
        Failed { what: what.into(), cause: Some(Arc::from(cause.into())) }
    }
}

impl<T: Into<String>> From<T> for Failed {
    /// Without a cause.
    fn from(what: T) -> Failed {
        Failed { what: what.into(), cause: None }
    }
}

impl Display for Failed {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)
    }
}

impl Error for Failed {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.cause.as_deref().map(|cause| cause as &(dyn Error + 'static))
    }
}

impl PartialEq for Failed {
    fn eq(&self, other: &Failed) -> bool {
        chain(self) == chain(other)
    }
}

impl Eq for Failed {}

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
    #[test]
    fn what_failed_is_told_with_its_cause_and_compared_by_both() {
        let disk = || Failed::by("writing it", std::io::Error::other("disk on fire"));
        assert_eq!(with_causes(&disk()), "writing it: disk on fire");
        assert_eq!(disk().to_string(), "writing it");
        assert_eq!(disk(), disk());
        assert_ne!(disk(), Failed::from("writing it"));
        assert_eq!(
            with_causes(&Failed::by("the registry", "no answer in 5 s")),
            "the registry: no answer in 5 s"
        );
    }
}

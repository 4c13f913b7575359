//! From a core module to a component.

use crate::build::BuildError;
use wit_component::ComponentEncoder;

/// Makes a component of a core module whose custom sections name its world. What it does not import of the world is left out.
pub fn encode(module: &[u8], _wasi: bool) -> Result<Vec<u8>, BuildError> {
    let refused = |error: &dyn std::fmt::Display| BuildError::Component { reason: format!("{error:#}") };
    let encoder = ComponentEncoder::default().validate(true).module(module);
    encoder.and_then(|mut encoder| encoder.encode()).map_err(|error| refused(&error))
}

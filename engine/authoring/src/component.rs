//! From a core module to a component.

use crate::build::BuildError;
use crate::project::Kind;
use std::fmt::Display;
use std::path::Path;
use wit_component::{ComponentEncoder, StringEncoding, embed_component_metadata};
use wit_parser::Resolve;

/// WASI's first preview, answered inside of the component: `plugins/adapter/wasi_snapshot_preview1.wat` with its world.
const WASI_ADAPTER: &[u8] = include_bytes!("../../../plugins/adapter/wasi_snapshot_preview1.wasm");
/// The module that Go and C import it as.
const WASI_MODULE: &str = "wasi_snapshot_preview1";

/// Adds to a core module which of the worlds in a folder of WIT it is, for [`encode`]. For compilers that do not know of worlds.
pub fn embed(module: &mut Vec<u8>, wit: &Path, world: &str) -> Result<(), BuildError> {
    let mut resolve = Resolve::default();
    let (package, _) = resolve.push_dir(wit).map_err(|error| refused(&format_args!("{error:#}")))?;
    let world =
        resolve.select_world(&[package], Some(world)).map_err(|error| refused(&format_args!("{error:#}")))?;
    embed_component_metadata(module, &resolve, world, StringEncoding::UTF8)
        .map_err(|error| refused(&format_args!("{error:#}")))
}

/// Makes a component of a core module whose custom sections name its world. What it does not import of the world is left out;
/// with `wasi`, what it imports of WASI's first preview is answered by the adapter, so that nothing of it is left.
pub fn encode(module: &[u8], wasi: bool, kind: Kind) -> Result<Vec<u8>, BuildError> {
    let encoder = ComponentEncoder::default().validate(true).module(module);
    let encoder = match wasi {
        true => encoder.and_then(|encoder| encoder.adapter(WASI_MODULE, WASI_ADAPTER)),
        false => encoder,
    };
    encoder.and_then(|mut encoder| encoder.encode()).map_err(|error| plainly(&format!("{error:#}"), kind))
}

/// Why a module is not a plugin, said for its author.
fn plainly(error: &str, kind: Kind) -> BuildError {
    let import =
        error.split_once("requires an import interface named `").and_then(|(_, rest)| rest.split_once('`'));
    match import {
        Some((interface, _)) => refused(&format_args!(
            "the plugin calls {interface}, which a plugin of kind {} does not have; see the world {} in sdk/wit/plugin.wit",
            kind.as_str(),
            kind.world()
        )),
        None => refused(&error),
    }
}

fn refused(error: &dyn Display) -> BuildError {
    BuildError::Component { reason: error.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_import_that_the_world_does_not_have_is_named() {
        let error = "failed to decode world from module: module was not valid: failed to resolve import `a:b/c@0.1.0::d`: module \
                     requires an import interface named `a:b/c@0.1.0`";
        let told = "the plugin calls a:b/c@0.1.0, which a plugin of kind reward does not have; see the world reward-plugin in \
                    sdk/wit/plugin.wit";
        assert_eq!(plainly(error, Kind::Reward).to_string(), told);
        assert_eq!(plainly("something else", Kind::Reward).to_string(), "something else");
    }
}

//! What a component may consist of, checked before anything is compiled.
//!
//! The compiler's time and memory follow from what is counted here, some of it faster than in proportion. Each bound is at
//! least four times what components with all of CPython or SpiderMonkey have. One pass over the bytes that keeps nothing of
//! them: what a component means is for the compiler to say, in a process of its own ([`crate::compiler`]).

use crate::inspect::is_async;
use std::io::Read;
use std::path::Path;
use wasmparser::{ComponentType, FunctionBody, Operator, Parser, Payload};

/// Bytes of a component.
pub(crate) const COMPONENT_BYTES_MAX: u64 = 128 << 20;

/// Why a component is not compiled.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// It has more of something than is compiled.
    Bound(Exceeded),
    /// It is damaged, or asks for what this engine does not have.
    Reason(String),
}

/// A bound that a component does not keep.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("has {found} {what}{place}, more than the limit of {max}")]
pub struct Exceeded {
    /// What there is too much of, in the plural.
    pub what: &'static str,
    /// How many there are, as far as was counted.
    pub found: u64,
    /// How many are allowed.
    pub max: u64,
    /// ` in function 12 of module 3`, or nothing.
    pub place: String,
}

/// Declares the things that are counted, each with its name in messages and its bound.
macro_rules! bounds {
    ($($name:ident: $what:literal <= $max:expr,)*) => {
        /// What is counted.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Of { $($name,)* }

        impl Of {
            /// Everything that is counted, in the order of the counters.
            const ALL: &[Of] = &[$(Of::$name,)*];

            /// Its name in messages.
            pub(crate) fn what(self) -> &'static str {
                match self { $(Of::$name => $what,)* }
            }

            /// Its bound.
            pub(crate) fn max(self) -> u64 {
                match self { $(Of::$name => $max,)* }
            }
        }
    };
}

bounds! {
    // Of the whole component.
    Depth: "levels of nested components" <= 16,
    Modules: "core modules" <= 256,
    Components: "nested components" <= 128,
    ComponentTypeBytes: "bytes of component types" <= 256 << 10,
    ComponentItems: "imports, exports, aliases, instances and adapters of components" <= 16_384,
    Types: "types of core functions" <= 8_192,
    TypeParameters: "parameters and results of core types" <= 65_536,
    CoreItems: "imports, exports, globals, tables and memories of core modules" <= 65_536,
    ElementSegments: "element segments" <= 4_096,
    Elements: "elements" <= 65_536,
    DataSegments: "data segments" <= 65_536,
    Functions: "functions" <= 65_536,
    CodeBytes: "bytes of code" <= 48 << 20,
    Branches: "branches and blocks" <= 2 << 20,
    // Of one function.
    FunctionBytes: "bytes of one function" <= 2 << 20,
    FunctionLocals: "locals of one function" <= 4_096,
    FunctionParameters: "parameters and results of one type" <= 256,
    FunctionNesting: "nested blocks of one function" <= 4_096,
    FunctionBranches: "branches and blocks of one function" <= 96 << 10,
}

/// Counts as it goes, and stops at the first bound that is not kept.
struct Counter {
    counts: [u64; Of::ALL.len()],
}

impl Counter {
    /// So many more.
    fn add(&mut self, of: Of, more: u64, place: impl FnOnce() -> String) -> Result<(), Refusal> {
        let count = self.counts[of as usize].saturating_add(more);
        self.most(of, count, place)
    }

    /// So many in one place: the most that were seen anywhere are kept.
    fn most(&mut self, of: Of, found: u64, place: impl FnOnce() -> String) -> Result<(), Refusal> {
        let count = &mut self.counts[of as usize];
        *count = found.max(*count);
        if found > of.max() {
            let (what, max) = (of.what(), of.max());
            return Err(Refusal::Bound(Exceeded { what, found, max, place: place() }));
        }
        Ok(())
    }
}

/// What is bounded, with its bound.
pub fn bounds() -> impl Iterator<Item = (&'static str, u64)> {
    [("bytes", COMPONENT_BYTES_MAX)].into_iter().chain(Of::ALL.iter().map(|of| (of.what(), of.max())))
}

/// The bytes of a file, unless it is too large to be a component.
pub(crate) fn read_component(path: &Path) -> std::io::Result<Result<Vec<u8>, Exceeded>> {
    let file = std::fs::File::open(path)?;
    let metadata = file.metadata()?;
    if !metadata.is_file() {
        return Err(std::io::Error::new(std::io::ErrorKind::InvalidInput, "it is not a regular file"));
    }
    let size = metadata.len();
    let mut wasm = Vec::new();
    // It may grow while it is read.
    let size = size.max(file.take(COMPONENT_BYTES_MAX + 1).read_to_end(&mut wasm)? as u64);
    Ok(if size > COMPONENT_BYTES_MAX { Err(too_many_bytes(size)) } else { Ok(wasm) })
}

fn too_many_bytes(found: u64) -> Exceeded {
    Exceeded { what: "bytes", found, max: COMPONENT_BYTES_MAX, place: String::new() }
}

/// Checks the bounds, and that the compiler has what the component asks for.
pub(crate) fn check(wasm: &[u8]) -> Result<(), Refusal> {
    count(wasm).map(drop)
}

fn count(wasm: &[u8]) -> Result<[u64; Of::ALL.len()], Refusal> {
    let mut counter = Counter { counts: [0; Of::ALL.len()] };
    let size = wasm.len() as u64;
    if size > COMPONENT_BYTES_MAX {
        return Err(Refusal::Bound(too_many_bytes(size)));
    }
    let mut depth = 0u64;
    let mut function = 0u64;
    let nowhere = String::new;
    for payload in Parser::new(0).parse_all(wasm) {
        let module = counter.counts[Of::Modules as usize];
        let in_module = || format!(" in core module {module}");
        match payload.map_err(damaged)? {
            Payload::ModuleSection { .. } => {
                depth += 1;
                function = 0;
                counter.add(Of::Modules, 1, nowhere)?;
            }
            Payload::ComponentSection { .. } => {
                depth += 1;
                counter.add(Of::Components, 1, nowhere)?;
                counter.most(Of::Depth, depth, nowhere)?;
            }
            Payload::End(_) => depth = depth.saturating_sub(1),

            Payload::TypeSection(types) => {
                for group in types {
                    for ty in group.map_err(damaged)?.types() {
                        let (params, results) = match &ty.composite_type.inner {
                            wasmparser::CompositeInnerType::Func(ty) => (ty.params(), ty.results()),
                            _ => (&[][..], &[][..]),
                        };
                        let both = (params.len() + results.len()) as u64;
                        counter.add(Of::Types, 1, in_module)?;
                        counter.most(Of::FunctionParameters, both, in_module)?;
                        counter.add(Of::TypeParameters, both, in_module)?;
                    }
                }
            }
            Payload::ImportSection(all) => counter.add(Of::CoreItems, all.count().into(), in_module)?,
            Payload::ExportSection(all) => counter.add(Of::CoreItems, all.count().into(), in_module)?,
            Payload::GlobalSection(all) => counter.add(Of::CoreItems, all.count().into(), in_module)?,
            Payload::TableSection(all) => counter.add(Of::CoreItems, all.count().into(), in_module)?,
            Payload::MemorySection(all) => counter.add(Of::CoreItems, all.count().into(), in_module)?,
            Payload::TagSection(all) => counter.add(Of::CoreItems, all.count().into(), in_module)?,
            Payload::ElementSection(all) => {
                counter.add(Of::ElementSegments, all.count().into(), in_module)?;
                for segment in all {
                    let elements = match segment.map_err(damaged)?.items {
                        wasmparser::ElementItems::Functions(all) => all.count(),
                        wasmparser::ElementItems::Expressions(_, all) => all.count(),
                    };
                    counter.add(Of::Elements, elements.into(), in_module)?;
                }
            }
            Payload::DataSection(all) => counter.add(Of::DataSegments, all.count().into(), in_module)?,
            Payload::FunctionSection(all) => counter.add(Of::Functions, all.count().into(), in_module)?,
            Payload::CodeSectionEntry(body) => {
                count_function(&mut counter, &body, || {
                    format!(" in function {function} of core module {module}")
                })?;
                function += 1;
            }

            Payload::CoreTypeSection(all) => {
                counter.add(Of::ComponentTypeBytes, length(all.range()), nowhere)?;
            }
            Payload::ComponentTypeSection(all) => {
                counter.add(Of::ComponentTypeBytes, length(all.range()), nowhere)?;
                for ty in all {
                    if let ComponentType::Func(ty) = ty.map_err(damaged)?
                        && ty.async_
                    {
                        return Err(built_for_async("functions of an asynchronous type"));
                    }
                }
            }
            Payload::InstanceSection(all) => counter.add(Of::ComponentItems, all.count().into(), nowhere)?,
            Payload::ComponentInstanceSection(all) => {
                counter.add(Of::ComponentItems, all.count().into(), nowhere)?;
            }
            Payload::ComponentAliasSection(all) => {
                counter.add(Of::ComponentItems, all.count().into(), nowhere)?;
            }
            Payload::ComponentImportSection(all) => {
                counter.add(Of::ComponentItems, all.count().into(), nowhere)?;
            }
            Payload::ComponentExportSection(all) => {
                counter.add(Of::ComponentItems, all.count().into(), nowhere)?;
            }
            Payload::ComponentCanonicalSection(all) => {
                counter.add(Of::ComponentItems, all.count().into(), nowhere)?;
                for function in all {
                    if is_async(&function.map_err(damaged)?) {
                        return Err(built_for_async("asynchronous tasks, streams or calls"));
                    }
                }
            }
            _ => {}
        }
    }
    Ok(counter.counts)
}

/// What is said of a component that uses the asynchronous part of the component model.
fn built_for_async(what: &str) -> Refusal {
    Refusal::Reason(format!(
        "is built for async: it uses {what}; all functions of this engine's interfaces are synchronous; rebuild it for \
         synchronous calls (`espalier plugin build` does; componentize-qjs: with --sync)"
    ))
}

fn count_function(
    counter: &mut Counter,
    body: &FunctionBody<'_>,
    place: impl Fn() -> String,
) -> Result<(), Refusal> {
    let bytes = length(body.range());
    counter.most(Of::FunctionBytes, bytes, &place)?;
    counter.add(Of::CodeBytes, bytes, &place)?;
    let mut locals = 0u64;
    for local in body.get_locals_reader().map_err(damaged)? {
        let (count, _) = local.map_err(damaged)?;
        locals = locals.saturating_add(count.into());
    }
    counter.most(Of::FunctionLocals, locals, &place)?;
    let (mut branches, mut nesting, mut deepest) = (0u64, 0u64, 0u64);
    let mut operators = body.get_operators_reader().map_err(damaged)?;
    while !operators.eof() {
        match operators.read().map_err(damaged)? {
            Operator::Block { .. }
            | Operator::Loop { .. }
            | Operator::If { .. }
            | Operator::TryTable { .. } => {
                branches += 1;
                nesting += 1;
                deepest = deepest.max(nesting);
            }
            Operator::End => nesting = nesting.saturating_sub(1),
            Operator::Br { .. }
            | Operator::BrIf { .. }
            | Operator::BrOnNull { .. }
            | Operator::BrOnNonNull { .. }
            | Operator::Return => branches += 1,
            Operator::BrTable { targets } => branches = branches.saturating_add(u64::from(targets.len()) + 1),
            _ => {}
        }
    }
    counter.most(Of::FunctionNesting, deepest, &place)?;
    counter.most(Of::FunctionBranches, branches, &place)?;
    counter.add(Of::Branches, branches, &place)
}

fn length(range: std::ops::Range<usize>) -> u64 {
    u64::try_from(range.len()).unwrap_or(u64::MAX)
}

#[expect(clippy::needless_pass_by_value, reason = "the signature that `map_err` wants")]
fn damaged(error: wasmparser::BinaryReaderError) -> Refusal {
    Refusal::Reason(format!("is damaged: {error}"))
}

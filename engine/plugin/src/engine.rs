//! The one place that builds the wasmtime engine, and the thread that gives it its clock.

use crate::PluginError;
use crate::guest::TABLE_ELEMENTS_MAX;
use crate::places::{MEMORIES, TABLES};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;
use wasmtime::{
    Config, Enabled, Engine, InstanceAllocationStrategy, OptLevel, PoolingAllocationConfig,
    WasmBacktraceDetails,
};

/// How long a guest runs before it lets others run.
pub(crate) const TICK: Duration = Duration::from_millis(10);

/// Stack of WebAssembly frames; a guest that needs more traps as `stack`.
const WASM_STACK_BYTES: usize = 1 << 20;

/// What the host's own functions and the reading of debug symbols have on top, on the same fiber. Reserved, not
/// touched: a parked guest holds only the pages it wrote.
const HOST_STACK_BYTES: usize = 512 << 10;

/// What is written back page by page, instead of given back and mapped anew, when an instance is gone: the pages that it
/// wrote of its memory, of each of its tables, and of its stack.
const MEMORY_KEPT_BYTES: usize = 256 << 10;
const TABLE_KEPT_BYTES: usize = 16 << 10;
const STACK_KEPT_BYTES: usize = 32 << 10;

/// Builds the engine with so many places for instances ([`crate::places`]).
///
/// Stacks and memories are reserved once and used again: making and dropping an instance then takes no system call that
/// changes the process's maps, which costs 10 us and, on many cores, interrupts every one of them. A machine that does
/// not let so much address space be reserved gets an engine that maps each instance for itself.
pub(crate) fn build(places: u32) -> Result<Engine, PluginError> {
    let mut config = config();
    config.allocation_strategy(InstanceAllocationStrategy::Pooling(pool(places)));
    match Engine::new(&config) {
        Ok(engine) => Ok(engine),
        Err(error) => {
            tracing::warn!(
                places,
                "cannot reserve memory for plugin instances, so each is mapped separately: {error:#}"
            );
            config.allocation_strategy(InstanceAllocationStrategy::OnDemand);
            Engine::new(&config).map_err(|error| PluginError::host("wasmtime refuses this machine", error))
        }
    }
}

/// An engine that compiles for the one of [`build`] and makes no instances.
pub(crate) fn for_compiling() -> wasmtime::Result<Engine> {
    Engine::new(&config())
}

/// Every setting here is part of the key of compiled code.
fn config() -> Config {
    let mut config = Config::new();
    config
        .wasm_component_model(true)
        .cranelift_opt_level(OptLevel::Speed)
        // Two machines that replay one rollout must agree on every bit.
        .cranelift_nan_canonicalization(true)
        .relaxed_simd_deterministic(true)
        .epoch_interruption(true)
        .wasm_backtrace_details(WasmBacktraceDetails::Enable)
        .max_wasm_stack(WASM_STACK_BYTES)
        .async_stack_size(WASM_STACK_BYTES + HOST_STACK_BYTES)
        .memory_init_cow(true)
        // The guard in front defends against faults of the compiler alone, and costs each instance one of the 65,530 maps
        // that Linux allows a process by default: 6 remain (2 of the stack, 4 of the memory), so 10,000 can be parked.
        .guard_before_linear_memory(false)
        // What a guest left on its stack does not stay resident until the next one comes.
        .async_stack_zeroing(true);
    config
}

/// As many of each as the places need; sizes are address space, not memory.
fn pool(places: u32) -> PoolingAllocationConfig {
    let mut pool = PoolingAllocationConfig::default();
    pool.total_component_instances(places)
        .total_core_instances(u32::MAX)
        .total_memories(places.saturating_mul(MEMORIES))
        .total_tables(places.saturating_mul(TABLES))
        .total_stacks(places)
        .max_memory_size(4 << 30)
        .table_elements(TABLE_ELEMENTS_MAX)
        // Bounded by the instance's own limits, and by what a component may hold at all.
        .max_component_instance_size(64 << 20)
        .max_core_instance_size(64 << 20)
        .max_tables_per_module(256)
        .max_memories_per_module(16)
        .linear_memory_keep_resident(MEMORY_KEPT_BYTES)
        .table_keep_resident(TABLE_KEPT_BYTES)
        .async_stack_keep_resident(STACK_KEPT_BYTES)
        .pagemap_scan(Enabled::Auto);
    pool
}

/// Advances the engine's epoch every [`TICK`] from a thread of its own, so that no load of any runtime delays it. Ends
/// when dropped.
pub(crate) struct Ticker {
    _stop: SyncSender<()>,
}

impl Ticker {
    pub(crate) fn start(engine: &Engine) -> Result<Ticker, PluginError> {
        let (stop, stopped) = sync_channel::<()>(0);
        let engine = engine.weak();
        std::thread::Builder::new()
            .name("espalier-epoch".to_owned())
            .spawn(move || {
                while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(TICK) {
                    let Some(engine) = engine.upgrade() else { return };
                    engine.increment_epoch();
                }
            })
            .map_err(|error| PluginError::host("cannot start the epoch thread", error))?;
        Ok(Ticker { _stop: stop })
    }
}

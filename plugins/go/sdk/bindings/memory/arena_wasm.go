package memory

import "unsafe"

// arenaMin is the size of the first arena; a larger one follows when it is full.
const arenaMin = 256 << 10

//go:linkname sbrk runtime.sbrk
func sbrk(size uintptr) unsafe.Pointer

// trap ends the plugin, without a word: while the host waits for memory it cannot be told anything.
func trap()

// take is memory of the arena. Nothing in it allocates.
func take(size, align uintptr) unsafe.Pointer {
	start := (arena.used + align - 1) &^ (align - 1)
	if start+size > arena.size {
		grown := max(arenaMin, 2*arena.size, size)
		// What is in the old one is still read; then it is given up.
		base := sbrk(grown)
		if base == nil {
			trap()
		}
		arena.base, arena.size, start = base, grown, 0
	}
	arena.used = start + size
	return unsafe.Add(arena.base, start)
}

// The host asks for memory by these names, and not by `cabi_realloc`, which is also asked before Go's runtime is up.

//go:wasmexport cabi_import_realloc
func importRealloc(_ unsafe.Pointer, _, align, size uintptr) unsafe.Pointer { return take(size, align) }

//go:wasmexport cabi_export_realloc
func exportRealloc(_ unsafe.Pointer, _, align, size uintptr) unsafe.Pointer {
	exporting = true
	return take(size, align)
}

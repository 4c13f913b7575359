// Package memory is what the generated bindings share: memory that the host may write to, and handles of resources.
package memory

import (
	"runtime"
	"unsafe"
)

// Handle names a resource of the host.
type Handle struct{ value int32 }

// MakeHandle is the handle of this number.
func MakeHandle(value int32) *Handle { return &Handle{value} }

// Use is its number. It panics after the handle was given up.
func (h *Handle) Use() int32 {
	if h.value == 0 {
		panic("a handle was used after it was closed")
	}
	return h.value
}

// Take is its number, which passes to the caller.
func (h *Handle) Take() int32 {
	value := h.Use()
	h.value = 0
	return value
}

// TakeOrNil is as Take, with 0 for a handle that was given up.
func (h *Handle) TakeOrNil() int32 {
	value := h.value
	h.value = 0
	return value
}

// Set gives an empty handle a number.
func (h *Handle) Set(value int32) { h.value = value }

// Allocate makes memory that stays where it is until the pinner lets go of it.
func Allocate(pinner *runtime.Pinner, size, align uintptr) unsafe.Pointer {
	memory := allocate(size, align)
	if memory != nil {
		pinner.Pin(memory)
	}
	return memory
}

func allocate(size, align uintptr) unsafe.Pointer {
	switch {
	case size == 0:
		return nil
	case align > 4:
		return unsafe.Pointer(unsafe.SliceData(make([]uint64, (size+7)/8)))
	case align > 1:
		return unsafe.Pointer(unsafe.SliceData(make([]uint32, (size+3)/4)))
	}
	return unsafe.Pointer(unsafe.SliceData(make([]uint8, size)))
}

// What the host writes to is kept alive here until the bindings have read it: the results of an import, the arguments of an export.
var received, passed []unsafe.Pointer

// Received takes over the results of the import that was just called: the caller keeps them alive while it reads them.
func Received() []unsafe.Pointer {
	taken := received
	received = nil
	return taken
}

// Unpin lets go of the arguments of an export, which have been read.
func Unpin() { passed = nil }

// The host asks for memory by these names, and not by `cabi_realloc`, which is also asked before Go's runtime is up.

//go:wasmexport cabi_import_realloc
func importRealloc(_ unsafe.Pointer, _, align, size uintptr) unsafe.Pointer {
	memory := allocate(size, align)
	received = append(received, memory)
	return memory
}

//go:wasmexport cabi_export_realloc
func exportRealloc(_ unsafe.Pointer, _, align, size uintptr) unsafe.Pointer {
	memory := allocate(size, align)
	passed = append(passed, memory)
	return memory
}

// Package memory is what the generated bindings share: memory that the host may write to, and handles of resources.
package memory

import (
	"runtime"
	"strings"
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

// String is a copy of a text that the host wrote.
func String(text *uint8, length uint32) string { return strings.Clone(unsafe.String(text, length)) }

// Bytes is a copy of bytes that the host wrote.
func Bytes(bytes *uint8, length uint32) []byte {
	return append([]byte{}, unsafe.Slice(bytes, length)...)
}

// calls are imports whose results are not read yet: of several goroutines, there may be more than one.
var calls int

// exporting says that there are arguments of an export that are not read yet.
var exporting bool

// Enter is called before an import, Leave when its results have been read.
func Enter() { calls++ }

// Leave is called when the results of an import have been read.
func Leave() {
	calls--
	reuse()
}

// Unpin is called when the arguments of an export have been read.
func Unpin() {
	exporting = false
	reuse()
}

// reuse makes the arena empty when nothing in it is still to be read.
func reuse() {
	if calls == 0 && !exporting {
		arena.used = 0
	}
}

// arena is where the host writes to. It is not of Go's heap: an allocation may begin a collection, which runs other goroutines, and
// while the host waits for memory they must not call it.
var arena struct {
	base       unsafe.Pointer
	size, used uintptr
}

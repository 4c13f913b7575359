//go:build !wasm

package espalier

func endLines() {}

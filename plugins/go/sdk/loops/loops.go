// Package loops tells the engine where in its source a plugin is, so that it can name the line of an endless loop. Calls of At are put
// into loops by `espalier plugin build`, on the way to the compiler.
package loops

import "espalier/sdk/bindings/imports/espalier_plugin_diagnostics"

// every is how many times round a loop there are for one call of the engine.
const every = 1 << 10

var rounds uint32

// At is called each time round a loop.
func At(file string, line uint32) {
	if rounds++; rounds%every == 0 {
		espalier_plugin_diagnostics.At(file, line)
	}
}

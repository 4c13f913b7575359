package espalier

import (
	"encoding/json"
	"fmt"
	"log"
	"strings"

	"espalier/sdk/bindings/imports/espalier_base_log"
	"espalier/sdk/bindings/types"
)

// Level says how much a line of the log matters.
type Level uint8

const (
	Debug Level = Level(espalier_base_log.Level_Debug)
	Info  Level = Level(espalier_base_log.Level_Info)
	Warn  Level = Level(espalier_base_log.Level_Warn)
	Error Level = Level(espalier_base_log.Level_Error)
)

// Log writes a line to the rollout's log, with structured fields where given. Standard output goes there too, as Info; what
// package log of the standard library writes as Info; standard error as Error.
func Log(level Level, text string, fields ...map[string]any) {
	extra := types.None[string]()
	for _, fields := range fields {
		if text, err := json.Marshal(fields); err == nil {
			extra = types.Some(string(text))
		}
	}
	espalier_base_log.Write(espalier_base_log.Level(level), strings.ToValidUTF8(text, "?"), extra)
}

// Logf writes a line as fmt.Sprintf makes it.
func Logf(level Level, format string, args ...any) { Log(level, fmt.Sprintf(format, args...)) }

// lines is where package log of the standard library writes.
type lines struct{}

func (lines) Write(text []byte) (int, error) {
	Log(Info, strings.TrimSuffix(string(text), "\n"))
	return len(text), nil
}

func init() {
	log.SetFlags(0)
	log.SetOutput(lines{})
}

package espalier

import (
	"errors"
	"fmt"

	"espalier/sdk/bindings/imports/espalier_base_types"
	"espalier/sdk/bindings/types"
)

// FailureKind says what to do about a failure.
type FailureKind string

const (
	// Budget is used up: finish within 16 further calls and 5 s. Text says which: turns, tokens, wall ...
	Budget FailureKind = "budget"
	// Cancelled: the rollout is being stopped; return soon.
	Cancelled FailureKind = "cancelled"
	// Denied: the experiment does not grant the capability that Text names.
	Denied FailureKind = "denied"
	// Unavailable: infrastructure failed after the engine's own retries.
	Unavailable FailureKind = "unavailable"
	// InvalidUse: what was passed is wrong. Text names the value.
	InvalidUse FailureKind = "invalid"
	// OtherFailure: anything else; Code is a word for programs.
	OtherFailure FailureKind = "other"
)

// Failure is an error of the engine, or one for it. A function of a plugin that returns one, also wrapped, ends with that same
// failure; any other error becomes an OtherFailure with Code "error".
//
//	if failure, ok := errors.AsType[*espalier.Failure](err); ok && failure.Kind == espalier.Budget { ... }
type Failure struct {
	Kind FailureKind
	// Code is set for OtherFailure alone: not-found, wrong-kind, patch ...
	Code string
	Text string
}

// Error is the failure as the engine prints it.
func (f *Failure) Error() string {
	switch {
	case f.Kind == Cancelled:
		return "cancelled"
	case f.Kind == Budget:
		return "budget(" + f.Text + ")"
	case f.Kind == OtherFailure:
		return f.Code + ": " + f.Text
	}
	return string(f.Kind) + ": " + f.Text
}

// Invalid is a failure that blames what the plugin was given.
func Invalid(format string, args ...any) error {
	return &Failure{Kind: InvalidUse, Text: fmt.Sprintf(format, args...)}
}

// Other is a failure of the plugin's own, with a word for programs and a sentence for people.
func Other(code, format string, args ...any) error {
	return &Failure{Kind: OtherFailure, Code: code, Text: fmt.Sprintf(format, args...)}
}

// failureIn is a failure of an import.
func failureIn(failure espalier_base_types.Failure) error {
	in := func(kind FailureKind, text string) error { return &Failure{Kind: kind, Text: text} }
	switch failure.Tag() {
	case espalier_base_types.Failure_Budget:
		return in(Budget, budgetIn(failure.Budget()))
	case espalier_base_types.Failure_Cancelled:
		return in(Cancelled, "")
	case espalier_base_types.Failure_Denied:
		return in(Denied, failure.Denied())
	case espalier_base_types.Failure_Unavailable:
		return in(Unavailable, failure.Unavailable())
	case espalier_base_types.Failure_Invalid:
		return in(InvalidUse, failure.Invalid())
	}
	other := failure.Other()
	return &Failure{Kind: OtherFailure, Code: other.Code, Text: other.Text}
}

// budgets are the limits by their tags.
var budgets = []string{"turns", "tokens", "sampled-tokens", "wall", "host-calls", "blob-bytes"}

func budgetIn(kind espalier_base_types.BudgetKind) string {
	if int(kind.Tag()) < len(budgets) {
		return budgets[kind.Tag()]
	}
	return kind.Other()
}

func budgetOut(name string) espalier_base_types.BudgetKind {
	switch name {
	case "turns":
		return espalier_base_types.MakeBudgetKindTurns()
	case "tokens":
		return espalier_base_types.MakeBudgetKindTokens()
	case "sampled-tokens":
		return espalier_base_types.MakeBudgetKindSampledTokens()
	case "wall":
		return espalier_base_types.MakeBudgetKindWall()
	case "host-calls":
		return espalier_base_types.MakeBudgetKindHostCalls()
	case "blob-bytes":
		return espalier_base_types.MakeBudgetKindBlobBytes()
	}
	return espalier_base_types.MakeBudgetKindOther(name)
}

// failureOut is what an export fails with.
func failureOut(err error) espalier_base_types.Failure {
	var failure *Failure
	switch {
	case !errors.As(err, &failure):
		failure = &Failure{Kind: OtherFailure, Code: "error", Text: err.Error()}
	case failure == nil:
		failure = &Failure{Kind: OtherFailure, Code: "error", Text: "a *espalier.Failure that is nil was returned as an error"}
	}
	text := valid(failure.Text)
	switch failure.Kind {
	case Budget:
		return espalier_base_types.MakeFailureBudget(budgetOut(text))
	case Cancelled:
		return espalier_base_types.MakeFailureCancelled()
	case Denied:
		return espalier_base_types.MakeFailureDenied(text)
	case Unavailable:
		return espalier_base_types.MakeFailureUnavailable(text)
	case InvalidUse:
		return espalier_base_types.MakeFailureInvalid(text)
	}
	return espalier_base_types.MakeFailureOther(espalier_base_types.OtherFailure{Code: valid(failure.Code), Text: text})
}

// answered is the result of an import as Go returns it.
func answered[T any](result types.Result[T, failureOfImport]) (T, error) {
	if result.IsErr() {
		var none T
		return none, failureIn(result.Err())
	}
	return result.Ok(), nil
}

// done is the same for an import without a value.
func done(result types.Result[types.Unit, failureOfImport]) error {
	_, err := answered(result)
	return err
}

// failureOfImport is what imports fail with.
type failureOfImport = espalier_base_types.Failure

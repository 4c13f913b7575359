// Package espalier makes plugins of Espalier in Go: harnesses, environments, rewards, group rewards, judges and task generators as
// WebAssembly components.
//
// A plugin is a function, and a line in init that registers it:
//
//	type Settings struct {
//		MaxTurns int `json:"max_turns" default:"10" minimum:"1" description:"Answers of the model at most."`
//	}
//
//	func init() { espalier.Harness(run) }
//	func main() {}
//
//	func run(task *espalier.Task, settings Settings) (*espalier.Report, error) {
//		chat := espalier.NewConversation("policy")
//		answer, err := chat.User(task.Instruction).Complete()
//		if err != nil {
//			return nil, err
//		}
//		return espalier.Submitted().WithAnswer(answer.Text), nil
//	}
//
// Failures of the engine are errors of type *Failure; one that a function returns is passed on as it came. Panics are logged with
// the places in the author's files. There are no files, no network and no environment variables; time stands still but for
// [Now], and random numbers come from [Rand], so that the same seed gives the same behaviour.
//
// Everything but what calls the engine is ordinary Go, tested by `go test`. The functions of the engine as they are, with their
// documentation, are in espalier/sdk/bindings/imports.
package espalier

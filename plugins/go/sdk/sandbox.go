package espalier

import (
	"fmt"
	"time"

	"espalier/sdk/bindings/imports/espalier_sandbox_creation"
	"espalier/sdk/bindings/imports/espalier_sandbox_sandboxes"
	"espalier/sdk/bindings/imports/espalier_sandbox_scoring"
	"espalier/sdk/bindings/types"
)

// Sandbox is a machine of the rollout.
type Sandbox struct {
	// Handle has every function of espalier:sandbox/sandboxes: processes, shells, patches, checkpoints ...
	Handle *espalier_sandbox_sandboxes.Sandbox
}

// OpenSandbox opens the sandbox of this name: `main`, or as the task names it.
func OpenSandbox(name string) (*Sandbox, error) {
	return sandbox(espalier_sandbox_sandboxes.Open(name))
}

// FreshSandbox is, in rewards and judges, a new one of this name that no agent has touched. At most 8 are open at a time.
func FreshSandbox(name string) (*Sandbox, error) {
	return sandbox(espalier_sandbox_scoring.OpenFresh(name))
}

// CreateSandbox is, in task generators, a new one as spec says, with the keys that a task has of a sandbox.
func CreateSandbox(spec any) (*Sandbox, error) {
	text, err := jsonOut("spec", spec)
	if err != nil {
		return nil, err
	}
	return sandbox(espalier_sandbox_creation.Create(text))
}

func sandbox(result types.Result[*espalier_sandbox_sandboxes.Sandbox, failureOfImport]) (*Sandbox, error) {
	handle, err := answered(result)
	if err != nil {
		return nil, err
	}
	return &Sandbox{handle}, nil
}

// Close lets go of the sandbox. Commands in it go on; a fresh or created one ends.
func (s *Sandbox) Close() { s.Handle.Drop() }

// Command is a command for a sandbox. Either Shell or Args says what to run.
type Command struct {
	// Shell is shell text.
	Shell string
	// Args are a program and its arguments, without a shell.
	Args []string
	// Folder is where it starts; "": the sandbox's working folder.
	Folder string
	// Env is added to the environment of the sandbox, as NAME=value pairs.
	Env map[string]string
	// Stdin is its standard input.
	Stdin []byte
	// User is who runs it; "": the sandbox's user.
	User string
	// Timeout is when it is killed; 0: at the longest time that a call may take.
	Timeout time.Duration
	// OutputMax is the most bytes of each output in the result; 0: 64 KiB.
	OutputMax uint32
	// KeepWhole keeps an output that is longer as a blob.
	KeepWhole bool
	// MergeStderr puts standard error into standard output.
	MergeStderr bool
}

// CommandResult is what came of a command.
type CommandResult struct {
	// ExitCode is -1 where the command did not end by itself.
	ExitCode int
	// Ended is how it ended, in words: `exit code 1`, `signal 9`, `timed out`, `out of memory`.
	Ended          string
	TimedOut       bool
	Stdout, Stderr string
	// Outcome has everything that is known.
	Outcome espalier_sandbox_sandboxes.Outcome
}

// Exec runs shell text and waits for its end. A command that fails is not an error.
func (s *Sandbox) Exec(text string) (*CommandResult, error) { return s.Run(Command{Shell: text}) }

// Run runs a command and waits for its end. A command that fails is not an error.
func (s *Sandbox) Run(command Command) (*CommandResult, error) {
	outcome, err := answered(s.Handle.Exec(command.out()))
	if err != nil {
		return nil, err
	}
	result := &CommandResult{
		ExitCode: -1, Stdout: outputIn(outcome.Stdout), Stderr: outputIn(outcome.Stderr), Outcome: outcome,
	}
	switch ending := outcome.Ending; ending.Tag() {
	case espalier_sandbox_sandboxes.Ending_ExitCode:
		result.ExitCode = int(ending.ExitCode())
		result.Ended = fmt.Sprintf("exit code %d", result.ExitCode)
	case espalier_sandbox_sandboxes.Ending_Signal:
		result.Ended = fmt.Sprintf("signal %d", ending.Signal())
	case espalier_sandbox_sandboxes.Ending_TimedOut:
		result.Ended, result.TimedOut = "timed out", true
	case espalier_sandbox_sandboxes.Ending_OutOfMemory:
		result.Ended = "out of memory"
	default:
		result.Ended = ending.Other()
	}
	return result, nil
}

func (c Command) out() espalier_sandbox_sandboxes.Command {
	out := espalier_sandbox_sandboxes.Command{
		Program:     espalier_sandbox_sandboxes.MakeProgramShell(c.Shell),
		KeepWhole:   c.KeepWhole,
		MergeStderr: c.MergeStderr,
	}
	if c.Args != nil {
		out.Program = espalier_sandbox_sandboxes.MakeProgramArgv(c.Args)
	}
	if c.Folder != "" {
		out.Cwd = types.Some(espalier_sandbox_sandboxes.MakePathText(c.Folder))
	}
	for _, name := range sortedKeys(c.Env) {
		out.Env = append(out.Env, types.Tuple2[string, string]{F0: name, F1: c.Env[name]})
	}
	if c.Stdin != nil {
		out.Stdin = types.Some(c.Stdin)
	}
	if c.User != "" {
		out.User = types.Some(c.User)
	}
	if c.Timeout > 0 {
		out.TimeoutMs = types.Some(uint64(max(c.Timeout.Milliseconds(), 1)))
	}
	if c.OutputMax > 0 {
		out.OutputMax = types.Some(c.OutputMax)
	}
	return out
}

// outputIn is what is shown of an output, with what is left out between.
func outputIn(output espalier_sandbox_sandboxes.Output) string {
	if output.LeftOut == 0 {
		return output.Head
	}
	return fmt.Sprintf("%s\n[%d bytes left out]\n%s", output.Head, output.LeftOut, output.Tail)
}

// ReadFile reads a whole file.
func (s *Sandbox) ReadFile(path string) ([]byte, error) {
	return readAll(func(offset uint64) ([]byte, error) {
		return answered(s.Handle.ReadFile(espalier_sandbox_sandboxes.MakePathText(path), offset, sliceMax))
	})
}

// WriteFile writes a file as a whole, with the folders above it.
func (s *Sandbox) WriteFile(path string, content []byte) error {
	options := espalier_sandbox_sandboxes.WriteOptions{Parents: true}
	return done(s.Handle.WriteFile(espalier_sandbox_sandboxes.MakePathText(path), content, options))
}

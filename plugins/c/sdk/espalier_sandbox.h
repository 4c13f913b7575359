/* Machines to act on: commands, processes, shells, files. Included by espalier.h. Paths are C strings; relative ones start at the
 * sandbox's working folder. What fails in a sandbox and may be told apart is ESPALIER_OTHER with a code: `not-found`, `not-permitted`,
 * `wrong-kind`, `disk-full`, `patch`, `shell-ended`, `bound`, `expired`, `unsupported`, `io`. */
#ifndef ESPALIER_SANDBOX_H
#define ESPALIER_SANDBOX_H

#include "espalier.h"

typedef struct {
    int32_t handle;
} espalier_sandbox;

typedef struct {
    int32_t handle;
} espalier_process;

typedef struct {
    int32_t handle;
} espalier_shell;

/* How to run a command; zero is the standard. */
typedef struct {
    /* Where it starts. NULL: the sandbox's working folder. */
    const char *cwd;
    /* Added to the environment: `NAME=value`, up to a NULL. */
    const char *const *env;
    /* Standard input. */
    espalier_bytes stdin_bytes;
    /* Who runs it. NULL: the sandbox's user. */
    const char *user;
    /* 0: the longest that an import may wait; for a process no end. */
    uint64_t timeout_ms;
    /* Bytes of each output in the outcome, up to 1 MiB. 0: 64 KiB. */
    uint32_t output_max;
    /* Whether an output of which the outcome does not show everything is kept as a blob. */
    bool keep_whole;
    /* Standard error goes into standard output, in order. */
    bool merge_stderr;
} espalier_run;

typedef enum {
    ESPALIER_EXIT_CODE,
    ESPALIER_SIGNAL,
    ESPALIER_TIMED_OUT,
    ESPALIER_OUT_OF_MEMORY,
    ESPALIER_ENDING_OTHER
} espalier_ending_tag;

/* How a command ended. */
typedef struct {
    /* An espalier_ending_tag. */
    uint8_t tag;
    union {
        int32_t exit_code;
        int32_t signal;
        espalier_str other;
    };
} espalier_ending;

/* What a command printed on one of its outputs. */
typedef struct {
    /* All of it, or its start. */
    espalier_str head;
    /* Bytes between `head` and `tail`. */
    uint64_t left_out;
    /* Its end; empty where nothing is left out. */
    espalier_str tail;
    /* Bytes printed in all. */
    uint64_t total;
    /* A blob with everything, where `keep_whole` was asked for and head and tail do not say everything. */
    espalier_maybe_str whole;
} espalier_output;

/* What came of a command. That it failed is an outcome, not a failure of the call. */
typedef struct {
    espalier_ending ending;
    espalier_output out;
    /* Empty where it was merged. */
    espalier_output err;
    uint64_t duration_ms;
    /* Processes that it left running. */
    uint32_t left_running;
    espalier_maybe_str extra;
} espalier_command_outcome;

/* Whether a command ended by itself with code 0. */
bool espalier_succeeded(const espalier_command_outcome *outcome);
/* What it printed: the whole text, or its start and its end with a line between that says how much is missing. */
espalier_str espalier_output_text(const espalier_output *output);

/* A sandbox of the task, by its name in `task->sandboxes`. */
espalier_status espalier_sandbox_open(const char *name, espalier_sandbox *sandbox);
/* For rewards: a new sandbox of this name that no agent has touched. 8 at a time. */
espalier_status espalier_sandbox_open_fresh(const char *name, espalier_sandbox *sandbox);
/* For task generators: a new sandbox as a JSON object says. 8 at a time. */
espalier_status espalier_sandbox_create(espalier_str spec, espalier_sandbox *sandbox);
/* Drops the handle. One from open_fresh or create ends with it. */
void espalier_sandbox_close(espalier_sandbox sandbox);

/* Runs shell text and waits for its end. `how` may be NULL. */
espalier_status espalier_sandbox_sh(espalier_sandbox sandbox, espalier_str text, const espalier_run *how,
                                    espalier_command_outcome *outcome);
/* Runs a program with its arguments, without a shell. */
espalier_status espalier_sandbox_exec(espalier_sandbox sandbox, espalier_strs argv, const espalier_run *how,
                                      espalier_command_outcome *outcome);
/* Starts shell text and returns at once. */
espalier_status espalier_sandbox_start(espalier_sandbox sandbox, espalier_str text, const espalier_run *how,
                                       espalier_process *process);

/* What came of a process, waiting up to `wait_ms`; `*ended` is false while it runs. */
espalier_status espalier_process_wait(espalier_process process, uint64_t wait_ms, bool *ended,
                                      espalier_command_outcome *outcome);
/* Up to `length` bytes, 1 MiB at most, of its output from `offset`; waits for them up to `wait_ms`. `*next` is where to go on. */
espalier_status espalier_process_read(espalier_process process, bool of_stderr, uint64_t offset, uint32_t length, uint64_t wait_ms,
                                      espalier_bytes *bytes, uint64_t *next);
/* Bytes for its standard input, 1 MiB at most; `*taken` of them were read. */
espalier_status espalier_process_write(espalier_process process, espalier_bytes bytes, uint64_t *taken);
espalier_status espalier_process_close_stdin(espalier_process process);
/* Sends a signal, with `tree` to everything that it started. */
espalier_status espalier_process_signal(espalier_process process, uint8_t number, bool tree, uint32_t *reached);

/* A shell that keeps its folder and variables from one text to the next. `program`: `bash` or `sh`; NULL: bash where it is there. */
espalier_status espalier_shell_open(espalier_sandbox sandbox, const char *program, espalier_shell *shell);
/* Runs a text; of `how` the folder, environment and user are those of the shell. */
espalier_status espalier_shell_run(espalier_shell shell, espalier_str text, const espalier_run *how,
                                   espalier_command_outcome *outcome);
/* Ends the shell and all that was started in it. */
espalier_status espalier_shell_close(espalier_shell shell);

/* A whole file, of `max` bytes at most; a larger one is ESPALIER_OTHER `bound`. */
espalier_status espalier_sandbox_read_file(espalier_sandbox sandbox, const char *path, size_t max, espalier_bytes *bytes);
/* Writes a file as a whole, 16 MiB at most, and makes missing folders above it. */
espalier_status espalier_sandbox_write_file(espalier_sandbox sandbox, const char *path, espalier_bytes bytes);
espalier_status espalier_sandbox_write_text(espalier_sandbox sandbox, const char *path, espalier_str text);
espalier_status espalier_sandbox_file_to_blob(espalier_sandbox sandbox, const char *path, espalier_str *blob);
espalier_status espalier_sandbox_blob_to_file(espalier_sandbox sandbox, espalier_str blob, const char *path);
/* Makes a folder, with those above it; one that is there already is fine. */
espalier_status espalier_sandbox_make_folder(espalier_sandbox sandbox, const char *path);
/* Removes a file, or a folder with all that is in it; it is fine if there is nothing. */
espalier_status espalier_sandbox_remove(espalier_sandbox sandbox, const char *path);
espalier_status espalier_sandbox_move(espalier_sandbox sandbox, const char *old_path, const char *new_path, bool replace);
/* Whether something stands at a path. */
espalier_status espalier_sandbox_exists(espalier_sandbox sandbox, const char *path, bool *exists);
/* What stands in a folder, `depth` folders down, 1 to 64: paths from that folder. */
espalier_status espalier_sandbox_list_folder(espalier_sandbox sandbox, const char *path, uint32_t depth, espalier_strs *paths);
/* Applies a unified or git diff: all of it or nothing. */
espalier_status espalier_sandbox_apply_patch(espalier_sandbox sandbox, espalier_str patch);

/* What was added, changed and removed since the set-up, as a blob; `root` NULL: wherever the sandbox keeps account. */
espalier_status espalier_sandbox_changes(espalier_sandbox sandbox, const char *root, espalier_str *blob);
/* Puts changes of another sandbox of this rollout into this one. */
espalier_status espalier_sandbox_apply_changes(espalier_sandbox sandbox, espalier_str blob);
/* Keeps the file system as it is now, under a name from which sandboxes can be made. */
espalier_status espalier_sandbox_checkpoint(espalier_sandbox sandbox, espalier_str *name);
/* An address of the host behind which a TCP port of the sandbox is reached. */
espalier_status espalier_sandbox_port(espalier_sandbox sandbox, uint16_t number, espalier_str *address);

#endif

/* Sandboxes: commands, processes and shells. */
#include "internal.h"

#include "../bindings/imports.h"

SAME(espalier_command_outcome, espalier_sandbox_sandboxes_outcome_t);
SAME(espalier_output, espalier_sandbox_sandboxes_output_t);
SAME(espalier_ending, espalier_sandbox_sandboxes_ending_t);

#define DONE(call) ((call) ? ESPALIER_OK : espalier_failed(&failure))

typedef espalier_sandbox_sandboxes_borrow_sandbox_t of_sandbox;
typedef espalier_sandbox_sandboxes_borrow_process_t of_process;
typedef espalier_sandbox_sandboxes_borrow_shell_t of_shell;

espalier_status espalier_sandbox_open(const char *name, espalier_sandbox *sandbox) {
    espalier_base_types_failure_t failure;
    espalier_str text = espalier_text(name);
    return DONE(espalier_sandbox_sandboxes_open((void *)&text, (void *)sandbox, &failure));
}

espalier_status espalier_sandbox_open_fresh(const char *name, espalier_sandbox *sandbox) {
    espalier_base_types_failure_t failure;
    espalier_str text = espalier_text(name);
    return DONE(espalier_sandbox_scoring_open_fresh((void *)&text, (void *)sandbox, &failure));
}

espalier_status espalier_sandbox_create(espalier_str spec, espalier_sandbox *sandbox) {
    espalier_base_types_failure_t failure;
    return DONE(espalier_sandbox_creation_create((void *)&spec, (void *)sandbox, &failure));
}

void espalier_sandbox_close(espalier_sandbox sandbox) {
    espalier_sandbox_sandboxes_sandbox_drop_own((espalier_sandbox_sandboxes_own_sandbox_t){sandbox.handle});
}

/* A command as the host takes it. */
static espalier_sandbox_sandboxes_command_t command_of(espalier_sandbox_sandboxes_program_t program, const espalier_run *how) {
    static const espalier_run standard;
    espalier_sandbox_sandboxes_command_t command = {.program = program};
    if (how == NULL)
        how = &standard;
    espalier_str cwd = espalier_text(how->cwd), user = espalier_text(how->user);
    command.cwd.is_some = how->cwd != NULL;
    memcpy(&command.cwd.val.val.text, &cwd, sizeof cwd);
    command.user.is_some = how->user != NULL;
    memcpy(&command.user.val, &user, sizeof user);
    size_t count = 0;
    while (how->env != NULL && how->env[count] != NULL)
        count++;
    espalier_str(*pairs)[2] = espalier_alloc(count * sizeof *pairs);
    for (size_t index = 0; index < count; index++) {
        const char *entry = how->env[index];
        const char *equals = strchr(entry, '=');
        size_t len = equals == NULL ? strlen(entry) : (size_t)(equals - entry);
        pairs[index][0] = (espalier_str){entry, len};
        pairs[index][1] = espalier_text(equals == NULL ? "" : equals + 1);
    }
    command.env.ptr = (void *)pairs;
    command.env.len = count;
    command.stdin_.is_some = how->stdin_bytes.len > 0;
    memcpy(&command.stdin_.val, &how->stdin_bytes, sizeof how->stdin_bytes);
    command.timeout_ms.is_some = how->timeout_ms > 0;
    command.timeout_ms.val = how->timeout_ms;
    command.output_max.is_some = how->output_max > 0;
    command.output_max.val = how->output_max;
    command.keep_whole = how->keep_whole;
    command.merge_stderr = how->merge_stderr;
    return command;
}

static espalier_sandbox_sandboxes_program_t shell_text(espalier_str text) {
    espalier_sandbox_sandboxes_program_t program = {.tag = ESPALIER_SANDBOX_SANDBOXES_PROGRAM_SHELL};
    memcpy(&program.val.shell, &text, sizeof text);
    return program;
}

static espalier_status exec(espalier_sandbox sandbox, espalier_sandbox_sandboxes_program_t program, const espalier_run *how,
                            espalier_command_outcome *outcome) {
    espalier_base_types_failure_t failure;
    espalier_sandbox_sandboxes_command_t command = command_of(program, how);
    of_sandbox self = {sandbox.handle};
    return DONE(espalier_sandbox_sandboxes_method_sandbox_exec(self, &command, (void *)outcome, &failure));
}

espalier_status espalier_sandbox_sh(espalier_sandbox sandbox, espalier_str text, const espalier_run *how,
                                    espalier_command_outcome *outcome) {
    return exec(sandbox, shell_text(text), how, outcome);
}

espalier_status espalier_sandbox_exec(espalier_sandbox sandbox, espalier_strs argv, const espalier_run *how,
                                      espalier_command_outcome *outcome) {
    espalier_sandbox_sandboxes_program_t program = {.tag = ESPALIER_SANDBOX_SANDBOXES_PROGRAM_ARGV};
    memcpy(&program.val.argv, &argv, sizeof argv);
    return exec(sandbox, program, how, outcome);
}

espalier_status espalier_sandbox_start(espalier_sandbox sandbox, espalier_str text, const espalier_run *how,
                                       espalier_process *process) {
    espalier_base_types_failure_t failure;
    espalier_sandbox_sandboxes_command_t command = command_of(shell_text(text), how);
    of_sandbox self = {sandbox.handle};
    return DONE(espalier_sandbox_sandboxes_method_sandbox_start(self, &command, (void *)process, &failure));
}

espalier_status espalier_process_wait(espalier_process process, uint64_t wait_ms, bool *ended,
                                      espalier_command_outcome *outcome) {
    espalier_base_types_failure_t failure;
    espalier_sandbox_sandboxes_option_outcome_t found;
    of_process self = {process.handle};
    ESPALIER_TRY(DONE(espalier_sandbox_sandboxes_method_process_wait(self, wait_ms, &found, &failure)));
    *ended = found.is_some;
    if (found.is_some)
        memcpy(outcome, &found.val, sizeof *outcome);
    return ESPALIER_OK;
}

espalier_status espalier_process_read(espalier_process process, bool of_stderr, uint64_t offset, uint32_t length, uint64_t wait_ms,
                                      espalier_bytes *bytes, uint64_t *next) {
    espalier_base_types_failure_t failure;
    espalier_sandbox_sandboxes_piece_t piece;
    of_process self = {process.handle};
    ESPALIER_TRY(DONE(espalier_sandbox_sandboxes_method_process_read(
        self, of_stderr ? ESPALIER_SANDBOX_SANDBOXES_CHANNEL_STDERR : ESPALIER_SANDBOX_SANDBOXES_CHANNEL_STDOUT, offset, length,
        wait_ms, &piece, &failure)));
    memcpy(bytes, &piece.bytes, sizeof *bytes);
    *next = piece.offset + piece.bytes.len;
    return ESPALIER_OK;
}

espalier_status espalier_process_write(espalier_process process, espalier_bytes bytes, uint64_t *taken) {
    espalier_base_types_failure_t failure;
    of_process self = {process.handle};
    return DONE(espalier_sandbox_sandboxes_method_process_write_stdin(self, (void *)&bytes, taken, &failure));
}

espalier_status espalier_process_close_stdin(espalier_process process) {
    espalier_base_types_failure_t failure;
    of_process self = {process.handle};
    return DONE(espalier_sandbox_sandboxes_method_process_close_stdin(self, &failure));
}

espalier_status espalier_process_signal(espalier_process process, uint8_t number, bool tree, uint32_t *reached) {
    espalier_base_types_failure_t failure;
    of_process self = {process.handle};
    return DONE(espalier_sandbox_sandboxes_method_process_signal(self, number, tree, reached, &failure));
}

espalier_status espalier_shell_open(espalier_sandbox sandbox, const char *program, espalier_shell *shell) {
    espalier_base_types_failure_t failure;
    espalier_sandbox_sandboxes_shell_options_t options = {0};
    espalier_str text = espalier_text(program);
    options.program.is_some = program != NULL;
    memcpy(&options.program.val, &text, sizeof text);
    of_sandbox self = {sandbox.handle};
    return DONE(espalier_sandbox_sandboxes_method_sandbox_open_shell(self, &options, (void *)shell, &failure));
}

espalier_status espalier_shell_run(espalier_shell shell, espalier_str text, const espalier_run *how,
                                   espalier_command_outcome *outcome) {
    espalier_base_types_failure_t failure;
    espalier_sandbox_sandboxes_command_t command = command_of(shell_text(text), how);
    espalier_sandbox_sandboxes_run_options_t options = {
        .timeout_ms = command.timeout_ms,
        .stdin_ = command.stdin_,
        .output_max = command.output_max,
        .keep_whole = command.keep_whole,
        .merge_stderr = command.merge_stderr,
    };
    of_shell self = {shell.handle};
    return DONE(espalier_sandbox_sandboxes_method_shell_run(self, (void *)&text, &options, (void *)outcome, &failure));
}

espalier_status espalier_shell_close(espalier_shell shell) {
    espalier_base_types_failure_t failure;
    of_shell self = {shell.handle};
    return DONE(espalier_sandbox_sandboxes_method_shell_close(self, &failure));
}

bool espalier_succeeded(const espalier_command_outcome *outcome) {
    return outcome->ending.tag == ESPALIER_EXIT_CODE && outcome->ending.exit_code == 0;
}

espalier_str espalier_output_text(const espalier_output *output) {
    if (output->left_out == 0)
        return output->head;
    return espalier_format("%s\n... %llu bytes ...\n%s", output->head.ptr, (unsigned long long)output->left_out, output->tail.ptr);
}

#pragma clang attribute pop

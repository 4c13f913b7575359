/* Plugins of Espalier in C: harnesses, environments, rewards, group rewards, judges and task generators as WebAssembly components.
 *
 * A plugin is one or two functions, a table of its settings, and a line that names both: ESPALIER_HARNESS, ESPALIER_ENVIRONMENT,
 * ESPALIER_REWARD, ESPALIER_GROUP_REWARD, ESPALIER_JUDGE, ESPALIER_TASK_GENERATOR.
 *
 * Memory. What these functions return lives until the plugin's function returns, and is never freed by the plugin. The same holds
 * for espalier_alloc. What an environment keeps from one call to the next belongs in static variables or in memory from malloc.
 *
 * Failures. What can fail returns an espalier_status, ESPALIER_OK is 0. The text of a failure is kept: a plugin that returns the
 * status of a call that failed returns that failure, with its text. ESPALIER_TRY(call) does that.
 *
 * What every function of the engine does, with its limits and errors, stands in wit/; generated bindings of all of it in bindings/. */
#ifndef ESPALIER_H
#define ESPALIER_H

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ESPALIER_PRINTF(format, first) __attribute__((__format__(__printf__, format, first)))

/* ---- Text ---------------------------------------------------------------------------------------------------------------------- */

/* UTF-8: `len` bytes at `ptr`. Every text that these functions return is followed by a zero byte, so `ptr` is also a C string. */
typedef struct {
    const char *ptr;
    size_t len;
} espalier_str;

/* A text, or none. */
typedef struct {
    bool is_some;
    espalier_str value;
} espalier_maybe_str;

typedef struct {
    bool is_some;
    uint32_t value;
} espalier_maybe_u32;

typedef struct {
    bool is_some;
    uint64_t value;
} espalier_maybe_u64;

typedef struct {
    bool is_some;
    double value;
} espalier_maybe_f64;

/* Texts, in order. */
typedef struct {
    espalier_str *items;
    size_t len;
} espalier_strs;

/* Bytes. */
typedef struct {
    uint8_t *ptr;
    size_t len;
} espalier_bytes;

/* Zeroed memory until the plugin's function returns; never NULL. */
void *espalier_alloc(size_t size);

/* A C string as a text, without copying it. */
espalier_str espalier_text(const char *text);
/* A copy with a zero byte behind it. */
espalier_str espalier_copy(const char *ptr, size_t len);
/* As printf writes it. */
espalier_str espalier_format(const char *format, ...) ESPALIER_PRINTF(1, 2);
/* Without white space at both ends. */
espalier_str espalier_trim(espalier_str text);
/* In lower case, all of Unicode. */
espalier_str espalier_lower(espalier_str text);
bool espalier_equal(espalier_str left, espalier_str right);
bool espalier_starts_with(espalier_str text, const char *prefix);
/* Moves the next line from `rest` to `line`, without its line end; false at the end of the text. */
bool espalier_next_line(espalier_str *rest, espalier_str *line);
/* Reads the whole text as a number in decimal digits, with or without a sign; false if it is not one or too large. */
bool espalier_parse_integer(espalier_str text, int64_t *number);
/* A text as an espalier_maybe_str. */
espalier_maybe_str espalier_some(espalier_str text);
/* Adds a text to a list. */
void espalier_add_text(espalier_strs *list, espalier_str text);

/* ---- Failures ------------------------------------------------------------------------------------------------------------------ */

/* What came of a call. */
typedef enum {
    ESPALIER_OK = 0,
    /* A budget is used up: finish within 16 further host calls and 5 s. */
    ESPALIER_BUDGET,
    /* The rollout is being stopped: return soon. */
    ESPALIER_CANCELLED,
    /* The experiment does not grant it. */
    ESPALIER_DENIED,
    /* Infrastructure failed after the host's own retries. */
    ESPALIER_UNAVAILABLE,
    /* Misuse; the text names the value. */
    ESPALIER_INVALID,
    /* Anything else; has a code. */
    ESPALIER_OTHER
} espalier_status;

/* Passes a failure on to the caller. */
#define ESPALIER_TRY(call)                                 \
    do {                                                   \
        espalier_status espalier_status_of_call_ = (call); \
        if (espalier_status_of_call_ != ESPALIER_OK)       \
            return espalier_status_of_call_;               \
    } while (0)

/* A failure of the plugin itself, of status ESPALIER_INVALID. */
espalier_status espalier_invalid(const char *format, ...) ESPALIER_PRINTF(1, 2);
/* The same, of status ESPALIER_OTHER, with a stable word for programs. */
espalier_status espalier_other(const char *code, const char *format, ...) ESPALIER_PRINTF(2, 3);
/* The text of the last failure of this status; for ESPALIER_BUDGET the name of the budget (`turns`, `tokens` ...). */
espalier_str espalier_failure_text(espalier_status status);
/* The code of the last failure of status ESPALIER_OTHER. */
espalier_str espalier_failure_code(void);

/* Ends the plugin with a message and the source line of the call, which become the cause of the rollout's end. */
#define espalier_panic(...) espalier_panic_at(__FILE__, __LINE__, __VA_ARGS__)
_Noreturn void espalier_panic_at(const char *file, int line, const char *format, ...) ESPALIER_PRINTF(3, 4);

/* ---- Log, settings, clock, random numbers, blobs ------------------------------------------------------------------------------- */

typedef enum { ESPALIER_DEBUG, ESPALIER_INFO, ESPALIER_WARN, ESPALIER_ERROR } espalier_level;

/* Writes a line to the rollout's log. What is printed on stdout and stderr goes there as well. */
void espalier_log(espalier_level level, const char *format, ...) ESPALIER_PRINTF(2, 3);
/* The same with fields, a JSON object. */
void espalier_log_fields(espalier_level level, espalier_str fields, const char *format, ...) ESPALIER_PRINTF(3, 4);

#define espalier_debug(...) espalier_log(ESPALIER_DEBUG, __VA_ARGS__)
#define espalier_info(...) espalier_log(ESPALIER_INFO, __VA_ARGS__)
#define espalier_warn(...) espalier_log(ESPALIER_WARN, __VA_ARGS__)
#define espalier_error(...) espalier_log(ESPALIER_ERROR, __VA_ARGS__)

/* The settings of this plugin, as the struct that ESPALIER_SETTINGS names. */
const void *espalier_settings(void);

/* Milliseconds since 1970 at the last host call. */
uint64_t espalier_now_ms(void);
/* A number drawn evenly from 0 .. bound, from the stream that follows from the run's seed; `bound` is 1 to 2^53. */
espalier_status espalier_random_below(uint64_t bound, uint64_t *number);
/* 64 KiB at most. */
espalier_status espalier_random_bytes(uint32_t length, espalier_bytes *bytes);

/* Keeps bytes under a reference, 64 MiB at most. */
espalier_status espalier_blob_put(espalier_bytes bytes, const char *media_type, espalier_str *blob);
/* Up to `length` bytes, 1 MiB at most, from `offset`; empty past the end. */
espalier_status espalier_blob_read(espalier_str blob, uint64_t offset, uint32_t length, espalier_bytes *bytes);
/* A whole blob as text. */
espalier_status espalier_blob_text(espalier_str blob, espalier_str *text);

/* ---- Tasks, messages, reports -------------------------------------------------------------------------------------------------- */

/* What a plugin sees of a task. */
typedef struct {
    /* Unique in its set. */
    espalier_str id;
    /* What the agent is asked to do. */
    espalier_str instruction;
    /* Name of the environment, where the task has one. */
    espalier_maybe_str environment;
    /* Names of the sandboxes. */
    espalier_strs sandboxes;
    /* Words for filters and tables. */
    espalier_strs tags;
    /* JSON; `null` where the task has none. */
    espalier_str data;
    /* JSON; for environments, rewards and judges. */
    espalier_maybe_str private_data;
    espalier_maybe_str extra;
} espalier_task;

typedef enum { ESPALIER_SYSTEM, ESPALIER_USER, ESPALIER_ASSISTANT, ESPALIER_TOOL } espalier_role;

/* A call of a tool by the model. */
typedef struct {
    /* Unique in the conversation. */
    espalier_str id;
    espalier_str name;
    /* A JSON object. */
    espalier_str arguments;
} espalier_tool_call;

typedef struct {
    espalier_tool_call *items;
    size_t len;
} espalier_tool_calls;

typedef enum {
    ESPALIER_PART_TEXT,
    /* In views of a finished rollout: text over 64 KiB, as a blob. */
    ESPALIER_PART_TEXT_BLOB,
    ESPALIER_PART_IMAGE,
    ESPALIER_PART_TOOL_CALL,
    ESPALIER_PART_TOOL_RESULT,
    ESPALIER_PART_OTHER
} espalier_part_tag;

/* One piece of a message. */
typedef struct {
    /* An espalier_part_tag. */
    uint8_t tag;
    union {
        espalier_str text;
        /* Of ESPALIER_PART_TEXT_BLOB and ESPALIER_PART_IMAGE. */
        espalier_str blob;
        espalier_tool_call tool_call;
        struct {
            espalier_str call_id;
            espalier_str text;
            bool is_error;
        } tool_result;
        /* JSON. */
        espalier_str other;
    };
} espalier_part;

typedef struct {
    espalier_part *items;
    size_t len;
} espalier_parts;

/* One message. */
typedef struct {
    /* An espalier_role. */
    uint8_t role;
    espalier_parts parts;
    espalier_maybe_str extra;
} espalier_message;

typedef struct {
    espalier_message *items;
    size_t len;
} espalier_messages;

/* A message of one text. */
espalier_message espalier_message_of(espalier_role role, espalier_str text);
/* Adds a message to a list. */
void espalier_add_message(espalier_messages *messages, espalier_message message);
/* The text of a message, without other parts. */
espalier_str espalier_message_text(const espalier_message *message);

/* A limit that a harness met by its own count. */
typedef enum {
    ESPALIER_LIMIT_TURNS,
    ESPALIER_LIMIT_TOKENS,
    ESPALIER_LIMIT_CALLS,
    ESPALIER_LIMIT_WALL,
    ESPALIER_LIMIT_FORMAT,
    ESPALIER_LIMIT_OTHER
} espalier_limit_tag;

typedef enum {
    ESPALIER_SUBMITTED,
    ESPALIER_GAVE_UP,
    ESPALIER_LIMIT,
    ESPALIER_OUTCOME_OTHER
} espalier_outcome_tag;

/* How a rollout ended, in the harness's own word. */
typedef struct {
    /* An espalier_outcome_tag. */
    uint8_t tag;
    union {
        struct {
            /* An espalier_limit_tag. */
            uint8_t tag;
            espalier_str other;
        } limit;
        espalier_str other;
    };
} espalier_outcome;

/* What a harness leaves for rewards and people. */
typedef struct {
    espalier_outcome outcome;
    /* The final answer, where the task asks for one. */
    espalier_maybe_str answer;
    /* JSON. Left empty: `null`. */
    espalier_str data;
    espalier_maybe_str extra;
} espalier_report;

/* The ends of a harness: each fills the report and returns ESPALIER_OK. `data` is JSON text; `(espalier_str){0}` for none. */
espalier_status espalier_submit(espalier_report *report, espalier_str answer, espalier_str data);
espalier_status espalier_give_up(espalier_report *report, espalier_str data);
espalier_status espalier_limit(espalier_report *report, espalier_limit_tag limit, espalier_str data);

/* What the agent sees of an environment. */
typedef struct {
    espalier_str text;
    /* Blobs, in order. */
    espalier_strs images;
    espalier_maybe_str extra;
} espalier_observation;

/* What one action led to. */
typedef struct {
    espalier_observation observation;
    /* Reward of this step alone; none: the world gives none here, which is not 0. */
    espalier_maybe_f64 reward;
    /* Whether the episode is over. */
    bool done;
    /* JSON: facts for rewards and people. Left empty: `null`. */
    espalier_str info;
    espalier_maybe_str extra;
} espalier_step_result;

/* ---- What rewards and judges see and give --------------------------------------------------------------------------------------- */

/* One score. */
typedef struct {
    /* The one named `reward` gets the experiment's weight. */
    espalier_str name;
    /* Finite. */
    double value;
    /* The turn it is about, if it is about one. */
    espalier_maybe_u32 turn;
    /* Why, for people. */
    espalier_str reason;
    espalier_maybe_str extra;
} espalier_score;

typedef struct {
    espalier_score *items;
    size_t len;
} espalier_scores;

/* Adds a score, with a reason as printf writes it, and gives it back. */
espalier_score *espalier_add_score(espalier_scores *scores, const char *name, double value, const char *reason, ...)
    ESPALIER_PRINTF(4, 5);

/* One answer of the policy and what followed it. */
typedef struct {
    /* From 0. */
    uint32_t index;
    espalier_message message;
    espalier_tool_calls tool_calls;
    /* Messages behind it, up to the next answer. */
    espalier_messages answers;
    espalier_maybe_str extra;
} espalier_turn;

/* One step in the environment. */
typedef struct {
    /* The policy's last turn when it was taken; 0 before the first. */
    uint32_t turn;
    espalier_str action;
    /* Cut to 64 KiB; then `observation_blob` has the whole. */
    espalier_str observation;
    espalier_maybe_str observation_blob;
    espalier_maybe_f64 reward;
    bool done;
    /* JSON. */
    espalier_str info;
    espalier_maybe_str extra;
} espalier_step;

/* A blob and its name. */
typedef struct {
    espalier_str name;
    espalier_str blob;
} espalier_named_blob;

/* A finished rollout. */
typedef struct {
    espalier_str rollout_id;
    /* With its private part. */
    espalier_task task;
    /* `completed`, `truncated`, `time-exceeded`. */
    espalier_str status;
    /* `submitted`, `gave-up`, `limit-turns` ... */
    espalier_str stop_reason;
    /* What the harness returned. */
    struct {
        bool is_some;
        espalier_report value;
    } report;
    struct {
        espalier_turn *items;
        size_t len;
    } turns;
    struct {
        espalier_step *items;
        size_t len;
    } steps;
    struct {
        espalier_named_blob *items;
        size_t len;
    } blobs;
    /* JSON. */
    espalier_maybe_str extra;
} espalier_rollout;

/* The answer of a rollout's report; `ptr` is NULL where there is none. */
espalier_str espalier_rollout_answer(const espalier_rollout *rollout);

/* The rollouts of one group. */
typedef struct {
    espalier_rollout *items;
    size_t len;
} espalier_rollouts;

/* One evaluation of one turn, or of the outcome. */
typedef struct {
    /* The turn it is about; none: the outcome. */
    espalier_maybe_u32 turn;
    /* Finite; none: the evaluation could not be parsed. */
    espalier_maybe_f64 value;
    /* What the judge wrote, for people. */
    espalier_str text;
    /* The answer it was read from: `call` of an espalier_answer. */
    espalier_maybe_str call;
    espalier_maybe_str extra;
} espalier_vote;

/* What a judge gives. */
typedef struct {
    espalier_scores scores;
    struct {
        espalier_vote *items;
        size_t len;
    } votes;
    espalier_maybe_str extra;
} espalier_judgement;

/* Adds an empty vote and gives it back. */
espalier_vote *espalier_add_vote(espalier_judgement *judgement);

/* ---- Task generators ------------------------------------------------------------------------------------------------------------ */

/* What is asked of a task generator. */
typedef struct {
    /* How many tasks, from 1; fewer may come. */
    uint32_t count;
    /* Follows from the run's seed and the batch; below 2^53. */
    uint64_t seed;
    /* JSON: `{"batch": N, "accepted": N}`. */
    espalier_maybe_str extra;
} espalier_request;

/* A stop reason and how many rollouts had it. */
typedef struct {
    espalier_str stop_reason;
    uint32_t count;
} espalier_ending_count;

/* How a task went. */
typedef struct {
    /* Rollouts of the group with a reward. */
    uint32_t attempts;
    /* Share of them that solved it, 0 to 1. */
    double accuracy;
    /* Mean number of turns. */
    double turns;
    struct {
        espalier_ending_count *items;
        size_t len;
    } endings;
    /* Summaries of what did not solve it. */
    espalier_strs failures;
    espalier_maybe_str extra;
} espalier_statistics;

#include "espalier_browser.h"
#include "espalier_conversation.h"
#include "espalier_fields.h"
#include "espalier_json.h"
#include "espalier_plugin.h"
#include "espalier_sandbox.h"

#endif

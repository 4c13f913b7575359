/* Conversations with the models of the experiment, the tools that a model may call, and the environment of a harness. Included by
 * espalier.h.
 *
 *     espalier_conversation *chat = espalier_conversation_with("policy");
 *     espalier_conversation_system(chat, "Answer briefly.");
 *     espalier_conversation_user(chat, "What is %d + %d?", 2, 3);
 *     espalier_answer answer;
 *     ESPALIER_TRY(espalier_conversation_complete(chat, &answer));
 *
 * A tool is a function and a table of its arguments (espalier_fields.h):
 *
 *     struct search { espalier_str text; int64_t results; };
 *     static const espalier_field search_fields[] = {
 *         ESPALIER_FIELD(struct search, text, "What to search for."),
 *         ESPALIER_FIELD(struct search, results, "How many.", .default_value = "5", .minimum = "1"),
 *         ESPALIER_END,
 *     };
 *     static espalier_status search(const void *arguments, void *context, espalier_str *result) { ... }
 *     static const espalier_tool tools[] = {{"search", "Searches.", search_fields, sizeof(struct search), search}};
 *
 *     espalier_conversation_tools(chat, tools, 1);
 *     ESPALIER_TRY(espalier_conversation_complete(chat, &answer));
 *     while (answer.tool_calls.len > 0) {
 *         ESPALIER_TRY(espalier_conversation_run_tools(chat, &answer, NULL));
 *         ESPALIER_TRY(espalier_conversation_complete(chat, &answer));
 *     } */
#ifndef ESPALIER_CONVERSATION_H
#define ESPALIER_CONVERSATION_H

#include "espalier_fields.h"

/* What may be asked of one completion; zero is as the experiment's `sampling` says. */
typedef struct {
    /* Most tokens to sample, from 1. */
    espalier_maybe_u32 max_tokens;
    /* Texts that end the answer; they are not part of it. */
    espalier_strs stop;
    /* 0 is greedy; 0 to 100. */
    espalier_maybe_f64 temperature;
    /* `auto`, `none`, `required`, or the name of a tool. */
    espalier_maybe_str tool_choice;
    espalier_maybe_str extra;
} espalier_options;

/* Why an answer ended. */
typedef enum {
    /* End of turn, or a stop text. */
    ESPALIER_FINISH_STOP,
    /* `max_tokens`, budget or context. */
    ESPALIER_FINISH_LENGTH,
    /* It calls tools. */
    ESPALIER_FINISH_TOOL_CALLS,
    /* Withheld by the endpoint. */
    ESPALIER_FINISH_FILTERED,
    ESPALIER_FINISH_OTHER
} espalier_finish;

/* Counters of one conversation. */
typedef struct {
    /* Tokens of the context as it stands. */
    uint64_t prompt_tokens;
    /* Tokens sampled, the prefix of a fork included. */
    uint64_t sampled_tokens;
    /* Answers. */
    uint32_t turns;
    /* What context or budget still allows, where known. */
    espalier_maybe_u64 tokens_left;
    /* Answers that the rollout's budget still allows. */
    espalier_maybe_u32 turns_left;
    espalier_maybe_str extra;
} espalier_usage;

/* One answer. */
typedef struct {
    /* Its text, calls of tools included as the model wrote them. */
    espalier_str text;
    /* The calls that were parsed. */
    espalier_tool_calls tool_calls;
    /* Why a call could not be parsed. */
    espalier_maybe_str malformed;
    espalier_finish finish;
    /* Counters after the answer. */
    espalier_usage usage;
    /* Names it in the votes of a judge. */
    espalier_maybe_str call;
} espalier_answer;

/* A tool that the model may call. */
typedef struct {
    const char *name;
    /* For the model. */
    const char *description;
    /* Of its arguments, up to ESPALIER_END. */
    const espalier_field *fields;
    /* Of the struct of its arguments. */
    size_t size;
    /* Writes what the model is shown to `result`. ESPALIER_INVALID and ESPALIER_OTHER become error texts for the model; other failures
     * are those of the call that runs the tool. */
    espalier_status (*run)(const void *arguments, void *context, espalier_str *result);
} espalier_tool;

/* A tool that the engine describes, such as one of a browser. */
typedef struct {
    espalier_str name;
    espalier_str description;
    /* JSON Schema of the arguments. */
    espalier_str parameters;
} espalier_offered_tool;

/* One branch of a conversation. Messages are sent with the next answer that is asked for. */
typedef struct {
    espalier_str model;
    /* How answers are asked for. */
    espalier_options options;
    /* Set by espalier_conversation_tools. */
    const espalier_tool *tools;
    size_t tool_count;
    /* Set by espalier_conversation_browser. */
    struct {
        espalier_offered_tool *items;
        size_t len;
    } offered;
    /* Not sent yet. */
    espalier_messages pending;
    /* From the first answer on. */
    bool is_open;
    int32_t handle;
} espalier_conversation;

/* A conversation with the model that the experiment calls so: `policy`; a judge's is `judge`. */
espalier_conversation *espalier_conversation_with(const char *model);
/* Offers these tools. Before the first answer. */
void espalier_conversation_tools(espalier_conversation *chat, const espalier_tool *tools, size_t count);

/* Messages, as printf writes them. A text that is not written in the source goes behind "%s". */
void espalier_conversation_system(espalier_conversation *chat, const char *format, ...) ESPALIER_PRINTF(2, 3);
void espalier_conversation_user(espalier_conversation *chat, const char *format, ...) ESPALIER_PRINTF(2, 3);
/* An answer that this plugin writes itself, for examples; it does not train. */
void espalier_conversation_assistant(espalier_conversation *chat, const char *format, ...) ESPALIER_PRINTF(2, 3);
/* A message of one text, with all its bytes. */
void espalier_conversation_say(espalier_conversation *chat, espalier_role role, espalier_str text);
/* A message of the user with images, which are blobs, behind its text. */
void espalier_conversation_user_with_images(espalier_conversation *chat, espalier_str text, espalier_strs images);
/* The answer to a call of a tool. */
void espalier_conversation_tool_result(espalier_conversation *chat, const espalier_tool_call *call, espalier_str text,
                                       bool is_error);
/* Any message. */
void espalier_conversation_add(espalier_conversation *chat, espalier_message message);

/* Samples one answer and adds it. After a failure the conversation is as before. */
espalier_status espalier_conversation_complete(espalier_conversation *chat, espalier_answer *answer);

/* One of several answers, and the branch that holds it. */
typedef struct {
    espalier_conversation *chat;
    espalier_answer answer;
} espalier_branch;

/* Samples `n` answers at once, 1 to 256; `branches` becomes the first of `n`. This conversation stays without an answer. */
espalier_status espalier_conversation_complete_many(espalier_conversation *chat, uint32_t n, espalier_branch **branches);

/* Runs the calls of an answer and adds what comes of them. A call of an unknown tool, or with wrong arguments, becomes an error text
 * for the model. */
espalier_status espalier_conversation_run_tools(espalier_conversation *chat, const espalier_answer *answer, void *context);

/* A second branch with the same past. */
espalier_status espalier_conversation_fork(espalier_conversation *chat, espalier_conversation **fork);
/* Gives this branch up: its tokens do not train. */
void espalier_conversation_discard(espalier_conversation *chat);
/* Replaces the whole history, for compaction: a new training segment opens, the old one stays. */
espalier_status espalier_conversation_rewrite(espalier_conversation *chat, espalier_messages messages);
/* Replaces all images but the last `keep` by a fixed text. */
espalier_status espalier_conversation_elide_images(espalier_conversation *chat, uint32_t keep, uint32_t *elided);
/* Says whether the answer at this index of the conversation may train. */
espalier_status espalier_conversation_set_trainable(espalier_conversation *chat, uint32_t message, bool trainable);
/* Counters as they stand. */
espalier_status espalier_conversation_usage(espalier_conversation *chat, espalier_usage *usage);
/* Drops the handle; what was said is kept. All are dropped when the rollout ends. */
void espalier_conversation_close(espalier_conversation *chat);

/* Runs one call of a tool by hand: what the model is to be shown, and whether it is an error. */
espalier_status espalier_tools_run(const espalier_tool *tools, size_t count, const espalier_tool_call *call, void *context,
                                   espalier_str *text, bool *is_error);

/* The world of the rollout, for a harness. */
typedef struct {
    int32_t handle;
} espalier_environment;

/* Opens the environment of the task, once in a rollout. */
espalier_status espalier_environment_open(espalier_environment *world);
/* Puts the world into its first state. */
espalier_status espalier_environment_reset(espalier_environment world, espalier_observation *seen);
/* Carries out one action, taken as it is. */
espalier_status espalier_environment_step(espalier_environment world, espalier_str action, espalier_step_result *result);
/* The actions possible now, where the world lists them. */
espalier_status espalier_environment_actions(espalier_environment world, espalier_strs *actions);

#endif

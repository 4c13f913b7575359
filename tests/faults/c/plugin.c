/* A harness that fails as its task says: one mode for each way in which plugins fail. */
#include "sdk/espalier.h"
#include "sdk/bindings/imports.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct settings {
    int64_t lines;
};

ESPALIER_SETTINGS(struct settings,
    ESPALIER_FIELD(struct settings, lines, "Lines of a flood.", .default_value = "10000", .minimum = "1"));

struct data {
    espalier_str mode;
};

static const espalier_field data_fields[] = {
    ESPALIER_FIELD(struct data, mode, "How to fail."),
    ESPALIER_END,
};

/* What is done before the first call: a test writes another word over this one in the component. */
static const char *volatile start = "start: as usual";

__attribute__((constructor)) static void construct(void) {
    if (strcmp(start, "start: a panic ") == 0)
        espalier_panic("a panic in a constructor");
    while (strcmp(start, "start: no stop ") == 0) {
    }
}

static espalier_status endless(void) {
    for (volatile uint64_t rounds = 0;; rounds++) {
    }
}

struct piece {
    struct piece *next;
    char bytes[1 << 20];
};

static struct piece *volatile pieces;

static espalier_status hoard(void) {
    for (;;) {
        struct piece *piece = malloc(sizeof *piece);
        piece->next = pieces;
        pieces = piece;
    }
}

static int64_t descend(int64_t depth) {
    volatile int64_t frame[16] = {depth};
    if (depth == 0)
        return 0;
    return descend(depth + 1) + frame[0];
}

struct sum {
    double a, b;
};

static const espalier_field sum_fields[] = {
    ESPALIER_FIELD(struct sum, a, "The first number."),
    ESPALIER_FIELD(struct sum, b, "The second number."),
    ESPALIER_END,
};

static espalier_status add(const void *arguments, void *context, espalier_str *result) {
    const struct sum *sum = arguments;
    *result = espalier_format("%g", sum->a + sum->b);
    return ESPALIER_OK;
}

static espalier_status use_tools(espalier_report *report) {
    static const espalier_tool tools[] = {{"add", "Adds two numbers.", sum_fields, sizeof(struct sum), add}};
    espalier_conversation *chat = espalier_conversation_with("policy");
    espalier_conversation_tools(chat, tools, 1);
    espalier_conversation_user(chat, "Use a tool.");
    espalier_answer answer;
    ESPALIER_TRY(espalier_conversation_complete(chat, &answer));
    ESPALIER_TRY(espalier_conversation_run_tools(chat, &answer, NULL));
    ESPALIER_TRY(espalier_conversation_complete(chat, &answer));
    return espalier_submit(report, answer.text, (espalier_str){0});
}

/* A number that is no handle of this plugin's. */
static espalier_status forged_handle(espalier_report *report) {
    espalier_model_conversations_borrow_conversation_t forged = {4711};
    espalier_model_conversations_usage_t usage;
    espalier_model_conversations_method_conversation_usage(forged, &usage);
    return espalier_submit(report, espalier_format("%u", usage.turns), (espalier_str){0});
}

/* Goes on after its budget of turns is used up. */
static espalier_status go_on(void) {
    espalier_conversation *chat = espalier_conversation_with("policy");
    espalier_conversation_user(chat, "Go on.");
    espalier_answer answer;
    for (;;)
        (void)espalier_conversation_complete(chat, &answer);
}

static espalier_status drawn(espalier_report *report) {
    uint64_t random;
    ESPALIER_TRY(espalier_random_below(UINT64_C(1) << 50, &random));
    espalier_str data = espalier_format("{\"random\": %llu, \"rand\": %d}", (unsigned long long)random, rand());
    return espalier_submit(report, espalier_text("drawn"), data);
}

static espalier_status flood(espalier_report *report, int64_t lines) {
    static char text[1025];
    memset(text, 'x', sizeof text - 1);
    for (int64_t line = 0; line < lines; line++)
        espalier_info("%s", text);
    return espalier_submit(report, espalier_text("flooded"), (espalier_str){0});
}

static espalier_status oversized(espalier_report *report) {
    size_t size = 20 << 20;
    char *text = espalier_alloc(size + 1);
    memset(text, 'x', size);
    return espalier_submit(report, espalier_text(text), (espalier_str){0});
}

static espalier_status network(espalier_report *report) {
    if (fopen("/etc/passwd", "r") == NULL)
        return espalier_other("no-file", "/etc/passwd: %s", strerror(errno));
    return espalier_submit(report, espalier_text("read"), (espalier_str){0});
}

static espalier_status run(const espalier_task *task, espalier_report *report) {
    struct data data;
    ESPALIER_TRY(espalier_task_data(task, data_fields, &data));
    const struct settings *settings = espalier_settings();
    const char *mode = data.mode.ptr;
    if (strcmp(mode, "loop") == 0)
        return endless();
    if (strcmp(mode, "memory") == 0)
        return hoard();
    if (strcmp(mode, "stack") == 0)
        return espalier_submit(report, espalier_format("%lld", (long long)descend(1)), (espalier_str){0});
    if (strcmp(mode, "panic") == 0)
        espalier_panic("a panic on purpose");
    if (strcmp(mode, "wrong-json") == 0)
        return espalier_submit(report, espalier_text("cut"), espalier_text("{\"cut"));
    if (strcmp(mode, "unknown-tool") == 0)
        return use_tools(report);
    if (strcmp(mode, "invalid-handle") == 0)
        return forged_handle(report);
    if (strcmp(mode, "foreign-blob") == 0) {
        espalier_str text;
        ESPALIER_TRY(espalier_blob_text(espalier_text("of-another-rollout"), &text));
        return espalier_submit(report, text, (espalier_str){0});
    }
    if (strcmp(mode, "call-after-end") == 0)
        return go_on();
    if (strcmp(mode, "random") == 0)
        return drawn(report);
    if (strcmp(mode, "log-flood") == 0)
        return flood(report, settings->lines);
    if (strcmp(mode, "error") == 0)
        return espalier_other("no-plan", "a failure on purpose");
    if (strcmp(mode, "oversized") == 0)
        return oversized(report);
    if (strcmp(mode, "network") == 0)
        return network(report);
    return espalier_submit(report, data.mode, (espalier_str){0});
}

ESPALIER_HARNESS(run);

/* A harness that misbehaves in ways that only C has, as its settings say. */
#include "sdk/espalier.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct settings {
    espalier_str fault;
};

static const char *const faults[] = {
    "assert", "abort", "null", "index", "divide", "invalid-shape", "status", "import-loop", "lost", "wasi", "exit", "print", NULL,
};

ESPALIER_SETTINGS(struct settings,
    ESPALIER_FIELD(struct settings, fault, "What goes wrong.", .choices = faults));

/* A failure of the model that the harness does not pass on. */
static espalier_status lost(espalier_report *report) {
    espalier_conversation *chat = espalier_conversation_with("policy");
    espalier_conversation_user(chat, "go");
    espalier_answer answer;
    bool answered = espalier_conversation_complete(chat, &answer) == ESPALIER_OK;
    return espalier_give_up(report, espalier_text(answered ? "\"answered\"" : "\"lost\""));
}

/* What a runtime offers: what is virtual answers, what is not there says so. */
static espalier_status wasi(espalier_report *report) {
    espalier_json *seen = espalier_json_object();
    struct timespec hour = {.tv_sec = 3600}, before, after;
    clock_gettime(CLOCK_MONOTONIC, &before);
    nanosleep(&hour, NULL);
    clock_gettime(CLOCK_MONOTONIC, &after);
    espalier_json_set(seen, "slept", espalier_json_integer(after.tv_sec - before.tv_sec));
    espalier_json_set(seen, "file", espalier_json_boolean(fopen("/etc/passwd", "r") != NULL));
    espalier_json_set(seen, "environment", espalier_json_boolean(getenv("HOME") != NULL));
    espalier_json_set(seen, "stdin", espalier_json_boolean(getchar() != EOF));
    puts("to stdout");
    fputs("to ", stderr);
    fputs("stderr\n", stderr);
    return espalier_submit(report, (espalier_str){0}, espalier_json_write(seen));
}

static espalier_status run(const espalier_task *task, espalier_report *report) {
    const struct settings *settings = espalier_settings();
    const char *fault = settings->fault.ptr;
    volatile int none = 0;
    int *volatile nowhere = NULL;
    int table[4] = {1, 2, 3, 4};

    if (strcmp(fault, "assert") == 0)
        assert(none == 1);
    if (strcmp(fault, "abort") == 0)
        abort();
    if (strcmp(fault, "null") == 0)
        *nowhere = 1;
    if (strcmp(fault, "index") == 0)
        none = table[none + 7];
    if (strcmp(fault, "divide") == 0)
        none = 7 / none;
    if (strcmp(fault, "invalid-shape") == 0)
        return espalier_submit(report, espalier_text("not \xff UTF-8"), (espalier_str){0});
    if (strcmp(fault, "status") == 0)
        return (espalier_status)42;
    while (strcmp(fault, "import-loop") == 0)
        espalier_now_ms();
    if (strcmp(fault, "lost") == 0)
        return lost(report);
    if (strcmp(fault, "wasi") == 0)
        return wasi(report);
    if (strcmp(fault, "exit") == 0)
        exit(3);
    if (strcmp(fault, "print") == 0)
        printf("a line\nand one without an end");
    return espalier_submit(report, (espalier_str){0}, (espalier_str){0});
}

ESPALIER_HARNESS(run);

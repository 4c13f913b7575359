/* Failures, the log, and the end of a plugin that panics. */
#include "internal.h"

#include "../bindings/imports.h"

#include <stdio.h>
#include <stdio_ext.h>

/* Standard output, where the plugin prints; else it is not linked, and neither is WASI. */
extern FILE *volatile __stdout_used __attribute__((__weak__));

SAME(espalier_failure, espalier_base_types_failure_t);
SAME(espalier_str, imports_string_t);

#define STATUSES (ESPALIER_OTHER + 1)

/* The last failure of each status in this export. */
static struct {
    bool is_there;
    espalier_failure failure;
} last[STATUSES];
static void *settings;
/* As the host gave it: asked for once in an instance. */
static espalier_str settings_text;

static const char *const budgets[] = {"turns", "tokens", "sampled-tokens", "wall", "host-calls", "blob-bytes"};
#define BUDGETS (sizeof budgets / sizeof budgets[0])

espalier_status espalier_failed(const void *failure) {
    espalier_failure record;
    memcpy(&record, failure, sizeof record);
    espalier_status status = (espalier_status)(record.tag + 1);
    last[status].is_there = true;
    last[status].failure = record;
    return status;
}

espalier_status espalier_invalid(const char *format, ...) {
    va_list values;
    va_start(values, format);
    espalier_failure failure = {.tag = ESPALIER_INVALID - 1};
    failure.text = espalier_as_utf8(espalier_vformat(format, values));
    va_end(values);
    return espalier_failed(&failure);
}

espalier_status espalier_other(const char *code, const char *format, ...) {
    va_list values;
    va_start(values, format);
    espalier_failure failure = {.tag = ESPALIER_OTHER - 1};
    failure.other.code = espalier_text(code);
    failure.other.text = espalier_as_utf8(espalier_vformat(format, values));
    va_end(values);
    return espalier_failed(&failure);
}

espalier_str espalier_failure_text(espalier_status status) {
    const espalier_failure *failure = &last[status].failure;
    switch (status) {
    case ESPALIER_OK:
        return espalier_text("no failure");
    case ESPALIER_BUDGET:
        return failure->budget.tag < BUDGETS ? espalier_text(budgets[failure->budget.tag]) : failure->budget.other;
    case ESPALIER_CANCELLED:
        return espalier_text("cancelled");
    case ESPALIER_OTHER:
        return failure->other.text;
    default:
        return failure->text;
    }
}

espalier_str espalier_failure_code(void) {
    return last[ESPALIER_OTHER].failure.other.code;
}

/* Writes what was printed; a line without an end is ended, as it would wait for the rest. */
static void flush(void) {
    if (&__stdout_used != NULL && __stdout_used != NULL && __fpending(__stdout_used) > 0)
        fputc('\n', __stdout_used);
    fflush(NULL);
}

espalier_status espalier_begin_export(void) {
    memset(last, 0, sizeof last);
    settings = NULL;
    if (espalier_plugin_settings.size == 0)
        return ESPALIER_OK;
    espalier_str error;
    if (settings_text.ptr == NULL) {
        espalier_str text;
        espalier_base_settings_get((void *)&text);
        char *kept = malloc(text.len + 1);
        if (kept == NULL)
            espalier_trap("out of memory: %zu bytes", text.len);
        memcpy(kept, text.ptr, text.len + 1);
        settings_text = (espalier_str){kept, text.len};
    }
    settings = espalier_alloc(espalier_plugin_settings.size);
    const espalier_json *given = espalier_json_parse(settings_text, &error);
    if (given == NULL)
        return espalier_invalid("settings: %s", error.ptr);
    return espalier_fields_read(given, "settings", espalier_plugin_settings.fields, true, settings);
}

bool espalier_end_export(espalier_status status, void *failure) {
    flush();
    if (status != ESPALIER_OK) {
        if ((unsigned)status >= STATUSES || !last[status].is_there)
            status = espalier_invalid("the plugin returned status %d, which no call had: expected ESPALIER_OK, or what "
                                      "espalier_invalid or espalier_other return", (int)status);
        memcpy(failure, &last[status].failure, sizeof last[status].failure);
    }
    espalier_memory_end();
    return status == ESPALIER_OK;
}

const void *espalier_settings(void) {
    return settings;
}

void espalier_settings_schema(void *text) {
    espalier_str schema = espalier_json_write(espalier_fields_schema(espalier_plugin_settings.fields));
    memcpy(text, &schema, sizeof schema);
    espalier_memory_end();
}

static void write_line(espalier_level level, espalier_str text, espalier_str *fields) {
    espalier_str line = espalier_as_utf8(text);
    espalier_base_log_write((espalier_base_log_level_t)level, (void *)&line, (void *)fields);
}

void espalier_log(espalier_level level, const char *format, ...) {
    va_list values;
    va_start(values, format);
    write_line(level, espalier_vformat(format, values), NULL);
    va_end(values);
}

void espalier_log_fields(espalier_level level, espalier_str fields, const char *format, ...) {
    va_list values;
    va_start(values, format);
    write_line(level, espalier_vformat(format, values), &fields);
    va_end(values);
}

/* Says where and why on the log, as the host reads it, without memory that may have run out; then traps. */
static _Noreturn void end(const char *file, int line, const char *message) {
    static char words[2048];
    flush();
    int len = file == NULL ? snprintf(words, sizeof words, "%s", message)
                           : snprintf(words, sizeof words, "panicked at %s:%d:\n%s", file, line, message);
    size_t kept = len < 0 ? 0 : (size_t)len < sizeof words ? (size_t)len : sizeof words - 1;
    /* A message may be cut within a character. */
    while (kept > 0 && !espalier_is_utf8((espalier_str){words, kept}))
        kept--;
    espalier_str text = {words, kept};
    espalier_base_log_write(ESPALIER_ERROR, (void *)&text, NULL);
    __builtin_trap();
}

_Noreturn void espalier_panic_at(const char *file, int line, const char *format, ...) {
    static char message[1900];
    va_list values;
    va_start(values, format);
    vsnprintf(message, sizeof message, format, values);
    va_end(values);
    end(file, line, message);
}

void espalier_trap(const char *format, ...) {
    static char message[1900];
    va_list values;
    va_start(values, format);
    vsnprintf(message, sizeof message, format, values);
    va_end(values);
    end(NULL, 0, message);
}

/* What assert calls. */
_Noreturn void __assert_fail(const char *expression, const char *file, int line, const char *function) {
    espalier_panic_at(file, line, "assertion failed: %s (in %s)", expression, function);
}

_Noreturn void abort(void) {
    espalier_trap("abort was called");
}

_Noreturn void exit(int status) {
    espalier_trap("exit(%d) was called", status);
}

_Noreturn void _Exit(int status) {
    exit(status);
}

#pragma clang attribute pop

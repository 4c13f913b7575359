/* What the files of the SDK share. Their functions have no debugging information (each file ends the pragma), so that the lines of a
 * trap are those of the plugin's author. Structs of espalier.h are laid out as those of the bindings: `SAME` checks it where one is
 * passed as the other. */
#ifndef ESPALIER_INTERNAL_H
#define ESPALIER_INTERNAL_H

#include "../espalier.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#pragma clang attribute push(__attribute__((nodebug)), apply_to = hasType(functionType))

#define SAME(ours, theirs)                                                          \
    _Static_assert(sizeof(ours) == sizeof(theirs), #ours " is laid out as " #theirs); \
    _Static_assert(_Alignof(ours) == _Alignof(theirs), #ours " is aligned as " #theirs)

/* The world is named by what makes the component, not by an object file that the bindings ask for. */
#define NO_OBJECT_FILE(world) void __component_type_object_force_link_##world(void) {}

/* A failure as the bindings have it. */
typedef struct {
    /* An espalier_status without ESPALIER_OK, from 0. */
    uint8_t tag;
    union {
        struct {
            uint8_t tag;
            espalier_str other;
        } budget;
        espalier_str text;
        struct {
            espalier_str code;
            espalier_str text;
        } other;
    };
} espalier_failure;

/* Begins an export: forgets the failures of the last one, and reads the settings. */
espalier_status espalier_begin_export(void);
/* Ends an export: writes what was printed, fills `failure` unless the status is ESPALIER_OK, and returns whether it is. */
bool espalier_end_export(espalier_status status, void *failure);
/* Keeps the failure of an import, and says which it is. */
espalier_status espalier_failed(const void *failure);
/* The JSON Schema of the plugin's settings. */
void espalier_settings_schema(void *text);

/* Ends the plugin with a message; the line is that of its author who called, by the trap. */
_Noreturn void espalier_trap(const char *format, ...) ESPALIER_PRINTF(1, 2);

/* Memory until the export ends, with a zero byte behind it, grown to `size`. */
void *espalier_grow(void *memory, size_t old_size, size_t size);
/* Room for one more in a list of `len` items. */
void *espalier_room(void *items, size_t len, size_t item_size);
espalier_str espalier_vformat(const char *format, va_list values);
/* Whether it is UTF-8. */
bool espalier_is_utf8(espalier_str text);
/* With `?` in place of bytes that are not UTF-8. */
espalier_str espalier_as_utf8(espalier_str text);
/* Writes a character, and says in how many bytes. */
size_t espalier_put_utf8(char *to, uint32_t value);
espalier_json *espalier_json_set_text(espalier_json *object, espalier_str key, espalier_json *value);
/* From now on the memory of this export is free; it is reused when the next one begins, as the host still reads results from it. */
void espalier_memory_end(void);

/* Checks of what a plugin returned: text is UTF-8, JSON parses, scores are finite and have names. */
espalier_status espalier_check_text(const char *where, espalier_str text);
espalier_status espalier_check_json(const char *where, espalier_str *json);
espalier_status espalier_check_scores(const espalier_scores *scores);

extern const espalier_settings_table espalier_plugin_settings;

#endif

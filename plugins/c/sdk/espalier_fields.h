/* Structs that are read from JSON objects by a table of their fields, from which the JSON Schema is made: settings, arguments of
 * tools, data of tasks. Included by espalier.h.
 *
 *     struct settings { espalier_str greeting; int64_t max_turns; };
 *     ESPALIER_SETTINGS(struct settings,
 *         ESPALIER_FIELD(struct settings, greeting, "What is said first.", .default_value = "Hello."),
 *         ESPALIER_FIELD(struct settings, max_turns, "Most answers of the model.", .default_value = "10", .minimum = "1")); */
#ifndef ESPALIER_FIELDS_H
#define ESPALIER_FIELDS_H

#include "espalier_json.h"

typedef enum {
    ESPALIER_FIELD_END,
    ESPALIER_FIELD_STRING,
    ESPALIER_FIELD_INTEGER,
    ESPALIER_FIELD_INT,
    ESPALIER_FIELD_NUMBER,
    ESPALIER_FIELD_BOOLEAN,
    ESPALIER_FIELD_STRINGS,
    ESPALIER_FIELD_JSON
} espalier_field_type;

/* A field of a struct. */
typedef struct {
    const char *name;
    espalier_field_type type;
    size_t offset;
    /* For people and models. */
    const char *description;
    /* The value if the field is left out: the text of a string, JSON for any other type. NULL: it is required, unless `optional`. */
    const char *default_value;
    /* Bounds of a number, as JSON. */
    const char *minimum;
    const char *maximum;
    /* The values that a string may have, up to a NULL. */
    const char *const *choices;
    /* The field may be left out; it is then zero. */
    bool optional;
} espalier_field;

/* The field `member` of a struct, of type espalier_str, int64_t, int, double, bool, espalier_strs or espalier_json *. Behind the
 * description may stand .default_value, .minimum, .maximum, .choices, .optional. */
#define ESPALIER_FIELD(struct_type, member, text, ...)       \
    {.name = #member,                                        \
     .type = _Generic(((struct_type *)0)->member,            \
         espalier_str: ESPALIER_FIELD_STRING,                \
         int64_t: ESPALIER_FIELD_INTEGER,                    \
         int: ESPALIER_FIELD_INT,                            \
         double: ESPALIER_FIELD_NUMBER,                      \
         bool: ESPALIER_FIELD_BOOLEAN,                       \
         espalier_strs: ESPALIER_FIELD_STRINGS,              \
         espalier_json *: ESPALIER_FIELD_JSON),              \
     .offset = offsetof(struct_type, member),                \
     .description = text,                                    \
     __VA_ARGS__}
/* Behind the last field of a table. */
#define ESPALIER_END {.type = ESPALIER_FIELD_END}

/* The JSON Schema of an object with these fields and no others. */
espalier_json *espalier_fields_schema(const espalier_field *fields);

/* Reads an object into the struct at `target`. Errors begin with `where`: `settings: ...`.
 * With `strict` unknown keys are refused. Errors: ESPALIER_INVALID, with the field, what was expected, and what came. */
espalier_status espalier_fields_read(const espalier_json *object, const char *where, const espalier_field *fields, bool strict,
                                     void *target);

/* The same with `data` and `private` of a task; unknown keys are left alone. */
espalier_status espalier_task_data(const espalier_task *task, const espalier_field *fields, void *target);
espalier_status espalier_task_private(const espalier_task *task, const espalier_field *fields, void *target);

/* The settings of a plugin, as ESPALIER_SETTINGS declares them. */
typedef struct {
    const espalier_field *fields;
    size_t size;
} espalier_settings_table;

/* The plugin's settings: their struct, and its fields. */
#define ESPALIER_SETTINGS(struct_type, ...)                                                       \
    static const espalier_field espalier_settings_fields[] = {__VA_ARGS__, ESPALIER_END};         \
    const espalier_settings_table espalier_plugin_settings = {espalier_settings_fields, sizeof(struct_type)}
/* A plugin without settings. */
#define ESPALIER_NO_SETTINGS()                                                   \
    static const espalier_field espalier_settings_fields[] = {ESPALIER_END};     \
    const espalier_settings_table espalier_plugin_settings = {espalier_settings_fields, 0}

#endif

/* Structs by tables of their fields. */
#include "internal.h"

#include <math.h>

/* The largest number up to which every integer is a double. */
#define INTEGER_MAX 9007199254740992.0

static const char *article_and_type(espalier_field_type type) {
    switch (type) {
    case ESPALIER_FIELD_STRING:
        return "a string";
    case ESPALIER_FIELD_INTEGER:
    case ESPALIER_FIELD_INT:
        return "an integer";
    case ESPALIER_FIELD_NUMBER:
        return "a number";
    case ESPALIER_FIELD_BOOLEAN:
        return "true or false";
    case ESPALIER_FIELD_STRINGS:
        return "a list of strings";
    default:
        return "a value";
    }
}

/* What a field may be, for people. */
static espalier_str expected(const espalier_field *field) {
    espalier_str text = espalier_text(article_and_type(field->type));
    if (field->choices != NULL) {
        text = espalier_text("one of");
        for (const char *const *choice = field->choices; *choice != NULL; choice++)
            text = espalier_format("%s%s \"%s\"", text.ptr, choice == field->choices ? "" : ",", *choice);
    }
    if (field->minimum != NULL && field->maximum != NULL)
        return espalier_format("%s from %s to %s", text.ptr, field->minimum, field->maximum);
    if (field->minimum != NULL)
        return espalier_format("%s of at least %s", text.ptr, field->minimum);
    if (field->maximum != NULL)
        return espalier_format("%s of at most %s", text.ptr, field->maximum);
    return text;
}

static espalier_json *default_of(const espalier_field *field) {
    if (field->type == ESPALIER_FIELD_STRING)
        return espalier_json_string(espalier_text(field->default_value));
    espalier_str error;
    espalier_json *value = espalier_json_parse(espalier_text(field->default_value), &error);
    if (value == NULL)
        espalier_trap("default of `%s`, `%s`: %s", field->name, field->default_value, error.ptr);
    return value;
}

static espalier_json *schema_of(const espalier_field *field) {
    static const char *const types[] = {
        [ESPALIER_FIELD_STRING] = "string",   [ESPALIER_FIELD_INTEGER] = "integer", [ESPALIER_FIELD_INT] = "integer",
        [ESPALIER_FIELD_NUMBER] = "number",   [ESPALIER_FIELD_BOOLEAN] = "boolean", [ESPALIER_FIELD_STRINGS] = "array",
        [ESPALIER_FIELD_JSON] = NULL,
    };
    espalier_json *schema = espalier_json_object();
    if (types[field->type] != NULL)
        espalier_json_set(schema, "type", espalier_json_string(espalier_text(types[field->type])));
    if (field->type == ESPALIER_FIELD_STRINGS) {
        espalier_json *string = espalier_json_string(espalier_text("string"));
        espalier_json_set(schema, "items", espalier_json_set(espalier_json_object(), "type", string));
    }
    if (field->description != NULL)
        espalier_json_set(schema, "description", espalier_json_string(espalier_text(field->description)));
    if (field->default_value != NULL)
        espalier_json_set(schema, "default", default_of(field));
    if (field->minimum != NULL)
        espalier_json_set(schema, "minimum", espalier_json_parse(espalier_text(field->minimum), NULL));
    if (field->maximum != NULL)
        espalier_json_set(schema, "maximum", espalier_json_parse(espalier_text(field->maximum), NULL));
    if (field->choices != NULL) {
        espalier_json *choices = espalier_json_list();
        for (const char *const *choice = field->choices; *choice != NULL; choice++)
            espalier_json_add(choices, espalier_json_string(espalier_text(*choice)));
        espalier_json_set(schema, "enum", choices);
    }
    return schema;
}

espalier_json *espalier_fields_schema(const espalier_field *fields) {
    espalier_json *properties = espalier_json_object();
    espalier_json *required = espalier_json_list();
    for (; fields->type != ESPALIER_FIELD_END; fields++) {
        espalier_json_set(properties, fields->name, schema_of(fields));
        if (fields->default_value == NULL && !fields->optional)
            espalier_json_add(required, espalier_json_string(espalier_text(fields->name)));
    }
    espalier_json *schema = espalier_json_object();
    espalier_json_set(schema, "type", espalier_json_string(espalier_text("object")));
    espalier_json_set(schema, "properties", properties);
    if (required->len > 0)
        espalier_json_set(schema, "required", required);
    return espalier_json_set(schema, "additionalProperties", espalier_json_boolean(false));
}

static bool is_chosen(const espalier_field *field, espalier_str text) {
    if (field->choices == NULL)
        return true;
    for (const char *const *choice = field->choices; *choice != NULL; choice++) {
        if (espalier_equal(text, espalier_text(*choice)))
            return true;
    }
    return false;
}

static bool is_within(const espalier_field *field, double number) {
    return (field->minimum == NULL || number >= strtod(field->minimum, NULL)) &&
           (field->maximum == NULL || number <= strtod(field->maximum, NULL));
}

static bool strings_of(const espalier_json *list, espalier_strs *strings) {
    *strings = (espalier_strs){0};
    for (size_t index = 0; index < list->len; index++) {
        if (list->items[index]->type != ESPALIER_JSON_STRING)
            return false;
        espalier_add_text(strings, list->items[index]->string);
    }
    return list->type == ESPALIER_JSON_LIST;
}

/* Puts a value where the field is; false if it is not what the field may be. */
static bool store(const espalier_field *field, espalier_json *value, void *target) {
    void *place = (char *)target + field->offset;
    int64_t integer = value->integer;
    bool is_integer = value->type == ESPALIER_JSON_INTEGER;
    if (value->type == ESPALIER_JSON_NUMBER && fabs(value->number) <= INTEGER_MAX && value->number == floor(value->number)) {
        integer = (int64_t)value->number;
        is_integer = true;
    }
    is_integer = is_integer && is_within(field, value->number);
    switch (field->type) {
    case ESPALIER_FIELD_STRING:
        if (value->type != ESPALIER_JSON_STRING || !is_chosen(field, value->string))
            return false;
        *(espalier_str *)place = value->string;
        return true;
    case ESPALIER_FIELD_INTEGER:
        if (is_integer)
            *(int64_t *)place = integer;
        return is_integer;
    case ESPALIER_FIELD_INT:
        if (!is_integer || integer != (int)integer)
            return false;
        *(int *)place = (int)integer;
        return true;
    case ESPALIER_FIELD_NUMBER:
        if ((value->type != ESPALIER_JSON_NUMBER && !is_integer) || !is_within(field, value->number))
            return false;
        *(double *)place = value->number;
        return true;
    case ESPALIER_FIELD_BOOLEAN:
        if (value->type != ESPALIER_JSON_BOOLEAN)
            return false;
        *(bool *)place = value->boolean;
        return true;
    case ESPALIER_FIELD_STRINGS:
        return strings_of(value, place);
    default:
        *(espalier_json **)place = value;
        return true;
    }
}

/* A value for an error: not all of a long one. */
static espalier_str shown(const espalier_json *value) {
    espalier_str text = espalier_json_write(value);
    return text.len <= 80 ? text : espalier_as_utf8(espalier_format("%.77s...", text.ptr));
}

espalier_status espalier_fields_read(const espalier_json *object, const char *where, const espalier_field *fields, bool strict,
                                     void *target) {
    if (object == NULL || object->type != ESPALIER_JSON_OBJECT)
        return espalier_invalid("%s: expected an object, got %s", where, shown(object).ptr);
    for (size_t index = 0; strict && index < object->len; index++) {
        const espalier_field *field = fields;
        while (field->type != ESPALIER_FIELD_END && !espalier_equal(object->keys[index], espalier_text(field->name)))
            field++;
        if (field->type == ESPALIER_FIELD_END)
            return espalier_invalid("%s: unknown key `%s`", where, object->keys[index].ptr);
    }
    for (; fields->type != ESPALIER_FIELD_END; fields++) {
        espalier_json *value = espalier_json_get(object, fields->name);
        if (value == NULL && fields->default_value != NULL)
            value = default_of(fields);
        if (value == NULL && fields->optional)
            continue;
        if (value == NULL)
            return espalier_invalid("%s: `%s` is missing: expected %s", where, fields->name, expected(fields).ptr);
        if (!store(fields, value, target))
            return espalier_invalid("%s: `%s`: expected %s, got %s", where, fields->name, expected(fields).ptr, shown(value).ptr);
    }
    return ESPALIER_OK;
}

static espalier_status read_text(espalier_str text, const char *where, const espalier_field *fields, void *target) {
    espalier_str error;
    const espalier_json *object = espalier_json_parse(text, &error);
    if (object == NULL)
        return espalier_invalid("%s: %s", where, error.ptr);
    if (object->type == ESPALIER_JSON_NULL)
        object = espalier_json_object();
    return espalier_fields_read(object, where, fields, false, target);
}

espalier_status espalier_task_data(const espalier_task *task, const espalier_field *fields, void *target) {
    return read_text(task->data, "task.data", fields, target);
}

espalier_status espalier_task_private(const espalier_task *task, const espalier_field *fields, void *target) {
    espalier_str text = task->private_data.is_some ? task->private_data.value : espalier_text("null");
    return read_text(text, "task.private", fields, target);
}

#pragma clang attribute pop

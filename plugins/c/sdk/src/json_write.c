/* Building and writing JSON. */
#include "internal.h"

#include <math.h>
#include <stdio.h>

static espalier_json *made(espalier_json_type type) {
    espalier_json *value = espalier_alloc(sizeof *value);
    value->type = type;
    return value;
}

espalier_json *espalier_json_null(void) {
    return made(ESPALIER_JSON_NULL);
}

espalier_json *espalier_json_boolean(bool value) {
    espalier_json *json = made(ESPALIER_JSON_BOOLEAN);
    json->boolean = value;
    return json;
}

espalier_json *espalier_json_integer(int64_t value) {
    espalier_json *json = made(ESPALIER_JSON_INTEGER);
    json->integer = value;
    json->number = (double)value;
    return json;
}

espalier_json *espalier_json_number(double value) {
    espalier_json *json = made(isfinite(value) ? ESPALIER_JSON_NUMBER : ESPALIER_JSON_NULL);
    json->number = value;
    return json;
}

espalier_json *espalier_json_string(espalier_str value) {
    espalier_json *json = made(ESPALIER_JSON_STRING);
    json->string = value;
    return json;
}

espalier_json *espalier_json_format(const char *format, ...) {
    va_list values;
    va_start(values, format);
    espalier_json *json = espalier_json_string(espalier_vformat(format, values));
    va_end(values);
    return json;
}

espalier_json *espalier_json_list(void) {
    return made(ESPALIER_JSON_LIST);
}

espalier_json *espalier_json_object(void) {
    return made(ESPALIER_JSON_OBJECT);
}

espalier_json *espalier_json_add(espalier_json *list, espalier_json *value) {
    list->items = espalier_room(list->items, list->len, sizeof value);
    list->items[list->len++] = value;
    return list;
}

espalier_json *espalier_json_set_text(espalier_json *object, espalier_str key, espalier_json *value) {
    for (size_t index = 0; index < object->len; index++) {
        if (espalier_equal(object->keys[index], key)) {
            object->items[index] = value;
            return object;
        }
    }
    object->keys = espalier_room(object->keys, object->len, sizeof key);
    object->keys[object->len] = key;
    return espalier_json_add(object, value);
}

espalier_json *espalier_json_set(espalier_json *object, const char *key, espalier_json *value) {
    return espalier_json_set_text(object, espalier_text(key), value);
}

/* Text that grows. */
typedef struct {
    char *ptr;
    size_t len;
    size_t room;
} writer;

static void put(writer *to, const char *ptr, size_t len) {
    if (to->room - to->len < len) {
        to->room = 2 * to->room + len + 64;
        to->ptr = espalier_grow(to->ptr, to->len, to->room);
    }
    if (len > 0)
        memcpy(to->ptr + to->len, ptr, len);
    to->len += len;
}

static void put_text(writer *to, const char *text) {
    put(to, text, strlen(text));
}

static void put_string(writer *to, espalier_str text) {
    put(to, "\"", 1);
    size_t start = 0;
    for (size_t at = 0; at < text.len; at++) {
        unsigned char letter = (unsigned char)text.ptr[at];
        if (letter >= 0x20 && letter != '"' && letter != '\\')
            continue;
        put(to, text.ptr + start, at - start);
        start = at + 1;
        char escape[8];
        const char *letters = "\"\\\b\f\n\r\t", *names = "\"\\bfnrt";
        const char *place = letter == 0 ? NULL : strchr(letters, letter);
        if (place != NULL)
            snprintf(escape, sizeof escape, "\\%c", names[place - letters]);
        else
            snprintf(escape, sizeof escape, "\\u%04x", letter);
        put_text(to, escape);
    }
    put(to, text.ptr + start, text.len - start);
    put(to, "\"", 1);
}

/* The fewest digits that read back as the same number; a whole one with `.0`. */
static void put_number(writer *to, double number) {
    char text[40];
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, number);
        if (strtod(text, NULL) == number)
            break;
    }
    put_text(to, text);
    if (strpbrk(text, ".e") == NULL)
        put_text(to, ".0");
}

static void put_value(writer *to, const espalier_json *value) {
    switch (value->type) {
    case ESPALIER_JSON_NULL:
        put_text(to, "null");
        break;
    case ESPALIER_JSON_BOOLEAN:
        put_text(to, value->boolean ? "true" : "false");
        break;
    case ESPALIER_JSON_INTEGER: {
        char text[24];
        snprintf(text, sizeof text, "%lld", (long long)value->integer);
        put_text(to, text);
        break;
    }
    case ESPALIER_JSON_NUMBER:
        put_number(to, value->number);
        break;
    case ESPALIER_JSON_STRING:
        put_string(to, value->string);
        break;
    case ESPALIER_JSON_LIST:
        put_text(to, "[");
        for (size_t index = 0; index < value->len; index++) {
            if (index > 0)
                put_text(to, ",");
            put_value(to, value->items[index]);
        }
        put_text(to, "]");
        break;
    case ESPALIER_JSON_OBJECT:
        put_text(to, "{");
        for (size_t index = 0; index < value->len; index++) {
            if (index > 0)
                put_text(to, ",");
            put_string(to, value->keys[index]);
            put_text(to, ":");
            put_value(to, value->items[index]);
        }
        put_text(to, "}");
        break;
    }
}

espalier_str espalier_json_write(const espalier_json *value) {
    writer to = {0};
    if (value == NULL)
        put_text(&to, "null");
    else
        put_value(&to, value);
    put(&to, "", 1);
    return (espalier_str){to.ptr, to.len - 1};
}

#pragma clang attribute pop

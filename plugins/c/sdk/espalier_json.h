/* JSON: read into a tree, built as a tree, written as text. Included by espalier.h. */
#ifndef ESPALIER_JSON_H
#define ESPALIER_JSON_H

#include "espalier.h"

typedef enum {
    ESPALIER_JSON_NULL,
    ESPALIER_JSON_BOOLEAN,
    /* A number without fraction and exponent that fits int64_t. */
    ESPALIER_JSON_INTEGER,
    ESPALIER_JSON_NUMBER,
    ESPALIER_JSON_STRING,
    ESPALIER_JSON_LIST,
    ESPALIER_JSON_OBJECT
} espalier_json_type;

/* A value. */
typedef struct espalier_json espalier_json;
struct espalier_json {
    espalier_json_type type;
    bool boolean;
    int64_t integer;
    /* Of an integer as well. */
    double number;
    espalier_str string;
    /* Values of a list or an object, and the keys of an object. */
    size_t len;
    espalier_json **items;
    espalier_str *keys;
};

/* Reads a text; NULL if it is not valid JSON. Then `*error` says what was expected at which byte; `error` may be NULL. */
espalier_json *espalier_json_parse(espalier_str text, espalier_str *error);
/* The value of a key; NULL if the key is missing, or if `object` is NULL or not an object. */
espalier_json *espalier_json_get(const espalier_json *object, const char *key);
/* The value of a key if it is a string; otherwise `ptr` is NULL. */
espalier_str espalier_json_get_string(const espalier_json *object, const char *key);
/* As text, without white space. */
espalier_str espalier_json_write(const espalier_json *value);

espalier_json *espalier_json_null(void);
espalier_json *espalier_json_boolean(bool value);
espalier_json *espalier_json_integer(int64_t value);
/* Infinities and NaN become null. */
espalier_json *espalier_json_number(double value);
espalier_json *espalier_json_string(espalier_str value);
/* A string as printf writes it. */
espalier_json *espalier_json_format(const char *format, ...) ESPALIER_PRINTF(1, 2);
espalier_json *espalier_json_list(void);
espalier_json *espalier_json_object(void);
/* Adds a value to a list, and gives the list back. */
espalier_json *espalier_json_add(espalier_json *list, espalier_json *value);
/* Sets a key of an object, and gives the object back. */
espalier_json *espalier_json_set(espalier_json *object, const char *key, espalier_json *value);

#endif

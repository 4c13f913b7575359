/* Reading JSON. */
#include "internal.h"

#include <math.h>

/* Lists and objects in each other, at most. */
#define DEPTH_MAX 128

typedef struct {
    espalier_str text;
    size_t at;
    size_t depth;
    /* What was expected. */
    const char *wanted;
} reader;

static espalier_json *value_of(reader *from);

static espalier_json *fail(reader *from, const char *wanted) {
    if (from->wanted == NULL)
        from->wanted = wanted;
    return NULL;
}

static char peek(reader *from) {
    while (from->at < from->text.len) {
        char letter = from->text.ptr[from->at];
        if (letter != ' ' && letter != '\t' && letter != '\n' && letter != '\r')
            return letter;
        from->at++;
    }
    return 0;
}

static bool take(reader *from, char letter) {
    if (from->at >= from->text.len || peek(from) != letter)
        return false;
    from->at++;
    return true;
}

static int hex(reader *from) {
    int value = 0;
    for (int digit = 0; digit < 4; digit++, from->at++) {
        char letter = from->at < from->text.len ? from->text.ptr[from->at] : 0;
        const char *digits = "0123456789abcdef";
        const char *place = letter == 0 ? NULL : strchr(digits, letter | 0x20);
        if (letter >= '0' && letter <= '9')
            place = digits + (letter - '0');
        if (place == NULL)
            return -1;
        value = value * 16 + (int)(place - digits);
    }
    return value;
}

/* What stands behind `\u`, as UTF-8. */
static size_t escaped(reader *from, char *to) {
    int value = hex(from);
    if (value >= 0xD800 && value < 0xDC00) {
        bool is_pair = from->at + 1 < from->text.len && memcmp(from->text.ptr + from->at, "\\u", 2) == 0;
        from->at += 2;
        int low = is_pair ? hex(from) : -1;
        if (low < 0xDC00 || low > 0xDFFF)
            return 0;
        value = 0x10000 + ((value - 0xD800) << 10) + (low - 0xDC00);
    } else if (value < 0 || (value >= 0xDC00 && value < 0xE000)) {
        return 0;
    }
    return espalier_put_utf8(to, (uint32_t)value);
}

static bool string_of(reader *from, espalier_str *string) {
    if (!take(from, '"'))
        return fail(from, "a string") != NULL;
    size_t start = from->at;
    size_t end = start;
    while (end < from->text.len && from->text.ptr[end] != '"')
        end += from->text.ptr[end] == '\\' ? 2 : 1;
    if (end >= from->text.len) {
        from->at = from->text.len;
        return fail(from, "`\"`") != NULL;
    }
    /* An escape is longer than what it stands for. */
    char *to = espalier_alloc(end - start);
    size_t len = 0;
    while (from->at < end) {
        char letter = from->text.ptr[from->at++];
        if ((unsigned char)letter < 0x20)
            return fail(from, "an escape for a control character") != NULL;
        if (letter != '\\') {
            to[len++] = letter;
            continue;
        }
        letter = from->text.ptr[from->at++];
        const char *letters = "\"\\/bfnrt", *meanings = "\"\\/\b\f\n\r\t";
        const char *place = strchr(letters, letter);
        if (letter == 'u') {
            size_t size = escaped(from, to + len);
            if (size == 0)
                return fail(from, "four hexadecimal digits of a character") != NULL;
            len += size;
        } else if (letter == 0 || place == NULL) {
            return fail(from, "an escape") != NULL;
        } else {
            to[len++] = meanings[place - letters];
        }
    }
    from->at = end + 1;
    *string = (espalier_str){to, len};
    return true;
}

static bool digits(reader *from) {
    size_t start = from->at;
    while (from->at < from->text.len && from->text.ptr[from->at] >= '0' && from->text.ptr[from->at] <= '9')
        from->at++;
    return from->at > start;
}

static bool one_of(reader *from, const char *letters) {
    char letter = from->at < from->text.len ? from->text.ptr[from->at] : 0;
    if (letter == 0 || strchr(letters, letter) == NULL)
        return false;
    from->at++;
    return true;
}

static espalier_json *number_of(reader *from) {
    size_t start = from->at;
    bool is_whole = true;
    one_of(from, "-");
    bool is_zero = one_of(from, "0");
    if (!is_zero && !digits(from))
        return fail(from, "a value");
    if (one_of(from, ".")) {
        is_whole = false;
        if (!digits(from))
            return fail(from, "a digit");
    }
    if (one_of(from, "eE")) {
        is_whole = false;
        one_of(from, "+-");
        if (!digits(from))
            return fail(from, "a digit");
    }
    espalier_str text = espalier_copy(from->text.ptr + start, from->at - start);
    int64_t integer;
    if (is_whole && espalier_parse_integer(text, &integer))
        return espalier_json_integer(integer);
    espalier_json *value = espalier_json_null();
    value->type = ESPALIER_JSON_NUMBER;
    value->number = strtod(text.ptr, NULL);
    if (!isfinite(value->number)) {
        from->at = start;
        return fail(from, "a number within the range of a double");
    }
    return value;
}

static espalier_json *word_of(reader *from, const char *word, espalier_json *value) {
    size_t len = strlen(word);
    if (from->text.len - from->at < len || memcmp(from->text.ptr + from->at, word, len) != 0)
        return fail(from, "a value");
    from->at += len;
    return value;
}

static espalier_json *list_of(reader *from) {
    espalier_json *list = espalier_json_list();
    from->at++;
    if (take(from, ']'))
        return list;
    do {
        espalier_json *item = value_of(from);
        if (item == NULL)
            return NULL;
        espalier_json_add(list, item);
    } while (take(from, ','));
    return take(from, ']') ? list : fail(from, "`,` or `]`");
}

static espalier_json *object_of(reader *from) {
    espalier_json *object = espalier_json_object();
    from->at++;
    if (take(from, '}'))
        return object;
    do {
        espalier_str key;
        peek(from);
        if (!string_of(from, &key))
            return NULL;
        if (!take(from, ':'))
            return fail(from, "`:`");
        espalier_json *value = value_of(from);
        if (value == NULL)
            return NULL;
        espalier_json_set_text(object, key, value);
    } while (take(from, ','));
    return take(from, '}') ? object : fail(from, "`,` or `}`");
}

static espalier_json *value_of(reader *from) {
    char first = peek(from);
    if (from->depth == DEPTH_MAX)
        return fail(from, "less depth");
    from->depth++;
    espalier_json *value;
    espalier_str string;
    switch (first) {
    case '{':
        value = object_of(from);
        break;
    case '[':
        value = list_of(from);
        break;
    case '"':
        value = string_of(from, &string) ? espalier_json_string(string) : NULL;
        break;
    case 't':
        value = word_of(from, "true", espalier_json_boolean(true));
        break;
    case 'f':
        value = word_of(from, "false", espalier_json_boolean(false));
        break;
    case 'n':
        value = word_of(from, "null", espalier_json_null());
        break;
    default:
        value = number_of(from);
    }
    from->depth--;
    return value;
}

espalier_json *espalier_json_parse(espalier_str text, espalier_str *error) {
    reader from = {.text = text};
    espalier_json *value = value_of(&from);
    if (value != NULL && (peek(&from), from.at < text.len))
        value = fail(&from, "nothing more");
    if (value == NULL && error != NULL)
        *error = espalier_format("invalid JSON at byte %zu: expected %s", from.at, from.wanted);
    return value;
}

espalier_json *espalier_json_get(const espalier_json *object, const char *key) {
    if (object == NULL || object->type != ESPALIER_JSON_OBJECT)
        return NULL;
    for (size_t index = 0; index < object->len; index++) {
        if (espalier_equal(object->keys[index], espalier_text(key)))
            return object->items[index];
    }
    return NULL;
}

espalier_str espalier_json_get_string(const espalier_json *object, const char *key) {
    const espalier_json *value = espalier_json_get(object, key);
    return value != NULL && value->type == ESPALIER_JSON_STRING ? value->string : (espalier_str){NULL, 0};
}

#pragma clang attribute pop

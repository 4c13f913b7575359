/* Text. */
#include "internal.h"

#include <ctype.h>
#include <stdio.h>
#include <wctype.h>

espalier_str espalier_text(const char *text) {
    return (espalier_str){text, text == NULL ? 0 : strlen(text)};
}

espalier_str espalier_copy(const char *ptr, size_t len) {
    return (espalier_str){espalier_grow((void *)(uintptr_t)ptr, len, len), len};
}

espalier_str espalier_vformat(const char *format, va_list values) {
    va_list again;
    va_copy(again, values);
    char small[256];
    int len = vsnprintf(small, sizeof small, format, values);
    if (len < 0)
        espalier_trap("invalid format `%s`", format);
    char *text = espalier_alloc((size_t)len + 1);
    if ((size_t)len < sizeof small)
        memcpy(text, small, (size_t)len);
    else
        vsnprintf(text, (size_t)len + 1, format, again);
    va_end(again);
    return (espalier_str){text, (size_t)len};
}

espalier_str espalier_format(const char *format, ...) {
    va_list values;
    va_start(values, format);
    espalier_str text = espalier_vformat(format, values);
    va_end(values);
    return text;
}

static bool is_space(char letter) {
    return isspace((unsigned char)letter) != 0;
}

espalier_str espalier_trim(espalier_str text) {
    while (text.len > 0 && is_space(text.ptr[0])) {
        text.ptr++;
        text.len--;
    }
    while (text.len > 0 && is_space(text.ptr[text.len - 1]))
        text.len--;
    return espalier_copy(text.ptr, text.len);
}

bool espalier_equal(espalier_str left, espalier_str right) {
    return left.len == right.len && (left.len == 0 || memcmp(left.ptr, right.ptr, left.len) == 0);
}

bool espalier_starts_with(espalier_str text, const char *prefix) {
    size_t len = strlen(prefix);
    return text.len >= len && (len == 0 || memcmp(text.ptr, prefix, len) == 0);
}

bool espalier_next_line(espalier_str *rest, espalier_str *line) {
    if (rest->len == 0)
        return false;
    const char *end = memchr(rest->ptr, '\n', rest->len);
    size_t len = end == NULL ? rest->len : (size_t)(end - rest->ptr);
    size_t taken = end == NULL ? len : len + 1;
    *line = espalier_copy(rest->ptr, len > 0 && rest->ptr[len - 1] == '\r' ? len - 1 : len);
    rest->ptr += taken;
    rest->len -= taken;
    return true;
}

bool espalier_parse_integer(espalier_str text, int64_t *number) {
    size_t at = text.len > 0 && (text.ptr[0] == '-' || text.ptr[0] == '+') ? 1 : 0;
    if (at == text.len)
        return false;
    int64_t value = 0;
    for (; at < text.len; at++) {
        int digit = text.ptr[at] - '0';
        if (digit < 0 || digit > 9 || __builtin_mul_overflow(value, 10, &value))
            return false;
        if (__builtin_add_overflow(value, text.ptr[0] == '-' ? -digit : digit, &value))
            return false;
    }
    *number = value;
    return true;
}

espalier_maybe_str espalier_some(espalier_str text) {
    return (espalier_maybe_str){true, text};
}

void espalier_add_text(espalier_strs *list, espalier_str text) {
    list->items = espalier_room(list->items, list->len, sizeof text);
    list->items[list->len++] = text;
}

/* The character at `at`, and in `*size` its number of bytes; -1 for bytes that are not UTF-8. */
static int32_t character(espalier_str text, size_t at, size_t *size) {
    const uint8_t *bytes = (const uint8_t *)text.ptr + at;
    size_t left = text.len - at;
    *size = 1;
    if (bytes[0] < 0x80)
        return bytes[0];
    size_t len = bytes[0] >= 0xF0 ? 4 : bytes[0] >= 0xE0 ? 3 : 2;
    if (bytes[0] < 0xC2 || bytes[0] > 0xF4 || left < len)
        return -1;
    int32_t value = bytes[0] & (0x7F >> len);
    for (size_t index = 1; index < len; index++) {
        if ((bytes[index] & 0xC0) != 0x80)
            return -1;
        value = value << 6 | (bytes[index] & 0x3F);
    }
    bool is_long = (len == 3 && value < 0x800) || (len == 4 && value < 0x10000);
    if (is_long || (value >= 0xD800 && value < 0xE000) || value > 0x10FFFF)
        return -1;
    *size = len;
    return value;
}

bool espalier_is_utf8(espalier_str text) {
    size_t size;
    for (size_t at = 0; at < text.len; at += size) {
        if (character(text, at, &size) < 0)
            return false;
    }
    return true;
}

espalier_str espalier_as_utf8(espalier_str text) {
    if (espalier_is_utf8(text))
        return text;
    char *copy = espalier_alloc(text.len);
    size_t size;
    for (size_t at = 0; at < text.len; at += size) {
        if (character(text, at, &size) < 0)
            copy[at] = '?';
        else
            memcpy(copy + at, text.ptr + at, size);
    }
    return (espalier_str){copy, text.len};
}

size_t espalier_put_utf8(char *to, uint32_t value) {
    if (value < 0x80) {
        to[0] = (char)value;
        return 1;
    }
    size_t len = value < 0x800 ? 2 : value < 0x10000 ? 3 : 4;
    for (size_t index = len; index-- > 1; value >>= 6)
        to[index] = (char)(0x80 | (value & 0x3F));
    to[0] = (char)((0xF00 >> len & 0xFF) | value);
    return len;
}

espalier_str espalier_lower(espalier_str text) {
    /* No character grows by more than one byte. */
    char *lower = espalier_alloc(2 * text.len);
    size_t len = 0, size;
    for (size_t at = 0; at < text.len; at += size) {
        int32_t value = character(text, at, &size);
        if (value < 0)
            lower[len++] = text.ptr[at];
        else
            len += espalier_put_utf8(lower + len, (uint32_t)towlower((wint_t)value));
    }
    lower[len] = 0;
    return (espalier_str){lower, len};
}

#pragma clang attribute pop

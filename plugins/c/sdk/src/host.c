/* Clock, random numbers and blobs. */
#include "internal.h"

#include "../bindings/imports.h"

SAME(espalier_bytes, imports_list_u8_t);

/* The most that one read of a blob gives. */
#define READ_MAX (1u << 20)

uint64_t espalier_now_ms(void) {
    return espalier_base_clock_now_ms();
}

espalier_status espalier_random_below(uint64_t bound, uint64_t *number) {
    espalier_base_types_failure_t failure;
    return espalier_base_random_below(bound, number, &failure) ? ESPALIER_OK : espalier_failed(&failure);
}

espalier_status espalier_random_bytes(uint32_t length, espalier_bytes *bytes) {
    espalier_base_types_failure_t failure;
    return espalier_base_random_bytes(length, (void *)bytes, &failure) ? ESPALIER_OK : espalier_failed(&failure);
}

espalier_status espalier_blob_put(espalier_bytes bytes, const char *media_type, espalier_str *blob) {
    espalier_base_types_failure_t failure;
    espalier_str media = espalier_text(media_type);
    return espalier_base_blobs_put((void *)&bytes, (void *)&media, (void *)blob, &failure) ? ESPALIER_OK
                                                                                         : espalier_failed(&failure);
}

espalier_status espalier_blob_read(espalier_str blob, uint64_t offset, uint32_t length, espalier_bytes *bytes) {
    espalier_base_types_failure_t failure;
    return espalier_base_blobs_read((void *)&blob, offset, length, (void *)bytes, &failure) ? ESPALIER_OK
                                                                                          : espalier_failed(&failure);
}

espalier_status espalier_blob_text(espalier_str blob, espalier_str *text) {
    char *whole = NULL;
    size_t len = 0;
    for (;;) {
        espalier_bytes piece;
        ESPALIER_TRY(espalier_blob_read(blob, len, READ_MAX, &piece));
        whole = espalier_grow(whole, len, len + piece.len);
        if (piece.len == 0)
            break;
        memcpy(whole + len, piece.ptr, piece.len);
        len += piece.len;
    }
    *text = espalier_as_utf8((espalier_str){whole, len});
    return ESPALIER_OK;
}

#pragma clang attribute pop

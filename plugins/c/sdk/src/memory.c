/* Memory that lives until an export ends, which is also where the host puts what it passes. */
#include "internal.h"

#define CHUNK_BYTES ((size_t)64 << 10)
#define ALIGN ((size_t)16)

/* A piece of memory; what is given out stands behind it. */
typedef struct chunk {
    struct chunk *below;
    size_t size;
    size_t used;
    size_t padding;
} chunk;

static chunk *top;
/* The export ended: the next allocation belongs to the next one. The host reads results until then. */
static bool ended;

static void release(void) {
    while (top != NULL && top->below != NULL) {
        chunk *gone = top;
        top = top->below;
        free(gone);
    }
    if (top != NULL)
        top->used = 0;
    ended = false;
}

void espalier_memory_end(void) {
    ended = true;
}

static uint8_t *take(size_t size) {
    if (ended)
        release();
    size_t wanted = (size + ALIGN) / ALIGN * ALIGN;
    if (wanted < size)
        espalier_trap("out of memory: %zu bytes", size);
    if (top == NULL || top->size - top->used < wanted) {
        size_t room = wanted > CHUNK_BYTES ? wanted : CHUNK_BYTES;
        chunk *added = malloc(sizeof(chunk) + room);
        if (added == NULL)
            espalier_trap("out of memory: %zu bytes", size);
        *added = (chunk){.below = top, .size = room};
        top = added;
    }
    uint8_t *memory = (uint8_t *)(top + 1) + top->used;
    top->used += wanted;
    memory[size] = 0;
    return memory;
}

void *espalier_alloc(size_t size) {
    return memset(take(size), 0, size);
}

void *espalier_grow(void *memory, size_t old_size, size_t size) {
    uint8_t *grown = take(size);
    size_t kept = old_size < size ? old_size : size;
    if (kept > 0)
        memcpy(grown, memory, kept);
    memset(grown + kept, 0, size - kept);
    return grown;
}

void *espalier_room(void *items, size_t len, size_t item_size) {
    /* There is room for the next power of two. */
    if ((len & (len - 1)) != 0 && len > 0)
        return items;
    return espalier_grow(items, len * item_size, (len == 0 ? 1 : 2 * len) * item_size);
}

/* The host's allocations. One of no bytes is a text of none, which has its zero byte too. */
__attribute__((__export_name__("cabi_realloc"))) void *cabi_realloc(void *memory, size_t old_size, size_t align, size_t size) {
    (void)align;
    uint8_t *given = take(size);
    size_t kept = old_size < size ? old_size : size;
    if (kept > 0)
        memcpy(given, memory, kept);
    return given;
}

#pragma clang attribute pop

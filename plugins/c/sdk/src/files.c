/* Sandboxes: files, patches, changes, ports. */
#include "internal.h"

#include "../bindings/imports.h"

SAME(espalier_sandbox, espalier_sandbox_sandboxes_own_sandbox_t);

#define DONE(call) ((call) ? ESPALIER_OK : espalier_failed(&failure))
/* The most that one read gives. */
#define READ_MAX (1u << 20)

typedef espalier_sandbox_sandboxes_borrow_sandbox_t of_sandbox;
typedef espalier_sandbox_sandboxes_path_t path_of_host;

/* Names are bytes; one that is not UTF-8 is sent as bytes. */
static path_of_host path_of(const char *name) {
    espalier_str text = espalier_text(name);
    path_of_host path = {.tag = espalier_is_utf8(text) ? ESPALIER_SANDBOX_SANDBOXES_PATH_TEXT
                                                       : ESPALIER_SANDBOX_SANDBOXES_PATH_BYTES};
    memcpy(&path.val, &text, sizeof text);
    return path;
}

espalier_status espalier_sandbox_read_file(espalier_sandbox sandbox, const char *path, size_t max, espalier_bytes *bytes) {
    espalier_base_types_failure_t failure;
    of_sandbox self = {sandbox.handle};
    path_of_host name = path_of(path);
    *bytes = (espalier_bytes){0};
    for (;;) {
        espalier_bytes piece;
        size_t left = max - bytes->len;
        uint32_t length = left < READ_MAX ? (uint32_t)left + 1 : READ_MAX;
        ESPALIER_TRY(
            DONE(espalier_sandbox_sandboxes_method_sandbox_read_file(self, &name, bytes->len, length, (void *)&piece, &failure)));
        if (piece.len > left)
            return espalier_other("bound", "%s has more than %zu bytes", path, max);
        bytes->ptr = espalier_grow(bytes->ptr, bytes->len, bytes->len + piece.len);
        memcpy(bytes->ptr + bytes->len, piece.ptr, piece.len);
        bytes->len += piece.len;
        if (piece.len < length)
            return ESPALIER_OK;
    }
}

static const espalier_sandbox_sandboxes_write_options_t with_folders = {.parents = true};

espalier_status espalier_sandbox_write_file(espalier_sandbox sandbox, const char *path, espalier_bytes bytes) {
    espalier_base_types_failure_t failure;
    of_sandbox self = {sandbox.handle};
    path_of_host name = path_of(path);
    espalier_sandbox_sandboxes_write_options_t options = with_folders;
    return DONE(espalier_sandbox_sandboxes_method_sandbox_write_file(self, &name, (void *)&bytes, &options, &failure));
}

espalier_status espalier_sandbox_write_text(espalier_sandbox sandbox, const char *path, espalier_str text) {
    return espalier_sandbox_write_file(sandbox, path, (espalier_bytes){(uint8_t *)(uintptr_t)text.ptr, text.len});
}

espalier_status espalier_sandbox_file_to_blob(espalier_sandbox sandbox, const char *path, espalier_str *blob) {
    espalier_base_types_failure_t failure;
    of_sandbox self = {sandbox.handle};
    path_of_host name = path_of(path);
    return DONE(espalier_sandbox_sandboxes_method_sandbox_file_to_blob(self, &name, (void *)blob, &failure));
}

espalier_status espalier_sandbox_blob_to_file(espalier_sandbox sandbox, espalier_str blob, const char *path) {
    espalier_base_types_failure_t failure;
    of_sandbox self = {sandbox.handle};
    path_of_host name = path_of(path);
    espalier_sandbox_sandboxes_write_options_t options = with_folders;
    return DONE(espalier_sandbox_sandboxes_method_sandbox_blob_to_file(self, (void *)&blob, &name, &options, &failure));
}

espalier_status espalier_sandbox_make_folder(espalier_sandbox sandbox, const char *path) {
    espalier_base_types_failure_t failure;
    of_sandbox self = {sandbox.handle};
    path_of_host name = path_of(path);
    espalier_sandbox_sandboxes_write_options_t options = with_folders;
    return DONE(espalier_sandbox_sandboxes_method_sandbox_make_folder(self, &name, &options, &failure));
}

espalier_status espalier_sandbox_remove(espalier_sandbox sandbox, const char *path) {
    espalier_base_types_failure_t failure;
    of_sandbox self = {sandbox.handle};
    path_of_host name = path_of(path);
    uint64_t removed;
    return DONE(espalier_sandbox_sandboxes_method_sandbox_remove(self, &name, true, true, &removed, &failure));
}

espalier_status espalier_sandbox_move(espalier_sandbox sandbox, const char *old_path, const char *new_path, bool replace) {
    espalier_base_types_failure_t failure;
    of_sandbox self = {sandbox.handle};
    path_of_host from = path_of(old_path), to = path_of(new_path);
    return DONE(espalier_sandbox_sandboxes_method_sandbox_move_to(self, &from, &to, replace, &failure));
}

espalier_status espalier_sandbox_exists(espalier_sandbox sandbox, const char *path, bool *exists) {
    espalier_base_types_failure_t failure;
    of_sandbox self = {sandbox.handle};
    path_of_host name = path_of(path);
    espalier_sandbox_sandboxes_file_stat_t stat;
    espalier_status status = DONE(espalier_sandbox_sandboxes_method_sandbox_stat(self, &name, false, &stat, &failure));
    bool is_missing = status == ESPALIER_OTHER && espalier_equal(espalier_failure_code(), espalier_text("not-found"));
    *exists = status == ESPALIER_OK;
    return is_missing ? ESPALIER_OK : status;
}

espalier_status espalier_sandbox_list_folder(espalier_sandbox sandbox, const char *path, uint32_t depth, espalier_strs *paths) {
    espalier_base_types_failure_t failure;
    of_sandbox self = {sandbox.handle};
    path_of_host name = path_of(path);
    espalier_sandbox_sandboxes_list_entry_t entries;
    ESPALIER_TRY(DONE(espalier_sandbox_sandboxes_method_sandbox_list_folder(self, &name, depth, &entries, &failure)));
    *paths = (espalier_strs){0};
    for (size_t index = 0; index < entries.len; index++) {
        espalier_str entry;
        memcpy(&entry, &entries.ptr[index].path.val, sizeof entry);
        espalier_add_text(paths, entry);
    }
    return ESPALIER_OK;
}

espalier_status espalier_sandbox_apply_patch(espalier_sandbox sandbox, espalier_str patch) {
    espalier_base_types_failure_t failure;
    of_sandbox self = {sandbox.handle};
    espalier_sandbox_sandboxes_patch_options_t options = {0};
    espalier_sandbox_sandboxes_list_patched_file_t files;
    return DONE(espalier_sandbox_sandboxes_method_sandbox_apply_patch(self, (void *)&patch, &options, &files, &failure));
}

espalier_status espalier_sandbox_changes(espalier_sandbox sandbox, const char *root, espalier_str *blob) {
    espalier_base_types_failure_t failure;
    of_sandbox self = {sandbox.handle};
    path_of_host name = path_of(root);
    espalier_sandbox_sandboxes_change_set_t changes;
    ESPALIER_TRY(DONE(espalier_sandbox_sandboxes_method_sandbox_changes(self, root == NULL ? NULL : &name, &changes, &failure)));
    memcpy(blob, &changes.blob, sizeof *blob);
    return ESPALIER_OK;
}

espalier_status espalier_sandbox_apply_changes(espalier_sandbox sandbox, espalier_str blob) {
    espalier_base_types_failure_t failure;
    of_sandbox self = {sandbox.handle};
    return DONE(espalier_sandbox_sandboxes_method_sandbox_apply_changes(self, (void *)&blob, &failure));
}

espalier_status espalier_sandbox_checkpoint(espalier_sandbox sandbox, espalier_str *name) {
    espalier_base_types_failure_t failure;
    of_sandbox self = {sandbox.handle};
    return DONE(espalier_sandbox_sandboxes_method_sandbox_checkpoint(self, (void *)name, &failure));
}

espalier_status espalier_sandbox_port(espalier_sandbox sandbox, uint16_t number, espalier_str *address) {
    espalier_base_types_failure_t failure;
    of_sandbox self = {sandbox.handle};
    return DONE(espalier_sandbox_sandboxes_method_sandbox_port(self, number, (void *)address, &failure));
}

#pragma clang attribute pop

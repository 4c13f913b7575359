/* Services that the engine answers itself. */
#include "internal.h"

#include "../bindings/imports.h"

SAME(espalier_response, espalier_service_services_response_t);

/* Bytes of an answer that an error shows. */
#define SHOWN_MAX 500

espalier_status espalier_service_request(const char *service, const char *method, const char *path, espalier_bytes body,
                                         espalier_response *response) {
    espalier_base_types_failure_t failure;
    espalier_str name = espalier_text(service), how = espalier_text(method), where = espalier_as_utf8(espalier_text(path));
    return espalier_service_services_request((void *)&name, (void *)&how, (void *)&where, (void *)&body, (void *)response, &failure)
               ? ESPALIER_OK
               : espalier_failed(&failure);
}

static espalier_status ask(const char *service, const char *method, const char *path, espalier_bytes body, espalier_str *text) {
    espalier_response response;
    ESPALIER_TRY(espalier_service_request(service, method, path, body, &response));
    *text = espalier_as_utf8(espalier_copy((const char *)response.body.ptr, response.body.len));
    if (response.status < 400)
        return ESPALIER_OK;
    espalier_str shown = espalier_as_utf8(espalier_copy(text->ptr, text->len < SHOWN_MAX ? text->len : SHOWN_MAX));
    return espalier_invalid("%s%s: status %d: %s", service, path, response.status, shown.ptr);
}

espalier_status espalier_service_get(const char *service, const char *path, espalier_str *text) {
    return ask(service, "GET", path, (espalier_bytes){0}, text);
}

espalier_status espalier_service_post(const char *service, const char *path, espalier_str body, espalier_str *text) {
    return ask(service, "POST", path, (espalier_bytes){(uint8_t *)body.ptr, body.len}, text);
}

#pragma clang attribute pop

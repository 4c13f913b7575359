/* The generated imports. Their memory is the export's, which nobody frees. */
#include "internal.h"

NO_OBJECT_FILE(imports)

#define free(memory) ((void)(memory))
#include "../bindings/imports.c"

#pragma clang attribute pop

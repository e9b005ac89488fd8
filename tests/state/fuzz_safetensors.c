/* Arbitrary bytes as a safetensors file: opening fails with a message, or everything in it can be read. */
#include <sys/mman.h>

#include "../fuzz.h"
#include "core/alloc.h"
#include "state/safetensors.h"

static int make_file(void) {
    const int fd = memfd_create("fuzz", MFD_CLOEXEC);
    FUZZ_CHECK(fd >= 0);
    return fd;
}

/* Every element belongs to one tensor, which is found by its name. */
static void read_all(struct cairn__safetensors *f, size_t nbytes) {
    static uint8_t elements[2 * FUZZ_MAX];
    struct cairn__file_facts facts = {0};
    uint64_t end = 0;
    for (size_t i = 0; i < cairn__safetensors_count(f); i++) {
        const struct cairn__safetensors_tensor *t = cairn__safetensors_at(f, i);
        FUZZ_CHECK(cairn__safetensors_find(f, t->name) == t);
        FUZZ_CHECK(t->begin >= 8 && t->nbytes <= nbytes && t->begin <= nbytes - t->nbytes);
        FUZZ_CHECK(end == 0 || t->begin == end);
        FUZZ_CHECK(cairn__safetensors_nbytes(t) == t->nbytes);
        FUZZ_CHECK(cairn__safetensors_read(f, t, 0, elements, (size_t)t->nbytes) == CAIRN_OK);
        end = t->begin + t->nbytes;
    }
    FUZZ_CHECK(end == 0 || end == nbytes);
    for (size_t i = 0; i < cairn__safetensors_metadata_count(f); i++) {
        const struct cairn__safetensors_text text = cairn__safetensors_metadata_at(f, i);
        FUZZ_CHECK(cairn__safetensors_metadata(f, text.key) == text.value);
    }
    FUZZ_CHECK(cairn__safetensors_facts(f, &facts) == CAIRN_OK && facts.nbytes == nbytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes) {
    static int fd = -1;
    char path[64];
    struct cairn__safetensors *f = NULL;
    if (nbytes > 2 * FUZZ_MAX) return 0;
    if (fd < 0) fd = make_file();
    FUZZ_CHECK(ftruncate(fd, 0) == 0 && pwrite(fd, data, nbytes, 0) == (ssize_t)nbytes);
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    const uint64_t alive = cairn__alloc_counters().alive;
    const cairn_status st = cairn__safetensors_open(path, CAIRN__READER_HASHES, &f);
    FUZZ_CHECK(st == CAIRN_OK || (st == CAIRN_EINVAL && strstr(cairn_last_error(), path) && !f));
    if (f) read_all(f, nbytes);
    cairn__safetensors_close(&f);
    FUZZ_CHECK(cairn__alloc_counters().alive == alive);
    return 0;
}

static size_t fuzz_seed(int i, uint8_t *out) {
#define T(name, type, shape, from, to) \
    "\"" name "\":{\"dtype\":\"" type "\",\"shape\":" shape ",\"data_offsets\":[" from "," to "]}"
    static const struct {
        const char *header;
        size_t elements;
    } seeds[] = {{"{}", 0},
                 {"{" T("a", "F32", "[2]", "0", "8") "}", 8},
                 {"{" T("a", "F32", "[2,1]", "0", "8") "," T("b", "BOOL", "[]", "8", "9") "}", 9},
                 {"{" T("b", "I8", "[3]", "4", "7") "," T("a", "BF16", "[2,1,1]", "0", "4") "}  ", 7},
                 {"{" T("e", "F64", "[0,3]", "0", "0") "," T("f", "U8", "[1]", "0", "1") "}", 1},
                 {"{\"__metadata__\":{\"format\":\"pt\",\"a\":\"b\\\"[{\"}," T("h", "F4", "[4]", "0", "2") "}", 2},
                 {"{\"__metadata__\":{}," T("\\u00e4\\ud83c\\udf0d", "F8_E4M3", "[2]", "0", "2") "}", 2},
                 {"{" T("x", "I64", "[1]", "0", "8") "," T("y", "I64", "[1]", "8",
                                                           "16") "," T("z", "C64", "[1]", "16",
                                                                       "24") "," T("u", "U16", "[2]", "24", "28") "}",
                  28}};
#undef T
    if (i < 0 || (size_t)i >= sizeof(seeds) / sizeof(seeds[0])) return 0;
    const size_t n = strlen(seeds[i].header);
    memset(out, 0, 8);
    out[0] = (uint8_t)n;
    out[1] = (uint8_t)(n >> 8);
    memcpy(out + 8, seeds[i].header, n);
    memset(out + 8 + n, 7, seeds[i].elements);
    return 8 + n + seeds[i].elements;
}

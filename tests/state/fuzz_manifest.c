/* Arbitrary bytes as checkpoint.json: reading fails with a message that names the path, or the manifest survives being
 * written and read again. */
#include "../fuzz.h"
#include "core/alloc.h"
#include "state/state_internal.h"

static const char path[] = "runs/step-00000007/checkpoint.json";

static void check(const struct cairn__manifest *m) {
    FUZZ_CHECK(m->step >= 0 && m->ranks > 0);
    for (size_t i = 0; i < m->num_files; i++) {
        const struct cairn__manifest_file *f = &m->files[i];
        FUZZ_CHECK(f->name[0] && f->name[0] != '.' && !strchr(f->name, '/')); /* it stays in its folder */
        FUZZ_CHECK(f->nbytes <= INT64_MAX);
        FUZZ_CHECK(cairn__manifest_find(m, f->name) == f);
    }
}

static void check_equal(const struct cairn__manifest *a, const struct cairn__manifest *b) {
    FUZZ_CHECK(a->step == b->step && a->ranks == b->ranks && a->num_files == b->num_files);
    for (size_t i = 0; i < a->num_files; i++) {
        FUZZ_CHECK(strcmp(a->files[i].name, b->files[i].name) == 0);
        FUZZ_CHECK(a->files[i].nbytes == b->files[i].nbytes && a->files[i].xxh3 == b->files[i].xxh3);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes) {
    struct cairn__manifest m, again;
    const uint64_t alive = cairn__alloc_counters().alive;
    const cairn_status st = cairn__manifest_read((const char *)data, nbytes, path, &m);
    FUZZ_CHECK(st == CAIRN_OK || st == CAIRN_EINVAL || st == CAIRN_ENOTSUP);
    FUZZ_CHECK(st == CAIRN_OK || (strstr(cairn_last_error(), path) && !m.files));
    if (st == CAIRN_OK) {
        check(&m);
        char *text = cairn__manifest_write(&m, "a processor\nof \xff no UTF-8\n");
        FUZZ_CHECK(text && cairn__manifest_read(text, strlen(text), path, &again) == CAIRN_OK);
        check_equal(&m, &again);
        free(text);
        cairn__manifest_clear(&again);
        cairn__manifest_clear(&m);
    }
    FUZZ_CHECK(cairn__alloc_counters().alive == alive);
    return 0;
}

#define HEAD          "{\"format\":\"cairn checkpoint\",\"version\":1,\"step\":7,\"ranks\":2,\"cairn\":\"0.8.0\","
#define FILE_OF(name) "{\"name\":\"" name "\",\"nbytes\":1234,\"xxh3\":\"0123456789abcdef\"}"

static size_t fuzz_seed(int i, uint8_t *out) {
    static const char *const seeds[] = {
        HEAD "\"environment\":[\"a\",\"b\"],\"files\":[" FILE_OF("shared.safetensors") "," FILE_OF(
            "rank-00000.safetensors") "," FILE_OF("rank-00001.safetensors") "]}",
        HEAD "\"files\":[]}",
        HEAD "\"files\":[" FILE_OF("../x") "]}",
        HEAD "\"files\":[" FILE_OF("a") "," FILE_OF("a") "]}",
        "{\"format\":\"cairn checkpoint\",\"version\":2,\"step\":9223372036854775807,\"ranks\":1048577,\"files\":{}}",
        "{\"format\":\"another\",\"version\":1.5e300,\"step\":-1,\"ranks\":[[[[]]]],\"files\":null}",
    };
    if (i < 0 || (size_t)i >= sizeof(seeds) / sizeof(seeds[0])) return 0;
    const size_t n = strlen(seeds[i]);
    memcpy(out, seeds[i], n);
    return n;
}

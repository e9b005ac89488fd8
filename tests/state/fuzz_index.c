/* Arbitrary bytes as the index of two weights files: loading fails with a message, or every tensor is in one of the
 * files. */
#include <fcntl.h>

#include "../fuzz.h"
#include "core/alloc.h"
#include "state/weights_source.h"

static char folder[64], path[96];

static void end_folder(void) {
    char file[96];
    static const char *const names[] = {"one", "two", "x.json"};
    for (int i = 0; i < 3; i++) {
        snprintf(file, sizeof(file), "%s/%s", folder, names[i]);
        unlink(file);
    }
    rmdir(folder);
}

static void make_folder(void) {
    static const char one[] = "{\"a\":{\"dtype\":\"I8\",\"shape\":[1],\"data_offsets\":[0,1]},"
                              "\"b\":{\"dtype\":\"I8\",\"shape\":[],\"data_offsets\":[1,2]}}";
    static const char two[] = "{\"__metadata__\":{\"d\":\"c\"},"
                              "\"c\":{\"dtype\":\"I8\",\"shape\":[2],\"data_offsets\":[0,2]}}";
    snprintf(folder, sizeof(folder), "/dev/shm/weights-fuzz-XXXXXX"); /* disks flush what is written over */
    if (!mkdtemp(folder)) snprintf(folder, sizeof(folder), "/tmp/cairn-fuzz-XXXXXX");
    FUZZ_CHECK(access(folder, F_OK) == 0 || mkdtemp(folder));
    atexit(end_folder);
    snprintf(path, sizeof(path), "%s/x.json", folder);
    for (int i = 0; i < 2; i++) {
        char file[96];
        const char *header = i ? two : one;
        const uint64_t n = strlen(header);
        snprintf(file, sizeof(file), "%s/%s", folder, i ? "two" : "one");
        FILE *f = fopen(file, "wb");
        FUZZ_CHECK(f && fwrite(&n, 8, 1, f) == 1 && fwrite(header, n, 1, f) == 1 && fwrite("12", 2, 1, f) == 1);
        FUZZ_CHECK(fclose(f) == 0);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes) {
    struct cairn__source source;
    if (!folder[0]) make_folder();
    const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    FUZZ_CHECK(fd >= 0 && write(fd, data, nbytes) == (ssize_t)nbytes && close(fd) == 0);
    const uint64_t alive = cairn__alloc_counters().alive;
    const cairn_status st = cairn__source_open(&source, path);
    FUZZ_CHECK(st == CAIRN_OK || st == CAIRN_EINVAL || st == CAIRN_ESYSTEM);
    FUZZ_CHECK(st == CAIRN_OK || strstr(cairn_last_error(), folder));
    for (size_t i = 0; st == CAIRN_OK && i < source.count; i++) {
        const struct cairn__source_tensor *t = &source.tensors[i];
        FUZZ_CHECK(cairn__source_find(&source, t->at->name) == t);
        FUZZ_CHECK(cairn__safetensors_find(t->file, t->at->name) == t->at);
        FUZZ_CHECK(strncmp(cairn__safetensors_path(t->file), folder, strlen(folder)) == 0);
    }
    if (st == CAIRN_OK) cairn__source_close(&source);
    FUZZ_CHECK(cairn__alloc_counters().alive == alive);
    return 0;
}

static size_t fuzz_seed(int i, uint8_t *out) {
    static const char *const seeds[] = {
        "{\"weight_map\":{}}",
        "{\"metadata\":{\"total_size\":4},\"weight_map\":{\"a\":\"one\",\"b\":\"one\",\"c\":\"two\"}}",
        "{\n  \"weight_map\": {\n    \"c\": \"two\"\n  },\n  \"metadata\": {\"a\": [[1, 2.5e3], null, true]}\n}\n",
        "{\"weight_map\":{\"a\":\"../one\"}}",
        "{\"weight_map\":{\"a\":\"x.json\",\"\\u00e4\":\"/dev/zero\"}}",
    };
    if (i < 0 || (size_t)i >= sizeof(seeds) / sizeof(seeds[0])) return 0;
    const size_t n = strlen(seeds[i]);
    memcpy(out, seeds[i], n);
    return n;
}

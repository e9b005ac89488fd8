/* Arbitrary bytes as a text file with arbitrary bytes as its index: opening fails with a message, or every record is
 * read or fails with one. The first byte chooses the options, the second how much of the rest is the index. */
#include <fcntl.h>
#include <stdbool.h>
#include <sys/mman.h>

#include "../fuzz.h"
#include "cairn/datasets.h"
#include "core/alloc.h"

enum { IS_TABLE = 1, NO_HEADER = 2, DROPS = 4, HAS_LABELS = 8, HAS_INDEX = 16 };

static char text_path[64], index_path[64];

/* Files without a disk; the index's folder takes no new one. */
static void make_files(void) {
    cairn_set_log(log_nothing, NULL);
    snprintf(text_path, sizeof(text_path), "/proc/self/fd/%d", memfd_create("text", MFD_CLOEXEC));
    snprintf(index_path, sizeof(index_path), "/proc/self/fd/%d", memfd_create("index", MFD_CLOEXEC));
}

static void put(const char *path, const uint8_t *data, size_t nbytes) {
    const int fd = open(path, O_WRONLY | O_TRUNC | O_CLOEXEC);
    FUZZ_CHECK(fd >= 0 && write(fd, data, nbytes) == (ssize_t)nbytes && close(fd) == 0);
}

static void read_all(const cairn_dataset *dataset, size_t nbytes) {
    cairn_fields *example = NULL;
    struct cairn_random random;
    FUZZ_CHECK(cairn_dataset_count(dataset) <= (int64_t)nbytes);
    FUZZ_CHECK(cairn_fields_create(&example) == CAIRN_OK);
    for (int64_t i = 0; i < cairn_dataset_count(dataset); i++) {
        cairn_fields_clear(example);
        cairn_random_begin(&random, 0, 0, i);
        const cairn_status st = cairn_dataset_read(dataset, i, &random, example);
        FUZZ_CHECK(st == CAIRN_OK || (st == CAIRN_EINVAL && strstr(cairn_last_error(), ": line ")));
        for (int f = 0; st == CAIRN_OK && f < 2; f++) {
            const struct cairn_field *text = cairn_fields_at(example, f);
            FUZZ_CHECK(text->nbytes < 3 * FUZZ_MAX && ((const char *)text->data)[text->nbytes] == 0);
        }
    }
    cairn_fields_destroy(&example);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t nbytes) {
    static const char *const labels[] = {"neutral", "entailment"};
    cairn_dataset *dataset = NULL;
    if (!text_path[0]) make_files();
    if (nbytes < 2) return 0;
    const unsigned how = data[0];
    const size_t rest = nbytes - 2, index = how & HAS_INDEX ? rest * data[1] / 256 : 0;
    put(index_path, data + 2, index);
    put(text_path, data + 2 + index, rest - index);
    const uint64_t alive = cairn__alloc_counters().alive;
    const struct cairn_text_options *o =
        cairn_text_options(.format = how & IS_TABLE ? CAIRN_TEXT_TSV : CAIRN_TEXT_JSON_LINES,
                           .header = how & NO_HEADER ? CAIRN_OFF : CAIRN_ON, .label = how & NO_HEADER ? "2" : "y",
                           .labels = how & HAS_LABELS ? labels : NULL, .num_labels = how & HAS_LABELS ? 2 : 0,
                           .dropped = how & DROPS ? "-" : NULL, .index = index_path);
    const char *const *columns =
        how & NO_HEADER && how & IS_TABLE ? (const char *const[]){"0", "1"} : (const char *const[]){"a", "b"};
    const cairn_status st = cairn_text_dataset_create(text_path, 2, columns, o, &dataset);
    FUZZ_CHECK(st == CAIRN_OK || (st == CAIRN_EINVAL && strstr(cairn_last_error(), text_path)));
    if (st == CAIRN_OK) read_all(dataset, rest);
    cairn_dataset_destroy(&dataset);
    FUZZ_CHECK(cairn__alloc_counters().alive == alive);
    return 0;
}

static size_t fuzz_seed(int i, uint8_t *out) {
    static const struct {
        unsigned char how;
        const char *text;
    } seeds[] = {
        {DROPS | HAS_LABELS,
         "{\"a\": \"x\", \"b\": \"\\u00e9\", \"y\": \"neutral\"}\n{\"y\": \"-\"}\r\n\n{\"a\": 1, \"b\": 2}"},
        {0, "\xef\xbb\xbf{\"a\": \"x\", \"b\": [\"y\", {}], \"y\": -7}\n{\"a\": \"\\u0000\", \"b\": \"z\", \"y\": "
            "\"9\"}\n"},
        {IS_TABLE | DROPS | HAS_LABELS, "a\tc\ty\tb\n1\t2\tneutral\t4\r\n1\t2\t-\t4\n\t\t\n1\n"},
        {IS_TABLE | NO_HEADER, "\"q\t\x80\t12\n\n\t\t0\r\n"},
        {HAS_INDEX,
         "cn-index........................................................{\"a\": \"\", \"b\": \"\", \"y\": 1}\n"},
    };
    if (i >= (int)(sizeof(seeds) / sizeof(seeds[0]))) return 0;
    const size_t n = strlen(seeds[i].text);
    out[0] = seeds[i].how;
    out[1] = 160;
    memcpy(out + 2, seeds[i].text, n);
    return 2 + n;
}

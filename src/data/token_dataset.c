/* Streams of tokens in llm.c's files. */
#include <inttypes.h>
#include <string.h>

#include "cairn/datasets.h"
#include "core/alloc.h"
#include "core/options.h"
#include "core/status.h"
#include "data/file.h"

enum { HEADER = 1024, MAGIC = 20240520, VERSION = 1, TOKEN = 2 };

struct stream {
    struct cairn__file file;
    int64_t first; /* its first example */
};

struct tokens {
    int64_t length, stride;
    struct stream *streams; /* [count] */
    int count;
};

static cairn_status open_stream(const struct tokens *t, const char *path, struct stream *s, int64_t *count) {
    uint32_t head[3];
    cairn_status st = CAIRN_OK;
    TRY(cairn__file_open(&s->file, path));
    if (s->file.nbytes < HEADER) TRY(cairn__fail(CAIRN_EINVAL, "%s: no file of tokens: it has no header", path));
    TRY(cairn__file_read_at(&s->file, head, sizeof(head), 0));
    if (head[0] != MAGIC || head[1] != VERSION)
        TRY(cairn__fail(CAIRN_EINVAL,
                        "%s: no file of tokens: it begins with %" PRIu32 " and %" PRIu32 ", and llm.c's with %d and %d",
                        path, head[0], head[1], (int)MAGIC, (int)VERSION));
    if ((s->file.nbytes - HEADER) / TOKEN < (int64_t)head[2])
        TRY(cairn__fail(CAIRN_EINVAL,
                        "%s: %" PRId64 " bytes, fewer than those of the %" PRIu32
                        " tokens that its header declares; the file may have been truncated",
                        path, s->file.nbytes, head[2]));
    /* Each example needs one token more. */
    if (head[2] > t->length) *count += (head[2] - t->length - 1) / t->stride + 1;
out:
    return st;
}

/* The last stream that begins at or before an example. */
static const struct stream *find(const struct tokens *t, int64_t index) {
    int low = 0, high = t->count; /* streams[low].first <= index < streams[high].first */
    while (high - low > 1) {
        const int middle = low + (high - low) / 2;
        if (t->streams[middle].first <= index) low = middle;
        else high = middle;
    }
    return &t->streams[low];
}

/* One read of one token more than an input has. The 16-bit tokens are read into the end of the inputs' memory, so that
 * widening from the front never overwrites unread tokens. */
static cairn_status read_example(void *self, int64_t index, struct cairn_random *random, cairn_fields *example) {
    const struct tokens *t = self;
    const struct stream *s = find(t, index);
    const size_t n = (size_t)t->length;
    const int64_t at = HEADER + (index - s->first) * t->stride * TOKEN;
    void *inputs, *targets;
    uint16_t token;
    cairn_status st = CAIRN_OK;
    (void)random;
    TRY(cairn_fields_add(example, CAIRN_I32, 1, &t->length, &inputs));
    TRY(cairn_fields_add(example, CAIRN_I32, 1, &t->length, &targets));
    char *tokens = (char *)inputs + n * sizeof(int32_t) - (n + 1) * TOKEN;
    TRY(cairn__file_read_at(&s->file, tokens, (n + 1) * TOKEN, at));
    for (size_t i = 0; i < n; i++) {
        memcpy(&token, tokens + (i + 1) * TOKEN, TOKEN);
        ((int32_t *)targets)[i] = token;
    }
    for (size_t i = 0; i < n; i++) {
        memcpy(&token, tokens + i * TOKEN, TOKEN);
        ((int32_t *)inputs)[i] = token;
    }
out:
    return st;
}

static void destroy(void *self) {
    struct tokens *t = self;
    for (int i = 0; i < t->count; i++) cairn__file_close(&t->streams[i].file);
    cairn__free(t->streams);
    cairn__free(t);
}

cairn_status cairn_token_dataset_create(const char *const *paths, int count, int64_t length,
                                        const struct cairn_token_options *options, cairn_dataset **out) {
    struct cairn_token_options o = *cairn_token_options(.stride = 0);
    struct tokens *t = NULL;
    int64_t examples = 0;
    cairn_status st = CAIRN_OK;
    TRY(cairn__options_read(&o, sizeof(o), options, "cairn_token_options"));
    REQUIRE(paths && out && count >= 1, CAIRN_EINVAL,
            "cairn_token_dataset_create: paths and out must be set, and count be 1 or more");
    REQUIRE(length >= 1 && length <= INT32_MAX && o.stride >= 0, CAIRN_EINVAL,
            "cairn_token_dataset_create: length is %" PRId64 " and stride %" PRId64
            "; length must be from 1 to 2^31 - 1, and stride not negative",
            length, o.stride);
    TRY(cairn__calloc(1, sizeof(*t), (void **)&t));
    t->length = length;
    t->stride = o.stride ? o.stride : length;
    TRY(cairn__calloc((size_t)count, sizeof(t->streams[0]), (void **)&t->streams));
    for (int i = 0; i < count; i++) {
        t->streams[i].first = examples;
        t->streams[i].file.fd = -1;
        t->count = i + 1;
        TRY(open_stream(t, paths[i], &t->streams[i], &examples));
    }
    TRY(cairn_dataset_create(t, examples, cairn_dataset_functions(.read = read_example, .destroy = destroy), out));
    return CAIRN_OK;
out:
    if (t) destroy(t);
    return st;
}

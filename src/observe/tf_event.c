/* Hand-written encoding of Event, Summary and HistogramProto, with only the fields that TensorBoard reads for scalars
 * and histograms. Sources: tensorflow/core/util/event.proto, tensorflow/core/framework/summary.proto,
 * tensorflow/core/lib/io/record_writer.h; the encoding after protobuf.dev/programming-guides/encoding. */
#include "observe/tf_event.h"

#include <stdbool.h>
#include <string.h>

#include "core/utf8.h"
#include "observe/crc32c.h"

enum { VARINT = 0, I64 = 1, LEN = 2, I32 = 5 }; /* wire types */
enum { NAME = 256, HEAD = 12, TAIL = 4 };

struct message {
    unsigned char *at;
};

static void put_little_endian(struct message *m, uint64_t value, int nbytes) {
    for (int i = 0; i < nbytes; i++) *m->at++ = (unsigned char)(value >> 8 * i);
}

static void put_varint(struct message *m, uint64_t value) {
    for (; value >= 0x80; value >>= 7) *m->at++ = (unsigned char)(value | 0x80);
    *m->at++ = (unsigned char)value;
}

static void put_key(struct message *m, unsigned field, unsigned wire) {
    put_varint(m, field << 3 | wire);
}

static void put_bare_double(struct message *m, double value) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof(bits));
    put_little_endian(m, bits, 8);
}

static void put_double(struct message *m, unsigned field, double value) {
    put_key(m, field, I64);
    put_bare_double(m, value);
}

static void put_float(struct message *m, unsigned field, float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof(bits));
    put_key(m, field, I32);
    put_little_endian(m, bits, 4);
}

/* A string must be UTF-8. */
static void put_text(struct message *m, unsigned field, const char *text) {
    char clean[NAME];
    size_t used = 0, length;
    for (; *text && used + 4 < NAME; text += length) {
        const bool is_none = cairn__utf8_decode(text, &length) == CAIRN__NO_CHARACTER && length == 1;
        memcpy(clean + used, is_none ? "?" : text, length);
        used += length;
    }
    put_key(m, field, LEN);
    put_varint(m, used);
    memcpy(m->at, clean, used);
    m->at += used;
}

static void put_doubles(struct message *m, unsigned field, const double *values, size_t n) {
    put_key(m, field, LEN);
    put_varint(m, n * 8);
    for (size_t i = 0; i < n; i++) put_bare_double(m, values[i]);
}

/* The length of an inner message precedes it. 3 bytes suffice for any here, and protobuf accepts padded varints. */
enum { LENGTH = 3 };

static struct message begin_inner(struct message *m, unsigned field) {
    put_key(m, field, LEN);
    m->at += LENGTH;
    return *m;
}

static void end_inner(const struct message *m, struct message begin) {
    const uint64_t n = (uint64_t)(m->at - begin.at);
    begin.at[-3] = (unsigned char)(n | 0x80);
    begin.at[-2] = (unsigned char)(n >> 7 | 0x80);
    begin.at[-1] = (unsigned char)(n >> 14);
}

static void put_histogram(struct message *m, unsigned field, const struct cairn_histogram *h) {
    const struct message begin = begin_inner(m, field);
    put_double(m, 1, h->min);
    put_double(m, 2, h->max);
    put_double(m, 3, h->count);
    put_double(m, 4, h->sum);
    put_double(m, 5, h->sum_squares);
    put_doubles(m, 6, h->limits, h->num_buckets);
    put_doubles(m, 7, h->counts, h->num_buckets);
    end_inner(m, begin);
}

static void put_summary(struct message *m, const struct cairn__tf_event *e) {
    const struct message summary = begin_inner(m, 5), value = begin_inner(m, 1);
    put_text(m, 1, e->tag);
    if (e->histogram) {
        put_histogram(m, 5, e->histogram);
    } else {
        put_float(m, 2, e->value);
    }
    end_inner(m, value);
    end_inner(m, summary);
}

size_t cairn__tf_record(const struct cairn__tf_event *event, unsigned char *out) {
    struct message m = {out + HEAD}, head = {out};
    put_double(&m, 1, event->wall_time);
    if (event->step) {
        put_key(&m, 2, VARINT);
        put_varint(&m, (uint64_t)event->step);
    }
    if (event->version) put_text(&m, 3, event->version);
    if (event->tag) put_summary(&m, event);
    const size_t n = (size_t)(m.at - out) - HEAD;
    put_little_endian(&head, n, 8);
    put_little_endian(&head, cairn__crc32c_masked(out, 8), 4);
    put_little_endian(&m, cairn__crc32c_masked(out + HEAD, n), TAIL);
    return HEAD + n + TAIL;
}

/* CRC-32C against published examples, and TFRecords against bytes written by TensorFlow. */
#include <math.h>

#include "../ranks.h"
#include "observe/crc32c.h"
#include "observe/tf_event.h"

static void crc32c_gives_the_published_examples(void **state) {
    (void)state;
    unsigned char bytes[32] = {0};
    assert_int_equal(cairn__crc32c("", 0), 0);
    assert_int_equal(cairn__crc32c("123456789", 9), 0xe3069283); /* the check value of the catalogue of CRCs */
    assert_int_equal(cairn__crc32c(bytes, 32), 0x8a9136aa);      /* these are of RFC 3720, B.4 */
    memset(bytes, 0xff, 32);
    assert_int_equal(cairn__crc32c(bytes, 32), 0x62a8ab43);
    for (int i = 0; i < 32; i++) bytes[i] = (unsigned char)i;
    assert_int_equal(cairn__crc32c(bytes, 32), 0x46dd794e);
    for (int i = 0; i < 32; i++) bytes[i] = (unsigned char)(31 - i);
    assert_int_equal(cairn__crc32c(bytes, 32), 0x113fdb5c);
    const unsigned char iscsi[48] = {0x01, 0xc0, 0, 0, 0, 0, 0,    0, 0, 0, 0,    0,    0, 0, 0, 0, 0x14, 0, 0, 0,   0,
                                     0,    0x04, 0, 0, 0, 0, 0x14, 0, 0, 0, 0x18, 0x28, 0, 0, 0, 0, 0,    0, 0, 0x02};
    assert_int_equal(cairn__crc32c(iscsi, 48), 0xd9963a56);
}

static void a_masked_crc_can_be_unmasked(void **state) {
    (void)state;
    const uint32_t rotated = cairn__crc32c_masked("foo", 3) - 0xa282ead8u;
    assert_int_equal((rotated >> 17) | (rotated << 15), cairn__crc32c("foo", 3));
}

/* Frame: length, its CRC, bytes, theirs. */
static size_t payload_of(const unsigned char *record, size_t nbytes) {
    uint64_t n;
    uint32_t crc;
    memcpy(&n, record, 8);
    memcpy(&crc, record + 8, 4);
    assert_int_equal(crc, cairn__crc32c_masked(record, 8));
    memcpy(&crc, record + 12 + n, 4);
    assert_int_equal(crc, cairn__crc32c_masked(record + 12, n));
    assert_int_equal(nbytes, 12 + n + 4);
    return n;
}

static void the_version_is_the_first_record_of_every_event_file(void **state) {
    (void)state;
    static unsigned char record[CAIRN__TF_RECORD];
    const unsigned char want[] = {0x09, 0,   0,   0,   0,   0,   0,   0xf0, 0x3f, 0x1a, 0x0d, 'b',
                                  'r',  'a', 'i', 'n', '.', 'E', 'v', 'e',  'n',  't',  ':',  '2'};
    const size_t n = cairn__tf_record(&(struct cairn__tf_event){.wall_time = 1, .version = "brain.Event:2"}, record);
    assert_int_equal(payload_of(record, n), sizeof(want));
    assert_memory_equal(record + 12, want, sizeof(want));
    assert_memory_equal(record, "\x18\0\0\0\0\0\0\0\xa3\x7f\x4b\x22", 12); /* every event file begins so */
}

static void a_scalar_is_encoded_field_by_field(void **state) {
    (void)state;
    static unsigned char record[CAIRN__TF_RECORD];
    const size_t n = cairn__tf_record(&(struct cairn__tf_event){.step = 300, .tag = "a\xff", .value = 0.5f}, record);
    const unsigned char want[] = {0x09, 0,    0,    0,   0,    0, 0, 0, 0,     /* wall_time 0 */
                                  0x10, 0xac, 0x02,                            /* step 300 */
                                  0x2a, 0x8d, 0x80, 0,                         /* summary, 13 bytes */
                                  0x0a, 0x89, 0x80, 0,                         /* value, 9 bytes */
                                  0x0a, 0x02, 'a',  '?', 0x15, 0, 0, 0, 0x3f}; /* tag, simple_value */
    assert_int_equal(payload_of(record, n), sizeof(want));
    assert_memory_equal(record + 12, want, sizeof(want));
}

static void the_largest_event_fits(void **state) {
    (void)state;
    static unsigned char record[CAIRN__TF_RECORD + 1];
    static double limits[2048], counts[2048];
    char name[2000];
    memset(name, 'x', sizeof(name));
    name[1999] = '\0';
    record[CAIRN__TF_RECORD] = 77;
    const struct cairn_histogram h = *cairn_histogram(.num_buckets = 2048, .limits = limits, .counts = counts);
    const size_t n = cairn__tf_record(&(struct cairn__tf_event){.step = -1, .tag = name, .histogram = &h}, record);
    assert_true(payload_of(record, n) > 2 * 8 * 2048 && n <= CAIRN__TF_RECORD && record[CAIRN__TF_RECORD] == 77);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(crc32c_gives_the_published_examples),
        cmocka_unit_test(a_masked_crc_can_be_unmasked),
        cmocka_unit_test(the_version_is_the_first_record_of_every_event_file),
        cmocka_unit_test(a_scalar_is_encoded_field_by_field),
        cmocka_unit_test(the_largest_event_fits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

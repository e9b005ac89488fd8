/* Reading .npy files: literal bytes as numpy writes them, and broken files. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "../check.h"
#include "cairn/npy.h"
#include "cairn/tensor.h"

/* A file without a disk. */
static char path[64];

static int make_path(void **state) {
    (void)state;
    const int fd = memfd_create("npy", MFD_CLOEXEC);
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    return fd < 0;
}

static void write_bytes(const void *bytes, size_t nbytes) {
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, nbytes, f), nbytes);
    assert_int_equal(fclose(f), 0);
}

enum { MOST = 4096 };

/* A file of version 1.0 as numpy pads it; its length. */
static size_t make_file(unsigned char file[MOST], const char *dictionary, const void *values, size_t nbytes) {
    const size_t used = 10 + strlen(dictionary), header = (used / 64 + 1) * 64 - 10;
    memcpy(file, "\x93NUMPY\x01", 8); /* and 0 */
    file[8] = (unsigned char)(header & 255);
    file[9] = (unsigned char)(header >> 8);
    memset(file + 10, ' ', header);
    memcpy(file + 10, dictionary, strlen(dictionary));
    file[10 + header - 1] = '\n';
    if (nbytes > 0) memcpy(file + 10 + header, values, nbytes);
    return 10 + header + nbytes;
}

static void write_file(const char *dictionary, const void *values, size_t nbytes) {
    unsigned char file[MOST];
    write_bytes(file, make_file(file, dictionary, values, nbytes));
}

static cairn_npy *open_file(void) {
    cairn_npy *x = NULL;
    OK(cairn_npy_open(path, &x));
    return x;
}

static const float floats[12] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
static const char plain[] = "{'descr': '<f4', 'fortran_order': False, 'shape': (4, 3), }";

static void rows_come_in_the_given_order(void **state) {
    (void)state;
    float rows[5][3];
    write_file(plain, floats, sizeof(floats));
    cairn_npy *x = open_file();
    assert_int_equal(cairn_npy_dtype(x), CAIRN_F32);
    assert_int_equal(cairn_npy_ndim(x), 2);
    assert_int_equal(cairn_npy_size(x, 0), 4);
    assert_int_equal(cairn_npy_size(x, -1), 3);
    assert_int_equal(cairn_npy_size(x, 2), -1);
    assert_int_equal(cairn_npy_row_nbytes(x), 12);
    OK(cairn_npy_read_rows(x, (int64_t[]){3, 0, 1, 2, 2}, 5, rows, sizeof(rows)));
    static const int expected[5] = {3, 0, 1, 2, 2};
    for (int i = 0; i < 5; i++) assert_memory_equal(rows[i], floats + 3 * expected[i], 12);
    OK(cairn_npy_read(x, 1, 2, rows, sizeof(rows)));
    assert_memory_equal(rows, floats + 3, 24);
    OK(cairn_npy_read_rows(x, NULL, 0, NULL, 0));
    REFUSED(cairn_npy_read_rows(x, (int64_t[]){0, 4}, 2, rows, sizeof(rows)), CAIRN_EINVAL,
            "row is 4, but the file has 4 rows");
    REFUSED(cairn_npy_read_rows(x, (int64_t[]){-1}, 1, rows, sizeof(rows)), CAIRN_EINVAL,
            "row is -1, but the file has 4 rows");
    REFUSED(cairn_npy_read_rows(x, (int64_t[]){0, 1}, 2, rows, 23), CAIRN_EINVAL, "nbytes is 23");
    REFUSED(cairn_npy_read(x, 3, 2, rows, sizeof(rows)), CAIRN_EINVAL, "2 rows from 3 on, but the file has 4 rows");
    cairn_npy_destroy(&x);
    assert_null(x);
}

static void other_spellings_of_a_header_are_read(void **state) {
    (void)state;
    static const char *const same[] = {
        "{'descr': '<f4', 'fortran_order': False, 'shape': (4, 3)}",
        "{\"shape\":(4,3,),\"fortran_order\":False,\"descr\":\"<f4\"}",
        "{'shape': (4L, 3L), 'descr': '<f4', 'fortran_order': False, }",
    };
    for (size_t i = 0; i < sizeof(same) / sizeof(same[0]); i++) {
        write_file(same[i], floats, sizeof(floats));
        cairn_npy *x = open_file();
        OK(cairn_npy_expect(x, CAIRN_F32, CAIRN_SHAPE(4, 3)));
        cairn_npy_destroy(&x);
    }
}

static void a_scalar_and_empty_arrays_are_arrays(void **state) {
    (void)state;
    double one = 0;
    write_file("{'descr': '<f8', 'fortran_order': False, 'shape': (), }", &(double){2.5}, 8);
    cairn_npy *x = open_file();
    OK(cairn_npy_expect(x, CAIRN_F64, 0, NULL));
    OK(cairn_npy_read(x, 0, 1, &one, sizeof(one)));
    assert_true(one == 2.5);
    cairn_npy_destroy(&x);
    write_file("{'descr': '<i8', 'fortran_order': True, 'shape': (0,), }", NULL, 0);
    x = open_file();
    OK(cairn_npy_expect(x, CAIRN_I64, CAIRN_SHAPE(-1)));
    cairn_npy_destroy(&x);
    write_file("{'descr': '|u1', 'fortran_order': False, 'shape': (9223372036854775807, 0, 9223372036854775807), }",
               NULL, 0);
    x = open_file();
    assert_int_equal(cairn_npy_row_nbytes(x), 0);
    cairn_npy_destroy(&x);
}

static void unexpected_type_or_shape_is_named_with_the_file(void **state) {
    (void)state;
    char sentence[256];
    write_file(plain, floats, sizeof(floats));
    cairn_npy *x = open_file();
    OK(cairn_npy_expect(x, CAIRN_F32, CAIRN_SHAPE(-1, 3)));
    snprintf(sentence, sizeof(sentence), "%s: has f32 of shape [4, 3], but the program expects i64 of shape [*]", path);
    REFUSED(cairn_npy_expect(x, CAIRN_I64, CAIRN_SHAPE(-1)), CAIRN_EINVAL, sentence);
    REFUSED(cairn_npy_expect(x, CAIRN_F32, CAIRN_SHAPE(4, 5)), CAIRN_EINVAL, "[4, 5]");
    REFUSED(cairn_npy_expect(x, CAIRN_F32, CAIRN_SHAPE(4, 3, 1)), CAIRN_EINVAL, "[4, 3, 1]");
    cairn_npy_destroy(&x);
}

/* ---- files that are refused ---- */

static void arrays_that_cannot_be_read_say_what_to_save_instead(void **state) {
    (void)state;
    static const struct {
        const char *dictionary, *words;
    } bad[] = {
        {"{'descr': '<f4', 'fortran_order': True, 'shape': (4, 3), }", "Fortran order; save numpy.ascontiguousarray"},
        {"{'descr': '>f4', 'fortran_order': False, 'shape': (4, 3), }", "big-endian ('>f4')"},
        {"{'descr': '|O', 'fortran_order': False, 'shape': (4, 3), }", "Python objects"},
        {"{'descr': '<c8', 'fortran_order': False, 'shape': (4, 3), }", "type '<c8'"},
        {"{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (12,), }", "a structured array"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (4, 4), }", "the file may have been truncated"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (3037000500, 3037000500), }",
         "the file may have been truncated"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (9223372036854775807, 2, 2), }",
         "the file may have been truncated"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (92233720368547758070,), }", "its header is not"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (-1,), }", "its header is not"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': 3, }", "its header is not"},
        {"{'descr': '<f4', 'fortran_order': False, }", "its header is not"},
        {"{'descr': '<f4', 'fortran_order': 0, 'shape': (4, 3), }", "its header is not"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (4, 3), 'more': 1}", "its header is not"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (4, 3), } and more", "its header is not"},
        {"{'descr': '<f4", "its header is not"},
        {"", "its header is not"},
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        cairn_npy *x = NULL;
        check_as(bad[i].dictionary);
        write_file(bad[i].dictionary, floats, sizeof(floats));
        REFUSED(cairn_npy_open(path, &x), CAIRN_EINVAL, bad[i].words);
        SAYS(path);
        assert_null(x);
    }
}

static void a_header_that_ends_early_is_refused(void **state) {
    (void)state;
    unsigned char file[MOST];
    cairn_npy *x = NULL;
    const size_t nbytes = make_file(file, plain, floats, sizeof(floats));
    file[10 + strlen(plain)] = 0;
    write_bytes(file, nbytes);
    REFUSED(cairn_npy_open(path, &x), CAIRN_EINVAL, "its header is not");
    assert_null(x);
}

static void a_file_of_another_format_is_refused(void **state) {
    (void)state;
    cairn_npy *x = NULL;
    REFUSED(cairn_npy_open("/nowhere/x.npy", &x), CAIRN_ESYSTEM, "/nowhere/x.npy: No such file");
    REFUSED(cairn_npy_open("/tmp", &x), CAIRN_EINVAL, "/tmp: not a regular file");
    write_bytes("", 0);
    REFUSED(cairn_npy_open(path, &x), CAIRN_EINVAL, "ends at byte 0");
    write_bytes("PK\3\4 an .npz", 12);
    REFUSED(cairn_npy_open(path, &x), CAIRN_EINVAL, "not an .npy file");
    write_bytes("\x93NUMPY\x04\0\x10\0", 10);
    REFUSED(cairn_npy_open(path, &x), CAIRN_EINVAL, "version 4.0");
    write_bytes("\x93NUMPY\x02\0\xff\xff\xff\xff", 12);
    REFUSED(cairn_npy_open(path, &x), CAIRN_EINVAL, "its header has 4294967295 bytes");
    REFUSED(cairn_npy_open(NULL, &x), CAIRN_EINVAL, "must be set");
    assert_null(x);
}

static void a_file_truncated_while_open_is_an_error(void **state) {
    (void)state;
    float row[3];
    write_file(plain, floats, sizeof(floats));
    cairn_npy *x = open_file();
    assert_int_equal(truncate(path, 128 + 30), 0);
    OK(cairn_npy_read(x, 0, 1, row, sizeof(row)));
    REFUSED(cairn_npy_read(x, 3, 1, row, sizeof(row)), CAIRN_EINVAL,
            "ends at byte 158, and 12 from byte 164 on are to be read; the file may have been truncated");
    SAYS(path);
    cairn_npy_destroy(&x);
}

/* A byte here and there, and ends that are missing: it is read or refused, and nothing else. */
static void broken_headers_are_read_or_refused(void **state) {
    (void)state;
    static const char letters[] = "{}()'\":, 0123456789LTrueFals<f4\0\xff\x93\n";
    unsigned char whole[MOST], file[MOST];
    const size_t nbytes = make_file(whole, plain, floats, sizeof(floats));
    uint64_t dice = 1;
    int opened = 0;
    for (int i = 0; i < 20000; i++) {
        size_t used = nbytes;
        memcpy(file, whole, nbytes);
        for (int k = 0; k < 1 + i % 3; k++) {
            dice = dice * 6364136223846793005u + 1442695040888963407u;
            file[(dice >> 33) % 80] = (unsigned char)letters[(dice >> 20) % (sizeof(letters) - 1)];
        }
        if (i % 5 == 0) used = (dice >> 40) % nbytes;
        cairn_npy *x = NULL;
        float row[12];
        write_bytes(file, used);
        if (cairn_npy_open(path, &x) == CAIRN_OK) {
            opened++;
            if (cairn_npy_size(x, 0) > 0) (void)cairn_npy_read(x, 0, 1, row, sizeof(row));
            cairn_npy_destroy(&x);
        } else {
            SAYS(path);
        }
    }
    assert_in_range(opened, 100, 19000);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_come_in_the_given_order),
        cmocka_unit_test(other_spellings_of_a_header_are_read),
        cmocka_unit_test(a_scalar_and_empty_arrays_are_arrays),
        cmocka_unit_test(unexpected_type_or_shape_is_named_with_the_file),
        cmocka_unit_test(arrays_that_cannot_be_read_say_what_to_save_instead),
        cmocka_unit_test(a_header_that_ends_early_is_refused),
        cmocka_unit_test(a_file_of_another_format_is_refused),
        cmocka_unit_test(a_file_truncated_while_open_is_an_error),
        cmocka_unit_test(broken_headers_are_read_or_refused),
    };
    return cmocka_run_group_tests(tests, make_path, NULL);
}

/* Picture folders with one subfolder per class: order, errors, and batches. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "../failing_alloc.h"
#include "../one_env.h"
#include "../state/folder.h"
#include "core/alloc.h"
#include "encode.h"

enum { SIZE = 8, MOST_EXAMPLES = 16 };

static void make_dir(const char *name) {
    assert_int_equal(mkdir(in_folder(name), 0777), 0);
}

/* A picture of one colour, which says which it is. */
static void write_picture(const char *name, uint8_t color, int h, int w, int is_jpeg) {
    unsigned char *rgb = malloc((size_t)h * (size_t)w * 3);
    memset(rgb, color, (size_t)h * (size_t)w * 3);
    struct bytes file =
        is_jpeg ? encode_jpeg(h, w, rgb, (struct jpeg_kind){.from = JCS_RGB, .in_file = JCS_YCbCr, .channels = 3})
                : encode_rgb_png(h, w, rgb);
    write_file(in_folder(name), file.at, file.n);
    free(file.at);
    free(rgb);
}

static cairn_picture_folder *open_folder(const char *name) {
    cairn_picture_folder *f = NULL;
    OK(cairn_picture_folder_create(in_folder(name), NULL, &f));
    return f;
}

static void refuses(const char *name, cairn_status status, const char *words) {
    const uint64_t alive = cairn__alloc_counters().alive;
    cairn_picture_folder *f = NULL;
    REFUSED(cairn_picture_folder_create(in_folder(name), NULL, &f), status, words);
    SAYS(in_folder(name));
    assert_null(f);
    assert_int_equal(cairn__alloc_counters().alive, alive);
}

static void pictures_are_ordered_by_class_folder_and_name(void **state) {
    (void)state;
    static const struct {
        const char *name;
        int64_t class;
    } expected[] = {{"B/a.JPEG", 0},    {"B/z.png", 0}, {"a/b.png", 1},  {"a/s/a.png", 1}, {"a/s-t/a.png", 1},
                    {"a/s/u/a.png", 1}, {"b/1.jpg", 2}, {"b/10.jpg", 2}, {"b/2.jpg", 2}};
    static const char *const dirs[] = {"d",       "d/b",     "d/a",    "d/B",        "d/a/s",
                                       "d/a/s-t", "d/a/s/u", "d/.git", "d/b/.hidden"};
    static const char *const left_out[] = {"d/notes.txt", "d/a/.b.png",   "d/a/x.png.txt",
                                           "d/a/png",     "d/.git/x.png", "d/b/.hidden/x.png"};
    char path[300], want[300], name[64];
    for (size_t i = 0; i < sizeof(dirs) / sizeof(dirs[0]); i++) make_dir(dirs[i]);
    for (size_t i = 0; i < sizeof(left_out) / sizeof(left_out[0]); i++) write_file(in_folder(left_out[i]), "", 0);
    const int64_t n = sizeof(expected) / sizeof(expected[0]);
    for (int64_t i = n; i-- > 0;) {
        snprintf(name, sizeof(name), "d/%s", expected[i].name);
        write_file(in_folder(name), "", 0);
    }
    cairn_picture_folder *f = open_folder("d");
    assert_int_equal(cairn_picture_folder_count(f), n);
    assert_int_equal(cairn_picture_folder_num_classes(f), 3);
    assert_string_equal(cairn_picture_folder_class_name(f, 0), "B");
    assert_string_equal(cairn_picture_folder_class_name(f, 2), "b");
    assert_null(cairn_picture_folder_class_name(f, 3));
    assert_null(cairn_picture_folder_class_name(f, -1));
    for (int64_t i = 0; i < n; i++) {
        const int length = snprintf(want, sizeof(want), "%s/%s", in_folder("d"), expected[i].name);
        assert_int_equal(cairn_picture_folder_path(f, i, path, sizeof(path)), length);
        assert_string_equal(path, want);
        assert_int_equal(cairn_picture_folder_path(f, i, NULL, 0), length);
        assert_int_equal(cairn_picture_folder_class(f, i), expected[i].class);
    }
    assert_int_equal(cairn_picture_folder_class(f, n), -1);
    assert_int_equal(cairn_picture_folder_class(f, -1), -1);
    assert_int_equal(cairn_picture_folder_path(f, n, path, sizeof(path)), -1);
    SAYS("has 9 pictures, and none of number 9");
    cairn_picture_folder_destroy(&f);
    assert_null(f);
}

static void links_to_folders_are_followed(void **state) {
    (void)state;
    make_dir("linked"), make_dir("linked/a"), make_dir("elsewhere");
    write_file(in_folder("elsewhere/x.png"), "", 0);
    write_file(in_folder("linked/a/y.png"), "", 0);
    assert_int_equal(symlink(in_folder("elsewhere"), in_folder("linked/a/more")), 0);
    assert_int_equal(symlink(in_folder("elsewhere"), in_folder("linked/b")), 0);
    assert_int_equal(symlink(in_folder("elsewhere/x.png"), in_folder("linked/a/z.png")), 0);
    cairn_picture_folder *f = open_folder("linked");
    assert_int_equal(cairn_picture_folder_count(f), 4);
    assert_int_equal(cairn_picture_folder_num_classes(f), 2);
    cairn_picture_folder_destroy(&f);
    assert_int_equal(symlink(in_folder("linked"), in_folder("linked/a/loop")), 0);
    refuses("linked", CAIRN_EINVAL, "folders are more than 32 deep here; does a link lead to a folder above it?");
}

static void what_is_no_folder_of_classes_is_refused(void **state) {
    (void)state;
    refuses("nothing", CAIRN_ESYSTEM, "No such file");
    make_dir("flat");
    write_file(in_folder("flat/a.png"), "", 0);
    refuses("flat", CAIRN_EINVAL, "has no folder, where each class should have one");
    make_dir("empty"), make_dir("empty/a"), make_dir("empty/b");
    write_file(in_folder("empty/a/a.png"), "", 0);
    refuses("empty", CAIRN_EINVAL, "empty/b: has no picture (.jpg, .jpeg or .png); a class needs one");
    make_dir("webp"), make_dir("webp/a");
    write_file(in_folder("webp/a/a.png"), "", 0);
    write_file(in_folder("webp/a/b.WebP"), "", 0);
    refuses("webp", CAIRN_EINVAL, "webp/a/b.WebP: Cairn reads JPEG and PNG; convert it, or move it out of the folder");
}

static void other_classes_than_those_of_training_are_refused(void **state) {
    (void)state;
    static const char *const files[] = {"t/a/1.png", "t/b/1.png", "v/a/1.png", "v/c/1.png", "w/a/1.png"};
    static const char *const dirs[] = {"t", "v", "w", "t/a", "t/b", "v/a", "v/c", "w/a"};
    for (size_t i = 0; i < sizeof(dirs) / sizeof(dirs[0]); i++) make_dir(dirs[i]);
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) write_file(in_folder(files[i]), "", 0);
    cairn_picture_folder *train = open_folder("t"), *val = NULL;
    const struct cairn_picture_folder_options *o = cairn_picture_folder_options(.same_classes_as = train);
    OK(cairn_picture_folder_create(in_folder("t"), o, &val));
    cairn_picture_folder_destroy(&val);
    REFUSED(cairn_picture_folder_create(in_folder("v"), o, &val), CAIRN_EINVAL,
            "the first that differs is number 1, 'c' and 'b'");
    REFUSED(cairn_picture_folder_create(in_folder("w"), o, &val), CAIRN_EINVAL, "number 1, 'none' and 'b'");
    cairn_picture_folder_destroy(&train);
}

/* ---- batches ---- */

static void make_pictures(void) {
    char name[64];
    make_dir("p"), make_dir("p/x"), make_dir("p/y");
    for (int i = 0; i < 10; i++) {
        snprintf(name, sizeof(name), "p/%s/%d.%s", i < 6 ? "x" : "y", i, i % 2 ? "png" : "jpg");
        write_picture(name, (uint8_t)(20 * i), 20 + i, 40 - 2 * i, i % 2 == 0);
    }
}

/* All values of an epoch, in order; how many examples there were. */
static size_t read_epoch(cairn_env *env, const cairn_dataset *dataset, int workers, int64_t epoch,
                         float values[MOST_EXAMPLES][3 * SIZE * SIZE], int64_t classes[MOST_EXAMPLES]) {
    cairn_sampler *sampler;
    cairn_loader *loader;
    size_t n = 0;
    OK(cairn_sampler_create(cairn_dataset_count(dataset), NULL, &sampler));
    OK(cairn_sampler_set_epoch(sampler, epoch));
    OK(cairn_loader_create(env, dataset, sampler, 4, cairn_loader_options(.workers = workers, .seed = 7), &loader));
    for (;;) {
        const struct cairn_batch *batch;
        OK(cairn_loader_next(loader, &batch));
        if (!batch) break;
        assert_int_equal(batch->count, 2);
        OK(cairn_tensor_read(batch->tensors[0], values[n], batch->n * 3 * SIZE * SIZE));
        OK(cairn_tensor_read_as(batch->tensors[1], CAIRN_I64, classes + n, batch->n));
        for (size_t i = 0; i < batch->n; i++) assert_int_equal(classes[n + i], batch->indices[i] >= 6);
        n += batch->n;
    }
    cairn_loader_destroy(&loader);
    cairn_sampler_destroy(&sampler);
    return n;
}

static void batches_have_the_same_bits_for_any_number_of_workers(void **state) {
    static float values[4][MOST_EXAMPLES][3 * SIZE * SIZE];
    int64_t classes[4][MOST_EXAMPLES];
    cairn_picture_folder *f;
    cairn_dataset *dataset;
    make_pictures();
    f = open_folder("p");
    OK(cairn_picture_dataset_create(f, cairn_picture_transform(.augment = CAIRN_ON, .size = SIZE), &dataset));
    assert_int_equal(cairn_dataset_count(dataset), 10);
    for (int workers = 0; workers < 3; workers++)
        assert_int_equal(read_epoch(*state, dataset, workers, 3, values[workers], classes[workers]), 10);
    assert_memory_equal(values[0], values[1], sizeof(values[0]));
    assert_memory_equal(values[0], values[2], sizeof(values[0]));
    assert_memory_equal(classes[0], classes[2], 10 * sizeof(int64_t));
    assert_int_equal(read_epoch(*state, dataset, 0, 4, values[3], classes[3]), 10);
    assert_memory_not_equal(values[0], values[3], sizeof(values[0]));
    cairn_dataset_destroy(&dataset);
    cairn_picture_folder_destroy(&f);
}

static void a_broken_picture_fails_its_batch_with_its_path(void **state) {
    cairn_picture_folder *f = open_folder("p");
    cairn_dataset *dataset;
    cairn_sampler *sampler;
    cairn_loader *loader;
    const struct cairn_batch *batch;
    assert_int_equal(truncate(in_folder("p/y/7.png"), 60), 0);
    OK(cairn_picture_dataset_create(f, cairn_picture_transform(.size = SIZE), &dataset));
    OK(cairn_sampler_create(10, cairn_sampler_options(.shuffle = CAIRN_OFF), &sampler));
    OK(cairn_loader_create(*state, dataset, sampler, 4, cairn_loader_options(.workers = 2), &loader));
    OK(cairn_loader_next(loader, &batch));
    REFUSED(cairn_loader_next(loader, &batch), CAIRN_EINVAL, "p/y/7.png: a PNG that ends before its last line");
    SAYS("example 7");
    assert_int_equal(remove(in_folder("p/y/7.png")), 0);
    REFUSED(cairn_loader_next(loader, &batch), CAIRN_ESYSTEM, "p/y/7.png: No such file");
    write_picture("p/y/7.png", 1, 5, 5, 0);
    OK(cairn_loader_next(loader, &batch));
    assert_int_equal(batch->n, 4);
    cairn_loader_destroy(&loader);
    cairn_sampler_destroy(&sampler);
    cairn_dataset_destroy(&dataset);
    cairn_picture_folder_destroy(&f);
}

static void the_folders_limits_are_those_of_its_pictures(void **state) {
    (void)state;
    cairn_picture_folder *f;
    cairn_picture *p = NULL;
    OK(cairn_picture_folder_create(in_folder("p"), cairn_picture_folder_options(.max_pixels = 100), &f));
    REFUSED(cairn_picture_folder_read(f, 0, &p), CAIRN_EINVAL, "more than the 100 that are allowed");
    REFUSED(cairn_picture_folder_read(f, 10, &p), CAIRN_EINVAL, "none of number 10");
    cairn_picture_folder_destroy(&f);
    REFUSED(cairn_picture_folder_create(in_folder("p"), cairn_picture_folder_options(.max_pixels = -1), &f),
            CAIRN_EINVAL, "max_pixels is -1");
}

static void wrong_datasets_are_refused(void **state) {
    (void)state;
    cairn_picture_folder *f = open_folder("p");
    cairn_dataset *dataset = NULL;
    REFUSED(cairn_picture_dataset_create(NULL, NULL, &dataset), CAIRN_EINVAL, "folder and out must be set");
    REFUSED(cairn_picture_dataset_create(f, cairn_picture_transform(.size = -3), &dataset), CAIRN_EINVAL, "size is -3");
    REFUSED(cairn_picture_dataset_create(f, cairn_picture_transform(.dtype = CAIRN_U8), &dataset), CAIRN_EINVAL,
            "dtype is u8, of which there are no tensors; use f32");
    assert_null(dataset);
    cairn_picture_folder_destroy(&f);
}

static void memory_that_runs_out_leaks_nothing(void **state) {
    (void)state;
    const uint64_t alive = cairn__alloc_counters().alive;
    cairn_status st = CAIRN_ENOMEM;
    int n = 0;
    while (st == CAIRN_ENOMEM) {
        cairn_picture_folder *f = NULL;
        cairn_dataset *dataset = NULL;
        fail_in = ++n;
        st = cairn_picture_folder_create(in_folder("p"), NULL, &f);
        if (st == CAIRN_OK) st = cairn_picture_dataset_create(f, NULL, &dataset);
        assert_true(st == CAIRN_ENOMEM || st == CAIRN_OK);
        cairn_dataset_destroy(&dataset);
        cairn_picture_folder_destroy(&f);
        assert_int_equal(cairn__alloc_counters().alive, alive);
    }
    fail_in = 0;
    assert_in_range(n, 6, 20);
}

static int begin(void **state) {
    return make_folder(state) || make_env(state);
}

static int end(void **state) {
    return end_env(state) || remove_folder(state);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pictures_are_ordered_by_class_folder_and_name),
        cmocka_unit_test(links_to_folders_are_followed),
        cmocka_unit_test(what_is_no_folder_of_classes_is_refused),
        cmocka_unit_test(other_classes_than_those_of_training_are_refused),
        cmocka_unit_test(batches_have_the_same_bits_for_any_number_of_workers),
        cmocka_unit_test(a_broken_picture_fails_its_batch_with_its_path),
        cmocka_unit_test(the_folders_limits_are_those_of_its_pictures),
        cmocka_unit_test(wrong_datasets_are_refused),
        cmocka_unit_test(memory_that_runs_out_leaks_nothing),
    };
    return cmocka_run_group_tests(tests, begin, end);
}

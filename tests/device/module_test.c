/* Finding and opening modules, the error messages when that fails, and device names.
 *
 * usage: module_test folder-of-fake-modules */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "core/status.h"
#include "../check.h"
#include "device/cuda/convs.h"
#include "device/device.h"
#include "fake_module.h"

static const char *fakes;

static int unset_path(void **state) {
    (void)state;
    unsetenv("CAIRN_MODULE_PATH");
    return 0;
}

static const struct cairn__module_use device_use = {"device", "\"cpu\"", sizeof(struct cairn__device_ops)};
static const struct cairn__module_use engine_use = {"group backend", "another", sizeof(struct fake_engine)};

static cairn_status open_fake(const struct cairn__module_use *use, const char *name, const void **table) {
    *table = NULL;
    setenv("CAIRN_MODULE_PATH", fakes, 1);
    const cairn_status st = cairn__module_open(use, name, table);
    assert_true((st == CAIRN_OK) == (*table != NULL));
    return st;
}

/* ---- modules ---- */

static void module_is_opened_once_and_its_table_stays(void **state) {
    (void)state;
    const void *first, *second;
    assert_int_equal(open_fake(&device_use, "fake_good", &first), CAIRN_OK);
    assert_int_equal(open_fake(&device_use, "fake_good", &second), CAIRN_OK);
    assert_ptr_equal(first, second);
    assert_string_equal(((const struct cairn__device_ops *)first)->name, "fake");
}

static void module_has_a_table_for_each_use(void **state) {
    (void)state;
    const void *device, *engine;
    assert_int_equal(open_fake(&device_use, "fake_good", &device), CAIRN_OK);
    assert_int_equal(open_fake(&engine_use, "fake_good", &engine), CAIRN_OK);
    assert_ptr_not_equal(device, engine);
}

static void unknown_use_of_a_module_is_an_error(void **state) {
    (void)state;
    static const struct cairn__module_use use = {"printer", "paper", sizeof(struct fake_engine)};
    const void *table;
    assert_int_equal(open_fake(&use, "fake_good", &table), CAIRN_EINTERNAL);
    assert_string_equal(cairn_last_error(), "libcairn_fake.so has no printer");
}

static void several_folders_are_searched_in_order(void **state) {
    (void)state;
    char path[4096];
    const void *table = NULL;
    snprintf(path, sizeof(path), "/nowhere:%s:", fakes);
    setenv("CAIRN_MODULE_PATH", path, 1);
    assert_int_equal(cairn__module_open(&device_use, "fake_good", &table), CAIRN_OK);
}

static void missing_module_names_the_searched_folders(void **state) {
    (void)state;
    const void *table = NULL;
    setenv("CAIRN_MODULE_PATH", "/nowhere", 1);
    assert_int_equal(cairn__module_open(&device_use, "cuda", &table), CAIRN_ENOTBUILT);
    assert_string_equal(cairn_last_error(),
                        "device 'cuda' needs libcairn_cuda.so, which is not in CAIRN_MODULE_PATH, /nowhere");
    assert_null(table);
}

static void module_that_was_not_built_names_its_option(void **state) {
    (void)state;
    const void *table = NULL;
    assert_int_equal(cairn__module_open(&device_use, "tpu", &table), CAIRN_ENOTBUILT);
    assert_string_equal(cairn_last_error(),
                        "device 'tpu' is not in this build of Cairn (meson option 'tpu'); use \"cpu\"");
    assert_int_equal(cairn__module_open(&engine_use, "pigeon", &table), CAIRN_ENOTBUILT);
    assert_string_equal(cairn_last_error(), "group backend 'pigeon' is not in this build of Cairn (meson option "
                                            "'pigeon'); use another");
}

static void library_without_entry_is_no_module(void **state) {
    (void)state;
    const void *table;
    assert_int_equal(open_fake(&device_use, "fake_empty", &table), CAIRN_EINTERNAL);
    SAYS("libcairn_fake_empty.so is not a module of Cairn: it has no cairn__module_entry");
}

static void table_of_another_build_is_refused(void **state) {
    (void)state;
    const void *table;
    char want[64];
    assert_int_equal(open_fake(&engine_use, "fake_stale", &table), CAIRN_EINTERNAL);
    snprintf(want, sizeof(want), "its table has %zu bytes, want %zu", sizeof(struct fake_engine) - 8,
             sizeof(struct fake_engine));
    SAYS("libcairn_fake_stale.so is of another build of Cairn: ");
    SAYS(want);
}

static cairn_status keep_failure(cairn_status status, const char *text) {
    return cairn__fail(status, "kept: %s", text);
}

static void module_refuses_a_library_of_another_version(void **state) {
    (void)state;
    char path[4096];
    const struct cairn__module_host old = {.size = sizeof(old), .version = "0.0.1", .fail = keep_failure};
    const struct cairn__module_host small = {.size = 8, .version = CAIRN__VERSION_TEXT, .fail = keep_failure};
    snprintf(path, sizeof(path), "%s/libcairn_fake_good.so", fakes);
    void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    assert_non_null(handle);
    void *symbol = dlsym(handle, CAIRN__MODULE_ENTRY);
    cairn__module_entry_fn entry;
    memcpy(&entry, &symbol, sizeof(entry));
    assert_null(entry(&old, "device"));
    assert_string_equal(cairn_last_error(), "kept: libcairn_fake.so is of Cairn " CAIRN__VERSION_TEXT
                                            " and libcairn of 0.0.1, or of another build");
    assert_null(entry(&small, "device"));
    SAYS("or of another build");
    assert_int_equal(dlclose(handle), 0);
}

static char warning[64];

static void keep_warning(void *cookie, cairn_log_level level, const char *message) {
    (void)cookie;
    if (level == CAIRN_LOG_WARNING) snprintf(warning, sizeof(warning), "%s", message);
}

static void module_writes_errors_log_and_memory_of_the_library(void **state) {
    (void)state;
    const void *table;
    assert_int_equal(open_fake(&engine_use, "fake_good", &table), CAIRN_OK);
    const struct fake_engine *engine = table;
    assert_int_equal(engine->complain("no"), CAIRN_EPEER);
    assert_string_equal(cairn_last_error(), "the fake says no");
    cairn_set_log(keep_warning, NULL);
    engine->say("so");
    cairn_set_log(NULL, NULL);
    assert_string_equal(warning, "the fake says so");
    const struct cairn__alloc_counters before = cairn__alloc_counters();
    void *p = NULL, *array = NULL;
    size_t capacity = 0;
    assert_int_equal(engine->alloc(100, &p), CAIRN_OK);
    assert_int_equal(engine->grow(&array, &capacity, 3, 8), CAIRN_OK);
    assert_int_equal(cairn__alloc_counters().allocations, before.allocations + 3);
    assert_int_equal(cairn__alloc_counters().alive, before.alive + 2);
    assert_true(capacity >= 3 && ((char *)p)[99] == 0);
    engine->free(p);
    engine->free(array);
    assert_int_equal(cairn__alloc_counters().alive, before.alive);
}

static void file_that_is_not_a_library_is_an_error(void **state) {
    (void)state;
    char folder[] = "/tmp/cairn_module_XXXXXX", path[64];
    const void *table = NULL;
    assert_non_null(mkdtemp(folder));
    snprintf(path, sizeof(path), "%s/libcairn_cuda.so", folder);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_true(fputs("this is no library\n", f) >= 0);
    assert_int_equal(fclose(f), 0);
    setenv("CAIRN_MODULE_PATH", folder, 1);
    const cairn_status st = cairn__module_open(&device_use, "cuda", &table);
    remove(path);
    remove(folder);
    assert_int_equal(st, CAIRN_ESYSTEM);
    SAYS("device 'cuda' cannot be opened: ");
    SAYS(path);
}

/* ---- names of devices ---- */

static void wrong_device_names_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *name, *error;
    } cases[] = {
        {"gpu", "no device is called 'gpu'; there are cpu, cuda, cuda:N and auto"},
        {"", "no device is called ''; there are cpu, cuda, cuda:N and auto"},
        {"cud", "no device is called 'cud'; there are cpu, cuda, cuda:N and auto"},
        {"cudax", "no device is called 'cudax'; there are cpu, cuda, cuda:N and auto"},
        {"auto:1", "no device is called 'auto:1'; there are cpu, cuda, cuda:N and auto"},
        {"cpu:0", "device 'cpu:0': there is one cpu, which takes no number"},
        {"cuda:", "device 'cuda:': a number from 0 on must follow the colon"},
        {"cuda:x", "device 'cuda:x': a number from 0 on must follow the colon"},
        {"cuda:-1", "device 'cuda:-1': a number from 0 on must follow the colon"},
        {"cuda:1x", "device 'cuda:1x': a number from 0 on must follow the colon"},
        {"cuda:99999999999", "device 'cuda:99999999999': a number from 0 on must follow the colon"},
        {"cuda:99999999999999999999", "device 'cuda:99999999999999999999': a number from 0 on must follow the colon"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct cairn_device *d = NULL;
        assert_int_equal(cairn__device_open(cases[i].name, 0, &d), CAIRN_EINVAL);
        assert_string_equal(cairn_last_error(), cases[i].error);
        assert_null(d);
    }
}

static void holders_have_names(void **state) {
    (void)state;
    assert_string_equal(cairn__holder_name(CAIRN__HOLDS_PARAMS), "parameters");
    assert_string_equal(cairn__holder_name(CAIRN__HOLDS_STATE), "flags and scalars");
    assert_string_equal(cairn__holder_name(CAIRN__NUM_HOLDERS), "?");
}

/* ---- auto ---- */

static int notices;
static char notice[512];

static void keep_notice(void *cookie, cairn_log_level level, const char *message) {
    (void)cookie;
    if (level != CAIRN_LOG_NOTICE) return;
    notices++;
    snprintf(notice, sizeof(notice), "%s", message);
}

static void auto_computes_on_the_cpu_where_there_is_no_gpu_and_says_why_once(void **state) {
    (void)state;
    struct cairn_device *d = NULL;
    setenv("CAIRN_MODULE_PATH", "/nowhere", 1);
    notices = 0;
    cairn_set_log(keep_notice, NULL);
    assert_int_equal(cairn__device_open("auto", 0, &d), CAIRN_OK);
    cairn_set_log(NULL, NULL);
    assert_string_equal(cairn_device_name(d), "cpu");
    assert_int_equal(notices, 1);
    assert_string_equal(notice, "computing on the CPU: device 'cuda' needs libcairn_cuda.so, which is not in "
                                "CAIRN_MODULE_PATH, /nowhere");
    cairn__device_close(&d);
}

/* ---- the module of this build, where there is one ---- */

static void gpu_that_does_not_exist_is_an_error(void **state) {
    (void)state;
    static const char *const sentences[] = {
        "device 'cuda' is not in this build of Cairn (meson option 'cuda'); use \"cpu\"",
        "there is no NVIDIA driver on this machine, so no GPU can be used; use \"cpu\"",
        "there is a driver but no GPU on this machine",
        "the NVIDIA driver is too old",
        "cuda:977 is not there: this machine shows ",
    };
    struct cairn_device *d = NULL;
    const uint64_t alive = cairn__alloc_counters().alive;
    assert_int_not_equal(cairn__device_open("cuda:977", 0, &d), CAIRN_OK);
    assert_null(d);
    assert_int_equal(cairn__alloc_counters().alive, alive);
    for (size_t i = 0; i < sizeof(sentences) / sizeof(sentences[0]); i++) {
        if (strncmp(cairn_last_error(), sentences[i], strlen(sentences[i])) == 0) return;
    }
    fail_msg("%s", cairn_last_error());
}

/* Opening it finds every function of cuDNN that the module calls. */
static void cudnn_of_this_build_has_what_the_module_calls(void **state) {
    static const struct cairn__module_use use = {CAIRN__CONV_LIBRARY, "im2col", sizeof(struct cairn__conv_library)};
    const struct cairn__conv_library *library = NULL;
    struct cairn__conv_handle *handle = NULL;
    char version[64] = "";
    const cairn_status st = cairn__module_open(&use, "cudnn", (const void **)&library);
    (void)state;
    if (st == CAIRN_ENOTBUILT) {
        print_message("%s\n", cairn_last_error());
        skip();
    }
    if (st != CAIRN_OK) fail_msg("%s", cairn_last_error());
    if (library->open(&handle, version, sizeof(version)) == CAIRN_OK) { /* there is a GPU */
        assert_memory_equal(version, "cuDNN ", 6);
        library->close(&handle);
    } else {
        SAYS("starting cuDNN: cuDNN says ");
    }
    assert_null(handle);
}

#define TEST(f) cmocka_unit_test_setup(f, unset_path)

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        TEST(module_is_opened_once_and_its_table_stays),
        TEST(module_has_a_table_for_each_use),
        TEST(unknown_use_of_a_module_is_an_error),
        TEST(several_folders_are_searched_in_order),
        TEST(missing_module_names_the_searched_folders),
        TEST(module_that_was_not_built_names_its_option),
        TEST(library_without_entry_is_no_module),
        TEST(table_of_another_build_is_refused),
        TEST(module_refuses_a_library_of_another_version),
        TEST(module_writes_errors_log_and_memory_of_the_library),
        TEST(file_that_is_not_a_library_is_an_error),
        TEST(wrong_device_names_are_refused),
        TEST(holders_have_names),
        TEST(auto_computes_on_the_cpu_where_there_is_no_gpu_and_says_why_once),
        TEST(gpu_that_does_not_exist_is_an_error),
        TEST(cudnn_of_this_build_has_what_the_module_calls),
    };
    if (argc != 2) return 1;
    fakes = argv[1];
    return cmocka_run_group_tests(tests, NULL, NULL);
}

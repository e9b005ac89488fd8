/* Loaders under random faults: a file that is truncated and restored while workers read it, examples that fail
 * sometimes, samplers that are repositioned, loaders that are destroyed and created mid-epoch. Batches have the right
 * bits; an error names a failing example of the batch; and no example is lost.
 *
 *   faults_test [ROUNDS [SEED]] */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "../one_env.h"
#include "../state/folder.h"
#include "core/alloc.h"

enum { WIDTH = 5, MAX_N = 60, MAX_BATCH = 9, MAX_STEPS = 40, HEADER = 128 };
static int rounds = 60;
static uint64_t first_seed = 1;

static uint64_t drawn;

static int64_t below(int64_t bound) {
    drawn ^= drawn << 13;
    drawn ^= drawn >> 7;
    drawn ^= drawn << 17;
    return (int64_t)(drawn >> 20) % bound;
}

/* ---- the data: row i is i, i + 1/8, ...; and a word drawn ---- */

static atomic_llong failing; /* example; -1 = none */

static void write_rows(const char *path, int64_t n) {
    static unsigned char bytes[HEADER + MAX_N * WIDTH * sizeof(float)];
    memset(bytes, ' ', HEADER);
    memcpy(bytes, "\x93NUMPY\x01\x00\x76\x00", 10);
    bytes[10 + snprintf((char *)bytes + 10, HEADER - 10, "{'descr': '<f4', 'fortran_order': False, 'shape': (%d, %d)}",
                        (int)n, WIDTH)] = ' ';
    bytes[HEADER - 1] = '\n';
    for (int64_t i = 0; i < n; i++)
        for (int j = 0; j < WIDTH; j++) {
            const float value = (float)i + (float)j / 8;
            memcpy(bytes + HEADER + (i * WIDTH + j) * (int64_t)sizeof(value), &value, sizeof(value));
        }
    FILE *f = fopen(path, "r+b"); /* the file that is open stays this one */
    if (!f) f = fopen(path, "w+b");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, HEADER + (size_t)n * WIDTH * sizeof(float), f),
                     HEADER + (size_t)n * WIDTH * sizeof(float));
    assert_int_equal(fclose(f), 0);
}

static cairn_status augment(void *ctx, const cairn_fields *from, struct cairn_random *random, cairn_fields *example) {
    const struct cairn_field *row = cairn_fields_at(from, 0);
    const int64_t index = (int64_t) * (const float *)row->data;
    (void)ctx;
    if (index == atomic_load(&failing)) return cairn_dataset_fail(CAIRN_ENUMERIC, "it is the %dth's turn", (int)index);
    const cairn_status st = cairn_fields_add_values(example, CAIRN_F32, 1, row->shape, row->data);
    return st == CAIRN_OK ? cairn_fields_add_i64(example, cairn_random_word(random)) : st;
}

/* ---- a round ---- */

struct round {
    cairn_env *env;
    const char *path;
    int64_t n, batch;
    cairn_dataset *rows, *dataset;
    cairn_sampler *sampler, *twin; /* the twin says what the sampler will */
    cairn_loader *loader;
    int64_t whole, least_whole; /* rows of the file now, and the fewest since what is read ahead was begun */
    int64_t failed;             /* the example that has failed since then; -1 */
};

static void begin_anew(struct round *r) {
    r->least_whole = r->whole;
    r->failed = atomic_load(&failing);
}

static void make_loader(struct round *r) {
    OK(cairn_loader_create(r->env, r->dataset, r->sampler, (size_t)r->batch,
                           cairn_loader_options(.workers = (int)below(5), .prefetch = (int)below(6), .seed = 3),
                           &r->loader));
    begin_anew(r);
}

static void begin_round(struct round *r, cairn_env *env) {
    *r =
        (struct round){.env = env, .path = in_folder("rows.npy"), .n = 1 + below(MAX_N), .batch = 1 + below(MAX_BATCH)};
    const int ranks = (int)(1 + below(3)), rank = (int)below(ranks);
    const struct cairn_sampler_options *o = cairn_sampler_options(.seed = drawn, .shuffle = (cairn_switch)below(3));
    (void)remove(r->path);
    write_rows(r->path, r->n);
    atomic_store(&failing, -1);
    r->whole = r->n;
    OK(cairn_npy_dataset_create(&r->path, 1, &r->rows));
    OK(cairn_map_dataset_create(r->rows, augment, NULL, &r->dataset));
    OK(cairn_distributed_sampler_create(r->n, rank, ranks, o, &r->sampler));
    OK(cairn_distributed_sampler_create(r->n, rank, ranks, o, &r->twin));
    make_loader(r);
}

static void end_round(struct round *r) {
    cairn_loader_destroy(&r->loader);
    cairn_sampler_destroy(&r->twin);
    cairn_sampler_destroy(&r->sampler);
    cairn_dataset_destroy(&r->dataset);
    cairn_dataset_destroy(&r->rows);
}

static void cut(struct round *r) {
    r->whole = below(r->whole + 1);
    assert_int_equal(truncate(r->path, HEADER + r->whole * WIDTH * (int64_t)sizeof(float) + below(4)), 0);
    if (r->whole < r->least_whole) r->least_whole = r->whole;
}

/* While nobody reads it: what is read while another writes it may be half of each. */
static void mend(struct round *r) {
    cairn_loader_destroy(&r->loader);
    write_rows(r->path, r->n);
    r->whole = r->n;
    make_loader(r);
}

static void fail_one(struct round *r) {
    atomic_store(&failing, below(r->n));
    r->failed = r->failed == -1 ? atomic_load(&failing) : -2; /* several: any may have failed */
}

static void move(struct round *r) {
    const int64_t epoch = cairn_sampler_epoch(r->sampler), position = cairn_sampler_position(r->sampler);
    if (below(2)) OK(cairn_sampler_set_epoch(r->sampler, below(4)));
    OK(cairn_sampler_seek(r->sampler, below(1 + cairn_sampler_length(r->sampler))));
    if (epoch != cairn_sampler_epoch(r->sampler) || position != cairn_sampler_position(r->sampler)) begin_anew(r);
}

static void check_batch(const struct round *r, const struct cairn_batch *batch, const int64_t *indices, size_t n) {
    float rows[MAX_BATCH][WIDTH];
    int64_t words[MAX_BATCH];
    struct cairn_random random;
    assert_int_equal(batch->n, n);
    assert_memory_equal(batch->indices, indices, n * sizeof(indices[0]));
    OK(cairn_tensor_read(batch->tensors[0], rows[0], n * WIDTH));
    OK(cairn_tensor_read_as(batch->tensors[1], CAIRN_I64, words, n));
    for (size_t i = 0; i < n; i++) {
        cairn_random_begin(&random, 3, cairn_sampler_epoch(r->sampler), indices[i]);
        assert_int_equal(words[i], cairn_random_word(&random));
        for (int j = 0; j < WIDTH; j++) {
            const float value = (float)indices[i] + (float)j / 8;
            if (rows[i][j] != value)
                fail_msg("%srow %d, column %d: %g, and not %g", check_who, (int)indices[i], j, (double)rows[i][j],
                         (double)value);
        }
    }
}

/* The sentence names an example of the batch that can have failed. */
static void check_refusal(const struct round *r, cairn_status st, const int64_t *indices, size_t n) {
    long long named = -1;
    assert_int_equal(sscanf(cairn_last_error(), "example %lld: ", &named), 1);
    bool is_there = false;
    for (size_t i = 0; i < n; i++) is_there |= indices[i] == named;
    assert_true(is_there);
    if (st == CAIRN_ENUMERIC) {
        SAYS("th's turn");
        assert_true(r->failed == named || r->failed == -2);
    } else {
        assert_int_equal(st, CAIRN_EINVAL);
        SAYS(r->path);
        SAYS("the file may have been truncated");
        assert_true(named >= r->least_whole);
    }
}

/* An example of the batch has not been in the file since what is read ahead was begun. */
static bool must_fail(const int64_t *indices, size_t n, int64_t most_whole) {
    bool fails = false;
    for (size_t i = 0; i < n; i++) fails |= indices[i] >= most_whole;
    return fails;
}

static void take_one(struct round *r, int64_t *most_whole) {
    const struct cairn_batch *batch = NULL;
    int64_t indices[MAX_BATCH];
    OK(cairn_sampler_set_epoch(r->twin, cairn_sampler_epoch(r->sampler)));
    OK(cairn_sampler_seek(r->twin, cairn_sampler_position(r->sampler)));
    const size_t n = cairn_sampler_next(r->twin, indices, (size_t)r->batch);
    const cairn_status st = cairn_loader_next(r->loader, &batch);
    if (st != CAIRN_OK) {
        check_refusal(r, st, indices, n);
        begin_anew(r);
        *most_whole = r->whole;
    } else if (batch) {
        assert_false(must_fail(indices, n, *most_whole));
        check_batch(r, batch, indices, n);
    } else {
        assert_int_equal(n, 0);
    }
    assert_int_equal(cairn_sampler_position(r->sampler),
                     cairn_sampler_position(r->twin) - (st == CAIRN_OK ? 0 : (int64_t)n));
}

static void run_round(cairn_env *env) {
    struct round r;
    begin_round(&r, env);
    int64_t most_whole = r.whole; /* rows of the file at its longest since what is read ahead was begun */
    for (int64_t step = below(MAX_STEPS); step > 0; step--) {
        switch (below(12)) {
        case 0:
            cut(&r);
            break;
        case 1:
            mend(&r);
            break;
        case 2:
            fail_one(&r);
            break;
        case 3:
            atomic_store(&failing, -1);
            break;
        case 4:
            move(&r), most_whole = r.n;
            break;
        case 5:
            cairn_loader_destroy(&r.loader);
            make_loader(&r);
            most_whole = r.whole;
            break;
        default:
            take_one(&r, &most_whole);
        }
        if (r.whole > most_whole) most_whole = r.whole;
    }
    end_round(&r);
}

static void nothing_wrong_is_handed_out_and_nothing_is_lost(void **state) {
    const bool is_cpu = strcmp(cairn_device_name(cairn_env_device(*state)), "cpu") == 0;
    run_round(*state); /* makes what the environment keeps */
    const uint64_t alive = cairn__alloc_counters().alive;
    for (int i = 0; i < rounds; i++) {
        char name[64];
        drawn = (first_seed + (uint64_t)i) * 0x9E3779B97F4A7C15u + 1;
        snprintf(name, sizeof(name), "seed %llu", (unsigned long long)first_seed + (unsigned long long)i);
        check_as(name);
        run_round(*state);
        OK(cairn_release_results(*state));
        if (is_cpu) assert_int_equal(cairn__alloc_counters().alive, alive); /* a GPU's memory is kept for later */
    }
}

/* ---- exit ---- */

static cairn_loader *left; /* seen by a leak checker */
static cairn_env *left_env;
static cairn_dataset *left_dataset;
static cairn_sampler *left_sampler;

static cairn_status read_slowly(void *self, int64_t index, struct cairn_random *random, cairn_fields *example) {
    (void)self, (void)random;
    usleep(200);
    return cairn_fields_add_i64(example, index);
}

static void leave_in_mid_epoch(int workers, int batches) {
    const struct cairn_batch *batch;
    alarm(30);
    MUST_OK(cairn_env_create(NULL, NULL, NULL, &left_env));
    MUST_OK(cairn_dataset_create(NULL, 1000, cairn_dataset_functions(.read = read_slowly), &left_dataset));
    MUST_OK(cairn_sampler_create(1000, NULL, &left_sampler));
    MUST_OK(
        cairn_loader_create(left_env, left_dataset, left_sampler, 4, cairn_loader_options(.workers = workers), &left));
    for (int b = 0; b < batches; b++) MUST_OK(cairn_loader_next(left, &batch));
    exit(7);
}

static void a_program_may_exit_in_mid_epoch(void **state) {
    (void)state;
    for (int i = 0; i < 8; i++) {
        int status = -1;
        fflush(NULL);
        const pid_t child = fork();
        if (child == 0) leave_in_mid_epoch(1 + i % 4, i / 2);
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), 7);
    }
}

int main(int argc, char **argv) {
    const struct CMUnitTest faults[] = {cmocka_unit_test(nothing_wrong_is_handed_out_and_nothing_is_lost)};
    const struct CMUnitTest exits[] = {cmocka_unit_test(a_program_may_exit_in_mid_epoch)};
    void *unused = NULL;
    if (argc > 1) rounds = atoi(argv[1]);
    if (argc > 2) first_seed = strtoull(argv[2], NULL, 10);
    if (make_folder(&unused) != 0) return 1;
    int failed = cmocka_run_group_tests(exits, NULL, NULL); /* before there are threads */
    failed |= cmocka_run_group_tests(faults, make_env, end_env);
    return remove_folder(&unused) != 0 || failed;
}

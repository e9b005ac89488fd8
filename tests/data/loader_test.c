/* Loaders: with any number of workers, batches equal the sampler's order read from the dataset example by example. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "../failing_alloc.h"
#include "../one_env.h"
#include "../state/folder.h"
#include "../state_in_memory.h"
#include "core/alloc.h"
#include "core/philox.h"

enum { EXAMPLES = 23, BATCH = 4, VALUES = 3, SEED = 11, MAX_BATCHES = 64 };

/* ---- a dataset ---- */

/* Example i: VALUES floats drawn at random, and i. Takes its time, another one for each example, so that workers
 * overtake one another. */
struct drawn {
    atomic_llong fails_at;      /* no example: -1 */
    atomic_bool fails_silently; /* without a sentence */
    atomic_int reads;           /* so far */
    atomic_int inside, most_inside;
    atomic_bool is_blocked; /* reads wait until it is false */
    int destroyed;
};

static void sleep_for(long microseconds) {
    nanosleep(&(struct timespec){.tv_nsec = microseconds * 1000}, NULL);
}

static cairn_status read_drawn(void *self, int64_t index, struct cairn_random *random, cairn_fields *example) {
    struct drawn *d = self;
    float values[VALUES];
    const int inside = 1 + atomic_fetch_add(&d->inside, 1);
    if (inside > atomic_load(&d->most_inside)) atomic_store(&d->most_inside, inside);
    sleep_for((long)((uint64_t)index * 2654435761u % 97));
    while (atomic_load(&d->is_blocked)) sleep_for(100);
    for (int i = 0; i < VALUES; i++) values[i] = cairn_random_uniform(random);
    atomic_fetch_add(&d->reads, 1);
    atomic_fetch_sub(&d->inside, 1);
    if (index == d->fails_at)
        return d->fails_silently ? CAIRN_ESYSTEM : cairn_dataset_fail(CAIRN_ESYSTEM, "%s is gone", "the disk");
    cairn_status st = cairn_fields_add_values(example, CAIRN_F32, 1, (int64_t[]){VALUES}, values);
    return st == CAIRN_OK ? cairn_fields_add_i64(example, index) : st;
}

static void end_drawn(void *self) {
    ((struct drawn *)self)->destroyed++;
}

static struct drawn drawn;

static cairn_dataset *make_dataset(void) {
    cairn_dataset *dataset = NULL;
    memset(&drawn, 0, sizeof(drawn));
    drawn.fails_at = -1;
    OK(cairn_dataset_create(&drawn, EXAMPLES, cairn_dataset_functions(.read = read_drawn, .destroy = end_drawn),
                            &dataset));
    return dataset;
}

static cairn_sampler *make_sampler(int rank, int ranks) {
    cairn_sampler *sampler = NULL;
    OK(cairn_distributed_sampler_create(EXAMPLES, rank, ranks, cairn_sampler_options(.seed = 5), &sampler));
    return sampler;
}

static cairn_loader *make_loader(cairn_env *env, const cairn_dataset *dataset, cairn_sampler *sampler, int workers,
                                 cairn_switch drop_last) {
    cairn_loader *loader = NULL;
    OK(cairn_loader_create(env, dataset, sampler, BATCH,
                           cairn_loader_options(.workers = workers, .drop_last = drop_last, .seed = SEED), &loader));
    return loader;
}

/* ---- what was handed out ---- */

struct record {
    size_t n;
    int64_t indices[BATCH], labels[BATCH];
    float values[BATCH][VALUES];
};

/* The next batch; false at the end of the epoch. */
static bool take(cairn_loader *loader, struct record *r) {
    const struct cairn_batch *batch = NULL;
    OK(cairn_loader_next(loader, &batch));
    memset(r, 0, sizeof(*r));
    if (!batch) return false;
    r->n = batch->n;
    assert_int_equal(batch->count, 2);
    assert_in_range(batch->n, 1, BATCH);
    memcpy(r->indices, batch->indices, batch->n * sizeof(r->indices[0]));
    assert_int_equal(cairn_tensor_ndim(batch->tensors[0]), 2);
    assert_int_equal(cairn_tensor_size(batch->tensors[0], 0), batch->n);
    assert_int_equal(cairn_tensor_ndim(batch->tensors[1]), 1);
    OK(cairn_tensor_read(batch->tensors[0], r->values[0], batch->n * VALUES));
    OK(cairn_tensor_read_as(batch->tensors[1], CAIRN_I64, r->labels, batch->n));
    return true;
}

static size_t take_all(cairn_loader *loader, struct record *records) {
    size_t n = 0;
    while (take(loader, &records[n])) n++;
    return n;
}

/* What an epoch is by the sampler and by Philox, without a dataset or a loader. */
static size_t expect_epoch(cairn_sampler *sampler, int64_t epoch, cairn_switch drop_last, struct record *records) {
    size_t batches = 0;
    OK(cairn_sampler_set_epoch(sampler, epoch));
    for (;; batches++) {
        struct record *r = &records[batches];
        memset(r, 0, sizeof(*r));
        r->n = cairn_sampler_next(sampler, r->indices, BATCH);
        if (r->n == 0 || (drop_last == CAIRN_ON && r->n < BATCH)) break;
        for (size_t i = 0; i < r->n; i++) {
            const uint64_t high = (uint64_t)3 << 62 | (uint64_t)epoch << 32;
            const struct cairn__philox_block b = cairn__philox(SEED, (uint64_t)r->indices[i] << 32, high);
            for (int v = 0; v < VALUES; v++) r->values[i][v] = (float)(b.word[v] >> 8) * 0x1p-24f;
            r->labels[i] = r->indices[i];
        }
    }
    OK(cairn_sampler_set_epoch(sampler, epoch));
    return batches;
}

static void any_number_of_workers_gives_the_samplers_order_and_equal_bits(void **state) {
    static struct record expected[MAX_BATCHES], got[MAX_BATCHES];
    cairn_dataset *dataset = make_dataset();
    cairn_sampler *sampler = make_sampler(0, 1);
    for (int drop_last = CAIRN_ON; drop_last <= CAIRN_OFF; drop_last++) {
        for (int workers = 0; workers <= 4; workers++) {
            cairn_loader *loader = make_loader(*state, dataset, sampler, workers, (cairn_switch)drop_last);
            assert_int_equal(cairn_loader_length(loader),
                             drop_last == CAIRN_ON ? EXAMPLES / BATCH : (EXAMPLES + BATCH - 1) / BATCH);
            for (int64_t epoch = 0; epoch < 3; epoch++) {
                const size_t n = expect_epoch(sampler, epoch, (cairn_switch)drop_last, expected);
                assert_int_equal(n, cairn_loader_length(loader));
                assert_int_equal(take_all(loader, got), n);
                assert_memory_equal(got, expected, n * sizeof(got[0]));
                assert_false(take(loader, got)); /* the end stays the end */
                assert_int_equal(cairn_sampler_position(sampler), EXAMPLES);
            }
            cairn_loader_destroy(&loader);
            assert_null(loader);
        }
    }
    assert_in_range(drawn.most_inside, 2, 4);
    cairn_sampler_destroy(&sampler);
    cairn_dataset_destroy(&dataset);
    assert_int_equal(drawn.destroyed, 1);
}

static void ranks_get_their_shares(void **state) {
    static struct record expected[MAX_BATCHES], got[MAX_BATCHES];
    cairn_dataset *dataset = make_dataset();
    for (int rank = 0; rank < 3; rank++) {
        cairn_sampler *sampler = make_sampler(rank, 3);
        cairn_loader *loader = make_loader(*state, dataset, sampler, 2, CAIRN_OFF);
        const size_t n = expect_epoch(sampler, 7, CAIRN_OFF, expected);
        assert_int_equal(take_all(loader, got), n);
        assert_memory_equal(got, expected, n * sizeof(got[0]));
        cairn_loader_destroy(&loader);
        cairn_sampler_destroy(&sampler);
    }
    cairn_dataset_destroy(&dataset);
}

/* ---- where the sampler is ---- */

static void the_samplers_position_is_that_of_what_was_handed_out(void **state) {
    static struct record r;
    cairn_dataset *dataset = make_dataset();
    cairn_sampler *sampler = make_sampler(0, 1);
    cairn_loader *loader = make_loader(*state, dataset, sampler, 3, CAIRN_OFF);
    for (int64_t taken = 0; take(loader, &r);) {
        taken += (int64_t)r.n;
        assert_int_equal(cairn_sampler_position(sampler), taken);
    }
    cairn_loader_destroy(&loader);
    cairn_sampler_destroy(&sampler);
    cairn_dataset_destroy(&dataset);
}

static void a_sampler_that_is_moved_moves_the_loader(void **state) {
    static struct record expected[MAX_BATCHES], other[MAX_BATCHES], r;
    cairn_dataset *dataset = make_dataset();
    cairn_sampler *sampler = make_sampler(0, 1);
    (void)expect_epoch(sampler, 4, CAIRN_OFF, other);
    (void)expect_epoch(sampler, 0, CAIRN_OFF, expected);
    for (int workers = 0; workers <= 3; workers += 3) {
        cairn_loader *loader = make_loader(*state, dataset, sampler, workers, CAIRN_OFF);
        OK(cairn_sampler_set_epoch(sampler, 0));
        assert_true(take(loader, &r));
        OK(cairn_sampler_seek(sampler, 3 * BATCH)); /* forwards */
        assert_true(take(loader, &r));
        assert_memory_equal(&r, &expected[3], sizeof(r));
        OK(cairn_sampler_seek(sampler, 0)); /* back */
        assert_true(take(loader, &r));
        assert_memory_equal(&r, &expected[0], sizeof(r));
        OK(cairn_sampler_set_epoch(sampler, 4)); /* elsewhere */
        assert_true(take(loader, &r));
        assert_memory_equal(&r, &other[0], sizeof(r));
        OK(cairn_sampler_seek(sampler, EXAMPLES));
        assert_false(take(loader, &r));
        cairn_loader_destroy(&loader);
    }
    cairn_sampler_destroy(&sampler);
    cairn_dataset_destroy(&dataset);
}

static void a_loader_resumed_in_mid_epoch_gives_the_same_bits(void **state) {
    static struct record expected[MAX_BATCHES], r;
    cairn_dataset *dataset = make_dataset();
    cairn_sampler *sampler = make_sampler(0, 1), *again = make_sampler(0, 1);
    const size_t n = expect_epoch(sampler, 2, CAIRN_OFF, expected);
    for (size_t at = 0; at <= n; at++) {
        cairn_loader *loader = make_loader(*state, dataset, sampler, 2, CAIRN_OFF);
        cairn_loader *resumed = make_loader(*state, dataset, again, (int)(at % 4), CAIRN_OFF);
        const cairn_stateful from = cairn_loader_stateful(loader), to = cairn_loader_stateful(resumed);
        struct kept_state kept = {.count = 0};
        OK(cairn_sampler_set_epoch(sampler, 2));
        for (size_t b = 0; b < at; b++) assert_true(take(loader, &r));
        CALM(keep_state(&kept, &from, 1));
        OK(cairn_sampler_set_epoch(again, 0));
        if (at % 2) assert_true(take(resumed, &r)); /* it had begun elsewhere */
        CALM(bring_back(&kept, &to, 1));
        for (size_t b = at; b < n; b++) {
            assert_true(take(resumed, &r));
            assert_memory_equal(&r, &expected[b], sizeof(r));
        }
        assert_false(take(resumed, &r));
        drop_state(&kept);
        cairn_loader_destroy(&resumed);
        cairn_loader_destroy(&loader);
    }
    cairn_sampler_destroy(&again);
    cairn_sampler_destroy(&sampler);
    cairn_dataset_destroy(&dataset);
}

/* The same by files, as a part of a training's state. */
static void a_checkpoint_has_the_loaders_place(void **state) {
    static struct record expected[MAX_BATCHES], r;
    cairn_dataset *dataset = make_dataset();
    cairn_sampler *sampler = make_sampler(0, 1), *again = make_sampler(0, 1);
    cairn_loader *loader = make_loader(*state, dataset, sampler, 3, CAIRN_OFF);
    cairn_loader *resumed = make_loader(*state, dataset, again, 2, CAIRN_OFF);
    cairn_state *saved = NULL, *loaded = NULL;
    void *unused = NULL;
    int64_t step = 0;
    const size_t n = expect_epoch(sampler, 1, CAIRN_OFF, expected);
    assert_int_equal(make_folder(&unused), 0);
    for (size_t b = 0; b < 2; b++) assert_true(take(loader, &r));
    cairn_status st = cairn_state_create(*state, &saved);
    if (st == CAIRN_OK) {
        OK(cairn_state_add(saved, "data", cairn_loader_stateful(loader)));
        OK(cairn_state_save(saved, in_folder("runs"), 2, NULL));
        OK(cairn_state_create(*state, &loaded));
        OK(cairn_state_add(loaded, "data", cairn_loader_stateful(resumed)));
        OK(cairn_state_load_latest(loaded, in_folder("runs"), NULL, &step));
        assert_int_equal(step, 2);
        assert_int_equal(cairn_sampler_epoch(again), 1);
        for (size_t b = 2; b < n; b++) {
            assert_true(take(resumed, &r));
            assert_memory_equal(&r, &expected[b], sizeof(r));
        }
        assert_false(take(resumed, &r));
    }
    cairn_state_destroy(&loaded);
    cairn_state_destroy(&saved);
    assert_int_equal(remove_folder(&unused), 0);
    cairn_loader_destroy(&resumed);
    cairn_loader_destroy(&loader);
    cairn_sampler_destroy(&again);
    cairn_sampler_destroy(&sampler);
    cairn_dataset_destroy(&dataset);
    if (st == CAIRN_ENOTBUILT) {
        printf("this build has no checkpoints\n");
        skip();
    }
    OK(st);
}

/* Two ranks of BATCH examples have handed out what one of the same batch has in twice as many. */
static void another_number_of_ranks_goes_on_where_these_were(void **state) {
    static struct record expected[MAX_BATCHES], r;
    cairn_dataset *dataset = make_dataset();
    cairn_sampler *two = make_sampler(0, 2), *one = make_sampler(0, 1);
    cairn_loader *before = make_loader(*state, dataset, two, 2, CAIRN_OFF);
    cairn_loader *after = make_loader(*state, dataset, one, 1, CAIRN_OFF);
    const cairn_stateful from = cairn_loader_stateful(before), to = cairn_loader_stateful(after);
    struct kept_state kept = {.count = 0};
    const size_t n = expect_epoch(one, 0, CAIRN_OFF, expected);
    assert_true(take(before, &r));
    assert_true(take(before, &r));
    CALM(keep_state(&kept, &from, 1));
    CALM(bring_back(&kept, &to, 1));
    for (size_t b = 4; b < n; b++) {
        assert_true(take(after, &r));
        assert_memory_equal(&r, &expected[b], sizeof(r));
    }
    assert_false(take(after, &r));
    drop_state(&kept);
    cairn_loader_destroy(&after);
    cairn_loader_destroy(&before);
    cairn_sampler_destroy(&one);
    cairn_sampler_destroy(&two);
    cairn_dataset_destroy(&dataset);
}

/* ---- errors ---- */

static void an_example_that_fails_fails_its_batch_and_no_other(void **state) {
    static struct record expected[MAX_BATCHES], r;
    char sentence[64];
    cairn_dataset *dataset = make_dataset();
    cairn_sampler *sampler = make_sampler(0, 1);
    const size_t n = expect_epoch(sampler, 0, CAIRN_OFF, expected);
    for (int workers = 0; workers <= 4; workers++) {
        cairn_loader *loader = make_loader(*state, dataset, sampler, workers, CAIRN_OFF);
        const struct cairn_batch *batch = NULL;
        OK(cairn_sampler_set_epoch(sampler, 0));
        drawn.fails_at = expected[2].indices[1];
        snprintf(sentence, sizeof(sentence), "example %d: the disk is gone", (int)drawn.fails_at);
        for (size_t b = 0; b < 2; b++) {
            assert_true(take(loader, &r));
            assert_memory_equal(&r, &expected[b], sizeof(r));
        }
        for (int again = 0; again < 2; again++) {
            REFUSED(cairn_loader_next(loader, &batch), CAIRN_ESYSTEM, sentence);
            assert_null(batch);
            assert_int_equal(cairn_sampler_position(sampler), 2 * BATCH);
        }
        drawn.fails_at = -1; /* the disk is back */
        for (size_t b = 2; b < n; b++) {
            assert_true(take(loader, &r));
            assert_memory_equal(&r, &expected[b], sizeof(r));
        }
        assert_false(take(loader, &r));
        cairn_loader_destroy(&loader);
    }
    cairn_sampler_destroy(&sampler);
    cairn_dataset_destroy(&dataset);
}

static void a_failure_without_a_message_gets_one(void **state) {
    for (int workers = 0; workers <= 1; workers++) {
        cairn_dataset *dataset = make_dataset();
        cairn_sampler *sampler = make_sampler(0, 1);
        cairn_loader *loader = make_loader(*state, dataset, sampler, workers, CAIRN_OFF);
        const struct cairn_batch *batch;
        drawn.fails_at = 3;
        drawn.fails_silently = true;
        OK(cairn_sampler_set_epoch(sampler, 0));
        cairn_status st = CAIRN_OK;
        for (int b = 0; b < MAX_BATCHES && st == CAIRN_OK; b++) st = cairn_loader_next(loader, &batch);
        assert_int_equal(st, CAIRN_ESYSTEM);
        SAYS("example 3: the dataset's read returned ESYSTEM without a sentence");
        cairn_loader_destroy(&loader);
        cairn_sampler_destroy(&sampler);
        cairn_dataset_destroy(&dataset);
    }
}

static cairn_status fail_to_collate(void *ctx, const cairn_fields *const *examples, size_t n, cairn_fields *batch) {
    (void)examples, (void)n, (void)batch;
    return *(const int *)ctx ? cairn_dataset_fail(CAIRN_EINVAL, "too long by %d", *(const int *)ctx) : CAIRN_EINVAL;
}

static cairn_status collate_u8(void *ctx, const cairn_fields *const *examples, size_t n, cairn_fields *batch) {
    void *data;
    (void)ctx, (void)examples;
    const cairn_status st = cairn_fields_add(batch, CAIRN_U8, 1, (int64_t[]){(int64_t)n}, &data);
    if (st == CAIRN_OK) memset(data, 0, n);
    return st;
}

static void what_collate_refuses_fails_the_batch(void **state) {
    cairn_dataset *dataset = make_dataset();
    cairn_sampler *sampler = make_sampler(0, 1);
    cairn_loader *loader = NULL;
    const struct cairn_batch *batch;
    for (int by = 0; by <= 1; by++) {
        OK(cairn_loader_create(*state, dataset, sampler, BATCH,
                               cairn_loader_options(.workers = by, .collate = fail_to_collate, .collate_ctx = &by),
                               &loader));
        REFUSED(cairn_loader_next(loader, &batch), CAIRN_EINVAL, "the batch of examples ");
        SAYS(by ? "too long by 1" : "the collate function returned EINVAL without a sentence");
        cairn_loader_destroy(&loader);
    }
    OK(cairn_loader_create(*state, dataset, sampler, BATCH, cairn_loader_options(.collate = collate_u8), &loader));
    REFUSED(cairn_loader_next(loader, &batch), CAIRN_EINVAL, "field 0 of the batch is u8");
    cairn_loader_destroy(&loader);
    cairn_sampler_destroy(&sampler);
    cairn_dataset_destroy(&dataset);
}

static void examples_that_differ_are_not_stacked(void **state) {
    cairn_fields *examples[2] = {NULL, NULL}, *batch = NULL;
    (void)state;
    for (int i = 0; i < 2; i++) OK(cairn_fields_create(&examples[i]));
    OK(cairn_fields_create(&batch));
    OK(cairn_fields_add_values(examples[0], CAIRN_F32, 2, (int64_t[]){1, 2}, (float[]){1, 2}));
    const cairn_fields *const *both = (const cairn_fields *const *)examples;
    REFUSED(cairn_collate_stack(NULL, both, 2, batch), CAIRN_EINVAL, "has 1 fields, and number 1 of it has 0");
    OK(cairn_fields_add_values(examples[1], CAIRN_F32, 2, (int64_t[]){2, 1}, (float[]){1, 2}));
    cairn_fields_clear(batch);
    REFUSED(cairn_collate_stack(NULL, both, 2, batch), CAIRN_EINVAL,
            "field 0 is f32 of shape [1, 2] in the first example of the batch, and f32 of shape [2, 1] in number 1");
    cairn_fields_clear(examples[1]);
    OK(cairn_fields_add_values(examples[1], CAIRN_I32, 2, (int64_t[]){1, 2}, (int32_t[]){1, 2}));
    cairn_fields_clear(batch);
    REFUSED(cairn_collate_stack(NULL, both, 2, batch), CAIRN_EINVAL, "and i32 of shape [1, 2] in number 1");
    for (int i = 0; i < 2; i++) cairn_fields_destroy(&examples[i]);
    cairn_fields_destroy(&batch);
}

/* ---- tensors ---- */

static void tensors_are_the_same_while_shapes_stay(void **state) {
    cairn_dataset *dataset = make_dataset();
    cairn_sampler *sampler = make_sampler(0, 1);
    cairn_loader *loader = make_loader(*state, dataset, sampler, 2, CAIRN_OFF);
    const struct cairn_batch *batch;
    cairn_tensor *first = NULL;
    float sum = 0;
    OK(cairn_loader_next(loader, &batch));
    first = batch->tensors[0];
    cairn_tensor *square = cairn_mul(first, first), *kept = cairn_tensor_keep(first);
    for (int b = 1; b < EXAMPLES / BATCH; b++) {
        OK(cairn_loader_next(loader, &batch));
        assert_ptr_equal(batch->tensors[0], first);
    }
    OK(cairn_loader_next(loader, &batch));
    assert_int_equal(batch->n, EXAMPLES % BATCH);
    assert_int_equal(cairn_tensor_size(batch->tensors[0], 0), EXAMPLES % BATCH);
    assert_int_equal(cairn_tensor_size(kept, 0), BATCH);
    assert_non_null(square); /* its input has ended, and is freed with the step */
    sum = cairn_tensor_item(cairn_sum(square));
    assert_true(sum > 0);
    OK(cairn_release_results(*state));
    cairn_tensor_destroy(&kept);
    cairn_loader_destroy(&loader);
    cairn_sampler_destroy(&sampler);
    cairn_dataset_destroy(&dataset);
}

/* Nothing is read between the batches, so that a device which is late copies them when workers have read further ones:
 * their memory is not written over before. */
static void a_late_device_gets_every_batch(void **state) {
    static struct record expected[MAX_BATCHES];
    cairn_tensor *kept[MAX_BATCHES] = {NULL};
    cairn_dataset *dataset = make_dataset();
    cairn_sampler *sampler = make_sampler(0, 1);
    for (int workers = 0; workers <= 2; workers++) {
        cairn_loader *loader = make_loader(*state, dataset, sampler, workers, CAIRN_ON);
        const struct cairn_batch *batch;
        for (int64_t epoch = 0; epoch < 3; epoch++) { /* from the second on all memory is pinned */
            float values[BATCH][VALUES];
            const size_t n = expect_epoch(sampler, epoch, CAIRN_ON, expected);
            for (size_t b = 0; b < n; b++) {
                OK(cairn_loader_next(loader, &batch));
                kept[b] = cairn_tensor_keep(batch->tensors[0]);
                assert_non_null(kept[b]);
                sleep_for(300);
            }
            for (size_t b = 0; b < n; b++) {
                OK(cairn_tensor_read(kept[b], values[0], BATCH * VALUES));
                assert_memory_equal(values, expected[b].values, sizeof(values));
                cairn_tensor_destroy(&kept[b]);
            }
        }
        cairn_loader_destroy(&loader);
    }
    cairn_sampler_destroy(&sampler);
    cairn_dataset_destroy(&dataset);
}

/* ---- memory ---- */

static void no_more_is_read_ahead_than_prefetch(void **state) {
    enum { PREFETCH = 2 };
    cairn_dataset *dataset = make_dataset();
    cairn_sampler *sampler = make_sampler(0, 1);
    cairn_loader *loader = NULL;
    const struct cairn_batch *batch;
    OK(cairn_loader_create(*state, dataset, sampler, BATCH, cairn_loader_options(.workers = 4, .prefetch = PREFETCH),
                           &loader));
    for (int b = 1; b <= 3; b++) {
        OK(cairn_loader_next(loader, &batch));
        for (int wait = 0; wait < 20000 && drawn.reads < (b + PREFETCH) * BATCH; wait++) sleep_for(1000);
        sleep_for(5000);
        assert_int_equal(drawn.reads, (b + PREFETCH) * BATCH);
    }
    cairn_loader_destroy(&loader);
    cairn_sampler_destroy(&sampler);
    cairn_dataset_destroy(&dataset);
}

static void memory_is_reused(void **state) {
    cairn_dataset *dataset = make_dataset();
    cairn_sampler *sampler = make_sampler(0, 1);
    cairn_loader *loader = make_loader(*state, dataset, sampler, 0, CAIRN_ON);
    const struct cairn_batch *batch;
    struct cairn__alloc_counters before = {0, 0};
    for (int64_t epoch = 0; epoch < 3; epoch++) {
        if (epoch == 1) before = cairn__alloc_counters();
        OK(cairn_sampler_set_epoch(sampler, epoch));
        do {
            OK(cairn_loader_next(loader, &batch));
        } while (batch);
    }
    assert_int_equal(cairn__alloc_counters().allocations, before.allocations);
    cairn_loader_destroy(&loader);
    cairn_sampler_destroy(&sampler);
    cairn_dataset_destroy(&dataset);
}

static void memory_that_runs_out_is_an_error_and_nothing_is_lost(void **state) {
    static struct record expected[MAX_BATCHES], r;
    cairn_dataset *dataset = make_dataset();
    cairn_sampler *sampler = make_sampler(0, 1);
    const struct cairn_batch *batch;
    (void)expect_epoch(sampler, 0, CAIRN_OFF, expected);
    const uint64_t alive = cairn__alloc_counters().alive;
    int failures = 0;
    for (bool is_done = false; !is_done; failures++) {
        cairn_loader *loader = NULL;
        fail_in = failures + 1;
        OK(cairn_sampler_set_epoch(sampler, 0));
        cairn_status st =
            cairn_loader_create(*state, dataset, sampler, BATCH, cairn_loader_options(.seed = SEED), &loader);
        if (st == CAIRN_OK) st = cairn_loader_next(loader, &batch);
        is_done = fail_in > 0;
        fail_in = 0;
        assert_int_equal(st, is_done ? CAIRN_OK : CAIRN_ENOMEM);
        if (loader && !is_done) {
            assert_true(take(loader, &r));
            assert_memory_equal(&r, &expected[0], sizeof(r));
        }
        cairn_loader_destroy(&loader);
        assert_int_equal(cairn__alloc_counters().alive, alive);
    }
    assert_true(failures > 10);
    cairn_sampler_destroy(&sampler);
    cairn_dataset_destroy(&dataset);
}

/* ---- ends ---- */

static void a_loader_ends_at_any_moment(void **state) {
    static struct record r;
    for (int taken = -1; taken < 4; taken++) {
        for (int workers = 1; workers <= 4; workers++) {
            cairn_dataset *dataset = make_dataset();
            cairn_sampler *sampler = make_sampler(0, 1);
            cairn_loader *loader = make_loader(*state, dataset, sampler, workers, CAIRN_OFF);
            for (int b = 0; b <= taken; b++) assert_true(take(loader, &r));
            cairn_loader_destroy(&loader);
            const int reads = drawn.reads;
            assert_int_equal(drawn.inside, 0);
            sleep_for(500);
            assert_int_equal(drawn.reads, reads);
            cairn_sampler_destroy(&sampler);
            cairn_dataset_destroy(&dataset);
        }
    }
}

/* One read of a batch has begun and is waited for; the others of that batch never begin. */
static void the_end_waits_for_no_more_than_the_reads_that_have_begun(void **state) {
    cairn_dataset *dataset = make_dataset();
    cairn_sampler *sampler = make_sampler(0, 1);
    cairn_loader *loader = NULL;
    const struct cairn_batch *batch;
    OK(cairn_loader_create(*state, dataset, sampler, 1, cairn_loader_options(.workers = 2, .prefetch = 8), &loader));
    OK(cairn_loader_next(loader, &batch));
    while (drawn.reads < 9) sleep_for(100);
    drawn.is_blocked = true;
    OK(cairn_loader_next(loader, &batch));
    while (drawn.inside < 1) sleep_for(100);
    const int reads = drawn.reads, inside = drawn.inside;
    drawn.is_blocked = false;
    cairn_loader_destroy(&loader);
    assert_in_range(drawn.reads, reads, reads + inside);
    cairn_sampler_destroy(&sampler);
    cairn_dataset_destroy(&dataset);
}

/* ThreadSanitizer lets the child of a process with threads start none. */
#if defined(__SANITIZE_THREAD__)
enum { CHILDS_WORKERS = 0 };
#else
enum { CHILDS_WORKERS = 2 };
#endif

static int run_child(cairn_loader *loader, cairn_env *env, cairn_dataset *dataset, cairn_sampler *sampler) {
    const struct cairn_batch *batch;
    MUST(cairn_loader_next(loader, &batch) == CAIRN_ESTATE);
    MUST(strstr(cairn_last_error(), "called in a child of fork") != NULL);
    cairn_loader_destroy(&loader);
    MUST(loader == NULL);
    MUST_OK(
        cairn_loader_create(env, dataset, sampler, BATCH, cairn_loader_options(.workers = CHILDS_WORKERS), &loader));
    MUST_OK(cairn_loader_next(loader, &batch));
    cairn_loader_destroy(&loader);
    return 0;
}

static void a_child_of_fork_has_no_workers_and_may_make_its_own(void **state) {
    static struct record r;
    int status = -1;
    if (strcmp(cairn_device_name(cairn_env_device(*state)), "cpu") != 0) {
        printf("a child of fork cannot use a GPU that was opened before\n");
        skip();
    }
    cairn_dataset *dataset = make_dataset();
    cairn_sampler *sampler = make_sampler(0, 1);
    cairn_loader *loader = make_loader(*state, dataset, sampler, 2, CAIRN_OFF);
    assert_true(take(loader, &r));
    const pid_t child = fork();
    if (child == 0) _exit(run_child(loader, *state, dataset, sampler));
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_true(take(loader, &r)); /* the parent's goes on */
    cairn_loader_destroy(&loader);
    cairn_sampler_destroy(&sampler);
    cairn_dataset_destroy(&dataset);
}

static void an_environment_stays_while_a_loader_lives(void **state) {
    cairn_env *env = *state;
    cairn_dataset *dataset = make_dataset();
    cairn_sampler *sampler = make_sampler(0, 1);
    cairn_loader *loader = make_loader(env, dataset, sampler, 1, CAIRN_OFF);
    cairn_env_destroy(&env); /* logs an error */
    assert_non_null(env);
    cairn_loader_destroy(&loader);
    cairn_sampler_destroy(&sampler);
    cairn_dataset_destroy(&dataset);
}

/* ---- arguments ---- */

static void wrong_arguments_are_refused(void **state) {
    cairn_dataset *dataset = make_dataset(), *no_dataset = NULL;
    cairn_sampler *sampler = make_sampler(0, 1), *larger = NULL;
    cairn_loader *loader = NULL;
    const struct cairn_batch *batch;
    OK(cairn_sampler_create(EXAMPLES + 1, NULL, &larger));
    const struct {
        struct cairn_loader_options options;
        const char *words;
    } cases[] = {
        {*cairn_loader_options(.workers = -1), "workers is -1; it must be from 0 to 256"},
        {*cairn_loader_options(.workers = 257), "workers is 257"},
        {*cairn_loader_options(.prefetch = -2), "prefetch is -2"},
        {*cairn_loader_options(.drop_last = (cairn_switch)3), "drop_last is 3"},
        {*cairn_loader_options(.collate_ctx = &drawn), "has collate_ctx, but no collate"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        REFUSED(cairn_loader_create(*state, dataset, sampler, BATCH, &cases[i].options, &loader), CAIRN_EINVAL,
                cases[i].words);
    REFUSED(cairn_loader_create(*state, dataset, sampler, 0, NULL, &loader), CAIRN_EINVAL, "a batch of 0 examples");
    REFUSED(cairn_loader_create(NULL, dataset, sampler, 1, NULL, &loader), CAIRN_EINVAL, "must be set");
    REFUSED(cairn_loader_create(*state, dataset, larger, 1, NULL, &loader), CAIRN_EINVAL,
            "the sampler is of 24 examples, but the dataset has 23");
    REFUSED(cairn_loader_next(NULL, &batch), CAIRN_EINVAL, "must be set");
    REFUSED(cairn_dataset_create(NULL, 1, cairn_dataset_functions(.read = NULL), &no_dataset), CAIRN_EINVAL,
            "read is NULL");
    REFUSED(cairn_dataset_create(NULL, -1, cairn_dataset_functions(.read = read_drawn), &no_dataset), CAIRN_EINVAL,
            "a dataset of -1 examples");
    assert_null(loader);
    assert_int_equal(cairn_loader_length(NULL), 0);
    assert_int_equal(cairn_dataset_count(NULL), 0);
    cairn_loader_destroy(&loader);
    cairn_loader_destroy(NULL);
    cairn_dataset_destroy(NULL);
    cairn_sampler_destroy(&larger);
    cairn_sampler_destroy(&sampler);
    cairn_dataset_destroy(&dataset);
}

static void wrong_fields_are_refused(void **state) {
    cairn_fields *f = NULL;
    void *data;
    (void)state;
    OK(cairn_fields_create(&f));
    REFUSED(cairn_fields_add(f, (cairn_dtype)99, 0, NULL, &data), CAIRN_EINVAL, "field 0: dtype is 99");
    REFUSED(cairn_fields_add(f, CAIRN_F32, 1, (int64_t[]){-1}, &data), CAIRN_EINVAL, "size -1 in dimension 0");
    REFUSED(cairn_fields_add(f, CAIRN_F32, 9, (int64_t[9]){0}, &data), CAIRN_EINVAL, "9 dimensions");
    REFUSED(cairn_fields_add(f, CAIRN_F32, 1, NULL, &data), CAIRN_EINVAL, "shape is NULL");
    REFUSED(cairn_fields_add(f, CAIRN_F32, 3, (int64_t[]){1 << 30, 1 << 30, 0}, &data), CAIRN_EINVAL,
            "more elements than memory can hold");
    REFUSED(cairn_fields_add_values(f, CAIRN_F32, 1, (int64_t[]){1}, NULL), CAIRN_EINVAL, "values is NULL");
    assert_int_equal(cairn_fields_count(f), 0);
    for (int i = 0; i < CAIRN_MAX_FIELDS; i++) OK(cairn_fields_add_i64(f, i));
    REFUSED(cairn_fields_add_i64(f, 0), CAIRN_EINVAL, "a field more than the 16");
    assert_int_equal(*(const int64_t *)cairn_fields_at(f, 15)->data, 15);
    assert_null(cairn_fields_at(f, 16));
    assert_null(cairn_fields_at(f, -1));
    cairn_fields_clear(f);
    OK(cairn_fields_add_values(f, CAIRN_F32, 2, (int64_t[]){0, 5}, NULL)); /* nothing, of that shape */
    assert_int_equal(cairn_fields_at(f, 0)->nbytes, 0);
    assert_int_equal(cairn_fields_at(f, 0)->shape[1], 5);
    cairn_fields_destroy(&f);
}

/* ---- random numbers ---- */

static void an_examples_random_numbers_are_those_of_the_header(void **state) {
    struct cairn_random r;
    (void)state;
    cairn_random_begin(&r, 9, (int64_t)1 << 31 | 6, ((int64_t)5 << 32) + 7);
    for (uint64_t b = 0; b < 3; b++) {
        const struct cairn__philox_block block =
            cairn__philox(9, (uint64_t)7 << 32 | b, (uint64_t)3 << 62 | (uint64_t)6 << 32 | 5);
        for (int i = 0; i < 4; i++) assert_int_equal(cairn_random_word(&r), block.word[i]);
    }
    int counts[3] = {0, 0, 0};
    for (int i = 0; i < 3000; i++) counts[cairn_random_below(&r, 3)]++;
    for (int i = 0; i < 3; i++) assert_in_range(counts[i], 900, 1100); /* 1000, and a deviation of 26 */
    assert_int_equal(cairn_random_below(&r, 1), 0);
    assert_int_equal(cairn_random_below(&r, 0), 0);
    const float u = cairn_random_uniform(&r);
    assert_true(u >= 0 && u < 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_number_of_workers_gives_the_samplers_order_and_equal_bits),
        cmocka_unit_test(ranks_get_their_shares),
        cmocka_unit_test(the_samplers_position_is_that_of_what_was_handed_out),
        cmocka_unit_test(a_sampler_that_is_moved_moves_the_loader),
        cmocka_unit_test(a_loader_resumed_in_mid_epoch_gives_the_same_bits),
        cmocka_unit_test(a_checkpoint_has_the_loaders_place),
        cmocka_unit_test(another_number_of_ranks_goes_on_where_these_were),
        cmocka_unit_test(an_example_that_fails_fails_its_batch_and_no_other),
        cmocka_unit_test(a_failure_without_a_message_gets_one),
        cmocka_unit_test(what_collate_refuses_fails_the_batch),
        cmocka_unit_test(examples_that_differ_are_not_stacked),
        cmocka_unit_test(tensors_are_the_same_while_shapes_stay),
        cmocka_unit_test(a_late_device_gets_every_batch),
        cmocka_unit_test(no_more_is_read_ahead_than_prefetch),
        cmocka_unit_test(memory_is_reused),
        cmocka_unit_test(memory_that_runs_out_is_an_error_and_nothing_is_lost),
        cmocka_unit_test(a_loader_ends_at_any_moment),
        cmocka_unit_test(the_end_waits_for_no_more_than_the_reads_that_have_begun),
        cmocka_unit_test(a_child_of_fork_has_no_workers_and_may_make_its_own),
        cmocka_unit_test(an_environment_stays_while_a_loader_lives),
        cmocka_unit_test(wrong_arguments_are_refused),
        cmocka_unit_test(wrong_fields_are_refused),
        cmocka_unit_test(an_examples_random_numbers_are_those_of_the_header),
    };
    return cmocka_run_group_tests(tests, make_env, end_env);
}

/* Errors that a GPU's passes report before they queue anything. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "device/cuda/check.h"

static float f[8], g[8];
static _Alignas(16) uint16_t half[8];
static uint32_t flag;
static int64_t missed;
static struct cairn__optim_state optim;
static struct cairn__rates rates;
static const struct cairn__adam_rule rule;

/* A name that no element type has. */
static const cairn_dtype no_dtype = (cairn_dtype)99;

#define assert_refused(complaint) assert_non_null(complaint)
#define assert_fine(complaint)    assert_ptr_equal(complaint, NULL)

static void *odd(void *p) {
    return (char *)p + 1;
}

static const char *check_cast(struct cairn__item item, cairn_dtype to, cairn_dtype from) {
    return cairn__check_items(&item, 1, CAIRN__USES_DST | CAIRN__USES_X, to, from, true);
}

static void items_with_memory_are_fine(void **state) {
    (void)state;
    const struct cairn__item item = {.n = 8, .dst = half, .x = f, .y = g, .found = &flag};
    const unsigned all = CAIRN__USES_DST | CAIRN__USES_X | CAIRN__USES_Y;
    assert_fine(cairn__check_items(&item, 1, all, CAIRN_F16, CAIRN_F32, false));
    assert_fine(cairn__check_items(NULL, 0, all, CAIRN_F16, CAIRN_F32, false));
}

static void empty_items_need_no_memory(void **state) {
    (void)state;
    const struct cairn__item items[3] = {{.n = 0}};
    assert_fine(
        cairn__check_items(items, 3, CAIRN__USES_DST | CAIRN__USES_X | CAIRN__USES_Y, CAIRN_F32, CAIRN_F32, false));
}

static void null_memory_is_refused_where_it_is_used(void **state) {
    (void)state;
    const struct cairn__item item = {.n = 8, .x = f};
    assert_fine(cairn__check_items(&item, 1, CAIRN__USES_X, CAIRN_F32, CAIRN_F32, false));
    assert_refused(cairn__check_items(&item, 1, CAIRN__USES_DST, CAIRN_F32, CAIRN_F32, false));
    assert_refused(cairn__check_items(&item, 1, CAIRN__USES_Y, CAIRN_F32, CAIRN_F32, false));
    assert_refused(cairn__check_items(NULL, 1, CAIRN__USES_X, CAIRN_F32, CAIRN_F32, false));
}

static void last_item_is_checked_too(void **state) {
    (void)state;
    const struct cairn__item items[] = {{.n = 8, .x = f}, {.n = 0}, {.n = 1}};
    assert_fine(cairn__check_items(items, 2, CAIRN__USES_X, CAIRN_F32, CAIRN_F32, false));
    assert_refused(cairn__check_items(items, 3, CAIRN__USES_X, CAIRN_F32, CAIRN_F32, false));
}

static void misaligned_elements_are_refused(void **state) {
    (void)state;
    assert_refused(check_cast((struct cairn__item){.n = 1, .dst = odd(half), .x = f}, CAIRN_F16, CAIRN_F32));
    assert_refused(check_cast((struct cairn__item){.n = 1, .dst = half, .x = half + 1}, CAIRN_F16, CAIRN_F32));
    assert_fine(check_cast((struct cairn__item){.n = 1, .dst = half + 1, .x = f + 1}, CAIRN_F16, CAIRN_F32));
    assert_refused(
        check_cast((struct cairn__item){.n = 1, .dst = half, .x = f, .found = odd(&flag)}, CAIRN_F16, CAIRN_F32));
}

static void types_of_empty_items_are_checked_too(void **state) {
    (void)state;
    const struct cairn__item none = {.n = 0};
    assert_refused(check_cast(none, no_dtype, CAIRN_F32));
    assert_refused(check_cast(none, CAIRN_F32, (cairn_dtype)0));
    assert_refused(check_cast(none, no_dtype, no_dtype));
    assert_refused(check_cast(none, CAIRN_I32, CAIRN_F32));
    assert_refused(check_cast(none, CAIRN_I64, CAIRN_I32));
    assert_fine(check_cast(none, CAIRN_I64, CAIRN_I64));
    assert_refused(cairn__check_items(&none, 1, CAIRN__USES_X, CAIRN_I64, CAIRN_I64, false));
}

static void more_elements_than_bytes_are_refused(void **state) {
    (void)state;
    assert_refused(check_cast((struct cairn__item){.n = SIZE_MAX / 2, .dst = f, .x = f}, CAIRN_F32, CAIRN_F32));
    assert_refused(cairn__check_matrix(CAIRN_F16, half, SIZE_MAX / 2, 4));
    assert_refused(cairn__check_matrix(CAIRN_F16, half, SIZE_MAX / 4, 4));
    assert_fine(cairn__check_matrix(CAIRN_F16, half, 2, 4));
    assert_fine(cairn__check_matrix(CAIRN_F16, NULL, 0, 4));
}

static struct cairn__optim_item an_update(void) {
    return (
        struct cairn__optim_item){.n = 8, .weights = f, .half = half, .state = {f, g}, .grad = half, .missed = &missed};
}

static const char *check_adam(struct cairn__optim_item item, cairn_dtype grad, enum cairn__weight_mode mode) {
    return cairn__check_optim(&item, 1, grad, mode, 2);
}

static void an_update_accepts_the_inputs_of_its_mode(void **state) {
    (void)state;
    struct cairn__optim_item item = an_update();
    assert_fine(check_adam(item, CAIRN_F16, CAIRN__W_F32_F16));
    item.half = NULL;
    assert_refused(check_adam(item, CAIRN_F16, CAIRN__W_F32_F16));
    assert_refused(check_adam(item, CAIRN_F16, CAIRN__W_F32_BF16));
    assert_fine(check_adam(item, CAIRN_F16, CAIRN__W_F32));
    item.weights = half + 1;
    assert_refused(check_adam(item, CAIRN_F16, CAIRN__W_F32));
    assert_fine(check_adam(item, CAIRN_F16, CAIRN__W_BF16));
}

static void an_update_without_one_of_its_arrays_is_refused(void **state) {
    (void)state;
    struct cairn__optim_item item = an_update();
    item.weights = NULL;
    assert_refused(check_adam(item, CAIRN_F16, CAIRN__W_F32));
    item = an_update(), item.grad = NULL;
    assert_refused(check_adam(item, CAIRN_F16, CAIRN__W_F32));
    item = an_update(), item.missed = NULL;
    assert_refused(check_adam(item, CAIRN_F16, CAIRN__W_F32));
    item = an_update(), item.state[1] = NULL;
    assert_refused(check_adam(item, CAIRN_F16, CAIRN__W_F32));
    assert_fine(cairn__check_optim(&item, 1, CAIRN_F16, CAIRN__W_F32, 1));
}

static void an_update_by_norms_without_its_inputs_is_refused(void **state) {
    (void)state;
    static struct cairn__squares squares;
    const struct cairn__optim_rule lamb = {.kind = CAIRN__OPTIM_LAMB}, novograd = {.kind = CAIRN__OPTIM_NOVOGRAD};
    struct cairn__optim_item item = an_update();
    assert_refused(cairn__check_by_rule(&lamb, &item, 1, CAIRN_F16, CAIRN__W_F32));
    item.squares = &squares;
    assert_fine(cairn__check_by_rule(&lamb, &item, 1, CAIRN_F16, CAIRN__W_F32));
    assert_refused(cairn__check_measure(&lamb, &item, 1, CAIRN_F16, CAIRN__W_F32)); /* there is no direction */
    item.state[2] = g;
    assert_fine(cairn__check_measure(&lamb, &item, 1, CAIRN_F16, CAIRN__W_F32));
    item.squares = (void *)((char *)&squares + 4);
    assert_refused(cairn__check_measure(&lamb, &item, 1, CAIRN_F16, CAIRN__W_F32));
    item.squares = &squares, item.state[1] = NULL;
    assert_fine(cairn__check_measure(&novograd, &item, 1, CAIRN_F16, CAIRN__W_F32));
    assert_refused(cairn__check_by_rule(&novograd, &item, 1, CAIRN_F16, CAIRN__W_F32));
}

static void an_update_of_an_unknown_kind_is_refused(void **state) {
    (void)state;
    const struct cairn__optim_item item = an_update();
    assert_refused(check_adam(item, CAIRN_I32, CAIRN__W_F32));
    assert_refused(check_adam(item, CAIRN_F16, CAIRN__NUM_STORAGE_MODES));
    assert_refused(check_adam(item, CAIRN_F16, (enum cairn__weight_mode) - 1));
    assert_refused(cairn__check_optim(NULL, 1, CAIRN_F16, CAIRN__W_F32, 2));
}

static void an_update_needs_its_rule_its_rate_and_its_state(void **state) {
    (void)state;
    assert_fine(cairn__check_update(&rule, &rates, &optim));
    assert_refused(cairn__check_update(NULL, &rates, &optim));
    assert_refused(cairn__check_update(&rule, NULL, &optim));
    assert_refused(cairn__check_update(&rule, &rates, NULL));
    assert_refused(cairn__check_update(&rule, (void *)((char *)&rates + 4), &optim));
    assert_refused(cairn__check_update(&rule, &rates, (void *)((char *)&optim + 4)));
}

/* An address in place of a number, which a union lets pass, has more bits than a number. */
static void weights_rounded_at_random_have_a_number_in_place_of_a_copy(void **state) {
    (void)state;
    struct cairn__optim_item item = an_update();
    item.weights = half + 1, item.parameter = 0xffffff;
    assert_fine(check_adam(item, CAIRN_F16, CAIRN__W_BF16_STOCHASTIC));
    item.parameter = 0x1000000;
    assert_refused(check_adam(item, CAIRN_F16, CAIRN__W_BF16_STOCHASTIC));
    item.parameter = 0, item.weights = odd(half);
    assert_refused(check_adam(item, CAIRN_F16, CAIRN__W_BF16_STOCHASTIC));
}

static void a_clamp_has_a_limit_and_f32(void **state) {
    (void)state;
    const struct cairn__item item = {.n = 8, .dst = f, .x = g}, halves = {.n = 8, .dst = half + 1, .x = g};
    assert_fine(cairn__check_clamp(&item, 1, 0));
    assert_fine(cairn__check_clamp(NULL, 0, 1));
    assert_refused(cairn__check_clamp(&item, 1, -1));
    assert_refused(cairn__check_clamp(&item, 1, NAN));
    assert_refused(cairn__check_clamp(&halves, 1, 1));
}

static void exponents_are_of_floats_and_need_room_for_each_item(void **state) {
    (void)state;
    static struct cairn__exponent_counts out[2];
    static double x[2];
    const struct cairn__item items[] = {{.n = 1, .x = x}, {.n = 0}};
    assert_fine(cairn__check_count_exponents(items, 2, CAIRN_F64, out));
    assert_fine(cairn__check_count_exponents(items, 2, CAIRN_F16, out));
    assert_refused(cairn__check_count_exponents(items, 2, CAIRN_I32, out));
    assert_refused(cairn__check_count_exponents(items, 2, CAIRN_F32, NULL));
}

static void a_census_needs_room_for_each_item(void **state) {
    (void)state;
    static struct cairn__census out[2];
    const struct cairn__item items[2] = {{.n = 8, .x = f}, {.n = 0}};
    assert_fine(cairn__check_census(items, 2, CAIRN_F32, out));
    assert_fine(cairn__check_census(NULL, 0, CAIRN_F32, NULL));
    assert_refused(cairn__check_census(items, 2, CAIRN_F32, NULL));
    assert_refused(cairn__check_census(items, 2, CAIRN_F32, (void *)((char *)out + 4)));
    assert_refused(cairn__check_census(items, 2, CAIRN_I32, out));
    assert_refused(cairn__check_census(&(struct cairn__item){.n = 8}, 1, CAIRN_F32, out));
}

static void flag_that_is_taken_needs_a_destination(void **state) {
    (void)state;
    static struct cairn__overflow to;
    const struct cairn__taken whole = {.n = 8, .x = half, .dtype = CAIRN_F16, .flag = &flag, .to = &to};
    struct cairn__taken item = whole;
    uint32_t *raises[CAIRN__SHARE_MAX + 1];
    for (int i = 0; i <= CAIRN__SHARE_MAX; i++) raises[i] = &flag;
    assert_fine(cairn__check_take_flags(&item, 1, raises, 1));
    assert_fine(cairn__check_take_flags(NULL, 0, raises, 1));
    assert_refused(cairn__check_take_flags(NULL, 1, raises, 1));
    assert_fine(cairn__check_take_flags(&item, 1, NULL, 0));
    assert_refused(cairn__check_take_flags(&item, 1, NULL, 1));
    assert_fine(cairn__check_take_flags(&item, 1, raises, CAIRN__SHARE_MAX));
    assert_refused(cairn__check_take_flags(&item, 1, raises, CAIRN__SHARE_MAX + 1));
    item.x = NULL;
    assert_fine(cairn__check_take_flags(&item, 1, raises, 1));
    item.x = odd(half);
    assert_refused(cairn__check_take_flags(&item, 1, raises, 1));
    item = whole, item.dtype = CAIRN_I32;
    assert_refused(cairn__check_take_flags(&item, 1, raises, 1));
    item = whole, item.flag = NULL;
    assert_refused(cairn__check_take_flags(&item, 1, raises, 1));
    item = whole, item.to = NULL;
    assert_refused(cairn__check_take_flags(&item, 1, raises, 1));
}

static void flag_is_shared_with_at_most_a_launchs_limit(void **state) {
    (void)state;
    uint32_t *into[CAIRN__SHARE_MAX + 1];
    for (int i = 0; i <= CAIRN__SHARE_MAX; i++) into[i] = &flag;
    assert_fine(cairn__check_share_flag(&flag, into, CAIRN__SHARE_MAX));
    assert_fine(cairn__check_share_flag(&flag, NULL, 0));
    assert_refused(cairn__check_share_flag(&flag, into, CAIRN__SHARE_MAX + 1));
    assert_refused(cairn__check_share_flag(&flag, NULL, 1));
    assert_refused(cairn__check_share_flag(NULL, into, 1));
    into[2] = NULL;
    assert_fine(cairn__check_share_flag(&flag, into, 2));
    assert_refused(cairn__check_share_flag(&flag, into, 3));
}

static void clipping_needs_norms_a_limit_and_a_state(void **state) {
    (void)state;
    static double norms[2], total;
    assert_fine(cairn__check_clip(norms, 2, 0, &optim, &total));
    assert_fine(cairn__check_clip(NULL, 0, 1, &optim, &total));
    assert_refused(cairn__check_clip(NULL, 2, 1, &optim, &total));
    assert_refused(cairn__check_clip(norms, 2, -1, &optim, &total));
    assert_refused(cairn__check_clip(norms, 2, (double)NAN, &optim, &total));
    assert_refused(cairn__check_clip(norms, 2, 1, NULL, &total));
    assert_refused(cairn__check_clip(norms, 2, 1, &optim, NULL));
}

static void a_steps_end_needs_state_overflows_reports_and_room_for_names(void **state) {
    (void)state;
    static struct cairn__overflow overflows[2], names[CAIRN__REPORTS * 2];
    static struct cairn__step_report reports[CAIRN__REPORTS];
    const struct cairn__step_end whole = {
        .optim = &optim, .overflows = overflows, .count = 2, .reports = reports, .names = names};
    struct cairn__step_end end = whole;
    assert_fine(cairn__check_step_end(&end));
    end.names = NULL;
    assert_refused(cairn__check_step_end(&end));
    end = whole, end.overflows = NULL;
    assert_refused(cairn__check_step_end(&end));
    end.names = NULL, end.count = 0;
    assert_fine(cairn__check_step_end(&end));
    end = whole, end.reports = (void *)((char *)reports + 4);
    assert_refused(cairn__check_step_end(&end));
    end = whole, end.optim = NULL;
    assert_refused(cairn__check_step_end(&end));
    end = whole, end.reports = NULL;
    assert_refused(cairn__check_step_end(&end));
    assert_refused(cairn__check_step_end(NULL));
}

static void a_table_of_rates_is_whole(void **state) {
    (void)state;
    static struct cairn__rates of_steps[CAIRN__REPORTS], used[CAIRN__REPORTS];
    static const struct cairn__group_schedule schedules[2];
    const struct cairn__rate_table whole = {of_steps, schedules, used, 2};
    struct cairn__rate_table table = whole;
    assert_fine(cairn__check_rate_table(&table));
    assert_refused(cairn__check_rate_table(NULL));
    table.rates = NULL;
    assert_refused(cairn__check_rate_table(&table));
    table = whole, table.schedules = NULL;
    assert_refused(cairn__check_rate_table(&table));
    table = whole, table.used = (void *)((char *)used + 4);
    assert_refused(cairn__check_rate_table(&table));
    table = (struct cairn__rate_table){0};
    assert_fine(cairn__check_rate_table(&table));
}

static void scalers_of_a_step_are_not_null_and_within_the_limit(void **state) {
    (void)state;
    static struct cairn__scaler_state scaler;
    static struct cairn__step_report reports[CAIRN__REPORTS];
    struct cairn__step_end end = {.optim = &optim, .reports = reports, .num_scalers = CAIRN__STEP_SCALERS};
    for (int i = 0; i < CAIRN__STEP_SCALERS; i++) end.scalers[i] = &scaler;
    assert_fine(cairn__check_step_end(&end));
    end.num_scalers++;
    assert_refused(cairn__check_step_end(&end));
    end.num_scalers = -1;
    assert_refused(cairn__check_step_end(&end));
    end.num_scalers = 2, end.scalers[1] = (void *)((char *)&scaler + 4);
    assert_refused(cairn__check_step_end(&end));
    end.scalers[1] = NULL;
    assert_refused(cairn__check_step_end(&end));
    end.num_scalers = 1;
    assert_fine(cairn__check_step_end(&end));
}

static void pointers_beside_a_list_may_be_null_and_are_aligned(void **state) {
    (void)state;
    static double norms[2];
    const double *misaligned = (const void *)((const char *)norms + 4);
    assert_fine(cairn__check_list(NULL, NULL, NULL, NULL));
    assert_fine(cairn__check_list(f, &flag, norms, norms + 1));
    assert_refused(cairn__check_list(odd(f), &flag, norms, norms));
    assert_refused(cairn__check_list(f, odd(&flag), norms, norms));
    assert_refused(cairn__check_list(f, &flag, misaligned, norms));
    assert_refused(cairn__check_list(f, &flag, norms, misaligned));
}

static void a_stored_value_fits_into_a_launch(void **state) {
    (void)state;
    static char dst[CAIRN__STORE_MAX + 1], value[CAIRN__STORE_MAX + 1];
    assert_fine(cairn__check_store(odd(dst), value, CAIRN__STORE_MAX));
    assert_refused(cairn__check_store(dst, value, CAIRN__STORE_MAX + 1));
    assert_refused(cairn__check_store(NULL, value, 1));
    assert_refused(cairn__check_store(dst, NULL, 1));
    assert_fine(cairn__check_store(NULL, NULL, 0));
}

static void tensors_flags_and_objects_are_checked(void **state) {
    (void)state;
    assert_fine(cairn__check_tensors(CAIRN_F32, 8, (const void *[]){f, g}, 2));
    assert_refused(cairn__check_tensors(CAIRN_F32, 8, (const void *[]){f, NULL}, 2));
    assert_refused(cairn__check_tensors(CAIRN_F32, 8, (const void *[]){f, half + 1}, 2));
    assert_fine(cairn__check_tensors(CAIRN_F32, 0, (const void *[]){f, NULL}, 2));
    assert_refused(cairn__check_tensors(CAIRN_I32, 0, (const void *[]){f, NULL}, 2));
    assert_refused(cairn__check_clear_flags(NULL, 1));
    assert_fine(cairn__check_clear_flags(NULL, 0));
    assert_refused(cairn__check_objects((const void *[]){&missed, NULL}, 2, 8));
    assert_refused(cairn__check_objects((const void *[]){(char *)&missed + 4}, 1, 8));
    assert_fine(cairn__check_objects((const void *[]){&missed}, 1, 8));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(items_with_memory_are_fine),
        cmocka_unit_test(a_table_of_rates_is_whole),
        cmocka_unit_test(empty_items_need_no_memory),
        cmocka_unit_test(null_memory_is_refused_where_it_is_used),
        cmocka_unit_test(last_item_is_checked_too),
        cmocka_unit_test(misaligned_elements_are_refused),
        cmocka_unit_test(types_of_empty_items_are_checked_too),
        cmocka_unit_test(more_elements_than_bytes_are_refused),
        cmocka_unit_test(an_update_accepts_the_inputs_of_its_mode),
        cmocka_unit_test(an_update_without_one_of_its_arrays_is_refused),
        cmocka_unit_test(an_update_by_norms_without_its_inputs_is_refused),
        cmocka_unit_test(an_update_of_an_unknown_kind_is_refused),
        cmocka_unit_test(an_update_needs_its_rule_its_rate_and_its_state),
        cmocka_unit_test(weights_rounded_at_random_have_a_number_in_place_of_a_copy),
        cmocka_unit_test(a_clamp_has_a_limit_and_f32),
        cmocka_unit_test(exponents_are_of_floats_and_need_room_for_each_item),
        cmocka_unit_test(a_census_needs_room_for_each_item),
        cmocka_unit_test(flag_that_is_taken_needs_a_destination),
        cmocka_unit_test(flag_is_shared_with_at_most_a_launchs_limit),
        cmocka_unit_test(clipping_needs_norms_a_limit_and_a_state),
        cmocka_unit_test(a_steps_end_needs_state_overflows_reports_and_room_for_names),
        cmocka_unit_test(scalers_of_a_step_are_not_null_and_within_the_limit),
        cmocka_unit_test(pointers_beside_a_list_may_be_null_and_are_aligned),
        cmocka_unit_test(a_stored_value_fits_into_a_launch),
        cmocka_unit_test(tensors_flags_and_objects_are_checked),
    };
    return cmocka_run_group_tests_name("cuda check", tests, NULL, NULL);
}

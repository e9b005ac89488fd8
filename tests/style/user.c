/* How programs use Cairn's headers besides calls. headers.py compiles this file as C99 and as C++17, with warnings. */
#include <cairn/cairn.h>
#include <string.h>

static void set_threads(int many) {
    if (many) CAIRN_CHECK(cairn_set_num_threads(2));
    else CAIRN_CHECK(cairn_set_num_threads(1));
}

static double rates(void) {
    struct cairn_sgd_options sgd = CAIRN_SGD_OPTIONS_INIT;
    struct cairn_adam_options adam = CAIRN_ADAM_OPTIONS_INIT, adamw = CAIRN_ADAMW_OPTIONS_INIT;
    sgd.lr = 0.1;
    return sgd.lr + adam.lr + adamw.lr;
}

static cairn_switch chosen(void) {
#ifdef __cplusplus
    amp_options amp = {};
    amp.struct_size = sizeof(amp);
    amp.master_weights = CAIRN_ON;
    return amp.master_weights;
#else
    return amp_options(.master_weights = CAIRN_ON)->master_weights;
#endif
}

/* Calls that are macros are functions, too, for those who want an address. */
static cairn_status (*const get)(const cairn_param_set *set, size_t i, cairn_param *out) = cairn_param_set_get;

/* Calls that hand over the size of a struct are macros. */
static cairn_status parameters(cairn_env *env, float *data, amp_context *amp, amp_scaler *scaler) {
    cairn_param_set *set = NULL;
    cairn_param like[1];
    struct amp_overflow overflow;
    struct amp_gradient_report report;
    struct amp_scaler_update_record record;
    size_t found;
    memset(like, 0, sizeof(like));
    like[0].name = "w";
    like[0].data = data;
    like[0].dtype = CAIRN_F32;
    CAIRN_CHECK(cairn_param_set_create(env, like, 1, &set));
    CAIRN_CHECK(cairn_param_set_add(set, &like[0], 1, 0));
#ifndef __cplusplus
    CAIRN_CHECK(cairn_param_set_add(set, &(cairn_param){.name = "v", .data = data, .dtype = CAIRN_F32}, 1, 0));
#endif
    CAIRN_CHECK(cairn_param_set_get(set, 0, like));
    CAIRN_CHECK(get(set, 0, like));
    CAIRN_CHECK(amp_master_params(amp, NULL, like, 1));
    CAIRN_CHECK(amp_last_overflow(amp, NULL, &overflow, 1, &found));
    CAIRN_CHECK(amp_gradient_reports(amp, NULL, &report, 1));
    return amp_scaler_record(scaler, &record, 1);
}

int main(void) {
    set_threads(rates() > 1);
    return chosen() != CAIRN_ON || parameters(NULL, NULL, NULL, NULL) == CAIRN_OK;
}

/* Scalers as text, one field a line: "loss_scaler0.scale 65536". Doubles have 17 digits, which are exact, and a decimal
 * point in every locale. Reading checks everything before it changes anything. */
#include "scaler.h"

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cairn/amp.h"
#include "core/alloc.h"
#include "core/log.h"
#include "core/status.h"
#include "numbers.h"

static const char CALL[] = "amp_load_state_dict";
static const char PREFIX[] = "loss_scaler";

/* apex/amp/frontend.py, state_dict: its names for two of the fields. */
static const struct { const char *apex, *ours; } aliases[] = {{"loss_scale", "scale"}, {"unskipped", "growth_tracker"}};

/* ---- writing ---- */

struct text {
    char *at;
    size_t room, length; /* length of the whole text, even beyond room */
};

static void append(struct text *t, const char *line) {
    const size_t n = strlen(line), left = t->length < t->room ? t->room - t->length : 0;
    if (left) snprintf(t->at + t->length, left, "%s", line);
    t->length += n;
}

static void write_field(struct text *t, size_t id, const struct cairn__scaler_field *f, const void *value) {
    char line[128];
    switch (f->type) {
    case CAIRN__FIELD_DOUBLE:
        snprintf(line, sizeof(line), "%s%zu.%s %.17g\n", PREFIX, id, f->name, *(const double *)value);
        break;
    case CAIRN__FIELD_INT64:
        snprintf(line, sizeof(line), "%s%zu.%s %lld\n", PREFIX, id, f->name, (long long)*(const int64_t *)value);
        break;
    case CAIRN__FIELD_INT:
        snprintf(line, sizeof(line), "%s%zu.%s %d\n", PREFIX, id, f->name, *(const int *)value);
        break;
    }
    append(t, line);
}

static cairn_status write_scaler(struct text *t, size_t id, const amp_scaler *scaler) {
    char line[128];
    struct amp_scaler_state state = AMP_SCALER_STATE_INIT;
    cairn_status st = CAIRN_OK;
    TRY(amp_scaler_get_state(scaler, &state));
    snprintf(line, sizeof(line), "%s%zu.kind %s\n", PREFIX, id, cairn__scaler_kind_name(state.kind));
    append(t, line);
    for (int i = 0; i < CAIRN__SCALER_FIELDS; i++) {
        const struct cairn__scaler_field *f = &cairn__scaler_fields[i];
        if (cairn__scaler_has_field(state.kind, f)) write_field(t, id, f, (const char *)&state + f->offset);
    }
out:
    return st;
}

int cairn__state_write(amp_scaler *const *scalers, size_t count, char *text, size_t nbytes) {
    if (nbytes && !text) {
        (void)cairn__fail(CAIRN_EINVAL, "amp_state_dict: text is NULL, but nbytes is %zu", nbytes);
        return -1;
    }
    cairn_status st = CAIRN_OK;
    struct text t = {text, nbytes, 0};
    const struct cairn__numbers numbers = cairn__numbers_begin();
    for (size_t i = 0; st == CAIRN_OK && i < count; i++) st = write_scaler(&t, i, scalers[i]);
    cairn__numbers_end(&numbers);
    if (!count && nbytes) text[0] = '\0';
    return st == CAIRN_OK ? (int)t.length : -1;
}

/* ---- reading ---- */

struct reading {
    struct amp_scaler_state *states; /* [AMP_MAX_LOSSES] */
    uint64_t seen;                   /* one bit for each scaler */
    int line;
};

/* "apex" */
static bool read_kind(const char *value, amp_scaler_kind *out) {
    const char *name;
    for (int kind = AMP_SCALER_STATIC; (name = cairn__scaler_kind_name((amp_scaler_kind)kind)); kind++) {
        if (strcmp(value, name) != 0) continue;
        *out = (amp_scaler_kind)kind;
        return true;
    }
    return false;
}

/* Reads a number that nothing follows. */
static bool read_value(enum cairn__scaler_field_type type, const char *value, void *out) {
    char *end = NULL;
    errno = 0;
    if (type == CAIRN__FIELD_DOUBLE) {
        *(double *)out = strtod(value, &end); /* infinite if too large, which the check refuses */
        return end != value && !*end;
    }
    const long long number = strtoll(value, &end, 10);
    if (end == value || *end || errno) return false;
    if (type == CAIRN__FIELD_INT64) {
        *(int64_t *)out = number;
    } else {
        *(int *)out = (int)number;
    }
    return type == CAIRN__FIELD_INT64 || (number >= INT_MIN && number <= INT_MAX);
}

static const struct cairn__scaler_field *find_field(const char *name) {
    for (size_t i = 0; i < sizeof(aliases) / sizeof(aliases[0]); i++) {
        if (strcmp(name, aliases[i].apex) == 0) name = aliases[i].ours;
    }
    for (int i = 0; i < CAIRN__SCALER_FIELDS; i++) {
        if (strcmp(name, cairn__scaler_fields[i].name) == 0) return &cairn__scaler_fields[i];
    }
    return NULL;
}

/* Returns 3 for "loss_scaler3.scale", with *name = "scale"; -1 if key has another form. */
static int read_key(const char *key, const char **name) {
    char *end = NULL;
    if (strncmp(key, PREFIX, sizeof(PREFIX) - 1) != 0 || !isdigit((unsigned char)key[sizeof(PREFIX) - 1])) return -1;
    const unsigned long id = strtoul(key + sizeof(PREFIX) - 1, &end, 10);
    if (*end != '.' || id >= AMP_MAX_LOSSES) return -1;
    *name = end + 1;
    return (int)id;
}

/* line: without its newline; split into words in place. */
static cairn_status read_line(struct reading *r, char *line) {
    char where[384];
    char *rest = NULL;
    const char *name = NULL;
    snprintf(where, sizeof(where), "%s: line %d, '%s': ", CALL, r->line, line);
    const char *key = strtok_r(line, " \t\r", &rest);
    if (!key) return CAIRN_OK;
    const char *value = strtok_r(NULL, " \t\r", &rest);
    REQUIRE(value && !strtok_r(NULL, " \t\r", &rest), CAIRN_EINVAL,
            "%sa line must be a key and a value, as in 'loss_scaler0.scale 65536'", where);
    const int id = read_key(key, &name);
    REQUIRE(id >= 0, CAIRN_EINVAL, "%sa key must be as in 'loss_scaler0.scale', with a number from 0 to %d", where,
            AMP_MAX_LOSSES - 1);
    r->seen |= UINT64_C(1) << id;
    struct amp_scaler_state *state = &r->states[id];
    if (strcmp(name, "kind") == 0) {
        REQUIRE(read_kind(value, &state->kind), CAIRN_EINVAL,
                "%sthe kind must be static, apex, torch, deepspeed, megatron, user, logmax or histogram", where);
        return CAIRN_OK;
    }
    const struct cairn__scaler_field *f = find_field(name);
    REQUIRE(f, CAIRN_EINVAL, "%sa loss scaler has no field '%s'", where, name);
    REQUIRE(read_value(f->type, value, (char *)state + f->offset), CAIRN_EINVAL, "%s'%s' is not %s", where, value,
            f->type == CAIRN__FIELD_DOUBLE ? "a number" : "an integer in range");
    return cairn__scaler_check_field(f, state, where);
}

/* Errors quote the line, which must be safe to print on a terminal. */
static bool is_text(const char *line, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if ((line[i] < ' ' && line[i] != '\t' && line[i] != '\r') || line[i] > '~') return false;
    }
    return true;
}

static cairn_status read_lines(struct reading *r, const char *text) {
    cairn_status st = CAIRN_OK;
    while (*text) {
        char line[256];
        const size_t n = strcspn(text, "\n");
        r->line++;
        REQUIRE(n < sizeof(line), CAIRN_EINVAL,
                "%s: line %d has %zu characters; the lines of a state have fewer than %zu", CALL, r->line, n,
                sizeof(line));
        REQUIRE(is_text(text, n), CAIRN_EINVAL,
                "%s: line %d has bytes that are not printable ASCII; a state is plain text", CALL, r->line);
        memcpy(line, text, n);
        line[n] = '\0';
        TRY(read_line(r, line));
        text += n + (text[n] == '\n');
    }
out:
    return st;
}

static void warn_of_numbers(const struct reading *r, size_t count) {
    const uint64_t all = count < 64 ? (UINT64_C(1) << count) - 1 : UINT64_MAX;
    if (r->seen == all) return;
    cairn__log(CAIRN_LOG_WARNING,
               "%s: the state has %d loss scalers, but the context has %zu; those in both are loaded, and the others "
               "are unchanged",
               CALL, __builtin_popcountll(r->seen), count);
}

cairn_status cairn__state_read(amp_scaler *const *scalers, size_t count, const char *text) {
    REQUIRE(text, CAIRN_EINVAL, "%s: text is NULL", CALL);
    cairn_status st = CAIRN_OK;
    struct reading r = {0};
    struct cairn__scaler_state *next = NULL;
    const struct cairn__numbers numbers = cairn__numbers_begin();
    TRY(cairn__calloc(AMP_MAX_LOSSES, sizeof(r.states[0]), (void **)&r.states));
    TRY(cairn__calloc(AMP_MAX_LOSSES, sizeof(next[0]), (void **)&next));
    for (size_t i = 0; i < count; i++) {
        TRY(cairn__scaler_synchronize(scalers[i], "amp_load_state_dict: "));
        r.states[i] = (struct amp_scaler_state)AMP_SCALER_STATE_INIT;
        TRY(amp_scaler_get_state(scalers[i], &r.states[i]));
    }
    TRY(read_lines(&r, text));
    /* Fields that are valid alone may contradict each other. */
    for (size_t i = 0; i < count; i++) {
        char where[64];
        snprintf(where, sizeof(where), "%s: %s%zu: ", CALL, PREFIX, i);
        TRY(cairn__scaler_state_take(&r.states[i], where, &next[i]));
        TRY(cairn__scaler_check_kind(scalers[i], r.states[i].kind, where));
    }
    warn_of_numbers(&r, count);
    for (size_t i = 0; i < count; i++) {
        if (r.seen >> i & 1) cairn__scaler_put(scalers[i], &next[i]);
    }
out:
    cairn__numbers_end(&numbers);
    cairn__free(r.states);
    cairn__free(next);
    return st;
}

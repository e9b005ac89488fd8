/* Schedules.
 *
 * A schedule is a list of forwards, a list of backwards, and the number of forwards before the first backward; from
 * there on they alternate. Interleaved schedules divide the micro-batches into rounds of about as many as there are
 * ranks. All micro-batches of a round pass the first chunk, then all pass the second, so the last rank's output of a
 * chunk arrives at the first rank when that rank reaches the next chunk. Backwards pass the chunks in reverse. A round
 * is never smaller than the number of ranks, if there are that many micro-batches: otherwise a rank would wait for an
 * output that comes after its own next one. */
#include "parallel/plan.h"

/* Rounds of `size` micro-batches; the first `larger` rounds have one more. */
struct rounds {
    int size, larger;
};

/* The k-th forward (or backward) of a rank. */
static struct cairn__action nth(bool is_backward, struct rounds rounds, int chunks, int k) {
    const int in_larger = rounds.larger * (rounds.size + 1) * chunks;
    const int size = k < in_larger ? rounds.size + 1 : rounds.size, from = k < in_larger ? 0 : in_larger;
    const int round = (k - from) / (size * chunks), in_round = (k - from) % (size * chunks), chunk = in_round / size;
    return (struct cairn__action){.is_backward = is_backward,
                                  .chunk = is_backward ? chunks - 1 - chunk : chunk,
                                  .micro_batch = from / chunks + round * size + in_round % size};
}

void cairn__pipeline_plan(cairn_pipeline_schedule schedule, int rank, int ranks, int chunks, int micro_batches,
                          struct cairn__action *out) {
    const int total = chunks * micro_batches;
    if (total == 0) return;
    const int count = micro_batches < ranks ? 1 : micro_batches / ranks;
    const struct rounds rounds = {micro_batches / count, micro_batches % count};
    const int largest = rounds.size + (rounds.larger > 0);
    int ahead = total;
    if (schedule == CAIRN_PIPELINE_1F1B) ahead = ranks - rank - 1;
    if (schedule == CAIRN_PIPELINE_INTERLEAVED_1F1B) ahead = 2 * (ranks - rank - 1) + (chunks - 1) * largest;
    if (ahead > total) ahead = total;
    for (int k = 0; k < total + ahead; k++) {
        if (k < total) *out++ = nth(false, rounds, chunks, k);
        if (k >= ahead) *out++ = nth(true, rounds, chunks, k - ahead);
    }
}

int cairn__pipeline_plan_in_flight(const struct cairn__action *actions, size_t count) {
    int now = 0, most = 0;
    for (size_t i = 0; i < count; i++) {
        now += actions[i].is_backward ? -1 : 1;
        if (now > most) most = now;
    }
    return most;
}

int cairn__pipeline_slots(cairn_pipeline_schedule schedule, int ranks) {
    return schedule == CAIRN_PIPELINE_INTERLEAVED_1F1B && ranks > 3 ? ranks / 2 + 1 : 2;
}

/* Grids: each row of ranks is a replica, each column one stage of all replicas. */
#include "core/alloc.h"
#include "core/log.h"
#include "parallel/pipeline.h"

struct cairn_grid {
    cairn_group *stages, *replicas;
    int rank, stage, replica;
};

_Static_assert((int)CAIRN__LOG_PLACES >= (int)CAIRN__MAX_RANKS, "every rank has a place in the log");

static cairn_status check(const cairn_env *env, int *replicas, int *stages) {
    const int ranks = cairn_env_size(env);
    REQUIRE(*replicas >= 0 && *stages >= 0 && *replicas + *stages > 0, CAIRN_EINVAL,
            "cairn_grid_create: replicas is %d and stages is %d; one of them must be above 0", *replicas, *stages);
    if (*replicas == 0) *replicas = ranks / *stages;
    if (*stages == 0) *stages = ranks / *replicas;
    REQUIRE((int64_t)*replicas * *stages == ranks, CAIRN_EINVAL,
            "cairn_grid_create: %d replicas of %d stages are not the %d ranks of the environment", *replicas, *stages,
            ranks);
    return CAIRN_OK;
}

cairn_status cairn_grid_create(cairn_env *env, int replicas, int stages, cairn_grid **out) {
    REQUIRE(env && out, CAIRN_EINVAL, "cairn_grid_create: env and out must be set");
    cairn_status st = CAIRN_OK;
    cairn_group *all = cairn_env_group(env);
    cairn_grid *grid = NULL;
    st = check(env, &replicas, &stages);
    if (st == CAIRN_OK) st = cairn__calloc(1, sizeof(*grid), (void **)&grid);
    TRY(cairn__group_agree_on_status(all, "cairn_grid_create", st));
    grid->rank = cairn_env_rank(env);
    grid->stage = grid->rank % stages;
    grid->replica = grid->rank / stages;
    TRY(cairn_group_split(all, grid->replica, grid->stage, NULL, &grid->stages));
    TRY(cairn_group_split(all, grid->stage, grid->replica, NULL, &grid->replicas));
    cairn__log_enter_place(grid->rank, grid->replica, grid->stage);
    if (grid->rank == 0) cairn__log(CAIRN_LOG_INFO, "grid: replicas %d, stages %d", replicas, stages);
    *out = grid;
    return CAIRN_OK;
out:
    cairn_grid_destroy(&grid);
    return st;
}

void cairn_grid_destroy(cairn_grid **grid) {
    if (!grid || !*grid) return;
    cairn__log_leave_place((*grid)->rank, (*grid)->replica, (*grid)->stage);
    cairn_group_destroy(&(*grid)->replicas);
    cairn_group_destroy(&(*grid)->stages);
    cairn__free(*grid);
    *grid = NULL;
}

cairn_group *cairn_grid_stages(const cairn_grid *grid) {
    return grid ? grid->stages : NULL;
}

cairn_group *cairn_grid_replicas(const cairn_grid *grid) {
    return grid ? grid->replicas : NULL;
}

int cairn_grid_stage(const cairn_grid *grid) {
    return grid ? grid->stage : 0;
}

int cairn_grid_replica(const cairn_grid *grid) {
    return grid ? grid->replica : 0;
}

/* Notes: when a group dies on a rank, the rank writes into the store which call it was in and its error, and reads the
 * notes of the others, so that the error names the ranks that are missing and the calls that the others were in. For
 * backends whose ranks cannot see each other. */
#ifndef CAIRN__COMM_NOTES_H
#define CAIRN__COMM_NOTES_H

#include "comm/group_backend.h"

/* status is CAIRN_EPEER or CAIRN_ETIMEOUT, and the last error its sentence. Waits up to a second for the others' notes
 * (the first rank to notice finds none); the environment's rank 0 waits half a second longer, because the store may end
 * with it. Then sets the last error to the sentence with what the notes add: "...; rank 1 was in broadcast number 5 of
 * 3 f32 from rank 0; rank 2 reported nothing: it ended, is stopped, or is not in a call of this group". If the store is
 * gone, too, the message names the rank that hosts it; without a store the sentence is unchanged. Always returns
 * status. */
cairn_status cairn__notes_exchange(cairn_group *group, const struct cairn__call *call, cairn_status status);

#endif

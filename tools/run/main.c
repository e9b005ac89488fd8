/* cairn-run: starts the ranks of a program on one node or several, hosts the store where they meet, restarts them, and
 * ends them together. It replaces `torchrun` and, under the name cairn-launch, `python -m torch.distributed.launch`.
 *
 *   options     the command line                   rendezvous  the nodes of a run, and news of the others
 *   agent       the loop: one node's part          host        the node that hosts the store, and numbers the others
 *   ranks       processes, from start to reaping   worker      a rank's arguments and environment
 *   report      messages about failures            logs        the ranks' output
 *   secret      authenticates nodes and ranks */
#include "agent.h"
#include "options.h"
#include "secret.h"
#include "text.h"

enum { EXIT_USAGE = 2 };

int main(int argc, char **argv) {
    struct options o;
    sigset_t old_mask;
    (void)argc;
    agent_hold_signals(&old_mask);
    hold_standard_streams();
    int code = EXIT_USAGE;
    if (options_parse(&o, argv))
        code = o.new_secret ? secret_make(&o) : secret_open(&o) ? agent_run(&o, &old_mask) : EXIT_USAGE;
    secret_close(&o);
    options_free(&o);
    return code;
}

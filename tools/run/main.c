/* cairn-run: starts the ranks of a program on one node or several, hosts the store where they meet, starts them
 * again, and ends them together. It stands in for `torchrun` and, called cairn-launch, for
 * `python -m torch.distributed.launch`.
 *
 *   options     what was asked for                 rendezvous  who the nodes are, and what happens on the others
 *   agent       the loop: one node's part          host        the node that hosts the store, and numbers the others
 *   ranks       processes, from start to reaping   worker      what a rank is told
 *   report      what is said of failures           logs        where output goes */
#include "agent.h"
#include "options.h"
#include "text.h"

enum { EXIT_USAGE = 2 };

int main(int argc, char **argv) {
    struct options o;
    (void)argc;
    hold_standard_streams();
    int code = options_parse(&o, argv) ? agent_run(&o) : EXIT_USAGE;
    options_free(&o);
    return code;
}

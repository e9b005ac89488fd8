/* cairn-plan pipeline: how long a step of a pipeline takes, and how its batch is best cut. */
#ifndef PLAN_PIPELINE_H
#define PLAN_PIPELINE_H

/* Of the words behind "pipeline", of which argv[0] is not looked at; returns main's exit code. */
int pipeline_main(int argc, char **argv);

#endif

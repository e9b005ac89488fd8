/* cairn-plan pipeline: predicts the time of a pipeline's step and the best number of micro-batches. */
#ifndef PLAN_PIPELINE_H
#define PLAN_PIPELINE_H

/* Runs the command with the arguments after "pipeline"; argv[0] is ignored. Returns main's exit code. */
int pipeline_main(int argc, char **argv);

#endif

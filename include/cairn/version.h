/* Cairn's version: the one place that says it; meson reads these three lines.
 *
 * 0.8.0  structs that grow, a version at run time, names for good; sums whose error does not grow with their length;
 *        frozen parameters, groups by rule, schedules, metrics; weights files, checkpoints, restarts
 * 0.7.0  data parallelism whole: every mode of torch's and apex's, own buffers, SyncBatchNorm, samplers, cairn-plan
 * 0.6.0  groups over shared memory, MPI, gloo and NCCL; more collectives, messages, groups made from groups
 * 0.5.0  started by torchrun, mpirun, srun, cairn-run on several machines, or cairn_spawn; stores that speak torch's
 *        protocol
 * 0.4.0  amp whole: types by scope, five scalers, many models and losses, trainers with buffers of their own
 * 0.3.0  tensors with views, the operations of BERT and ResNet, modules to build with: on the CPU
 * 0.2.0  one NVIDIA GPU: a step without the host, graphs, streams of the user's
 * 0.1.0  the quick start: linear regression at O0-O3 on the CPU, several ranks on one machine
 */
#ifndef CAIRN_VERSION_H
#define CAIRN_VERSION_H

#define CAIRN_VERSION_MAJOR 0
#define CAIRN_VERSION_MINOR 8
#define CAIRN_VERSION_PATCH 0

/* A version as a number that grows with it, for #if, too. */
#define CAIRN_VERSION_NUMBER(major, minor, patch) ((major)*10000 + (minor)*100 + (patch))

/* That of these headers. Of the library that runs: cairn_version (core.h). */
#define CAIRN_VERSION CAIRN_VERSION_NUMBER(CAIRN_VERSION_MAJOR, CAIRN_VERSION_MINOR, CAIRN_VERSION_PATCH)

#endif

/* Cairn: mixed precision, loss scaling and data parallelism for training neural networks in C. All public headers
 * but those that go between Cairn and another library (interop_cuda.h). */
#ifndef CAIRN_CAIRN_H
#define CAIRN_CAIRN_H

#include "version.h"
#include "core.h"
#include "device.h"
#include "param.h"
#include "data.h"
#include "npy.h"
#include "dist.h"
#include "store.h"
#include "env.h"
#include "graph.h"
#include "nn.h"
#include "optim.h"
#include "schedule.h"
#include "state.h"
#include "stateful.h"
#include "weights.h"
#include "multi_tensor.h"
#include "param_groups.h"
#include "autocast.h"
#include "scaler.h"
#include "amp.h"
#include "ddp.h"
#include "ddp_logging.h"
#include "sync_batch_norm.h"
#include "metrics.h"
#include "loader.h"
#include "datasets.h"
#include "progress.h"
#include "observe.h"
#include "pictures.h"
#include "pipeline.h"
#include "data_parallel.h"

#endif

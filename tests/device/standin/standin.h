/* Shared by the parts of the stand-in for CUDA. They form one library, libcairn_standin.so; a second build of the CUDA
 * module is linked with it instead of NVIDIA's libraries:
 *
 *   kernel.h, kernel.cc   the device language: blocks, threads, barriers, shuffles
 *   runtime.cc            libcudart: streams whose work waits in queues, events, graphs, errors
 *   memory.cc             device memory that the host cannot touch, and what surrounds an allocation
 *   product.cc            libcublasLt: a plain product, for what is asked of it
 *   cudnn.cc              libcudnn: plain convolutions
 *   nccl.cc               libnccl: ranks are threads, with a GPU each
 *
 * Environment variables control it:
 *   CAIRN_STANDIN_ORDER    forward (default), backward, or a seed: of blocks and threads
 *   CAIRN_STANDIN_LAZY     1 (default): work runs when it is waited for, or when a thousand items are queued; 0:
 *                          at once
 *   CAIRN_STANDIN_HOLD     1: a stream that waits for another stream blocks the host, too; 0 (default): it does not.
 *                          With LAZY and PROTECT 0, a program may then access device memory from the host
 *   CAIRN_STANDIN_PROTECT  1 (default): the process aborts with a message if the host touches device memory or a kernel
 *                          touches another GPU's; 0: such accesses are allowed
 *   CAIRN_STANDIN_MEMORY   bytes of device memory (2 GiB)
 *   CAIRN_STANDIN_GPUS     number of GPUs (1)
 *   CAIRN_STANDIN_DRIVER   none, old: cudart reports that there is no driver, or that it is too old
 *   CAIRN_STANDIN_CC       compute capability (90)
 *   CAIRN_STANDIN_FAIL     N: the N-th operation of the device is an illegal access; from then on every call fails
 *   CAIRN_STANDIN_CUDNN    old, none: its version is too old, it does not start; refuse, refuse-late, fail: it refuses
 *                          every convolution when that is planned or started, or fails
 *   CAIRN_STANDIN_CUDNN_WORKSPACE  bytes of workspace that each convolution needs (4096)
 *   CAIRN_STANDIN_NCCL_FAIL, _HANG   N: rank 1's N-th collective of a communicator ends in an asynchronous error, or
 *                                    never ends
 */
#ifndef STANDIN_H
#define STANDIN_H

#include <cuda_runtime_api.h>

#include <functional>
#include <memory>
#include <string>

/* Returns the number in an environment variable, or `otherwise` if it is unset. */
long long standin_env(const char *name, long long otherwise);

/* Prints what the program did wrong, as printf, and aborts. */
[[noreturn]] void standin_die(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* ---- kernel.cc ---- */

std::string standin_kernel_name(const void *kernel);

/* Runs a launch now; device memory must be accessible. */
void standin_run_kernel(const void *kernel, size_t blocks, int threads, const std::function<void()> &thread);

/* ---- memory.cc ---- */

enum { STANDIN_GPUS = 64, STANDIN_EVERY_GPU = -1 };

/* While an object of this type lives, host code may access the memory of a GPU. `what` names the work in the message if
 * it accesses other memory. */
class standin_open {
  public:
    explicit standin_open(const std::string &what, int gpu = STANDIN_EVERY_GPU);
    ~standin_open();

  private:
    std::string before;
    int gpu;
};

/* Whether [p, p + nbytes) is within one allocation. */
bool standin_is_device(const void *p, size_t nbytes);
bool standin_is_pinned(const void *p, size_t nbytes);
/* Whether p is in the address range of device memory, allocated or not. */
bool standin_in_range(const void *p);

/* Returns NULL if out of memory. */
void *standin_device_alloc(size_t nbytes, int gpu);
/* Returns the GPU whose memory contains p, or -1. */
int standin_owner(const void *p);
bool standin_device_free(void *p); /* false = p is not an allocation */
void *standin_pinned_alloc(size_t nbytes);
bool standin_pinned_free(void *p);
void standin_memory_info(size_t *free_bytes, size_t *total_bytes);

/* ---- runtime.cc ---- */

/* Queues work on the device. name: for reports. */
cudaError_t standin_queue(cudaStream_t stream, std::string name, std::function<void()> work);

/* The same for work that waits for other streams or ranks: it runs once ready() returns true, which is polled. kept:
 * lives as long as a graph that captured the item. */
cudaError_t standin_queue_when(cudaStream_t stream, std::string name, std::function<bool()> ready,
                               std::function<void()> work, std::shared_ptr<void> kept);

/* Returns error and makes cudaGetLastError return it next. */
cudaError_t standin_error(cudaError_t error);

/* The lock of the whole runtime, held while ready and work run. */
class standin_guard {
  public:
    standin_guard();
    ~standin_guard();
    void let_go(); /* releases the lock for a moment */
};

/* Returns the number of calls so far that wait for the device, or may wait. */
extern "C" unsigned long long standin_waits(void);

/* Counts of queued work so far, by name: kernels, "a product", "a copy", "a memset", ... Captured work counts when its
 * graph is launched. */
extern "C" void standin_queued(void (*each)(void *ctx, const char *name, unsigned long long count), void *ctx);

#endif

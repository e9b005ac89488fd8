/* Tests the stand-in itself, with correct kernels and with kernels that make the mistakes it must detect. Cases that
 * abort run in a child process: this program with the name of a case. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
extern "C" {
#include <cmocka.h>
}

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <string>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

#include "standin/kernel.h"
#include "standin/standin.h"

/* ---- kernels; outside of the namespace, so that reports can name them ---- */

__device__ float warp_sum(float x) {
    for (unsigned delta = 16; delta > 0; delta /= 2) x += __shfl_down_sync(~0u, x, delta);
    return x;
}

/* Every block's sum of 256 numbers. */
__global__ void block_sums(float *out, const float *in) {
    __shared__ float warps[8];
    const float sum = warp_sum(in[blockIdx.x * blockDim.x + threadIdx.x]);
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = sum;
    __syncthreads();
    if (threadIdx.x != 0) return;
    float total = 0;
    for (float w : warps) total += w;
    out[blockIdx.x] = total;
}

/* A thread's neighbour, with the barrier left out: it is there in one order only. */
__global__ void without_barrier(int *out) {
    __shared__ int all[64];
    all[threadIdx.x] = (int)threadIdx.x;
    out[threadIdx.x] = all[threadIdx.x ^ 1];
}

__global__ void half_a_barrier(int *out) {
    if (threadIdx.x < 32) __syncthreads();
    *out = 1;
}

__global__ void half_a_shuffle(int *out) {
    if (threadIdx.x % 2) return;
    *out = __shfl_xor_sync(~0u, 1, 1);
}

__global__ void votes(int *out, int whose) {
    out[threadIdx.x] = __syncthreads_or((int)threadIdx.x == whose);
}

__global__ void exchange(double *out) {
    out[threadIdx.x] = __shfl_xor_sync(~0u, (double)threadIdx.x, 3);
}

__global__ void count(unsigned *counter) {
    atomicAdd(counter, 1u);
}

__global__ void write_at(char *p, long offset) {
    p[offset] = 1;
}

namespace {

cudaStream_t stream;

/* ---- help ---- */

template <class T> T *device_memory(size_t n) {
    void *p = NULL;
    assert_int_equal(cudaMalloc(&p, n * sizeof(T)), cudaSuccess);
    return (T *)p;
}

template <class T> std::vector<T> download(const T *p, size_t n) {
    std::vector<T> host(n);
    assert_int_equal(cudaMemcpyAsync(host.data(), p, n * sizeof(T), cudaMemcpyDeviceToHost, stream), cudaSuccess);
    return host;
}

int make_stream(void **) {
    return cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
}

int drop_stream(void **) {
    return cudaStreamDestroy(stream);
}

/* What this program says, and how it ends, when it is called with a case and an environment. */
struct ending {
    int signal, code;
    std::string said;
};

ending end_of(const std::string &name, const std::string &environment = "") {
    char self[4096] = "";
    if (readlink("/proc/self/exe", self, sizeof(self) - 1) < 0) fail();
    FILE *f = popen((environment + " exec " + self + " " + name + " 2>&1").c_str(), "r");
    assert_non_null(f);
    ending e = {};
    char text[512];
    while (fgets(text, sizeof(text), f)) e.said += text;
    const int status = pclose(f);
    e.signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    e.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    return e;
}

void assert_dies_saying(const std::string &name, const char *words) {
    const ending e = end_of(name);
    if (e.signal == 0 || e.said.find(words) == std::string::npos) {
        fail_msg("%s: signal %d, code %d, said: %s", name.c_str(), e.signal, e.code, e.said.c_str());
    }
}

/* ---- cases of processes ---- */

int run_case(const std::string &name) {
    make_stream(NULL);
    char *p = device_memory<char>(100);
    if (name == "race") {
        int *out = device_memory<int>(64);
        cairn__launch(without_barrier, 1, 64, stream, out);
        for (int value : download(out, 64)) printf("%d ", value);
    }
    if (name == "half-barrier") cairn__launch(half_a_barrier, 1, 64, stream, (int *)p);
    if (name == "half-shuffle") cairn__launch(half_a_shuffle, 1, 64, stream, (int *)p);
    if (name == "host-write") p[7] = 1;
    if (name == "past-a-page") cairn__launch(write_at, 1, 1, stream, p, 5000l);
    if (name == "past-the-end") cairn__launch(write_at, 1, 1, stream, p, 100l);
    if (name == "before-it") cairn__launch(write_at, 1, 1, stream, p, -1l);
    if (name == "on-another-gpu") {
        char *q;
        cudaSetDevice(1), cudaMalloc((void **)&q, 100), cudaSetDevice(0);
        cudaMemcpyAsync(q, p, 100, cudaMemcpyDeviceToDevice, stream); /* which may */
        cudaStreamSynchronize(stream);
        cairn__launch(write_at, 1, 1, stream, q, 0l);
    }
    if (name == "after-free") cudaFree(p), cairn__launch(write_at, 1, 1, stream, p, 0l);
    if (name == "gpus") {
        int n, version;
        const cudaError_t error = cudaGetDeviceCount(&n);
        cudaDriverGetVersion(&version);
        printf("%d GPUs, %s, driver %d", n, cudaGetErrorName(error), version);
    }
    if (name == "failure") {
        cairn__launch(write_at, 1, 1, stream, p, 0l);
        const cudaError_t first = cudaStreamSynchronize(stream);
        printf("%s %s", cudaGetErrorName(first), cudaGetErrorName(cudaMemsetAsync(p, 0, 1, stream)));
    }
    cudaDeviceSynchronize();
    return 0;
}

/* ---- tests ---- */

void blocks_sum_with_shuffles_and_shared_memory(void **) {
    enum { BLOCKS = 5 };
    std::vector<float> in(BLOCKS * 256);
    for (size_t i = 0; i < in.size(); i++) in[i] = (float)(i % 100);
    float *x = device_memory<float>(in.size()), *out = device_memory<float>(BLOCKS);
    cudaMemcpyAsync(x, in.data(), in.size() * 4, cudaMemcpyHostToDevice, stream);
    assert_int_equal(cairn__launch(block_sums, BLOCKS, 256, stream, out, x), cudaSuccess);
    const std::vector<float> got = download(out, BLOCKS);
    for (int b = 0; b < BLOCKS; b++) {
        float want = 0;
        for (int i = 0; i < 256; i++) want += in[(size_t)(b * 256 + i)];
        assert_true(got[(size_t)b] == want);
    }
    cudaFree(x), cudaFree(out);
}

void barriers_vote_and_shuffles_exchange(void **) {
    int *out = device_memory<int>(100);
    cairn__launch(votes, 1, 100, stream, out, 77);
    for (int vote : download(out, 100)) assert_int_equal(vote, 1);
    cairn__launch(votes, 1, 100, stream, out, 100);
    for (int vote : download(out, 100)) assert_int_equal(vote, 0);
    double *x = device_memory<double>(64);
    cairn__launch(exchange, 1, 64, stream, x);
    const std::vector<double> got = download(x, 64);
    for (size_t i = 0; i < 64; i++) assert_true(got[i] == (double)(i ^ 3));
    cudaFree(out), cudaFree(x);
}

void missing_barrier_shows_in_the_order(void **) {
    const std::string forward = end_of("race", "CAIRN_STANDIN_ORDER=forward").said;
    const std::string backward = end_of("race", "CAIRN_STANDIN_ORDER=backward").said;
    const std::string shuffled = end_of("race", "CAIRN_STANDIN_ORDER=3").said;
    assert_true(forward != backward && forward != shuffled && backward != shuffled);
    assert_true(shuffled == end_of("race", "CAIRN_STANDIN_ORDER=3").said);
}

void threads_that_do_not_meet_end_the_process(void **) {
    assert_dies_saying("half-barrier",
                       "half_a_barrier(int*), block 0: threads wait for others that do not come; 32 of 64");
    assert_dies_saying("half-shuffle", "waits at a shuffle in half_a_shuffle");
}

void memory_of_the_device_is_not_the_hosts(void **) {
    assert_dies_saying("host-write", "host code touched");
    assert_int_equal(end_of("host-write", "CAIRN_STANDIN_PROTECT=0").code, 0);
}

void memory_out_of_bounds_is_found(void **) {
    assert_dies_saying("past-a-page", "write_at(char*, long) touched");
    assert_dies_saying("past-the-end", "something wrote to byte 100 of an allocation of 100");
    assert_dies_saying("before-it", "something wrote to byte -1 of an allocation of 100");
    assert_dies_saying("after-free", "which is not the device's");
}

void a_kernel_reaches_its_own_gpu_alone(void **) {
    const ending e = end_of("on-another-gpu", "CAIRN_STANDIN_GPUS=2");
    assert_true(e.signal != 0);
    assert_non_null(strstr(e.said.c_str(), "write_at(char*, long) touched"));
    assert_non_null(strstr(e.said.c_str(), "which is memory of GPU 1"));
    assert_int_equal(end_of("on-another-gpu", "CAIRN_STANDIN_GPUS=2 CAIRN_STANDIN_PROTECT=0").code, 0);
}

void fresh_memory_is_not_a_number(void **) {
    float *x = device_memory<float>(3);
    for (float value : download(x, 3)) assert_true(value != value);
    cudaFree(x);
}

int count_mappings() {
    int n = 0;
    FILE *f = fopen("/proc/self/maps", "r");
    assert_non_null(f);
    for (int c; (c = fgetc(f)) != EOF;) n += c == '\n';
    fclose(f);
    return n;
}

void freed_memory_takes_no_mappings(void **) {
    const int before = count_mappings();
    for (int i = 0; i < 20; i++) cudaFree(device_memory<char>(20 << 20));
    assert_in_range(count_mappings(), 1, before + 20);
}

void work_waits_for_somebody_who_waits(void **) {
    unsigned *pinned;
    assert_int_equal(cudaHostAlloc((void **)&pinned, 4, cudaHostAllocMapped), cudaSuccess);
    *pinned = 0;
    cairn__launch(count, 1, 10, stream, pinned);
    const bool lazy = standin_env("CAIRN_STANDIN_LAZY", 1) != 0;
    assert_int_equal(*pinned, lazy ? 0 : 10);
    const unsigned long long waits = standin_waits();
    cudaStreamSynchronize(stream);
    assert_int_equal(standin_waits(), waits + 1);
    assert_int_equal(*pinned, 10);
    cudaFreeHost(pinned);
}

void a_stream_waits_for_anothers_event(void **) {
    cudaStream_t other;
    cudaEvent_t event;
    cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking);
    cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
    unsigned *x = device_memory<unsigned>(1);
    cudaMemsetAsync(x, 0, 4, other);
    cairn__launch(count, 3, 1, other, x);
    cudaEventRecord(event, other);
    cudaStreamWaitEvent(stream, event, 0);
    assert_int_equal(download(x, 1)[0], 3);
    assert_int_equal(cudaEventQuery(event), cudaSuccess);
    cudaEventDestroy(event), cudaStreamDestroy(other), cudaFree(x);
}

void uploads_read_the_host_at_once(void **) {
    int *x = device_memory<int>(1), value = 5;
    cudaMemcpyAsync(x, &value, 4, cudaMemcpyHostToDevice, stream);
    value = 6;
    assert_int_equal(download(x, 1)[0], 5);
    cudaFree(x);
}

void graphs_run_what_was_recorded(void **) {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    unsigned *x = device_memory<unsigned>(1);
    cudaMemsetAsync(x, 0, 4, stream);
    assert_int_equal(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    cairn__launch(count, 2, 2, stream, x);
    assert_int_equal(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    assert_int_equal(download(x, 1)[0], 0);
    cudaGraphInstantiate(&exec, graph, 0);
    for (int i = 0; i < 3; i++) cudaGraphLaunch(exec, stream);
    assert_int_equal(download(x, 1)[0], 12);
    cudaGraphDestroy(graph), cudaGraphExecDestroy(exec), cudaFree(x);
}

void captures_break_where_they_do_on_a_gpu(void **) {
    cudaGraph_t graph;
    void *p = NULL;
    assert_int_equal(cudaStreamBeginCapture(NULL, cudaStreamCaptureModeThreadLocal), cudaErrorStreamCaptureUnsupported);
    cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
    assert_int_equal(cudaMalloc(&p, 4), cudaErrorStreamCaptureUnsupported);
    assert_int_equal(cairn__launch(count, 1, 1, stream, (unsigned *)NULL), cudaErrorStreamCaptureInvalidated);
    assert_int_equal(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureInvalidated);
    assert_null(graph);
    assert_int_equal(cudaGetLastError(), cudaErrorStreamCaptureInvalidated);
    assert_int_equal(cudaGetLastError(), cudaSuccess);
}

void faults_come_on_demand(void **) {
    void *p;
    assert_int_equal(cudaMalloc(&p, 3ull << 30), cudaErrorMemoryAllocation);
    assert_non_null(strstr(end_of("gpus", "CAIRN_STANDIN_GPUS=2").said.c_str(), "2 GPUs, cudaSuccess"));
    assert_int_equal(
        end_of("failure", "CAIRN_STANDIN_FAIL=1").said.find("cudaErrorIllegalAddress cudaErrorIllegalAddress"), 0);
    assert_int_equal(end_of("failure").said.find("cudaSuccess cudaSuccess"), 0);
}

} // namespace

int main(int argc, char **argv) {
    if (argc > 1) return run_case(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_sum_with_shuffles_and_shared_memory),
        cmocka_unit_test(barriers_vote_and_shuffles_exchange),
        cmocka_unit_test(missing_barrier_shows_in_the_order),
        cmocka_unit_test(threads_that_do_not_meet_end_the_process),
        cmocka_unit_test(memory_of_the_device_is_not_the_hosts),
        cmocka_unit_test(memory_out_of_bounds_is_found),
        cmocka_unit_test(a_kernel_reaches_its_own_gpu_alone),
        cmocka_unit_test(fresh_memory_is_not_a_number),
        cmocka_unit_test(freed_memory_takes_no_mappings),
        cmocka_unit_test(work_waits_for_somebody_who_waits),
        cmocka_unit_test(a_stream_waits_for_anothers_event),
        cmocka_unit_test(uploads_read_the_host_at_once),
        cmocka_unit_test(graphs_run_what_was_recorded),
        cmocka_unit_test(captures_break_where_they_do_on_a_gpu),
        cmocka_unit_test(faults_come_on_demand),
    };
    return cmocka_run_group_tests(tests, make_stream, drop_stream);
}

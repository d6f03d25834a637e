// The floor under `graphs` (thalweg-tensor): the same chains with the bare CUDA runtime, timed in the same ways.
//
//     nvcc -O3 -std=c++17 -arch=native graph_launch.cu -o graph_launch && ./graph_launch
//
// A line of JSON a figure, in microseconds of the host.

#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

#define CHECK(call)                                                                              \
    do {                                                                                         \
        cudaError_t status = (call);                                                             \
        if (status != cudaSuccess) {                                                             \
            std::fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(status));                 \
            std::exit(1);                                                                        \
        }                                                                                        \
    } while (0)

__global__ void add(const float* a, const float* b, float* out) { out[threadIdx.x] = a[threadIdx.x] + b[threadIdx.x]; }

static double microseconds(const std::function<void()>& work) {
    auto start = std::chrono::steady_clock::now();
    work();
    return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count();
}

static void report(const char* name, int nodes, std::vector<double> times) {
    std::sort(times.begin(), times.end());
    std::printf("{\"name\": \"raw_%s_n%d\", \"value\": %.4f, \"unit\": \"us\", \"min\": %.4f, \"max\": %.4f}\n", name, nodes,
                times[times.size() / 2], times.front(), times.back());
}

struct Raw {
    cudaStream_t stream;
    float *a, *b, *out;

    cudaGraph_t capture(int nodes) {
        cudaGraph_t graph;
        CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
        for (int node = 0; node < nodes; node++) add<<<1, 16, 0, stream>>>(a, b, out);
        CHECK(cudaStreamEndCapture(stream, &graph));
        return graph;
    }

    void replay(int nodes) {
        cudaGraph_t graph = capture(nodes);
        cudaGraphExec_t exec;
        CHECK(cudaGraphInstantiate(&exec, graph, 0));
        std::vector<double> times;
        for (int round = 0; round < 220; round++) {
            double time = microseconds([&] { cudaGraphLaunch(exec, stream); });
            CHECK(cudaDeviceSynchronize());
            if (round >= 20) times.push_back(time);
        }
        report("graph_replay_host", nodes, times);
        CHECK(cudaGraphExecDestroy(exec));
        CHECK(cudaGraphDestroy(graph));
    }

    void build(int nodes, int rounds) {
        std::vector<double> captures, instantiations;
        for (int round = 0; round <= rounds; round++) {
            CHECK(cudaDeviceSynchronize());
            cudaGraph_t graph;
            cudaGraphExec_t exec;
            double captured = microseconds([&] { graph = capture(nodes); });
            double instantiated = microseconds([&] { CHECK(cudaGraphInstantiate(&exec, graph, 0)); });
            CHECK(cudaGraphExecDestroy(exec));
            CHECK(cudaGraphDestroy(graph));
            if (round == 0) continue;
            captures.push_back(captured);
            instantiations.push_back(instantiated);
        }
        report("graph_capture_alone", nodes, captures);
        report("graph_instantiate", nodes, instantiations);
    }
};

int main() {
    Raw raw;
    CHECK(cudaMalloc(&raw.a, 4096));
    raw.b = raw.a + 16;
    raw.out = raw.a + 32;
    CHECK(cudaStreamCreateWithFlags(&raw.stream, cudaStreamNonBlocking));
    for (int nodes : {10, 100, 1000}) raw.replay(nodes);
    raw.build(100, 15);
    raw.build(10000, 3);
}

"""PyTorch's caching allocator through its C++ API, to be run beside `allocate --json` and `hand_over` in the same call.

Prints one JSON object a line with the names of our bench. Needs a C++ compiler and PyTorch's headers.
"""
import json, statistics, sys, time
import torch
from torch.utils.cpp_extension import load_inline

SOURCE = r"""
#include <torch/extension.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>
#include <chrono>
#include <cstdint>
#include <thread>
#include <vector>
namespace allocator = c10::cuda::CUDACachingAllocator;
using Clock = std::chrono::steady_clock;

// The generator of our bench, so that both allocate the same sizes.
struct Random {
  uint64_t state;
  uint64_t next() {
    uint64_t z = (state += 0x9e3779b97f4a7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
  }
  uint64_t below(uint64_t limit) { return next() % limit; }
  uint64_t mixed_size() { uint64_t power = 1ull << (9 + below(14)); return power + below(power); }
};

static double since(Clock::time_point start, int64_t steps) {
  return std::chrono::duration<double, std::nano>(Clock::now() - start).count() / steps;
}

std::vector<double> pairs(int64_t bytes, int64_t steps, int64_t samples) {
  auto stream = c10::cuda::getCurrentCUDAStream();
  std::vector<double> means;
  for (int64_t sample = 0; sample <= samples; sample++) {
    auto start = Clock::now();
    for (int64_t step = 0; step < steps; step++) allocator::raw_delete(allocator::raw_alloc_with_stream(bytes, stream));
    if (sample) means.push_back(since(start, steps));
  }
  return means;
}

std::vector<double> churn(int64_t live, int64_t steps, int64_t samples) {
  auto stream = c10::cuda::getCurrentCUDAStream();
  Random random{1};
  std::vector<void*> blocks(live);
  for (auto& block : blocks) block = allocator::raw_alloc_with_stream(random.mixed_size(), stream);
  std::vector<double> means;
  for (int64_t sample = 0; sample <= samples; sample++) {
    auto start = Clock::now();
    for (int64_t step = 0; step < steps; step++) {
      auto& block = blocks[random.below(live)];
      allocator::raw_delete(block);
      block = allocator::raw_alloc_with_stream(random.mixed_size(), stream);
    }
    if (sample) means.push_back(since(start, steps));
  }
  for (auto block : blocks) allocator::raw_delete(block);
  return means;
}

std::vector<double> threads(int64_t count, int64_t steps, int64_t samples) {
  std::vector<double> means;
  std::vector<c10::cuda::CUDAStream> streams;
  for (int64_t i = 0; i < count; i++) streams.push_back(c10::cuda::getStreamFromPool());
  for (int64_t sample = 0; sample <= samples; sample++) {
    std::vector<std::thread> running;
    auto start = Clock::now();
    for (int64_t i = 0; i < count; i++)
      running.emplace_back([&, i] {
        for (int64_t step = 0; step < steps; step++) allocator::raw_delete(allocator::raw_alloc_with_stream(4096, streams[i]));
      });
    for (auto& thread : running) thread.join();
    if (sample) means.push_back(since(start, steps));
  }
  return means;
}
"""

module = load_inline("thalweg_peer_allocate", cpp_sources=SOURCE, functions=["pairs", "churn", "threads"], with_cuda=True,
                     extra_cflags=["-O3"])

def report(name, means, steps):
    means = sorted(means)
    print(json.dumps(dict(name=name, value=round(statistics.median(means), 1), least=round(means[0], 1), unit="ns/step",
                          samples=len(means), steps=steps, torch=torch.__version__)), flush=True)

torch.empty(1, device="cuda")
for label, size in (("4 KiB", 4 << 10), ("32 MiB", 32 << 20)):
    report(f"allocate+free {label}", module.pairs(size, 20000, 101), 20000)
for live in (1000, 10000):
    report(f"churn, {live} live blocks", module.churn(live, 10000, 51), 10000)
report("allocate+free 4 KiB, 8 threads on 8 streams", module.threads(8, 20000, 5), 20000)

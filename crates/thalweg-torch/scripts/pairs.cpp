// What an allocation and its free cost, through whatever allocator PyTorch has in place: no Python in the loop.
//
// Built against PyTorch's headers (cargo xtask wheel --benches), called by scripts/pairs.py.

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>

#include <chrono>
#include <random>
#include <thread>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;
using c10::cuda::CUDACachingAllocator::raw_alloc_with_stream;
using c10::cuda::CUDACachingAllocator::raw_delete;

double nanoseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::nano>(Clock::now() - start).count();
}

void pairs(size_t bytes, int64_t count, cudaStream_t stream) {
  for (int64_t index = 0; index < count; ++index) {
    raw_delete(raw_alloc_with_stream(bytes, stream));
  }
}

} // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

// Nanoseconds per pair, on one thread.
EXPORT double thalweg_bench_pair(uint64_t bytes, int64_t count) {
  const auto stream = c10::cuda::getCurrentCUDAStream();
  pairs(bytes, count / 10 + 1, stream);
  const auto start = Clock::now();
  pairs(bytes, count, stream);
  return nanoseconds_since(start) / static_cast<double>(count);
}

// Nanoseconds per pair and thread, on threads that have a stream each, and have chosen the device, as PyTorch's own threads have.
EXPORT double thalweg_bench_threads(int64_t threads, uint64_t bytes, int64_t count) {
  std::vector<c10::cuda::CUDAStream> streams;
  for (int64_t index = 0; index < threads; ++index) {
    streams.push_back(c10::cuda::getStreamFromPool());
    pairs(bytes, 100, streams.back());
  }
  std::vector<std::thread> running;
  const auto start = Clock::now();
  for (const auto& stream : streams) {
    running.emplace_back([=] {
      c10::cuda::set_device(stream.device_index());
      pairs(bytes, count, stream);
    });
  }
  for (auto& thread : running) {
    thread.join();
  }
  return nanoseconds_since(start) / static_cast<double>(count);
}

// Nanoseconds a step that frees a random block of `live` and takes one of a random size.
EXPORT double thalweg_bench_churn(int64_t live, int64_t count) {
  const auto stream = c10::cuda::getCurrentCUDAStream();
  std::mt19937_64 random(7);
  const auto size = [&] {
    const auto power = uint64_t{1} << (9 + random() % 14);
    return power + random() % power;
  };
  std::vector<void*> blocks(live);
  for (auto& block : blocks) {
    block = raw_alloc_with_stream(size(), stream);
  }
  const auto churn = [&](int64_t steps) {
    for (int64_t step = 0; step < steps; ++step) {
      auto& block = blocks[random() % blocks.size()];
      raw_delete(block);
      block = raw_alloc_with_stream(size(), stream);
    }
  };
  churn(count / 4);
  const auto start = Clock::now();
  churn(count);
  const auto cost = nanoseconds_since(start) / static_cast<double>(count);
  for (auto* block : blocks) {
    raw_delete(block);
  }
  return cost;
}

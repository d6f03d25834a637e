// The parts of the native class: statuses as exceptions, memory with its observers, stacks and snapshots in PyTorch's types.
//
// Only for native.cpp, whose invariants hold here too.

#pragma once

#include <torch/headeronly/version.h>

#include <c10/core/impl/GPUTrace.h>
#include <c10/cuda/CUDAAllocatorConfig.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>

#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstring>
#include <mutex>
#include <set>
#include <unordered_map>

#include "thalweg_torch.h"

// The compiler finds a virtual function that has changed, but not the purpose of a new one. So the person who adds a version here
// must have read its CUDACachingAllocator.h.
static_assert(
    TORCH_VERSION_MAJOR == 2 && (TORCH_VERSION_MINOR == 11 || TORCH_VERSION_MINOR == 15),
    "this class was read against PyTorch 2.11 and 2.15 only");

// Additions between 2.11 and 2.15.
#define THALWEG_TORCH_2_15 (TORCH_VERSION_MINOR >= 15)

namespace thalweg {
namespace {

using namespace c10::cuda::CUDACachingAllocator;
using c10::CachingAllocator::Stat;
using c10::CachingAllocator::StatArray;
using c10::cuda::MempoolId_t;

// ---- Statuses ---------------------------------------------------------------------------------------------------------------

// Throws the exception for a status, in PyTorch's types.
[[noreturn]] void fail(thalweg_status status) {
  const char* message = thalweg_error_message();
  TORCH_CHECK_WITH(OutOfMemoryError, status != THALWEG_OUT_OF_MEMORY, message);
  TORCH_CHECK_VALUE(status != THALWEG_INVALID, message);
  TORCH_CHECK(false, message);
}

inline void check(thalweg_status status) {
  if (C10_UNLIKELY(status != THALWEG_OK)) {
    fail(status);
  }
}

// Handles a status where nothing may be thrown.
void report(const char* what, thalweg_status status) noexcept {
  if (status != THALWEG_OK) {
    std::fprintf(stderr, "thalweg: %s: %s\n", what, thalweg_error_message());
  }
}

// Runs a function of PyTorch's that the C interface calls; false if it throws.
template <typename Body>
bool contained(const char* what, Body&& body) noexcept {
  try {
    body();
    return true;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "thalweg: %s threw: %s\n", what, error.what());
  } catch (...) {
    std::fprintf(stderr, "thalweg: %s threw something\n", what);
  }
  return false;
}

void append(void* user, const uint8_t* bytes, size_t count) {
  static_cast<std::string*>(user)->append(reinterpret_cast<const char*>(bytes), count);
}

inline uint64_t number(const void* pointer) {
  return reinterpret_cast<uint64_t>(pointer);
}

inline void* pointer(uint64_t number) {
  return reinterpret_cast<void*>(number);
}

// ---- The process's allocator ------------------------------------------------------------------------------------------------

// There is only one, since deleters are plain functions.
thalweg_allocator* the_allocator = nullptr;

// A stream that PyTorch did not make (torch.cuda.ExternalStream, a green context's) may be destroyed by its owner at any moment.
// PyTorch identifies it by its handle, and its own streams by numbers.
inline void set_transient_if_external(c10::cuda::CUDAStream stream) {
  const auto handle = number(stream.stream());
  if (C10_UNLIKELY(handle != 0 && static_cast<uint64_t>(stream.id()) == handle)) {
    check(thalweg_set_stream_transient(the_allocator, stream.device_index(), handle));
  }
}

thalweg_statistics statistics_of(c10::DeviceIndex device) {
  thalweg_statistics statistics;
  check(thalweg_device_statistics(the_allocator, device, &statistics));
  return statistics;
}

// Reports to the profiler that `bytes` were allocated, or freed if negative.
void tell_profiler(void* block, int64_t bytes, c10::DeviceIndex device) {
  const auto statistics = statistics_of(device);
  c10::reportMemoryUsageToProfiler(
      block,
      bytes,
      statistics.allocated_bytes.all.current,
      statistics.reserved_bytes.all.current,
      c10::Device(c10::DeviceType::CUDA, device));
}

// Whether a block is reported to the profiler, and the data of the report.
bool is_profiled(void* block, thalweg_live_block& found) {
  return c10::memoryProfilingEnabled() && thalweg_find_block(the_allocator, number(block), &found) == THALWEG_OK;
}

[[noreturn]] C10_NOINLINE void fail_to_take(thalweg_status status, size_t bytes, c10::DeviceIndex device) {
  const std::string message = thalweg_error_message();
  if (status == THALWEG_OUT_OF_MEMORY) {
    const auto statistics = statistics_of(device);
    c10::reportOutOfMemoryToProfiler(
        static_cast<int64_t>(bytes),
        statistics.allocated_bytes.all.current,
        statistics.reserved_bytes.all.current,
        c10::Device(c10::DeviceType::CUDA, device));
    TORCH_CHECK_WITH(OutOfMemoryError, false, message);
  }
  TORCH_CHECK(false, message);
}

void* take(size_t bytes, c10::DeviceIndex device, cudaStream_t stream) {
  uint64_t address = 0;
  const auto status = thalweg_malloc(the_allocator, device, bytes, number(stream), &address);
  if (C10_UNLIKELY(status != THALWEG_OK)) {
    fail_to_take(status, bytes, device);
  }
  void* block = pointer(address);
  if (thalweg_live_block taken{}; C10_UNLIKELY(is_profiled(block, taken))) {
    tell_profiler(block, static_cast<int64_t>(taken.size_bytes), device);
  }
  if (const auto* trace = c10::impl::GPUTrace::get_trace(); C10_UNLIKELY(trace != nullptr)) {
    (*trace)->trace_gpu_memory_allocation(c10::kCUDA, address);
  }
  return block;
}

void give_back(void* block) {
  if (const auto* trace = c10::impl::GPUTrace::get_trace(); C10_UNLIKELY(trace != nullptr && block != nullptr)) {
    (*trace)->trace_gpu_memory_deallocation(c10::kCUDA, number(block));
  }
  thalweg_live_block found{};
  const bool profiled = C10_UNLIKELY(is_profiled(block, found));
  report("a block was not freed", thalweg_free(the_allocator, number(block)));
  if (profiled) {
    contained("the profiler", [&] {
      tell_profiler(block, -static_cast<int64_t>(found.size_bytes), static_cast<c10::DeviceIndex>(found.device));
    });
  }
}

// For memory that was allocated while caching was disabled (torch.cuda.caching_allocator_disabled).
void give_back_uncached(void* block) {
  C10_CUDA_CHECK_WARN(cudaFree(block));
}

// ---- Contexts of histories --------------------------------------------------------------------------------------------------

// PyTorch's stacks by number: one for each event, as in PyTorch's own histories, since only the recorder knows the content of a
// stack. A number without references is removed.
struct Contexts {
  std::mutex mutex;
  std::unordered_map<uint32_t, std::shared_ptr<c10::GatheredContext>> by_number;
  std::atomic<CreateContextFn> recorder{nullptr};

  std::shared_ptr<c10::GatheredContext> find(uint32_t stack) {
    std::lock_guard<std::mutex> guard(mutex);
    const auto found = by_number.find(stack);
    return found == by_number.end() ? nullptr : found->second;
  }

  static uint8_t take(void* user, uint32_t stack) {
    auto& self = *static_cast<Contexts*>(user);
    const auto recorder = self.recorder.load();
    const bool is_taken = recorder != nullptr && contained("gathering a stack", [&] {
      auto context = recorder();
      std::lock_guard<std::mutex> guard(self.mutex);
      self.by_number[stack] = std::move(context);
    });
    return is_taken ? 1 : 0;
  }

  static void forget(void* user, uint32_t stack) {
    auto& self = *static_cast<Contexts*>(user);
    // Dropped after the lock is released, because destructors may run.
    std::shared_ptr<c10::GatheredContext> dropped;
    std::lock_guard<std::mutex> guard(self.mutex);
    if (const auto found = self.by_number.find(stack); found != self.by_number.end()) {
      dropped = std::move(found->second);
      self.by_number.erase(found);
    }
  }
};

Contexts& contexts() {
  // Never destroyed: contexts hold objects of the interpreter.
  static auto* contexts = new Contexts;
  return *contexts;
}

// ---- Snapshots --------------------------------------------------------------------------------------------------------------

MempoolId_t pool_of(uint64_t first, uint64_t second) {
  return {first, second};
}

TraceEntry entry_of(const thalweg_event& event) {
  TraceEntry entry(
      static_cast<TraceEntry::Action>(event.action),
      static_cast<c10::DeviceIndex>(event.device),
      event.address,
      event.size_bytes,
      pointer(event.stream),
      pool_of(event.pool_first, event.pool_second),
      c10::getApproximateTime(),
      contexts().find(event.stack),
      event.compile_context,
      event.user_metadata);
  if (event.time_us != 0) {
    entry.time_.t_ = event.time_us;
  }
#if THALWEG_TORCH_2_15
  entry.internal_metadata_ = event.internal_metadata;
#endif
  return entry;
}

// Whether this PyTorch has the action: later versions have annotations.
bool is_known(const thalweg_event& event) {
  return THALWEG_TORCH_2_15 || event.action != THALWEG_ANNOTATE;
}

// The settings in PyTorch's snapshots: ours, and PyTorch's for pinned memory, which PyTorch still manages.
void tell_settings(c10::cuda::CUDACachingAllocator::AllocatorConfigInfo& to) {
  using Config = c10::cuda::CUDACachingAllocator::CUDAAllocatorConfig;
  thalweg_configuration from{};
  check(thalweg_configured(the_allocator, 0, &from));
  check(thalweg_settings(the_allocator, 0, &append, &to.last_allocator_settings));
  to.garbage_collection_threshold = from.garbage_collection_threshold;
  to.max_split_size = from.max_split_size_bytes;
  to.expandable_segments = from.expandable_segments != 0;
  to.release_lock_on_malloc = from.release_lock_on_cudamalloc != 0;
  to.graph_capture_record_stream_reuse = from.graph_capture_record_stream_reuse != 0;
  to.roundup_power2_divisions.assign(std::begin(from.roundup_power2_divisions), std::end(from.roundup_power2_divisions));
  to.pinned_num_register_threads = Config::pinned_num_register_threads();
  to.pinned_use_host_register = Config::pinned_use_cuda_host_register();
#if THALWEG_TORCH_2_15
  to.max_round_threshold = std::numeric_limits<size_t>::max();
  to.max_cached_size = std::numeric_limits<size_t>::max();
#endif
}

struct Collector {
  SnapshotInfo snapshot;

  static Collector& of(void* user) {
    return *static_cast<Collector*>(user);
  }

  static void on_segment(void* user, const thalweg_segment* segment) {
    SegmentInfo info;
    info.device = static_cast<c10::DeviceIndex>(segment->device);
    info.address = segment->address;
    info.total_size = segment->total_bytes;
    info.requested_size = segment->requested_bytes;
    info.allocated_size = segment->allocated_bytes;
    info.active_size = segment->active_bytes;
    info.stream = pointer(segment->stream);
    info.is_large = segment->is_large != 0;
    info.is_expandable = segment->is_expandable != 0;
    info.owner_private_pool_id = pool_of(segment->pool_first, segment->pool_second);
    info.context_when_allocated = contexts().find(segment->stack);
    auto& segments = of(user).snapshot.segments;
    info.registration_counter = static_cast<int32_t>(segments.size());
    segments.push_back(std::move(info));
  }

  static void on_block(void* user, const thalweg_block* block) {
    BlockInfo info;
    info.size = block->size_bytes;
    info.requested_size = block->requested_bytes;
    info.allocated = block->is_allocated != 0;
    info.active = block->is_active != 0;
    info.context_when_allocated = contexts().find(block->stack);
    of(user).snapshot.segments.back().blocks.push_back(std::move(info));
  }

  static void on_event(void* user, const thalweg_event* event) {
    if (!is_known(*event)) {
      return;
    }
    auto& traces = of(user).snapshot.device_traces;
    traces.resize(std::max(traces.size(), static_cast<size_t>(event->device) + 1));
    traces[event->device].push_back(entry_of(*event));
  }

  static void on_annotation(void* user, const thalweg_annotation* annotation) {
    c10::CachingDeviceAllocator::AnnotationEntry entry(static_cast<c10::DeviceIndex>(annotation->device), 0);
    entry.time_.t_ = annotation->time_us;
    entry.recordUserMetadata("name", annotation->name);
    entry.recordUserMetadata("stage", annotation->stage);
    of(user).snapshot.external_annotations.push_back(std::move(entry));
  }
};

void fill(StatArray& target, const thalweg_by_pool& source) {
  const thalweg_statistic* statistics[] = {&source.all, &source.small_pool, &source.large_pool};
  for (size_t place = 0; place < target.size(); ++place) {
    const auto& from = *statistics[place];
    Stat to;
    to.current = from.current;
    to.peak = from.peak;
    to.allocated = from.allocated;
    to.freed = from.freed;
    target[place] = to;
  }
}

Stat stat_of(const thalweg_statistic& source) {
  Stat stat;
  stat.current = source.current;
  stat.peak = source.peak;
  stat.allocated = source.allocated;
  stat.freed = source.freed;
  return stat;
}

} // namespace
} // namespace thalweg

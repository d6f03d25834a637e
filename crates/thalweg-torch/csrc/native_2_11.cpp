// The second tier for PyTorch 2.11: a CUDAAllocator over the C interface, in the place of PyTorch's own.
//
// PyTorch's allocator is reached through one pointer, c10::cuda::CUDACachingAllocator::allocator, and the table of allocators by
// device type. thalweg_native_install puts an object of ours into both, so that everything in PyTorch that speaks to its
// allocator speaks to Thalweg's: statistics, snapshots, captured graphs and their trees, IPC, the profiler.
//
// What is here is translation. Decisions are on the other side of the C interface; every call that fails there is thrown here as
// PyTorch's own exception, since only C++ may unwind.
//
// Invariants:
// - A DataPtr's context is its pointer, and its deleter is raw_deleter(): graph trees compare and exchange deleters.
// - Deleters do not throw: they run in destructors.
// - Observers and filters are PyTorch's functions, and PyTorch's may throw: none does so into the C interface.
// - The installed object is never destroyed: tensors outlive everything.

#include <torch/headeronly/version.h>

#include <c10/core/impl/GPUTrace.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>

#include <cuda_runtime_api.h>

#include <cstdio>
#include <cstring>
#include <mutex>
#include <unordered_map>

#include "thalweg_torch.h"

static_assert(
    TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR == 11,
    "this object is for PyTorch 2.11: its class has the virtual functions of that version, in that order");

namespace thalweg {
namespace {

using namespace c10::cuda::CUDACachingAllocator;
using c10::CachingAllocator::Stat;
using c10::CachingAllocator::StatArray;
using c10::cuda::MempoolId_t;

// ---- Statuses ---------------------------------------------------------------------------------------------------------------

// Throws what a status means, in PyTorch's types.
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

// The same where nothing may be thrown.
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

// There is one, since deleters are plain functions.
thalweg_allocator* the_allocator = nullptr;

thalweg_statistics statistics_of(c10::DeviceIndex device) {
  thalweg_statistics statistics;
  check(thalweg_device_statistics(the_allocator, device, &statistics));
  return statistics;
}

// Tells the profiler that `bytes` were taken, or given back if they are negative.
void tell_profiler(void* block, int64_t bytes, c10::DeviceIndex device) {
  const auto statistics = statistics_of(device);
  c10::reportMemoryUsageToProfiler(
      block,
      bytes,
      statistics.allocated_bytes.all.current,
      statistics.reserved_bytes.all.current,
      c10::Device(c10::DeviceType::CUDA, device));
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
  if (C10_UNLIKELY(c10::memoryProfilingEnabled())) {
    tell_profiler(block, static_cast<int64_t>(bytes), device);
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
  const bool profiled = C10_UNLIKELY(c10::memoryProfilingEnabled()) &&
      thalweg_find_block(the_allocator, number(block), &found) == THALWEG_OK;
  report("a block was not freed", thalweg_free(the_allocator, number(block)));
  if (profiled) {
    contained("the profiler", [&] {
      tell_profiler(block, -static_cast<int64_t>(found.requested_bytes), static_cast<c10::DeviceIndex>(found.device));
    });
  }
}

// For memory that was taken while caching was switched off (torch.cuda.caching_allocator_disabled).
void give_back_uncached(void* block) {
  C10_CUDA_CHECK_WARN(cudaFree(block));
}

// ---- Contexts of histories --------------------------------------------------------------------------------------------------

// PyTorch's stacks by our numbers of them. A number stands for one Python stack, so there are as many as distinct ones.
struct Contexts {
  std::mutex mutex;
  std::unordered_map<uint32_t, std::shared_ptr<c10::GatheredContext>> by_number;
  std::atomic<CreateContextFn> recorder{nullptr};

  std::shared_ptr<c10::GatheredContext> find(uint32_t stack) {
    std::lock_guard<std::mutex> guard(mutex);
    const auto found = by_number.find(stack);
    return found == by_number.end() ? nullptr : found->second;
  }

  static void on_new_stack(void* user, uint32_t stack) {
    auto& self = *static_cast<Contexts*>(user);
    const auto recorder = self.recorder.load();
    if (recorder == nullptr) {
      return;
    }
    contained("gathering a stack", [&] {
      auto context = recorder();
      std::lock_guard<std::mutex> guard(self.mutex);
      self.by_number.emplace(stack, std::move(context));
    });
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
  return entry;
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
    // PyTorch 2.11 has no action of this name.
    if (event->action == THALWEG_ANNOTATE) {
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

// ---- Pools ------------------------------------------------------------------------------------------------------------------

using Filter = std::function<bool(cudaStream_t)>;

uint8_t matches(void* user, uint64_t stream) {
  bool found = false;
  contained("the filter of a pool", [&] {
    found = (*static_cast<Filter*>(user))(static_cast<cudaStream_t>(pointer(stream)));
  });
  return found ? 1 : 0;
}

void drop_filter(void* user) {
  delete static_cast<Filter*>(user);
}

// The allocator that a MemPool was given for its segments.
using Source = std::shared_ptr<CUDAAllocator>;

uint64_t take_segment(void* user, uint64_t bytes, uint64_t stream) {
  void* segment = nullptr;
  contained("the allocator of a pool", [&] {
    segment = (*static_cast<Source*>(user))->raw_alloc_with_stream(bytes, static_cast<cudaStream_t>(pointer(stream)));
  });
  return number(segment);
}

void give_segment_back(void* user, uint64_t address, uint64_t /*bytes*/, uint64_t /*stream*/) {
  contained("the allocator of a pool", [&] { (*static_cast<Source*>(user))->raw_delete(pointer(address)); });
}

void drop_source(void* user) {
  delete static_cast<Source*>(user);
}

struct Checkpoint final : AllocatorState {
  thalweg_checkpoint* checkpoint = nullptr;

  Checkpoint() = default;
  Checkpoint(const Checkpoint&) = delete;
  Checkpoint& operator=(const Checkpoint&) = delete;
  ~Checkpoint() override {
    thalweg_checkpoint_drop(checkpoint);
  }
};

struct Restoration {
  CheckpointDelta delta;
  c10::DeviceIndex device;

  static void on_freed(void* user, uint64_t address, uint64_t /*bytes*/) {
    static_cast<Restoration*>(user)->delta.ptrs_freed.push_back(pointer(address));
  }

  static void on_allocated(void* user, uint64_t address, uint64_t /*bytes*/) {
    auto& self = *static_cast<Restoration*>(user);
    void* block = pointer(address);
    self.delta.dataptrs_allocd.emplace_back(
        block, block, &give_back, c10::Device(c10::DeviceType::CUDA, self.device));
  }
};

// ---- Observers --------------------------------------------------------------------------------------------------------------

void tell_tracker(void* user, const thalweg_event* event) {
  if (event->action != THALWEG_ANNOTATE) {
    contained("a trace tracker", [&] { (*static_cast<AllocatorTraceTracker*>(user))(entry_of(*event)); });
  }
}

void tell_out_of_memory(void* user, int32_t device, uint64_t size, uint64_t allowed, uint64_t free) {
  contained("an observer", [&] { (*static_cast<OutOfMemoryObserver*>(user))(device, size, allowed, free); });
}

uint8_t ask_for_memory(void* /*user*/) {
  bool freed = false;
  for (const auto& name : c10::FreeCudaMemoryCallbacksRegistry()->Keys()) {
    contained("a callback for memory", [&] { freed |= c10::FreeCudaMemoryCallbacksRegistry()->Create(name)->Execute(); });
  }
  return freed ? 1 : 0;
}

// ---- The class --------------------------------------------------------------------------------------------------------------

class NativeAllocator final : public CUDAAllocator {
 public:
  // Memory.

  c10::DataPtr allocate(size_t bytes) override {
    const auto device = current_device();
    const c10::Device place(c10::DeviceType::CUDA, device);
    if (C10_UNLIKELY(!enabled_)) {
      void* block = nullptr;
      if (bytes > 0) {
        C10_CUDA_CHECK(cudaMalloc(&block, bytes));
      }
      return {block, block, &give_back_uncached, place};
    }
    void* block = take(bytes, device, c10::cuda::getCurrentCUDAStream(device));
    return {block, block, &give_back, place};
  }

  c10::DeleterFnPtr raw_deleter() const override {
    return enabled_ ? &give_back : &give_back_uncached;
  }

  void* raw_alloc(size_t bytes) override {
    const auto device = current_device();
    return take(bytes, device, c10::cuda::getCurrentCUDAStream(device));
  }

  void* raw_alloc_with_stream(size_t bytes, cudaStream_t stream) override {
    return take(bytes, current_device(), stream);
  }

  void raw_delete(void* block) override {
    give_back(block);
  }

  void copy_data(void* target, const void* source, size_t count) const override {
    C10_CUDA_CHECK(cudaMemcpy(target, source, count, cudaMemcpyDeviceToDevice));
  }

  void recordStream(const c10::DataPtr& data, c10::cuda::CUDAStream stream) override {
    // Memory that is not ours (sent by another process, say) has another deleter, and keeps itself.
    if (data.get() == nullptr || data.get_deleter() != &give_back) {
      return;
    }
    check(thalweg_record_stream(
        the_allocator, number(data.get()), stream.device_index(), number(stream.stream())));
  }

  void init(int device_count) override {
    device_count_ = device_count;
  }

  bool initialized() override {
    return device_count_ > 0;
  }

  void enable(bool value) override {
    enabled_ = value;
  }

  bool isEnabled() const override {
    return enabled_;
  }

  // Limits and caches.

  double getMemoryFraction(c10::DeviceIndex device) override {
    double fraction = 1.0;
    check(thalweg_memory_fraction(the_allocator, device, &fraction));
    return fraction;
  }

  void setMemoryFraction(double fraction, c10::DeviceIndex device) override {
    check(thalweg_set_memory_fraction(the_allocator, device, fraction));
  }

  void emptyCache(MempoolId_t pool = {0, 0}) override {
    const auto status = pool == MempoolId_t{0, 0}
        ? thalweg_empty_cache(the_allocator)
        : thalweg_empty_pool_cache(the_allocator, pool.first, pool.second);
    // PyTorch's own gives nothing back while a pool is allocated to, and says nothing.
    if (status != THALWEG_CAPTURE) {
      check(status);
    }
  }

  void cacheInfo(c10::DeviceIndex device, size_t* largest) override {
    uint64_t bytes = 0;
    check(thalweg_cache_info(the_allocator, device, &bytes));
    *largest = std::max(*largest, static_cast<size_t>(bytes));
  }

  void* getBaseAllocation(void* block, size_t* size) override {
    uint64_t base = 0;
    uint64_t bytes = 0;
    check(thalweg_base_allocation(the_allocator, number(block), &base, &bytes));
    if (size != nullptr) {
      *size = bytes;
    }
    return pointer(base);
  }

  std::vector<StreamSegmentSize> getExpandableSegmentSizes(c10::DeviceIndex device) override {
    std::vector<StreamSegmentSize> sizes;
    for (const auto& segment : snapshot({0, 0}, false).segments) {
      if (segment.device == device && segment.is_expandable) {
        sizes.emplace_back(static_cast<cudaStream_t>(segment.stream), !segment.is_large, segment.total_size);
      }
    }
    return sizes;
  }

  // What there is.

  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    const auto from = statistics_of(device);
    c10::CachingDeviceAllocator::DeviceStats to;
    fill(to.allocation, from.allocation);
    fill(to.segment, from.segment);
    fill(to.active, from.active);
    fill(to.inactive_split, from.inactive_split);
    fill(to.allocated_bytes, from.allocated_bytes);
    fill(to.reserved_bytes, from.reserved_bytes);
    fill(to.active_bytes, from.active_bytes);
    fill(to.inactive_split_bytes, from.inactive_split_bytes);
    fill(to.requested_bytes, from.requested_bytes);
    to.oversize_allocations = stat_of(from.oversize_allocations);
    to.oversize_segments = stat_of(from.oversize_segments);
    to.num_alloc_retries = from.num_alloc_retries;
    to.num_ooms = from.num_ooms;
    to.num_sync_all_streams = from.num_sync_all_streams;
    to.num_device_alloc = from.num_device_alloc;
    to.num_device_free = from.num_device_free;
    to.max_split_size = from.max_split_size;
    return to;
  }

  void resetAccumulatedStats(c10::DeviceIndex device) override {
    check(thalweg_reset_accumulated_statistics(the_allocator, device));
  }

  void resetPeakStats(c10::DeviceIndex device) override {
    check(thalweg_reset_peak_statistics(the_allocator, device));
  }

  SnapshotInfo snapshot(MempoolId_t pool = {0, 0}, bool include_traces = true) override {
    Collector collector;
    const thalweg_visitor visitor{
        &collector, &Collector::on_segment, &Collector::on_block, &Collector::on_event, &Collector::on_annotation};
    check(thalweg_visit_snapshot(the_allocator, pool.first, pool.second, include_traces ? 1 : 0, &visitor));
    auto& snapshot = collector.snapshot;
    // A list for each device, as PyTorch has it.
    snapshot.device_traces.resize(std::max(snapshot.device_traces.size(), static_cast<size_t>(device_count_)));
    auto& config = snapshot.config_metadata;
    config.max_split_size = std::numeric_limits<size_t>::max();
    config.expandable_segments = true;
    config.pinned_num_register_threads = 1;
    if (!snapshot.segments.empty()) {
      const auto device = snapshot.segments.front().device;
      check(thalweg_settings(the_allocator, device, &append, &config.last_allocator_settings));
    }
    return std::move(snapshot);
  }

  // What happens.

  bool isHistoryEnabled() override {
    return history_;
  }

  void recordHistory(
      bool enabled,
      CreateContextFn recorder,
      size_t max_entries,
      RecordContext when,
      bool clear_history,
      const std::vector<std::string>& skip_actions) override {
    TORCH_CHECK(when == RecordContext::NEVER || recorder != nullptr, "stacks are to be recorded, but there is no recorder");
    thalweg_history_settings settings{};
    settings.enabled = enabled ? 2 : 0;
    settings.context = static_cast<uint8_t>(enabled ? when : RecordContext::NEVER);
    settings.clear_history = clear_history ? 1 : 0;
    settings.compile_context = 1;
    settings.record_annotations = 1;
    settings.max_entries = max_entries;
    for (const auto& action : skip_actions) {
      settings.skip_actions |= 1u << c10::CachingDeviceAllocator::parseTraceEntryAction(action);
    }
    contexts().recorder = recorder;
    check(thalweg_on_new_stack(the_allocator, &Contexts::on_new_stack, &contexts()));
    check(thalweg_record_history(the_allocator, &settings));
    history_ = enabled;
  }

  void recordAnnotation(const std::vector<std::pair<std::string, std::string>>& metadata) override {
    std::string name;
    bool is_start = true;
    for (const auto& [key, value] : metadata) {
      if (key == "name") {
        name = value;
      } else if (key == "stage") {
        is_start = value == "START";
      }
    }
    check(thalweg_annotate_scope(the_allocator, name.c_str(), is_start ? 1 : 0));
  }

  void pushCompileContext(std::string& name) override {
    check(thalweg_push_compile_context(name.c_str()));
  }

  void popCompileContext() override {
    check(thalweg_pop_compile_context());
  }

  void setUserMetadata(const std::string& metadata) override {
    check(thalweg_set_user_metadata(metadata.c_str()));
  }

  std::string getUserMetadata() override {
    std::string text;
    check(thalweg_user_metadata(&append, &text));
    return text;
  }

  void attachOutOfMemoryObserver(OutOfMemoryObserver observer) override {
    // Kept for good: there is no way to take one away.
    auto* kept = new OutOfMemoryObserver(std::move(observer));
    check(thalweg_observe_out_of_memory(the_allocator, &tell_out_of_memory, kept));
  }

  void attachAllocatorTraceTracker(AllocatorTraceTracker tracker) override {
    auto* kept = new AllocatorTraceTracker(std::move(tracker));
    check(thalweg_observe_events(the_allocator, &tell_tracker, kept));
  }

  // Pools and graphs.

  void beginAllocateToPool(c10::DeviceIndex device, MempoolId_t pool, Filter filter) override {
    auto* kept = new Filter(std::move(filter));
    check(thalweg_begin_allocate_to_pool(
        the_allocator, device, pool.first, pool.second, &matches, kept, &drop_filter));
  }

  void endAllocateToPool(c10::DeviceIndex device, MempoolId_t pool) override {
    check(thalweg_end_allocate_to_pool(the_allocator, device, pool.first, pool.second));
  }

  void releasePool(c10::DeviceIndex device, MempoolId_t pool) override {
    check(thalweg_release_pool(the_allocator, device, pool.first, pool.second));
  }

  int getPoolUseCount(c10::DeviceIndex device, MempoolId_t pool) override {
    uint64_t count = 0;
    check(thalweg_pool_use_count(the_allocator, device, pool.first, pool.second, &count));
    return static_cast<int>(count);
  }

  void createOrIncrefPool(c10::DeviceIndex device, MempoolId_t pool, std::shared_ptr<CUDAAllocator> allocator = nullptr)
      override {
    if (allocator == nullptr) {
      check(thalweg_pool_retain(the_allocator, device, pool.first, pool.second, nullptr));
      return;
    }
    const thalweg_segment_source source{
        new Source(std::move(allocator)), &drop_source, &take_segment, &give_segment_back};
    check(thalweg_pool_retain(the_allocator, device, pool.first, pool.second, &source));
  }

  void setUseOnOOM(c10::DeviceIndex device, MempoolId_t pool, bool use_on_oom) override {
    check(thalweg_pool_set_use_on_oom(the_allocator, device, pool.first, pool.second, use_on_oom ? 1 : 0));
  }

  void setNoSplit(c10::DeviceIndex device, MempoolId_t pool) override {
    check(thalweg_pool_set_no_split(the_allocator, device, pool.first, pool.second, 1));
  }

  bool checkPoolLiveAllocations(
      c10::DeviceIndex device,
      MempoolId_t pool,
      const std::unordered_set<void*>& expected) override {
    std::vector<uint64_t> addresses;
    addresses.reserve(expected.size());
    for (void* block : expected) {
      addresses.push_back(number(block));
    }
    uint8_t equal = 0;
    check(thalweg_check_pool(
        the_allocator, device, pool.first, pool.second, addresses.data(), addresses.size(), &equal));
    return equal != 0;
  }

  std::shared_ptr<AllocatorState> getCheckpointState(c10::DeviceIndex device, MempoolId_t pool) override {
    auto state = std::make_shared<Checkpoint>();
    check(thalweg_checkpoint_take(the_allocator, device, pool.first, pool.second, &state->checkpoint));
    return state;
  }

  CheckpointDelta setCheckpointPoolState(c10::DeviceIndex device, std::shared_ptr<AllocatorState> state) override {
    const auto* checkpoint = dynamic_cast<Checkpoint*>(state.get());
    TORCH_CHECK(checkpoint != nullptr, "the state was taken by another allocator");
    Restoration restoration;
    restoration.device = device;
    check(thalweg_checkpoint_restore(
        the_allocator,
        device,
        checkpoint->checkpoint,
        &Restoration::on_freed,
        &Restoration::on_allocated,
        &restoration));
    return std::move(restoration.delta);
  }

  // Other processes and devices.

  ShareableHandle shareIpcHandle(void* block) override {
    ShareableHandle handle{0, {}};
    uint64_t offset = 0;
    check(thalweg_share(the_allocator, number(block), &append, &handle.handle, &offset));
    handle.offset = static_cast<ptrdiff_t>(offset);
    return handle;
  }

  std::shared_ptr<void> getIpcDevPtr(std::string handle) override {
    const auto device = current_device();
    thalweg_shared* shared = nullptr;
    uint64_t address = 0;
    const auto* bytes = reinterpret_cast<const uint8_t*>(handle.data());
    check(thalweg_open_shared(the_allocator, device, bytes, handle.size(), &shared, &address));
    return {pointer(address), [shared](void*) {
              report("shared memory was not closed", thalweg_close_shared(the_allocator, shared));
            }};
  }

  void enablePeerAccess(c10::DeviceIndex device, c10::DeviceIndex peer) override {
    const c10::cuda::CUDAGuard guard(device);
    const auto outcome = cudaDeviceEnablePeerAccess(peer, 0);
    if (outcome == cudaErrorPeerAccessAlreadyEnabled) {
      (void)cudaGetLastError();
    } else {
      C10_CUDA_CHECK(outcome);
    }
    check(thalweg_enable_peer_access(the_allocator, peer, device));
  }

  cudaError_t memcpyAsync(
      void* target,
      int target_device,
      const void* source,
      int source_device,
      size_t count,
      cudaStream_t stream,
      bool p2p_enabled) override {
    if (p2p_enabled || target_device == source_device) {
      return cudaMemcpyAsync(target, source, count, cudaMemcpyDeviceToDevice, stream);
    }
    // Memory that was mapped page by page takes no other copy between devices that do not see each other.
    return cudaMemcpyPeerAsync(target, target_device, source, source_device, count, stream);
  }

  std::string name() override {
    return "thalweg";
  }

 private:
  // Where there is one device it need not be asked for, which takes microseconds on a thread that has no context yet.
  c10::DeviceIndex current_device() const {
    if (C10_LIKELY(device_count_.load(std::memory_order_relaxed) == 1)) {
      return 0;
    }
    c10::DeviceIndex device = 0;
    C10_CUDA_CHECK(c10::cuda::GetDevice(&device));
    return device;
  }

  std::atomic<bool> enabled_{true};
  std::atomic<bool> history_{false};
  std::atomic<int> device_count_{0};
};

// ---- Installation -----------------------------------------------------------------------------------------------------------

std::string installation_error;
CUDAAllocator* former = nullptr;

void put_in_place(CUDAAllocator* allocator) {
  c10::cuda::CUDACachingAllocator::allocator.store(allocator);
  c10::SetAllocator(c10::DeviceType::CUDA, allocator);
}

NativeAllocator& the_native() {
  static auto* native = new NativeAllocator;
  return *native;
}

// Whether the allocator in place has memory out, or had: then it cannot be replaced.
bool was_used(CUDAAllocator* allocator) {
  if (!allocator->initialized()) {
    return false;
  }
  for (c10::DeviceIndex device = 0; device < c10::cuda::device_count(); ++device) {
    if (allocator->getDeviceStats(device).num_device_alloc > 0) {
      return true;
    }
  }
  return false;
}

void install(thalweg_allocator* allocator) {
  TORCH_CHECK(allocator != nullptr, "there is no allocator to install");
  TORCH_CHECK(thalweg_abi_version() == THALWEG_ABI_VERSION, "libthalweg_torch.so is of another version than this object");
  auto* current = c10::cuda::CUDACachingAllocator::get();
  TORCH_CHECK(current != &the_native(), "Thalweg's allocator is in place already");
  TORCH_CHECK(
      !was_used(current),
      "PyTorch has allocated memory on a GPU already, and memory cannot change hands: call enable() before the first "
      "tensor is made on a GPU");
  the_allocator = allocator;
  if (current->initialized()) {
    the_native().init(c10::cuda::device_count());
  }
  check(thalweg_add_free_memory_callback(allocator, &ask_for_memory, nullptr));
  former = current;
  put_in_place(&the_native());
}

void uninstall() {
  TORCH_CHECK(former != nullptr, "Thalweg's allocator is not in place");
  TORCH_CHECK(!the_native().initialized(), "Thalweg's allocator is in use, and memory cannot change hands");
  put_in_place(former);
  former = nullptr;
}

int attempt(void (*body)(thalweg_allocator*), thalweg_allocator* allocator) noexcept {
  try {
    body(allocator);
    return 0;
  } catch (const c10::Error& error) {
    installation_error = error.what_without_backtrace();
  } catch (const std::exception& error) {
    installation_error = error.what();
  }
  return 1;
}

} // namespace
} // namespace thalweg

extern "C" {

// The version of PyTorch that this object was built for: "2.11".
C10_EXPORT const char* thalweg_native_torch_version() {
  return C10_STRINGIZE(TORCH_VERSION_MAJOR) "." C10_STRINGIZE(TORCH_VERSION_MINOR);
}

// Puts Thalweg's allocator into the place of PyTorch's: 0, or 1 with a message. The allocator must live as long as the process.
C10_EXPORT int thalweg_native_install(thalweg_allocator* allocator) {
  return thalweg::attempt(&thalweg::install, allocator);
}

// Puts PyTorch's back, as long as nothing was asked of ours.
C10_EXPORT int thalweg_native_uninstall() {
  return thalweg::attempt([](thalweg_allocator*) { thalweg::uninstall(); }, nullptr);
}

C10_EXPORT const char* thalweg_native_error() {
  return thalweg::installation_error.c_str();
}
}

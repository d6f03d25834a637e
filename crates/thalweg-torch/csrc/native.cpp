// The second tier: a CUDAAllocator over the C interface, which replaces PyTorch's own. It is compiled once for each supported
// version of PyTorch, against that version's headers.
//
// PyTorch's allocator is reached through one pointer, c10::cuda::CUDACachingAllocator::allocator, and the table of allocators by
// device type. thalweg_native_install puts an object of ours into both, so that every part of PyTorch that calls its allocator
// calls Thalweg's: statistics, snapshots, captured graphs and their trees, IPC, the profiler.
//
// This file only translates. Decisions are on the other side of the C interface. Every call that fails there throws PyTorch's own
// exception here, since only C++ may unwind.
//
// Invariants:
// - A DataPtr's context is its pointer, and its deleter is raw_deleter(): graph trees compare and exchange deleters.
// - Deleters do not throw: they run in destructors.
// - Observers and filters are PyTorch's functions, which may throw: no exception enters the C interface.
// - The installed object is never destroyed: tensors outlive everything.

#include "native_types.hpp"

namespace thalweg {
namespace {

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

#if !THALWEG_TORCH_2_15
// Whether requests are sent to a pool for a capture. PyTorch 2.15 announces it when one begins (markCaptureBegin). Earlier
// versions make the same call for a capture and for torch.cuda.use_mem_pool, and the two differ in the function that made the
// filter: use_mem_pool's is made by the function of torch/csrc/cuda/Module.cpp in the type's name. Other code that allocates to a
// pool is assumed to capture.
bool is_for_capture(const Filter& filter) {
  return std::strstr(filter.target_type().name(), "registerCudaPluggableAllocator") == nullptr;
}

// The captures in progress, by their pools: only one scope at a time allocates to a pool.
class Captures {
 public:
  void begin(c10::DeviceIndex device, MempoolId_t pool) {
    check(thalweg_mark_capture_begin(the_allocator, device));
    const std::lock_guard<std::mutex> guard(mutex_);
    open_.emplace(device, pool);
  }

  // Does nothing if the scope that ended was not a capture.
  void end(c10::DeviceIndex device, MempoolId_t pool) {
    bool was_open = false;
    {
      const std::lock_guard<std::mutex> guard(mutex_);
      was_open = open_.erase({device, pool}) > 0;
    }
    if (was_open) {
      check(thalweg_mark_capture_end(the_allocator, device));
    }
  }

 private:
  std::mutex mutex_;
  std::set<std::pair<c10::DeviceIndex, MempoolId_t>> open_;
};
#endif

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
  if (is_known(*event)) {
    contained("a trace tracker", [&] { (*static_cast<AllocatorTraceTracker*>(user))(entry_of(*event)); });
  }
}

void tell_out_of_memory(void* user, int32_t device, uint64_t size, uint64_t allowed, uint64_t free) {
  contained("an observer", [&] { (*static_cast<OutOfMemoryObserver*>(user))(device, size, allowed, free); });
}

#if THALWEG_TORCH_2_15
void tell_rejection(void* user, int32_t device, uint64_t size, uint64_t allowed, uint64_t /*free*/) {
  contained("an observer", [&] {
    const auto allocated = statistics_of(static_cast<c10::DeviceIndex>(device)).allocated_bytes.all.current;
    (*static_cast<OomRejectionObserver*>(user))(device, size, allocated, allowed);
  });
}

void add_private_pool(void* user, uint64_t first, uint64_t second, const thalweg_statistic* reserved) {
  auto& statistics = *static_cast<c10::CachingDeviceAllocator::DeviceStats*>(user);
  const auto all = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  statistics.reserved_bytes_by_private_pools[pool_of(first, second)][all] = stat_of(*reserved);
}
#endif

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
    void* block = take(bytes, device, current_stream(device));
    return {block, block, &give_back, place};
  }

  c10::DeleterFnPtr raw_deleter() const override {
    return enabled_ ? &give_back : &give_back_uncached;
  }

  void* raw_alloc(size_t bytes) override {
    const auto device = current_device();
    return take(bytes, device, current_stream(device));
  }

  void* raw_alloc_with_stream(size_t bytes, cudaStream_t stream) override {
    const auto device = current_device();
    // PyTorch identifies a stream by its handle only while it is the current one.
    const auto current = c10::cuda::getCurrentCUDAStream(device);
    if (current.stream() == stream) {
      set_transient_if_external(current);
    }
    return take(bytes, device, stream);
  }

  void raw_delete(void* block) override {
    give_back(block);
  }

  void copy_data(void* target, const void* source, size_t count) const override {
    C10_CUDA_CHECK(cudaMemcpy(target, source, count, cudaMemcpyDeviceToDevice));
  }

  void recordStream(const c10::DataPtr& data, c10::cuda::CUDAStream stream) override {
    // Memory that is not ours (sent by another process, say) has another deleter, and manages itself.
    if (data.get() == nullptr || data.get_deleter() != &give_back) {
      return;
    }
    set_transient_if_external(stream);
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
    // While allocations go to a pool, PyTorch's own allocator frees nothing and reports nothing.
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

  // State.

  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    check_device(device);
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
#if THALWEG_TORCH_2_15
    to.num_oom_rejections = from.num_oom_rejections;
    check(thalweg_private_pool_statistics(the_allocator, device, &add_private_pool, &to));
#endif
    return to;
  }

  void resetAccumulatedStats(c10::DeviceIndex device) override {
    check_device(device);
    check(thalweg_reset_accumulated_statistics(the_allocator, device));
  }

  void resetPeakStats(c10::DeviceIndex device) override {
    check_device(device);
    check(thalweg_reset_peak_statistics(the_allocator, device));
  }

  SnapshotInfo snapshot(MempoolId_t pool = {0, 0}, bool include_traces = true) override {
    Collector collector{};
    const thalweg_visitor visitor{
        &collector, &Collector::on_segment, &Collector::on_block, &Collector::on_event, &Collector::on_annotation};
    check(thalweg_visit_snapshot(the_allocator, pool.first, pool.second, include_traces ? 1 : 0, &visitor));
    auto& snapshot = collector.snapshot;
    // A list for each device, as PyTorch has it.
    snapshot.device_traces.resize(std::max(snapshot.device_traces.size(), static_cast<size_t>(device_count_)));
    tell_settings(snapshot.config_metadata);
    return std::move(snapshot);
  }

  // Events.

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
    check(thalweg_annotate_scope(the_allocator, current_device(), name.c_str(), is_start ? 1 : 0));
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
    // Kept forever: an observer cannot be removed.
    auto* kept = new OutOfMemoryObserver(std::move(observer));
    check(thalweg_observe_out_of_memory(the_allocator, &tell_out_of_memory, kept));
  }

#if THALWEG_TORCH_2_15
  std::shared_ptr<c10::GatheredContext> getContextForPointer(const void* block) override {
    uint32_t stack = 0;
    check(thalweg_stack_of_block(the_allocator, number(block), &stack));
    return contexts().find(stack);
  }

  bool supportsUserMetadata() override {
    return true;
  }

  void annotateMemory(const void* block, const std::string& metadata) override {
    check(thalweg_annotate_block(the_allocator, number(block), metadata.c_str()));
  }

  void attachOomRejectionObserver(OomRejectionObserver observer) override {
    auto* kept = new OomRejectionObserver(std::move(observer));
    check(thalweg_observe_rejections(the_allocator, &tell_rejection, kept));
  }

  c10::DataPtr allocateWithAddress(size_t bytes, void* address) override {
    const auto device = current_device();
    const auto stream = current_stream(device);
    check(thalweg_malloc_at(the_allocator, device, bytes, number(stream), number(address)));
    return {address, address, &give_back, c10::Device(c10::DeviceType::CUDA, device)};
  }
#endif

  void attachAllocatorTraceTracker(AllocatorTraceTracker tracker) override {
    auto* kept = new AllocatorTraceTracker(std::move(tracker));
    check(thalweg_observe_events(the_allocator, &tell_tracker, kept));
  }

  // Pools and graphs.

  void beginAllocateToPool(c10::DeviceIndex device, MempoolId_t pool, Filter filter) override {
    auto* kept = new Filter(std::move(filter));
#if !THALWEG_TORCH_2_15
    const bool captures = is_for_capture(*kept);
#endif
    check(thalweg_begin_allocate_to_pool(
        the_allocator, device, pool.first, pool.second, &matches, kept, &drop_filter));
#if !THALWEG_TORCH_2_15
    if (captures) {
      captures_.begin(device, pool);
    }
#endif
  }

  void endAllocateToPool(c10::DeviceIndex device, MempoolId_t pool) override {
    check(thalweg_end_allocate_to_pool(the_allocator, device, pool.first, pool.second));
#if !THALWEG_TORCH_2_15
    captures_.end(device, pool);
#endif
  }

#if THALWEG_TORCH_2_15
  void markCaptureBegin(c10::DeviceIndex device) override {
    check(thalweg_mark_capture_begin(the_allocator, device));
  }

  void markCaptureEnd(c10::DeviceIndex device) override {
    check(thalweg_mark_capture_end(the_allocator, device));
  }
#endif

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
    // For memory that was mapped page by page, this is the only copy between devices without peer access.
    return cudaMemcpyPeerAsync(target, target_device, source, source_device, count, stream);
  }

  std::string name() override {
    return "thalweg";
  }

 private:
  // With one device no query is needed; it takes microseconds on a thread that has no context yet.
  c10::DeviceIndex current_device() const {
    if (C10_LIKELY(device_count_.load(std::memory_order_relaxed) == 1)) {
      return 0;
    }
    c10::DeviceIndex device = 0;
    C10_CUDA_CHECK(c10::cuda::GetDevice(&device));
    return device;
  }

  static cudaStream_t current_stream(c10::DeviceIndex device) {
    const auto stream = c10::cuda::getCurrentCUDAStream(device);
    set_transient_if_external(stream);
    return stream.stream();
  }

  void check_device(c10::DeviceIndex device) const {
    const auto count = device_count_.load(std::memory_order_relaxed);
    TORCH_CHECK(0 <= device && device < count, "Invalid device argument ", static_cast<int>(device), ": did you call init?");
  }

  std::atomic<bool> enabled_{true};
  std::atomic<bool> history_{false};
  std::atomic<int> device_count_{0};
#if !THALWEG_TORCH_2_15
  Captures captures_;
#endif
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

// Returns whether the current allocator has or had live memory, so that it cannot be replaced.
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
  const thalweg_stack_recorder recorder{&contexts(), &Contexts::take, &Contexts::forget};
  check(thalweg_record_stacks_by(allocator, &recorder));
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
  static std::mutex mutex;
  const std::lock_guard<std::mutex> guard(mutex);
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

// Replaces PyTorch's allocator by Thalweg's: 0, or 1 with a message. The allocator must live as long as the process.
C10_EXPORT int thalweg_native_install(thalweg_allocator* allocator) {
  return thalweg::attempt(&thalweg::install, allocator);
}

// Restores PyTorch's allocator, if no memory was requested from ours.
C10_EXPORT int thalweg_native_uninstall() {
  return thalweg::attempt([](thalweg_allocator*) { thalweg::uninstall(); }, nullptr);
}

C10_EXPORT const char* thalweg_native_error() {
  return thalweg::installation_error.c_str();
}
}

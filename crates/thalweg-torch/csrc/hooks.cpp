// The first tier: the functions that torch.cuda.memory.CUDAPluggableAllocator calls, over the C interface.
//
// PyTorch's documented hooks take addresses of C++ functions, some with arguments of the standard library's types (a pair, a
// std::function). So this is C++, but it is compiled against the standard library alone, without a header of PyTorch's: one
// object serves every version whose hooks have these signatures.
//
// A hook can fail in one way only, by throwing. For lack of memory it should throw PyTorch's own c10::OutOfMemoryError, which
// becomes torch.OutOfMemoryError. PyTorch's libraries export its constructor and its type, which are looked up there (see
// OutOfMemory); if they are not found, std::runtime_error is thrown.

#include <dlfcn.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <string>
#include <utility>

#include "context.h"
#include "thalweg_torch.h"
#include "contention_limiter.h"

struct CUstream_st;

// From the C++ ABI (cxxabi.h does not support types that are unknown at compile time).
extern "C" {
void* __cxa_allocate_exception(size_t size) noexcept;
void __cxa_free_exception(void* exception) noexcept;
[[noreturn]] void __cxa_throw(void* exception, void* type, void (*destructor)(void*));
}

namespace {

using Stream = CUstream_st*;
using PoolName = std::pair<unsigned long long, unsigned long long>;
using Filter = std::function<bool(Stream)>;

// There is only one, since hooks are plain functions.
thalweg_allocator* the_allocator = nullptr;

// Runs before PyTorch takes its mutex, which it does when an allocation has returned.
thalweg::ContentionLimiter the_limiter;

// ---- PyTorch's exception ----------------------------------------------------------------------------------------------------

// c10::SourceLocation: a part of the signature of c10::Error's constructor.
struct SourceLocation {
  const char* function;
  const char* file;
  uint32_t line;
};

// c10::OutOfMemoryError, made by hand: it adds only its type to its base, c10::Error. An object of the base is constructed by the
// base's own constructor, in memory that is large enough, and then given the table of the derived class.
struct OutOfMemory {
  using Construct = void (*)(void* self, SourceLocation location, std::string message);

  // sizeof(c10::Error) is below 200 in every version so far.
  static constexpr size_t kRoom = 1024;

  Construct construct = nullptr;
  void** table = nullptr;
  void* type = nullptr;

  static const OutOfMemory& get() {
    static const OutOfMemory found = find();
    return found;
  }

  static OutOfMemory find() {
    OutOfMemory found;
    // In PyTorch's process both are loaded, but their symbols may not be globally visible.
    void* base = dlopen("libc10.so", RTLD_LAZY | RTLD_NOLOAD);
    void* derived = dlopen("libc10_cuda.so", RTLD_LAZY | RTLD_NOLOAD);
    if (base == nullptr || derived == nullptr) {
      return found;
    }
    const char* constructor = "_ZN3c105ErrorC2ENS_14SourceLocationENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE";
    found.construct = reinterpret_cast<Construct>(dlsym(base, constructor));
    found.table = static_cast<void**>(dlsym(derived, "_ZTVN3c1016OutOfMemoryErrorE"));
    found.type = dlsym(derived, "_ZTIN3c1016OutOfMemoryErrorE");
    return found;
  }

  bool is_complete() const {
    return construct != nullptr && table != nullptr && type != nullptr;
  }

  [[noreturn]] void raise(const char* message) const {
    void* exception = __cxa_allocate_exception(kRoom);
    std::memset(exception, 0, kRoom);
    try {
      construct(exception, SourceLocation{__func__, __FILE__, __LINE__}, message);
    } catch (...) {
      __cxa_free_exception(exception);
      throw;
    }
    // An object begins with a pointer to the functions in the table: after the offset to the top and the type. The first of them
    // is the destructor, which leaves the memory alone.
    void** functions = table + 2;
    *static_cast<void***>(exception) = functions;
    __cxa_throw(exception, type, reinterpret_cast<void (*)(void*)>(functions[0]));
  }
};

// ---- Streams that PyTorch did not make --------------------------------------------------------------------------------------

// c10::cuda::CUDAStream, which is a c10::Stream: small enough to be returned in two registers.
struct CurrentStream {
  int8_t device_type;
  int8_t device_index;
  int64_t id;
};

// c10::cuda::getCurrentCUDAStream, by its exported name; null if it is not found.
using GetCurrentStream = CurrentStream (*)(int8_t device);

GetCurrentStream find_current_stream() {
  void* library = dlopen("libc10_cuda.so", RTLD_LAZY | RTLD_NOLOAD);
  return library == nullptr ? nullptr
                            : reinterpret_cast<GetCurrentStream>(dlsym(library, "_ZN3c104cuda20getCurrentCUDAStreamEa"));
}

// Whether memory is being requested on a stream that its owner may destroy at any moment. PyTorch identifies such a stream by its
// handle, and its own streams by numbers.
bool is_external(Stream stream, int device) {
  static const GetCurrentStream get = find_current_stream();
  return stream != nullptr && get != nullptr &&
      static_cast<uint64_t>(get(static_cast<int8_t>(device)).id) == reinterpret_cast<uint64_t>(stream);
}

[[noreturn]] void fail(thalweg_status status) {
  const char* message = thalweg_error_message();
  if (status == THALWEG_OUT_OF_MEMORY && OutOfMemory::get().is_complete()) {
    OutOfMemory::get().raise(message);
  }
  throw std::runtime_error(message);
}

void check(thalweg_status status) {
  if (status != THALWEG_OK) {
    fail(status);
  }
}

// Frees run in destructors, which must not throw.
void report(const char* what, thalweg_status status) noexcept {
  if (status != THALWEG_OK) {
    std::fprintf(stderr, "thalweg: %s: %s\n", what, thalweg_error_message());
  }
}

uint64_t number(const void* pointer) {
  return reinterpret_cast<uint64_t>(pointer);
}

void* pointer(uint64_t number) {
  return reinterpret_cast<void*>(number);
}

uint8_t matches(void* user, uint64_t stream) {
  try {
    return (*static_cast<Filter*>(user))(static_cast<Stream>(pointer(stream))) ? 1 : 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "thalweg: the filter of a pool threw: %s\n", error.what());
  } catch (...) {
    std::fprintf(stderr, "thalweg: the filter of a pool threw something\n");
  }
  return 0;
}

void drop_filter(void* user) {
  delete static_cast<Filter*>(user);
}

} // namespace

// ---- Functions whose addresses Python uses----------------------------------------------------------------------------------

#define HOOK extern "C" __attribute__((visibility("default")))

// Sets the allocator that the hooks call. It stays the same for the life of the process, since a block is freed by the allocator
// that allocated it. Returns whether it is set; 0 if another one is.
HOOK int thalweg_hooks_use(thalweg_allocator* allocator) {
  if (the_allocator != nullptr) {
    return the_allocator == allocator ? 1 : 0;
  }
  the_allocator = allocator;
  // PyTorch enables peer access without calling a hook.
  report("devices were not opened to each other", thalweg_open_to_peers(allocator));
  return 1;
}

// Returns whether lack of memory becomes torch.OutOfMemoryError here, instead of RuntimeError.
HOOK int thalweg_hooks_throw_out_of_memory_error() {
  return OutOfMemory::get().is_complete() ? 1 : 0;
}

HOOK void* thalweg_hook_malloc(size_t size, int device, Stream stream) {
  uint64_t address = 0;
  if (is_external(stream, device)) {
    check(thalweg_set_stream_transient(the_allocator, device, number(stream)));
  }
  check(thalweg_malloc(the_allocator, device, size, number(stream), &address));
  thalweg::give_this_thread_a_context(device);
  the_limiter.pass();
  return pointer(address);
}

HOOK void thalweg_hook_free(void* block, size_t /*size*/, int /*device*/, Stream /*stream*/) {
  the_limiter.come_by();
  report("a block was not freed", thalweg_free(the_allocator, number(block)));
}

// set_init_fn: devices are opened when they are first used.
HOOK void thalweg_hook_init(int /*device_count*/) {}

// set_reset_fn: torch.cuda.empty_cache. While allocations go to a pool, PyTorch's own allocator frees nothing and reports
// nothing.
HOOK void thalweg_hook_reset() {
  const auto status = thalweg_empty_cache(the_allocator);
  if (status != THALWEG_CAPTURE) {
    check(status);
  }
}

// set_memory_fraction_fn.
HOOK void thalweg_hook_memory_fraction(double fraction, int device) {
  check(thalweg_set_memory_fraction(the_allocator, device, fraction));
}

// set_base_alloc_fn.
HOOK void* thalweg_hook_base_alloc(void* block, size_t* size) {
  uint64_t base = 0;
  uint64_t bytes = 0;
  check(thalweg_base_allocation(the_allocator, number(block), &base, &bytes));
  if (size != nullptr) {
    *size = bytes;
  }
  return pointer(base);
}

// set_record_stream_fn. PyTorch never calls it with a stream of another device than the block's.
HOOK void thalweg_hook_record_stream(void* block, Stream stream) {
  check(thalweg_record_stream(the_allocator, number(block), -1, number(stream)));
}

// set_begin_allocate_to_pool. It is for a capture: torch.cuda.MemPool does not work under hooks.
HOOK void thalweg_hook_begin_allocate_to_pool(int device, PoolName pool, Filter filter) {
  auto* kept = new Filter(std::move(filter));
  check(thalweg_begin_allocate_to_pool(
      the_allocator, device, pool.first, pool.second, &matches, kept, &drop_filter));
  check(thalweg_mark_capture_begin(the_allocator, device));
}

// set_end_allocate_to_pool_fn.
HOOK void thalweg_hook_end_allocate_to_pool(int device, PoolName pool) {
  check(thalweg_end_allocate_to_pool(the_allocator, device, pool.first, pool.second));
  check(thalweg_mark_capture_end(the_allocator, device));
}

// set_release_pool.
HOOK void thalweg_hook_release_pool(int device, PoolName pool) {
  check(thalweg_release_pool(the_allocator, device, pool.first, pool.second));
}

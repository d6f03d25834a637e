// A thread that allocates has the device's context from then on.
//
// Why. In front of each allocation, PyTorch asks the runtime for the device of the thread (cudaGetDevice). Where the thread has a
// context, the answer takes some 20 ns. Where it has none, since it has not launched anything yet, it takes microseconds, each
// time anew: many times more than the allocation. PyTorch's own set_device does not help, as it leaves alone a thread whose
// device is the right one already, and that of a new thread is the first. So the hook does what the thread's first launch would
// do later: it makes the device's primary context current.
//
// A thread with a context keeps it, whatever it is. A thread is looked at once. Where there is no driver, or it refuses, nothing
// happens: whatever is wrong, PyTorch's next call says it better.

#pragma once

#include <dlfcn.h>

namespace thalweg {

class Driver {
 public:
  static const Driver& get() {
    static const Driver found;
    return found;
  }

  void make_primary_context_current(int ordinal) const {
    void* context = nullptr;
    int device = 0;
    if (!is_complete() || get_current_(&context) != 0 || context != nullptr || get_device_(&device, ordinal) != 0 ||
        retain_(&context, device) != 0) {
      return;
    }
    set_current_(context);
    // The allocator has a reference of its own, as long as it lives.
    release_(device);
  }

 private:
  Driver() {
    // It is loaded, if there is a device.
    void* library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    if (library != nullptr) {
      find(library, "cuCtxGetCurrent", get_current_);
      find(library, "cuCtxSetCurrent", set_current_);
      find(library, "cuDeviceGet", get_device_);
      find(library, "cuDevicePrimaryCtxRetain", retain_);
      find(library, "cuDevicePrimaryCtxRelease_v2", release_);
    }
  }

  template <class Function>
  static void find(void* library, const char* name, Function& function) {
    function = reinterpret_cast<Function>(dlsym(library, name));
  }

  bool is_complete() const {
    return get_current_ != nullptr && set_current_ != nullptr && get_device_ != nullptr && retain_ != nullptr &&
        release_ != nullptr;
  }

  // CUresult is an enumeration, CUcontext a pointer and CUdevice an int.
  int (*get_current_)(void** context) = nullptr;
  int (*set_current_)(void* context) = nullptr;
  int (*get_device_)(int* device, int ordinal) = nullptr;
  int (*retain_)(void** context, int device) = nullptr;
  int (*release_)(int device) = nullptr;
};

inline void give_this_thread_a_context(int device) {
  static thread_local bool is_done = false;
  if (!is_done) {
    is_done = true;
    Driver::get().make_primary_context_current(device);
  }
}

} // namespace thalweg

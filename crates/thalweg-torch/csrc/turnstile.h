// A turnstile in front of PyTorch's mutex: threads that come at the same time are let through one behind the other.
//
// Why. PyTorch's wrapper of the hooks keeps a table of all blocks behind a std::mutex. It takes the mutex when the hook for an
// allocation has returned, and again before it calls the hook for a free: some 80 ns of work each, several times that when the
// table was last written by another core. Threads that do little else meet there, and a thread that finds a std::mutex taken
// goes to sleep in the kernel; whoever unlocks must wake it, with a system call, for which the next ones wait, and so they all
// go on sleeping and waking one another. Eight threads take ten times longer than the work is worth.
//
// How. The mutex is PyTorch's, but the hook for an allocation runs right in front of it. There each thread draws a time that is
// at least kSpacing behind the one drawn before, and spins until then. By that time its predecessor is through with the mutex,
// and if it frees what it had at once, as threads in a hurry do, through with both its turns. The way to the next allocation
// leads past the turnstile again, so this spaces out the frees as well. Nobody writes to what the others wait for: they look at
// the processor's clock.
//
// What it costs. A thread alone, or one that comes to where nobody but itself was last, does not wait: a look at the clock, one
// load and two stores, some 15 ns. One that comes within kSpacing of another waits for the rest of it, at most kLongest.
//
// What it is not. A lock: nobody relies on being alone, nothing has to be given back, and a thread that dies, forks, sleeps or is
// late holds up nobody. All accesses are relaxed, and a race between them (a drawn time that is overwritten) costs a meeting at
// the mutex, which is what happened without it. The clocks of processors may differ: what is too far away is not waited for.

#pragma once

#include <pthread.h>
#include <x86intrin.h>

#include <atomic>
#include <cstdint>

namespace thalweg {

class Turnstile {
 public:
  void pass() {
    const pthread_t self = pthread_self();
    uint64_t now = __rdtsc();
    if (last_.load(std::memory_order_relaxed) == self) {
      next_.store(now + kSpacing, std::memory_order_relaxed);
      return;
    }
    uint64_t next = next_.load(std::memory_order_relaxed);
    uint64_t mine = 0;
    do {
      mine = next > now ? next : now;
      if (mine - now > kLongest) {
        return;
      }
    } while (!next_.compare_exchange_weak(next, mine + kSpacing, std::memory_order_relaxed));
    last_.store(self, std::memory_order_relaxed);
    while (now < mine && mine - now <= kLongest) {
      _mm_pause();
      now = __rdtsc();
    }
  }

 private:
  // Ticks of the processor's clock, which makes two to three in a nanosecond.
  static constexpr uint64_t kSpacing = 2'000;
  static constexpr uint64_t kLongest = 40'000;

  // The time that the next thread can have, and who drew the last. On a line of the cache of their own.
  alignas(64) std::atomic<uint64_t> next_{0};
  std::atomic<pthread_t> last_{};
};

} // namespace thalweg

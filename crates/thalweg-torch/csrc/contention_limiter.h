// A contention limiter in front of PyTorch's mutex: of the threads that hammer on it, one at a time goes round, for many rounds.
//
// Why. PyTorch's wrapper of the hooks keeps a table of all blocks behind a std::mutex. It takes the mutex when the hook for an
// allocation has returned, and again before it calls the hook for a free. A thread by itself is through with both in 100 ns.
// Threads that do little else take the mutex, the table and its nodes away from one another at each turn, which costs several
// times the work; and a thread that finds a std::mutex taken goes to sleep in the kernel, and must be woken with a system call, for
// which the next ones wait. Eight threads take ten times longer than the work is worth.
//
// How. The mutex is PyTorch's, but the hook for an allocation runs right in front of it. There one thread has the lease, and
// goes through. The others that hammer wait: one of them, the heir, watches the holder, the others wait to be the heir. A lease
// is over
// - when its holder was here kTerm times and another waits: it gives the lease away, and waits with the others;
// - when its holder did not come by for kSoon: the heir takes it.
// So a thread that calls again and again does so undisturbed for some 30 microseconds, at the speed of a thread alone. (docs/record/ has the figures.)
//
// A thread that calls again and again: one whose allocation follows a free of its own within kSoon. Between the two are our own hooks and the
// thread's own work, but no mutex of PyTorch's, so a crowd at the mutex does not make this time longer. Every other thread goes
// through at once: it would not use a lease for long enough to be worth the wait. Of a burst of allocations that starts without
// the lease, only the first may wait for it; the lease then covers the rest of the burst, and its frees.
//
// What it costs. The holder, and so a thread alone that hammers: two loads, a compare and a store a call, no clock, and a line
// of the cache that the heir reads once in kSoon. Any other thread: the clock twice per pair. A thread that allocates right behind
// a free, but then lets each block live for long, is taken for one that hammers: those behind it wait kSoon for its lease.
// No thread waits longer than two times kLongest.
//
// What it is not. A lock: no thread relies on being alone, and a holder that dies, sleeps or is late loses its lease. An heir that
// dies, or was left behind by a fork, is forgotten by the first that gives up waiting. All accesses are relaxed. A race between
// them (two threads with a lease, a lease of a thread that has left) costs a meeting at the mutex, or kSoon.

#pragma once

#include <pthread.h>
#include <sched.h>
#include <x86intrin.h>

#include <atomic>
#include <cstdint>

namespace thalweg {

class ContentionLimiter {
 public:
  // In front of the mutex, for an allocation.
  void pass() {
    const pthread_t self = pthread_self();
    if (holder_.load(relaxed) == self) {
      const uint32_t calls = calls_.load(relaxed) + 1;
      calls_.store(calls, relaxed);
      if (calls < kTerm || heir_.load(relaxed) == kNone) {
        return;
      }
      holder_.store(kNone, relaxed);
    } else {
      const uint64_t freed = freed_;
      freed_ = 0;
      if (__rdtsc() - freed > kSoon) {
        return;
      }
    }
    if (become_heir(self)) {
      watch();
      calls_.store(0, relaxed);
      holder_.store(self, relaxed);
      heir_.store(kNone, relaxed);
    }
  }

  // Behind the mutex, for a free: the holder's sign of life, and the time of all other threads.
  void come_by() {
    if (holder_.load(relaxed) == pthread_self()) {
      calls_.store(calls_.load(relaxed) + 1, relaxed);
    } else {
      freed_ = __rdtsc();
    }
  }

 private:
  static constexpr auto relaxed = std::memory_order_relaxed;
  // No thread of glibc's: its threads are named by addresses.
  static constexpr pthread_t kNone = 0;

  // Calls of both hooks.
  static constexpr uint32_t kTerm = 256;
  // Ticks of the processor's clock, which makes two to three in a nanosecond. cudaGetDevice, which PyTorch calls in front of an
  // allocation, takes 0.8 us where eight threads do so at once: with half of this, threads that hammer were not taken for such.
  static constexpr uint64_t kSoon = 3'000;
  static constexpr uint64_t kLongest = 4'000'000;

  // False: it took too long.
  bool become_heir(pthread_t self) {
    const uint64_t start = __rdtsc();
    for (;;) {
      for (int round = 0; round < 16; ++round) {
        pthread_t none = kNone;
        if (heir_.load(relaxed) == kNone && heir_.compare_exchange_strong(none, self, relaxed)) {
          return true;
        }
        for (int pause = 0; pause < 8; ++pause) {
          _mm_pause();
        }
      }
      // Where there are more threads than processors, the heir may need this one.
      sched_yield();
      if (__rdtsc() - start > kLongest) {
        heir_.store(kNone, relaxed);
        return false;
      }
    }
  }

  // Returns when the lease is given away, or is to be taken.
  void watch() {
    const uint64_t start = __rdtsc();
    uint64_t looked = start;
    uint32_t seen = calls_.load(relaxed);
    while (holder_.load(relaxed) != kNone) {
      _mm_pause();
      _mm_pause();
      const uint64_t now = __rdtsc();
      if (now - looked < kSoon) {
        continue;
      }
      const uint32_t calls = calls_.load(relaxed);
      if (calls == seen || now - start > kLongest) {
        return;
      }
      looked = now;
      seen = calls;
    }
  }

  // When this thread last freed without the lease, if that was its last call. There is one limiter in a process.
  static inline thread_local uint64_t freed_ = 0;

  // What every thread that waits reads, and only changes with the lease.
  alignas(64) std::atomic<pthread_t> holder_{kNone};
  std::atomic<pthread_t> heir_{kNone};
  // The holder's, which writes it at each call.
  alignas(64) std::atomic<uint32_t> calls_{0};
};

} // namespace thalweg

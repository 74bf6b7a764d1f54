// What the native engine's passes are made of.
//
// Every weight is read once, in the order in which it lies in memory.  What is computed for a token does not depend on
// how many other tokens there are, on the rows beside it or on the number of threads: each sum has one order.
#pragma once
#include <omp.h>

#include <atomic>

#include "attend.h"
#include "linear.h"

// Spins for some microseconds, then sleeps: on a busy machine the thread that is waited for gets this one's processor.
class Barrier {
  public:
    int64_t threads = 1;
    void wait() {
        int now = round.load();
        if (arrived.fetch_add(1) + 1 == threads) {
            arrived.store(0);
            round.store(now + 1);
            round.notify_all();
            return;
        }
        for (int i = 0; i < SPINS; i++) {
            if (round.load(std::memory_order_acquire) != now) return;
#if defined(__x86_64__)
            __builtin_ia32_pause();
#endif
        }
        round.wait(now);
    }

  private:
    static constexpr int SPINS = 2000;
    std::atomic<int64_t> arrived{0};
    std::atomic<int> round{0};
};

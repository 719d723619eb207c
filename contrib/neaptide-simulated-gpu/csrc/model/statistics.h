// The counters of torch.cuda.memory_stats.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>

namespace simulated_gpu {

enum Pool { small_pool = 0, large_pool = 1 };

// A counter as torch shows it: of now, the highest, and all that came and went.
struct Count {
  int64_t current = 0, peak = 0, allocated = 0, freed = 0;
  void add(int64_t amount) {
    current += amount;
    peak = std::max(peak, current);
    (amount > 0 ? allocated : freed) += std::abs(amount);
  }
};

// [0]: both pools, [1]: small, [2]: large; torch's order.
struct Counts {
  Count of[3];
  void add(Pool pool, int64_t amount) {
    of[0].add(amount);
    of[1 + pool].add(amount);
  }
  void reset_peak() {
    for (auto& one : of) one.peak = one.current;
  }
  void reset_accumulated() {
    for (auto& one : of) one.allocated = one.freed = 0;
  }
};

struct MemoryStatistics {
  Counts allocated_bytes, reserved_bytes, active_bytes, inactive_split_bytes, requested_bytes;
  Counts allocations, segments, active, inactive_split;
  int64_t retries = 0, out_of_memory = 0, device_allocations = 0, device_frees = 0, synchronizations = 0;

  template <class F>
  void each(F f) {
    for (auto* counts : {&allocated_bytes, &reserved_bytes, &active_bytes, &inactive_split_bytes,
                         &requested_bytes, &allocations, &segments, &active, &inactive_split})
      f(*counts);
  }

  void reset_accumulated() {
    each([](Counts& counts) { counts.reset_accumulated(); });
    retries = out_of_memory = device_allocations = device_frees = synchronizations = 0;
  }
};

}  // namespace simulated_gpu

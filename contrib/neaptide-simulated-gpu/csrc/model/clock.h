// Vector clocks: what had happened before what, over the streams of every device and the host.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace simulated_gpu {

// Entry s: the number of operations of stream s that are known to have ended.
using Clock = std::vector<uint64_t>;

inline void join(Clock& into, const Clock& from) {
  if (into.size() < from.size()) into.resize(from.size(), 0);
  for (size_t i = 0; i < from.size(); ++i) into[i] = std::max(into[i], from[i]);
}

inline bool covers(const Clock& clock, int stream, uint64_t operation) {
  return static_cast<size_t>(stream) < clock.size() && clock[stream] >= operation;
}

}  // namespace simulated_gpu

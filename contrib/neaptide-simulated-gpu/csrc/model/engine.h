// Virtual time: an engine does one operation at a time; operations that are ready may fill its gaps.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

namespace simulated_gpu {

enum class Engine { compute, to_device, to_host, peer, disk_read, disk_write, host_arithmetic };
constexpr size_t ENGINES = 7;
constexpr const char* ENGINE_NAMES[ENGINES] = {"compute",   "to_device",  "to_host",        "peer",
                                               "disk_read", "disk_write", "host_arithmetic"};

class Schedule {
 public:
  // Return when an operation of `duration` seconds ends that may start at `ready`.
  // `now`: the host's clock. Nothing starts before it any more.
  double occupy(double now, double ready, double duration) {
    drop_before(now);
    double start = ready;
    size_t place = 0;
    for (; place < busy_.size(); ++place) {
      if (busy_[place].second <= start) continue;
      if (busy_[place].first >= start + duration) break;
      start = busy_[place].second;
    }
    if (place > 0 && busy_[place - 1].second == start)
      busy_[place - 1].second = start + duration;
    else
      busy_.insert(busy_.begin() + static_cast<std::ptrdiff_t>(place), {start, start + duration});
    total_ += duration;
    return start + duration;
  }

  double total() const { return total_; }

  void reset() {
    busy_.clear();
    total_ = 0;
  }

 private:
  std::vector<std::pair<double, double>> busy_;  // from and to, in order
  double total_ = 0;

  void drop_before(double now) {
    size_t old = 0;
    while (old < busy_.size() && busy_[old].second < now) ++old;
    if (old > 64) busy_.erase(busy_.begin(), busy_.begin() + static_cast<std::ptrdiff_t>(old));
  }
};

}  // namespace simulated_gpu

// The times that DistributedDataParallel's statistics ask for, of the simulated clock.
#include <torch/csrc/distributed/c10d/reducer_timer.hpp>

#include "device/device.h"

namespace simulated_gpu {
namespace {

class Timer final : public c10d::Timer {
 public:
  explicit Timer(c10::Device device) : device_(device) {}

  void record(c10d::Timer::Event event) override {
    c10d::Timer::record(event);  // the host's time, which torch asks for, too
    machine().record(events_[static_cast<size_t>(event)], current_stream(device_.index()));
    recorded_[static_cast<size_t>(event)] = true;
  }

  std::optional<int64_t> measureDifference(c10d::Timer::Event start, c10d::Timer::Event end) override {
    auto first = static_cast<size_t>(start), last = static_cast<size_t>(end);
    if (!recorded_[first] || !recorded_[last]) return std::nullopt;
    return static_cast<int64_t>((events_[last].time - events_[first].time) * 1e9);
  }

 private:
  const c10::Device device_;
  std::array<::simulated_gpu::Event, 5> events_;
  std::array<bool, 5> recorded_{};
};

}  // namespace
}  // namespace simulated_gpu

namespace c10d {

C10_REGISTER_TYPED_CLASS(TimerRegistry, c10::kCUDA, simulated_gpu::Timer);

}  // namespace c10d

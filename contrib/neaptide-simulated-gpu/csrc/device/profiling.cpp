// The events by which torch's profiler measures the time of an operation on a device that Kineto does not know.
#include <torch/csrc/profiler/stubs/base.h>

#include <chrono>

#include "device/device.h"

namespace simulated_gpu {
namespace {

using Handle = torch::profiler::impl::ProfilerVoidEventStub;

struct Profiling final : torch::profiler::impl::ProfilerStubs {
  void record(c10::DeviceIndex* device, Handle* handle, int64_t* host_nanoseconds) const override {
    if (device) *device = static_cast<c10::DeviceIndex>(current_device());
    auto event = std::make_shared<Event>();
    machine().record(*event, current_stream());
    *handle = std::move(event);
    if (host_nanoseconds) {
      auto now = std::chrono::system_clock::now().time_since_epoch();
      *host_nanoseconds = std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
    }
  }
  float elapsed(const Handle* first, const Handle* second) const override {  // microseconds
    auto time = [](const Handle* handle) { return std::static_pointer_cast<Event>(*handle)->time; };
    return static_cast<float>((time(second) - time(first)) * 1e6);
  }
  void mark(const char*) const override {}
  void rangePush(const char*) const override {}
  void rangePop() const override {}
  bool enabled() const override { return true; }
  void onEachDevice(std::function<void(int)> operation) const override {
    for (int device = 0; device < machine().device_count; ++device) {
      OnDevice current(device);
      operation(device);
    }
  }
  void synchronize() const override { machine().synchronize_device(current_device()); }
};

Profiling profiling;
const bool registered = (torch::profiler::impl::registerCUDAMethods(&profiling), true);

}  // namespace
}  // namespace simulated_gpu

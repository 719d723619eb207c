// Streams, events and the current device: c10's interface to a device, for the simulated one.
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "device/device.h"

namespace simulated_gpu {
namespace {

thread_local int this_device = 0;
thread_local std::array<int, MAX_DEVICES> this_stream = [] {
  std::array<int, MAX_DEVICES> defaults{};
  for (int device = 0; device < MAX_DEVICES; ++device) defaults[static_cast<size_t>(device)] = device;
  return defaults;
}();

Event& event_of(void* handle) { return *static_cast<Event*>(handle); }

struct DeviceGuard final : c10::impl::DeviceGuardImplInterface {
  static int known(c10::Device device) {
    int index = device.has_index() ? device.index() : this_device;
    TORCH_CHECK(index >= 0 && index < machine().device_count, "CUDA error: invalid device ordinal: ", index, " of ",
                machine().device_count, " simulated devices");
    return index;
  }
  c10::DeviceType type() const override { return GPU; }
  c10::Device exchangeDevice(c10::Device device) const override { return gpu(exchange_device(known(device))); }
  c10::Device getDevice() const override { return gpu(this_device); }
  void setDevice(c10::Device device) const override { exchange_device(known(device)); }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.has_index()) exchange_device(device.index());
  }
  c10::DeviceIndex deviceCount() const noexcept override {
    return static_cast<c10::DeviceIndex>(machine().device_count);
  }

  c10::Stream getStream(c10::Device device) const override { return torch_stream(current_stream(known(device))); }
  c10::Stream getDefaultStream(c10::Device device) const override { return torch_stream(known(device)); }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool high_priority) const override {
    return torch_stream(machine().new_stream(known(device), high_priority));
  }
  c10::Stream getNewStream(c10::Device device, int priority) const override {
    return torch_stream(machine().new_stream(known(device), priority < 0));
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    return torch_stream(exchange_stream(stream_index(stream)));
  }
  void* getStreamNativeHandle(const c10::Stream stream) const override { return reinterpret_cast<void*>(stream.id()); }
  bool queryStream(const c10::Stream& stream) const override { return machine().reached_stream(stream_index(stream)); }
  void synchronizeStream(const c10::Stream& stream) const override {
    machine().synchronize_stream(stream_index(stream));
  }
  void synchronizeDevice(const c10::DeviceIndex device) const override { machine().synchronize_device(device); }
  bool isStreamCapturing(const c10::Stream&) const override { return false; }

  void record(void** handle, const c10::Stream& stream, const c10::DeviceIndex, const c10::EventFlag) const override {
    if (!*handle) *handle = new Event();
    machine().record(event_of(*handle), stream_index(stream));
  }
  void block(void* handle, const c10::Stream& stream) const override {
    if (handle) machine().wait(stream_index(stream), event_of(handle));
  }
  bool queryEvent(void* handle) const override { return !handle || machine().reached(event_of(handle)); }
  void synchronizeEvent(void* handle) const override {
    if (handle) machine().synchronize(event_of(handle));
  }
  void destroyEvent(void* handle, const c10::DeviceIndex) const noexcept override {
    delete static_cast<Event*>(handle);
  }
  double elapsedTime(void* first, void* second, const c10::DeviceIndex) const override {  // milliseconds
    return (event_of(second).time - event_of(first).time) * 1e3;
  }
  void recordDataPtrOnStream(const at::DataPtr& data, const c10::Stream& stream) const override {
    device_allocator()->recordStream(data, stream);
  }
};

}  // namespace

int current_device() { return this_device; }
int exchange_device(int index) { return std::exchange(this_device, index); }
int current_stream(int device) { return this_stream[static_cast<size_t>(device)]; }
int exchange_stream(int stream) {
  auto device = static_cast<size_t>(machine().stream(stream).device);
  return std::exchange(this_stream[device], stream);
}
int stream_index(const c10::Stream& stream) {
  return stream.id() == 0 ? stream.device_index() : static_cast<int>(stream.id());
}
c10::Stream torch_stream(int stream) {
  return c10::Stream(c10::Stream::UNSAFE, gpu(machine().stream(stream).device), stream < MAX_DEVICES ? 0 : stream);
}
void wait_for_current_stream() { machine().synchronize_stream(current_stream()); }

C10_REGISTER_GUARD_IMPL(CUDA, DeviceGuard)

}  // namespace simulated_gpu

// torch's hooks for CUDA. torch looks for them once, while it is imported: this library is loaded first.
#include <ATen/detail/CUDAHooksInterface.h>

#include "device/device.h"

namespace simulated_gpu {
namespace {

struct Hooks final : at::CUDAHooksInterface {
  void init() const override {}
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasCUDA() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  int getNumGPUs() const override { return machine().device_count; }
  c10::DeviceIndex deviceCount() const override { return static_cast<c10::DeviceIndex>(machine().device_count); }
  c10::DeviceIndex current_device() const override { return getCurrentDevice(); }
  c10::DeviceIndex getCurrentDevice() const override {
    return static_cast<c10::DeviceIndex>(simulated_gpu::current_device());
  }
  void setCurrentDevice(c10::DeviceIndex device) const override { exchange_device(device); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    return static_cast<c10::DeviceIndex>(exchange_device(device));
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override { return exchangeDevice(device); }
  void deviceSynchronize(c10::DeviceIndex device) const override { machine().synchronize_device(device); }
  bool isPinnedPtr(const void* data) const override {
    auto at = reinterpret_cast<uintptr_t>(data);
    return machine().pinning({at, at + 1}) != Machine::Pinning::pageable;
  }
  at::Allocator* getPinnedMemoryAllocator() const override { return host_allocator(); }
  at::Allocator* getCUDADeviceAllocator() const override { return device_allocator(); }
  at::Device getDeviceFromPtr(void* data) const override {
    Block* block = machine().find(reinterpret_cast<uintptr_t>(data));
    TORCH_CHECK(block, "this pointer is not of a simulated device's memory");
    return gpu(block->device);
  }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const override {
    return default_generator(device);
  }
  at::Generator getNewGenerator(c10::DeviceIndex device) const override {
    return new_generator(device < 0 ? simulated_gpu::current_device() : device);
  }
};

const bool registered = [] {
  at::CUDAHooksRegistry()->Register("CUDAHooks", [](at::CUDAHooksArgs) -> std::unique_ptr<at::CUDAHooksInterface> {
    return std::make_unique<Hooks>();
  });
  return true;
}();

}  // namespace
}  // namespace simulated_gpu

// Random numbers: each device's generator is one of the CPU's, so that equal seeds give equal numbers.
#include <ATen/CPUGeneratorImpl.h>

#include "device/device.h"

namespace simulated_gpu {
namespace {

struct Generator final : c10::GeneratorImpl {
  Generator(int device, at::Generator wrapped)
      : GeneratorImpl(gpu(device), c10::DispatchKeySet(GPU_KEY)), inner(std::move(wrapped)) {}
  at::Generator inner;
  void set_current_seed(uint64_t seed) override { inner.set_current_seed(seed); }
  void set_offset(uint64_t offset) override { inner.set_offset(offset); }
  uint64_t get_offset() const override { return inner.get_offset(); }
  uint64_t current_seed() const override { return inner.current_seed(); }
  uint64_t seed() override { return inner.seed(); }
  void set_state(const c10::TensorImpl& state) override { inner.unsafeGetGeneratorImpl()->set_state(state); }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    return inner.unsafeGetGeneratorImpl()->get_state();
  }
  Generator* clone_impl() const override { return new Generator(device().index(), inner.clone()); }
};

}  // namespace

at::Generator new_generator(int device) {
  return at::make_generator<Generator>(device, at::detail::createCPUGenerator());
}

const at::Generator& default_generator(int device) {
  static auto* all = new std::array<at::Generator, MAX_DEVICES>([] {
    std::array<at::Generator, MAX_DEVICES> made;
    for (int index = 0; index < MAX_DEVICES; ++index) made[static_cast<size_t>(index)] = new_generator(index);
    return made;
  }());
  return all->at(static_cast<size_t>(device < 0 ? current_device() : device));
}

std::optional<at::Generator> inner_generator(const at::Generator& generator) {
  auto* ours = dynamic_cast<Generator*>(generator.unsafeGetGeneratorImpl());
  return ours ? std::optional<at::Generator>(ours->inner) : std::nullopt;
}

}  // namespace simulated_gpu

// When data are fake. Real and fake tensors never exist together.
#include "device/device.h"
#include "operations/shape_cache.h"

namespace simulated_gpu {
namespace {

double given_value = 1.0;
bool ending = false;  // data become real when the last fake tensor is gone

bool nothing_held() {
  for (int device = 0; device < machine().device_count; ++device)
    if (machine().device(device).memory->statistics.allocations.of[0].current) return false;
  return true;
}

}  // namespace

double fake_value() { return given_value; }

void set_fake(bool on, double value) {
  TORCH_CHECK(machine().fake == on || nothing_held(), "tensors are on the device: real and fake ones do not mix");
  machine().fake = on;
  ending = false;
  shape_cache().clear();
  given_value = value;
}

void end_fake_later() { ending = machine().fake; }

void settle_fake() {
  if (!ending) return;
  TORCH_CHECK(nothing_held(), "fake tensors are still held after the block of fake_data() that made them ended by an "
                              "error; free them first (the error's traceback holds the block's variables)");
  set_fake(false, given_value);
}

}  // namespace simulated_gpu

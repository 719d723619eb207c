// Copies to, from, on and between devices, each ordered and timed as copy_ of CUDA's build of torch.
#include <ATen/ExpandUtils.h>
#include <ATen/ops/_local_scalar_dense.h>
#include <ATen/ops/equal.h>
#include <ATen/record_function.h>

#include "device/device.h"
#include "operations/own_kernels.h"
#include "operations/twins.h"

namespace simulated_gpu {
namespace {

constexpr size_t LARGEST_ZEROED = 65536;  // bytes of fake data that arrive on the host as zeros

void move_bytes(const at::Tensor& from, const at::Tensor& to) {
  if (machine().fake) {
    TORCH_CHECK(at::is_expandable_to(from.sizes(), to.sizes()), "The size of tensor a ", from.sizes(),
                " must match ", to.sizes());
    if (!is_gpu(to) && to.nbytes() <= LARGEST_ZEROED) to.zero_();
    return;
  }
  Twins twins;
  auto target = is_gpu(to) ? twins.of(to) : to;
  target.copy_(is_gpu(from) ? twins.of(from) : from);
}

// Between two devices: the copy is an operation of the source's stream, and the target's stream waits.
void between_devices(const at::Tensor& from, const at::Tensor& to) {
  auto& m = machine();
  int source = current_stream(from.device().index()), target = current_stream(to.device().index());
  Event ready, done;
  m.record(ready, target);
  m.wait(source, ready);
  std::vector<Access> accesses;
  add_accesses(accesses, from, false);
  add_accesses(accesses, to, true);
  auto& profile = m.device(from.device().index()).profile;
  double seconds = static_cast<double>(from.nbytes()) / profile.peer + profile.copy_latency;
  m.launch("copy between devices", source, Engine::peer, seconds, accesses, from.nbytes());
  m.record(done, source);
  m.wait(target, done);
  note_places();
}

void over_the_link(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  auto& m = machine();
  bool inwards = is_gpu(to);
  const at::Tensor &host = inwards ? from : to, &here = inwards ? to : from;
  OnDevice on(here.device().index());
  bool plain = from.scalar_type() == to.scalar_type() && from.sizes() == to.sizes() &&
               host.is_non_overlapping_and_dense() && host.strides() == here.strides();
  auto at = reinterpret_cast<uintptr_t>(host.const_data_ptr());
  auto pinning = m.pinning({at, at + host.nbytes()});
  TORCH_CHECK(!plain || pinning != Machine::Pinning::across, "CUDA error: invalid argument: a copy of ", host.nbytes(),
              " bytes reaches over two registrations of host memory");
  bool pinned = plain && pinning == Machine::Pinning::pinned;
  std::vector<Access> accesses;
  add_accesses(accesses, here, inwards);
  std::vector<Access> there;
  add_accesses(there, host, !inwards);
  if (pinned)
    accesses.insert(accesses.end(), there.begin(), there.end());  // used later than now
  else
    for (auto& access : there) m.host_touch("copy", access);
  size_t bytes = inwards && !plain ? to.nbytes() : from.nbytes();
  auto& profile = m.device(current_device()).profile;
  // Pageable memory goes through a staging buffer: half the rate.
  double rate = (inwards ? profile.to_device : profile.to_host) / (pinned ? 1 : 2);
  m.launch(inwards ? "copy to device" : "copy to host", current_stream(), inwards ? Engine::to_device : Engine::to_host,
           static_cast<double>(bytes) / rate + profile.copy_latency, accesses, bytes);
  note_places();
  if (!non_blocking || (!pinned && !inwards))
    wait_for_current_stream();
  else if (!pinned)
    m.host_wait_for(current_stream());
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool non_blocking) {
  at::AutoDispatchBelowADInplaceOrView below;
  at::DisableRecordFunctionGuard quiet;
  if (to.numel() == 0) return to;
  move_bytes(from, to);
  if (!is_gpu(from) || !is_gpu(to)) {
    over_the_link(from, to, non_blocking);
  } else if (from.device() != to.device()) {
    between_devices(from, to);
  } else {
    OnDevice on(to.device().index());
    launch("aten::copy_", {from}, {}, {to});
  }
  return to;
}

at::Tensor& copy_(at::Tensor& self, const at::Tensor& from, bool non_blocking) {
  copy_from(from.expand_as(self), self, non_blocking);
  return self;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  if (from.sizes() != to.sizes()) to.resize_(from.sizes());
  return copy_from(from, to, false);
}

at::Scalar local_scalar(const at::Tensor& self) {
  OnDevice on(self.device().index());
  launch("aten::_local_scalar_dense", {self}, {}, {});
  wait_for_current_stream();
  if (machine().fake) {
    double value = fake_value();
    if (self.scalar_type() == at::kBool) return value != 0.0;
    if (at::isIntegralType(self.scalar_type(), false)) return static_cast<int64_t>(value);
    return value;
  }
  Twins twins;
  at::AutoDispatchBelowADInplaceOrView below;
  return at::_local_scalar_dense(twins.of(self));
}

bool equal(const at::Tensor& self, const at::Tensor& other) {
  TORCH_CHECK(self.device() == other.device(), "Cannot compare two tensors on different devices. Got: ", self.device(),
              " and ", other.device());
  OnDevice on(self.device().index());
  launch("aten::equal", {self, other}, {}, {});
  wait_for_current_stream();
  if (machine().fake) return true;
  Twins twins;
  at::AutoDispatchBelowADInplaceOrView below;
  return at::equal(twins.of(self), twins.of(other));
}

void record_stream(at::Tensor& self, c10::Stream stream) {
  device_allocator()->recordStream(self.storage().data_ptr(), stream);
}

bool is_pinned(const at::Tensor&, std::optional<at::Device>) { return false; }

}  // namespace

void register_copies(torch::Library& library, Names& names) {
  add(library, names, "copy_", &copy_);
  add(library, names, "_copy_from", &copy_from);
  add(library, names, "_copy_from_and_resize", &copy_from_and_resize);
  add(library, names, "_local_scalar_dense", &local_scalar);
  add(library, names, "equal", &equal);
  add(library, names, "record_stream", &record_stream);
  add(library, names, "is_pinned", &is_pinned);
  names.insert("_pin_memory");  // of the host's tensors
}

}  // namespace simulated_gpu

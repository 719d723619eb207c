// histc of integers, which CUDA has and the CPU does not.
#include <ATen/ops/aminmax.h>
#include <ATen/ops/bincount.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/histc.h>
#include <ATen/record_function.h>

#include "device/device.h"
#include "operations/own_kernels.h"
#include "operations/twins.h"

namespace simulated_gpu {
namespace {

// CUDA's arithmetic: bounds are of the elements' type, and the division is one of integers.
at::Tensor counted(const at::Tensor& values, int64_t bins, int64_t least, int64_t most) {
  if (least == most && values.numel()) {
    auto [low, high] = at::aminmax(values);
    least = low.item<int64_t>();
    most = high.item<int64_t>();
  }
  if (least == most) {
    --least;
    ++most;
  }
  TORCH_CHECK(least < most, "max must be larger than min");
  auto all = values.to(at::kLong).flatten();
  auto inside = all.masked_select(all.ge(least).logical_and_(all.le(most)));
  auto places = inside.sub(least).mul_(bins).div_(most - least, "floor").clamp_max_(bins - 1);
  return at::bincount(places, {}, bins).to(values.scalar_type());
}

at::Tensor histc(const at::Tensor& self, int64_t bins, const at::Scalar& least, const at::Scalar& most) {
  at::AutoDispatchBelowADInplaceOrView below;
  at::DisableRecordFunctionGuard quiet;
  OnDevice on(self.device().index());
  TORCH_CHECK(bins > 0, "bins must be > 0");
  bool whole = at::isIntegralType(self.scalar_type(), false);
  Twins twins;
  auto values = twins.of(self);
  auto result = twins.fake ? at::empty({bins}, values.options())
                : whole    ? counted(values, bins, least.to<int64_t>(), most.to<int64_t>())
                           : at::histc(values, bins, least, most);
  auto made = twins.adopt(result);
  launch("aten::histc", {self}, {made}, {});
  if (least.toDouble() == most.toDouble()) wait_for_current_stream();  // the host reads the bounds
  return made;
}

}  // namespace

void register_histogram(torch::Library& library, Names& names) { add(library, names, "histc", &histc); }

}  // namespace simulated_gpu

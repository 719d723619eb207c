// Attention where a GPU has a fused kernel for it: memory is as a GPU's, bits are as the CPU's. And
// dropout by the device's own generator.
#include <ATen/native/DispatchStub.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/native/transformers/sdp_utils_cpp.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/ones_like.h>

#include "device/device.h"
#include "operations/composed_attention.h"
#include "operations/own_kernels.h"

namespace simulated_gpu {
namespace {

std::tuple<at::Tensor, at::Tensor> native_dropout(const at::Tensor& input, double p, std::optional<bool> train) {
  auto bools = input.options().dtype(at::kBool);
  if (!train.value_or(true) || input.numel() == 0) return {input.clone(), at::ones_like(input, bools)};
  auto mask = at::empty_like(input, bools).bernoulli_(1 - p);
  return {input.mul(mask).mul_(p == 1 ? 0.0 : 1.0 / (1.0 - p)), mask};
}

// The rules of PyTorch's flash and memory-efficient kernels (aten/native/transformers/cuda/sdp_utils.cpp)
// for the device's capability 8.0, without those for single sizes.
int64_t choose(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const std::optional<at::Tensor>& mask,
               double, bool causal, std::optional<double>, bool grouped) {
  auto type = q.scalar_type();
  bool half = type == at::kHalf || type == at::kBFloat16;
  bool dense = q.stride(-1) == 1 && k.stride(-1) == 1 && v.stride(-1) == 1;
  bool possible = (half || type == at::kFloat) && q.dim() == 4 && dense && q.sym_numel() > 0;
  bool flash = half && !mask && q.size(-1) == v.size(-1);
  bool efficient = !(mask && causal) && !(grouped && q.size(1) != k.size(1));
  return static_cast<int64_t>(possible && (flash || efficient) ? sdp::SDPBackend::overrideable
                                                               : sdp::SDPBackend::math);
}

// Whether the CPU has a fused kernel, too.
bool cpu_has(const Attention& given, bool gradient_of_mask) {
  return given.dropout == 0 && !gradient_of_mask && given.q.size(-1) == given.v.size(-1);
}

using Forward = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, c10::SymInt, c10::SymInt, at::Tensor,
                           at::Tensor, at::Tensor>;
using Backward = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

Forward forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const std::optional<at::Tensor>& bias,
                double dropout, bool causal, bool, std::optional<double> scale) {
  Attention given{q, k, v, bias, dropout, causal, scale};
  Attended made;
  if (cpu_has(given, bias && bias->requires_grad())) {
    auto [out, logsumexp] = at::_scaled_dot_product_flash_attention_for_cpu(q, k, v, dropout, causal, bias, scale);
    made = {out, logsumexp, at::empty({}, at::kLong)};
  } else {
    made = attend(given);
  }
  at::Tensor none;
  auto offset = at::empty({}, at::kLong);
  return {made.out, made.logsumexp, none, none, c10::SymInt(q.size(2)), c10::SymInt(k.size(2)), made.seed, offset, none};
}

Backward backward(const at::Tensor& grad, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                  const at::Tensor& bias, std::array<bool, 4> wanted, const at::Tensor& out,
                  const at::Tensor& logsumexp, const at::Tensor&, const at::Tensor&, c10::SymInt, c10::SymInt,
                  double dropout, bool causal, const at::Tensor& seed, const at::Tensor&,
                  std::optional<double> scale) {
  auto mask = bias.defined() ? std::optional<at::Tensor>(bias) : std::nullopt;
  Attention given{q, k, v, mask, dropout, causal, scale};
  if (!cpu_has(given, wanted[3])) return attend_backward(given, grad, seed, wanted[3]);
  auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(grad, q, k, v, out, logsumexp, dropout,
                                                                               causal, mask, scale);
  return {dq, dk, dv, at::Tensor()};
}

}  // namespace

void register_attention(torch::Library& library, Names& names) {
  add(library, names, "native_dropout", &native_dropout);
  add(library, names, "_scaled_dot_product_fused_attention_overrideable", &forward);
  add(library, names, "_scaled_dot_product_fused_attention_overrideable_backward", &backward);
  names.insert("_fused_sdp_choice");
}

int64_t choose_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                         const std::optional<at::Tensor>& mask, double dropout, bool causal,
                         std::optional<double> scale, bool grouped) {
  return choose(q, k, v, mask, dropout, causal, scale, grouped);
}

}  // namespace simulated_gpu

namespace at::native {
REGISTER_CUDA_DISPATCH(_fused_sdp_choice_stub, &simulated_gpu::choose_attention)
}

// Attention by the CPU's flash kernel, so that memory is as a GPU's and bits are as the CPU's; dropout
// by the device's own generator.
#include <ATen/native/DispatchStub.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/native/transformers/sdp_utils_cpp.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/ones_like.h>

#include "device/device.h"
#include "operations/own_kernels.h"

namespace simulated_gpu {
namespace {

std::tuple<at::Tensor, at::Tensor> native_dropout(const at::Tensor& input, double p, std::optional<bool> train) {
  auto bools = input.options().dtype(at::kBool);
  if (!train.value_or(true) || input.numel() == 0) return {input.clone(), at::ones_like(input, bools)};
  auto mask = at::empty_like(input, bools).bernoulli_(1 - p);
  return {input.mul(mask).mul_(p == 1 ? 0.0 : 1.0 / (1.0 - p)), mask};
}

int64_t choose(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const std::optional<at::Tensor>& mask,
               double dropout, bool causal, std::optional<double>, bool grouped) {
  bool dense = q.stride(-1) == 1 && k.stride(-1) == 1 && v.stride(-1) == 1;
  bool fits = dropout == 0.0 && q.dim() == 4 && q.size(-1) == v.size(-1) && dense && q.sym_numel() > 0 &&
              !(mask && (causal || mask->requires_grad())) && !(grouped && q.size(1) != k.size(1));
  return static_cast<int64_t>(fits ? sdp::SDPBackend::overrideable : sdp::SDPBackend::math);
}

using Forward = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, c10::SymInt, c10::SymInt, at::Tensor,
                           at::Tensor, at::Tensor>;

Forward forward(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const std::optional<at::Tensor>& bias,
                double dropout, bool causal, bool, std::optional<double> scale) {
  auto [out, logsumexp] = at::_scaled_dot_product_flash_attention_for_cpu(q, k, v, dropout, causal, bias, scale);
  at::Tensor none;
  auto seed = at::empty({}, at::kLong), offset = at::empty({}, at::kLong);
  return {out, logsumexp, none, none, c10::SymInt(q.size(2)), c10::SymInt(k.size(2)), seed, offset, none};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> backward(
    const at::Tensor& grad, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& bias,
    std::array<bool, 4>, const at::Tensor& out, const at::Tensor& logsumexp, const at::Tensor&, const at::Tensor&,
    c10::SymInt, c10::SymInt, double dropout, bool causal, const at::Tensor&, const at::Tensor&,
    std::optional<double> scale) {
  auto mask = bias.defined() ? std::optional<at::Tensor>(bias) : std::nullopt;
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

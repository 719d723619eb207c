// Fused attention where the CPU has no fused kernel: with dropout, with a gradient of the mask, with
// values of another width than the queries. The CPU composes it in memory of its own, so that the device's is a GPU's.
#pragma once

#include <ATen/core/Tensor.h>

namespace simulated_gpu {

struct Attention {
  const at::Tensor &q, &k, &v;
  const std::optional<at::Tensor>& mask;  // added to the scores
  double dropout;
  bool causal;
  std::optional<double> scale;
};

struct Attended {
  at::Tensor out, logsumexp, seed;  // the seed of the dropout lies in the host's memory
};

Attended attend(const Attention& given);

// Gradients of q, k, v and, if it is `wanted`, of the mask.
std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> attend_backward(const Attention& given,
                                                                           const at::Tensor& grad,
                                                                           const at::Tensor& seed, bool wanted);

}  // namespace simulated_gpu

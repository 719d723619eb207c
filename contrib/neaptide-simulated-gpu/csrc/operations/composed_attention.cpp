#include "operations/composed_attention.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ExpandUtils.h>
#include <ATen/ops/_softmax_backward_data.h>
#include <ATen/ops/_safe_softmax.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/zeros.h>
#include <ATen/record_function.h>

#include <cmath>
#include <limits>

#include "device/device.h"
#include "operations/twins.h"

namespace simulated_gpu {
namespace {

// Names whose floating-point operations are known.
constexpr auto FORWARD = "aten::_scaled_dot_product_flash_attention_for_cpu";
constexpr auto BACKWARD = "aten::_scaled_dot_product_flash_attention_for_cpu_backward";

struct Computing {  // the simulation's work, of which neither autograd nor a profiler hears
  explicit Computing(const at::Tensor& of) : on(of.device().index()) {}
  at::AutoDispatchBelowADInplaceOrView below;
  at::DisableRecordFunctionGuard quiet;
  OnDevice on;
  Twins twins;
};

// What PyTorch composes on the CPU: `_scaled_dot_product_attention_math`, and its bits.
struct Scores {
  at::Tensor q, k, v, weights, dropped, kept;  // scaled; `dropped` of the weights multiplies v
  double root, keep;
};

at::Tensor expanded(const at::Tensor& tensor, int64_t heads) {
  return tensor.size(1) == heads ? tensor : tensor.repeat_interleave(heads / tensor.size(1), 1);
}

Scores scores(const Attention& given, Twins& twins, const at::Tensor& seed) {
  auto type = at::kFloat;  // of halves, too
  auto heads = given.q.size(1);
  Scores made;
  double scale = given.scale.value_or(1 / std::sqrt(static_cast<double>(given.q.size(-1))));
  made.root = std::sqrt(std::abs(scale));
  made.keep = 1 - given.dropout;
  made.q = twins.of(given.q).to(type).mul(scale < 0 ? -made.root : made.root);
  made.k = expanded(twins.of(given.k).to(type), heads).mul(made.root);
  made.v = expanded(twins.of(given.v).to(type), heads);
  auto found = at::matmul(made.q, made.k.transpose(-2, -1));
  if (given.causal) {
    auto rows = at::ones({found.size(-2), found.size(-1)}, at::kBool).tril().logical_not();
    found.masked_fill_(rows, -std::numeric_limits<double>::infinity());
  }
  if (given.mask) found.add_(twins.of(*given.mask));
  made.weights = made.dropped = at::_safe_softmax(found, -1);
  if (given.dropout > 0) {
    auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(seed.item<int64_t>()));
    made.kept = at::empty_like(made.weights, at::kBool).bernoulli_(made.keep, generator);
    made.dropped = made.weights.mul(made.kept).mul_(made.keep > 0 ? 1 / made.keep : 0.0);
  }
  return made;
}

// As the fused kernels lay it out: the heads of a token beside each other.
at::Tensor by_token(const at::Tensor& model, int64_t width) {
  return at::empty({model.size(0), model.size(2), model.size(1), width}, model.options()).transpose(1, 2);
}

at::Tensor of_groups(const at::Tensor& grad, int64_t heads) {
  if (grad.size(1) == heads) return grad;
  return grad.unflatten(1, {heads, grad.size(1) / heads}).sum(2);
}

}  // namespace

Attended attend(const Attention& given) {
  Computing computing(given.q);
  auto& twins = computing.twins;
  auto inner = *inner_generator(default_generator(current_device()));
  auto most = std::numeric_limits<int64_t>::max();
  auto seed = given.dropout > 0 ? at::randint(most, {}, inner, at::kLong) : at::zeros({}, at::kLong);
  auto q = twins.of(given.q);
  auto out = by_token(q, given.v.size(-1));
  if (!twins.fake) {
    auto found = scores(given, twins, seed);
    out.copy_(at::matmul(found.dropped, found.v));
  }
  auto logsumexp = at::zeros({q.size(0), q.size(1), q.size(2)}, q.options().dtype(at::kFloat));
  Attended made{twins.adopt(out), twins.adopt(logsumexp), seed};
  std::vector<at::Tensor> read{given.q, given.k, given.v};
  if (given.mask) read.push_back(*given.mask);
  launch(FORWARD, read, {made.out, made.logsumexp}, {});
  return made;
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> attend_backward(const Attention& given,
                                                                           const at::Tensor& grad,
                                                                           const at::Tensor& seed, bool wanted) {
  Computing computing(given.q);
  auto& twins = computing.twins;
  auto q = twins.of(given.q), k = twins.of(given.k), v = twins.of(given.v);
  auto dq = by_token(q, q.size(-1)), dk = by_token(k, k.size(-1)), dv = by_token(v, v.size(-1));
  auto dmask = wanted ? at::empty(given.mask->sizes(), q.options().dtype(given.mask->scalar_type())) : at::Tensor();
  if (!twins.fake) {
    auto found = scores(given, twins, seed);
    auto of_out = twins.of(grad).to(found.q.scalar_type());
    dv.copy_(of_groups(at::matmul(found.dropped.transpose(-2, -1), of_out), v.size(1)));
    auto of_weights = at::matmul(of_out, found.v.transpose(-2, -1));
    if (given.dropout > 0) of_weights.mul_(found.kept).mul_(found.keep > 0 ? 1 / found.keep : 0.0);
    auto of_scores = at::_softmax_backward_data(of_weights, found.weights, -1, found.q.scalar_type());
    dq.copy_(at::matmul(of_scores, found.k).mul_(given.scale.value_or(1) < 0 ? -found.root : found.root));
    auto of_k = at::matmul(found.q.transpose(-2, -1), of_scores).transpose(-2, -1).mul(found.root);
    dk.copy_(of_groups(of_k, k.size(1)));
    if (wanted) dmask.copy_(at::sum_to(of_scores, given.mask->sizes()));
  }
  auto made = std::make_tuple(twins.adopt(dq), twins.adopt(dk), twins.adopt(dv), twins.adopt(dmask));
  std::vector<at::Tensor> written{std::get<0>(made), std::get<1>(made), std::get<2>(made)};
  if (wanted) written.push_back(std::get<3>(made));
  std::vector<at::Tensor> read{grad, given.q, given.k, given.v};
  if (given.mask) read.push_back(*given.mask);
  launch(BACKWARD, read, written, {});
  return made;
}

}  // namespace simulated_gpu

// Every ATen operation on the device: the CPU's kernel does it (or meta's, where data are fake), and
// the machine is told what was read and written.
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/record_function.h>
#include <torch/library.h>

#include "device/device.h"
#include "operations/own_kernels.h"
#include "operations/shape_cache.h"
#include "operations/twins.h"

namespace simulated_gpu {
namespace {

// One call: arguments become twins, the CPU's kernel runs, results become ours.
class Call {
 public:
  Call(const c10::OperatorHandle& op, torch::jit::Stack* stack)
      : op_(op), says_(signature_of(op)), stack_(*stack), first_(stack->size() - op.schema().arguments().size()) {}

  void run() {
    OnDevice on(device_of_arguments());
    CallKey call;
    auto& cache = shape_cache();
    bool keep = twins_.fake && cache.enabled && says_.shaped_by_shapes &&
                call.read(op_, says_, stack_.data() + first_, stack_.size() - first_);
    if (keep)
      if (auto known = cache.find(call)) return replay(*known, call, op_.schema().name(), stack_, first_);
    at::DisableRecordFunctionGuard quiet;
    std::vector<c10::IValue> given(stack_.begin() + static_cast<std::ptrdiff_t>(first_), stack_.end());
    for (size_t i = 0; i < given.size(); ++i) stack_[first_ + i] = twin(stack_[first_ + i], i);
    auto key = twins_.fake ? c10::DispatchKey::Meta : c10::DispatchKey::CPU;
    try {
      op_.redispatchBoxed(c10::DispatchKeySet(key), &stack_);
    } catch (c10::Error& error) {
      if (twins_.fake) error.add_context("data are fake here (simulated_gpu.fake_data): nothing can depend on values");
      throw;
    }
    for (size_t i = 0; i < written_.size(); ++i) keep &= !twins_.follow(written_[i], written_twins_[i]);
    size_t results = stack_.size() - says_.returned.size();
    for (size_t i = 0; i < says_.returned.size(); ++i) {
      auto& value = stack_[results + i];
      value = says_.returned[i] >= 0 ? given[static_cast<size_t>(says_.returned[i])] : adopted(value);
    }
    launch(op_.schema().name(), read_, made_, written_);
    if (keep) keep_outcome(call, op_.schema().name(), says_, stack_.data() + results, read_, made_, written_);
    if (says_.reveals) wait_for_current_stream();
  }

 private:
  const c10::OperatorHandle& op_;
  const Signature& says_;
  torch::jit::Stack& stack_;
  const size_t first_;
  Twins twins_;
  std::vector<at::Tensor> read_, made_, written_, written_twins_;

  int device_of_arguments() const {
    int found = -1;
    auto look = [&](const at::Tensor& tensor) {
      if (found < 0 && is_gpu(tensor)) found = tensor.device().index();
    };
    for (size_t i = first_; i < stack_.size() && found < 0; ++i) {
      auto& value = stack_[i];
      if (value.isTensor()) {
        look(value.toTensor());
      } else if (value.isTensorList()) {
        for (const at::Tensor& one : value.toTensorVector()) look(one);
      } else if (value.isDevice() && value.toDevice().type() == GPU && value.toDevice().has_index()) {
        found = value.toDevice().index();
      }
    }
    return found < 0 ? current_device() : found;
  }

  at::Tensor twin(const at::Tensor& tensor, size_t argument) {
    if (!tensor.defined()) return tensor;
    if (!is_gpu(tensor)) {
      bool index = says_.mixes && argument > 0;  // of a tensor on the device
      TORCH_CHECK(tensor.dim() == 0 || index, "Expected all tensors to be on the same device, but ",
                  op_.schema().name(), " got one on ", tensor.device(), " and one on ", gpu(current_device()));
      if (!twins_.fake) return tensor;
      return at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(at::kMeta));
    }
    TORCH_CHECK(tensor.device().index() == current_device(),
                "Expected all tensors to be on the same device, but ", op_.schema().name(), " got one on ",
                tensor.device(), " and one on ", gpu(current_device()));
    auto made = twins_.of(tensor);
    if (says_.writes[argument]) {
      written_.push_back(tensor);
      written_twins_.push_back(made);
    } else {
      read_.push_back(tensor);
    }
    return made;
  }

  c10::IValue twin(const c10::IValue& value, size_t argument) {
    if (value.isTensor()) return twin(value.toTensor(), argument);
    if (value.isTensorList()) {
      std::vector<at::Tensor> list;
      for (const at::Tensor& one : value.toTensorVector()) list.push_back(twin(one, argument));
      return list;
    }
    if (value.isOptionalTensorList()) {
      c10::List<std::optional<at::Tensor>> list;
      for (const std::optional<at::Tensor>& one : value.toOptionalTensorVector())
        list.push_back(one ? std::optional<at::Tensor>(twin(*one, argument)) : std::nullopt);
      return list;
    }
    if (value.isDevice()) return at::Device(twins_.fake ? at::kMeta : at::kCPU);
    if (says_.generator[argument]) {
      auto generator = value.isGenerator() ? value.toGenerator() : default_generator(current_device());
      auto inner = inner_generator(generator);
      TORCH_CHECK(inner, "Expected a 'cuda' device type for generator but found '", generator.device().type(), "'");
      return *inner;
    }
    return value;
  }

  c10::IValue adopted(const c10::IValue& value) {
    auto adopt = [&](const at::Tensor& tensor) {
      made_.push_back(twins_.adopt(tensor));
      return made_.back();
    };
    if (value.isTensor()) return adopt(value.toTensor());
    if (!value.isTensorList()) return value;
    std::vector<at::Tensor> list;
    for (const at::Tensor& one : value.toTensorVector()) list.push_back(adopt(one));
    return list;
  }
};

void by_the_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  at::AutoDispatchBelowADInplaceOrView below;
  Call(op, stack).run();
}

}  // namespace

TORCH_LIBRARY_IMPL(_, CUDA, m) { m.fallback(torch::CppFunction::makeFromBoxedFunction<&by_the_cpu>()); }

// What the CPU has a kernel for goes there, even where torch could compose it of other operations:
// the bits and the saved tensors are then the CPU's. A list is one launch, as CUDA has it; torch's
// composition would launch one for each tensor. A convolution would look for a kernel by cuDNN.
TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  auto own = register_own_kernels(m);
  auto& dispatcher = c10::Dispatcher::singleton();
  for (auto& name : dispatcher.getAllOpNames()) {
    if (name.name.rfind("aten::", 0) != 0) continue;
    auto full = name.name.substr(6) + (name.overload_name.empty() ? "" : "." + name.overload_name);
    auto op = dispatcher.findSchema(name);
    bool list = full.rfind("_foreach_", 0) == 0 && full.find("copy") == std::string::npos;
    bool whole = list || full == "convolution" || full == "convolution_backward";
    if (op && !own.count(full) && (whole || op->hasKernelForDispatchKey(c10::DispatchKey::CPU)))
      m.impl(full.c_str(), torch::CppFunction::makeFromBoxedFunction<&by_the_cpu>());
  }
}

}  // namespace simulated_gpu

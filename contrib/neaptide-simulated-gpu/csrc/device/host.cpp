// The host's own operations: they take time, and they may touch pinned memory that a copy still uses.
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/record_function.h>

#include <unordered_set>

#include "device/device.h"

namespace simulated_gpu {
namespace {

double seconds_on_host(double bytes, double operations) {
  auto& profile = machine().device(0).profile;
  return std::max(bytes / profile.host_bandwidth, operations / profile.host_flops);
}

struct Seen {
  bool counts = false;       // it reads or writes elements
  std::vector<bool> writes;  // by argument
};

Seen look_at(const c10::OperatorHandle& op) {
  static const std::unordered_set<std::string> touches_nothing{
      "aten::empty_like", "aten::resize_", "aten::set_", "aten::detach_", "aten::requires_grad_",
      "aten::_resize_output_", "aten::squeeze_", "aten::unsqueeze_", "aten::t_", "aten::transpose_",
      "aten::as_strided_", "aten::is_pinned", "aten::_copy_from", "aten::record_stream", "aten::new_empty",
      "aten::new_empty_strided", "aten::new_zeros", "aten::zeros_like", "aten::ones_like", "aten::full_like",
      "aten::retain_grad", "aten::is_same_size", "aten::_has_compatible_shallow_copy_type", "aten::lift_fresh",
      "aten::result_type"};
  Seen found;
  bool writes = false, views = false;
  for (auto& argument : op.schema().arguments()) {
    auto* alias = argument.alias_info();
    found.writes.push_back(alias && alias->isWrite());
    writes |= found.writes.back();
    views |= alias && !alias->isWrite();
  }
  bool composed = op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
  found.counts = (writes || !views) && !composed && !touches_nothing.count(op.schema().name());
  return found;
}

// By the address of the schema's name, which is the faster key; another schema may get it later.
const Seen& seen(const at::RecordFunction& call) {
  struct Known {
    std::string name, overload;
    Seen says;
  };
  thread_local std::unordered_map<const char*, Known> known;
  const char *name = call.name(), *overload = call.overload_name();
  auto& found = known[name];
  if (found.name == name && found.overload == overload) return found.says;
  auto full = call.operator_name();
  auto op = full ? c10::Dispatcher::singleton().findSchema(*full) : std::nullopt;
  found = {name, overload, op ? look_at(*op) : Seen{}};
  return found.says;
}

std::unique_ptr<at::ObserverContext> on_operation(const at::RecordFunction& call) {
  if (unseen) return nullptr;
  const Seen& says = seen(call);
  if (!says.counts) return nullptr;
  auto inputs = call.inputs();
  std::vector<std::pair<at::Tensor, bool>> tensors;
  for (size_t i = 0; i < inputs.size(); ++i) {
    bool write = i < says.writes.size() && says.writes[i];
    if (inputs[i].isTensor()) {
      tensors.emplace_back(inputs[i].toTensor(), write);
    } else if (inputs[i].isTensorList()) {
      for (const at::Tensor& one : inputs[i].toTensorVector()) tensors.emplace_back(one, write);
    }
  }
  for (auto& [tensor, write] : tensors)
    if (is_gpu(tensor)) return nullptr;  // a kernel or a copy: noted where it is enqueued
  double bytes = 0;
  std::vector<Access> accesses;
  std::vector<at::Tensor> given;
  for (auto& [tensor, write] : tensors) {
    given.push_back(tensor);
    if (!tensor.defined() || !tensor.device().is_cpu() || !tensor.has_storage()) continue;
    if (tensor.layout() != at::kStrided || !tensor.numel()) continue;
    bytes += static_cast<double>(tensor.numel()) * static_cast<double>(tensor.element_size());
    add_pinned(accesses, tensor, write);
  }
  auto& m = machine();
  double operations = bytes ? operations_of(call.name(), given, {}) : 0;
  if (int thread = m.host_thread(); thread >= 0) {
    host_operation(call.name(), thread, Engine::host_arithmetic, bytes, operations, accesses);
    return nullptr;
  }
  for (auto& access : accesses) m.host_touch(call.name(), access);
  m.host_work(seconds_on_host(bytes, operations));
  note_places();
  return nullptr;
}

const auto handle = at::addGlobalCallback(
    at::RecordFunctionCallback(&on_operation).needsInputs(true).scopes({at::RecordScope::FUNCTION}));

}  // namespace

void add_pinned(std::vector<Access>& accesses, const at::Tensor& tensor, bool write) {
  for (auto& range : ranges_of(tensor))
    if (machine().pinning(range) != Machine::Pinning::pageable) accesses.push_back({range, write});
}

void host_read(const std::string& name, const at::Tensor& tensor) {
  if (unseen || !tensor.device().is_cpu() || !tensor.has_storage()) return;
  if (tensor.layout() != at::kStrided || !tensor.numel()) return;
  std::vector<Access> accesses;
  add_pinned(accesses, tensor, false);
  if (accesses.empty()) return;
  auto& m = machine();
  if (int thread = m.host_thread(); thread >= 0)
    return host_operation(name, thread, Engine::host_arithmetic, 0, 0, accesses);
  for (auto& access : accesses) m.host_touch(name, access);
  note_places();
}

void host_operation(const std::string& name, int thread, Engine engine, double bytes, double operations,
                    const std::vector<Access>& accesses) {
  auto& m = machine();
  auto& profile = m.device(0).profile;
  double seconds = engine == Engine::disk_read    ? bytes / profile.disk_read
                   : engine == Engine::disk_write ? bytes / profile.disk_write
                                                  : seconds_on_host(bytes, operations);
  m.launch(name, thread, engine, seconds, accesses, static_cast<size_t>(bytes));
  note_places();
}

}  // namespace simulated_gpu

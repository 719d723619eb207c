#include "operations/signature.h"

#include <mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>

namespace simulated_gpu {
namespace {

bool starts(const std::string& text, const char* with) { return text.rfind(with, 0) == 0; }

// In-place arithmetic: its numbers change from step to step and never decide a shape or an error.
bool plain_arithmetic(const std::string& name) {
  static const std::unordered_set<std::string> known{"aten::add_",     "aten::sub_",     "aten::mul_",  "aten::div_",
                                                     "aten::addcmul_", "aten::addcdiv_", "aten::lerp_", "aten::fill_"};
  return known.count(name) || starts(name, "aten::_fused_") || (starts(name, "aten::_foreach_") && name.back() == '_');
}

Signature read(const c10::FunctionSchema& schema) {
  static const std::unordered_set<std::string> shaped_by_values{
      "aten::nonzero", "aten::masked_select", "aten::unique_dim", "aten::_unique2", "aten::unique_consecutive",
      "aten::repeat_interleave", "aten::bincount"};
  const std::string& name = schema.name();
  Signature found;
  bool writes = false;
  for (auto& argument : schema.arguments()) {
    auto* alias = argument.alias_info();
    found.writes.push_back(alias && alias->isWrite());
    writes |= found.writes.back();
    found.generator.push_back(starts(argument.type()->str(), "Generator"));
  }
  found.reveals = shaped_by_values.count(name) || (schema.returns().empty() && !writes);
  for (auto& result : schema.returns()) {
    auto* alias = result.alias_info();
    int argument = -1;
    for (size_t i = 0; alias && alias->isWrite() && i < found.writes.size(); ++i) {
      auto* given = schema.arguments()[i].alias_info();
      if (given && *given == *alias) argument = static_cast<int>(i);
    }
    found.returned.push_back(argument);
    auto kind = result.type()->str();
    found.reveals |= !starts(kind, "Tensor") && kind.find("Tensor[]") == std::string::npos;
  }
  found.mixes = name == "aten::index" || starts(name, "aten::index_put") || starts(name, "aten::_index_put") ||
                name == "aten::_unsafe_index" || name == "aten::repeat_interleave" || name == "aten::tensor_split";
  found.shaped_by_shapes = starts(name, "aten::") && !found.reveals && name != "aten::tensor_split";
  found.shaped_by_floats = !plain_arithmetic(name);
  return found;
}

}  // namespace

const Signature& signature_of(const c10::OperatorHandle& op) {
  static std::mutex lock;
  static auto* known = new std::unordered_map<c10::OperatorName, Signature>();
  std::lock_guard<std::mutex> guard(lock);
  auto found = known->find(op.operator_name());
  if (found == known->end()) found = known->emplace(op.operator_name(), read(op.schema())).first;
  return found->second;
}

}  // namespace simulated_gpu

#include "operations/shape_cache.h"

#include <c10/core/DefaultDtype.h>

#include <bit>

#include "operations/twins.h"

namespace simulated_gpu {
namespace {

constexpr size_t MOST_CALLS = 1 << 16;  // then all are forgotten
constexpr size_t FEW_STORAGES = 16;     // up to here a search is faster than a table

// The first word of each value: values of two kinds are never equal.
enum Kind : int64_t { none = 1, integer, floating, boolean, text, device, tensor, undefined, of_host, list, complex };

uintptr_t address_of(const c10::StorageImpl* storage) { return reinterpret_cast<uintptr_t>(storage->data()); }

}  // namespace

int64_t CallKey::number(c10::StorageImpl* storage) {
  int known = number_of(storage);
  if (known >= 0) return known;
  storages.push_back(storage);
  int made = static_cast<int>(storages.size()) - 1;
  if (storages.size() > FEW_STORAGES) {
    if (numbers_.empty())
      for (int i = 0; i < made; ++i) numbers_[storages[static_cast<size_t>(i)]] = i;
    numbers_[storage] = made;
  }
  return made;
}

int CallKey::number_of(const c10::StorageImpl* storage) const {
  if (!numbers_.empty()) {
    auto found = numbers_.find(storage);
    return found == numbers_.end() ? -1 : found->second;
  }
  auto found = std::find(storages.begin(), storages.end(), storage);
  return found == storages.end() ? -1 : static_cast<int>(found - storages.begin());
}

void CallKey::add(const at::Tensor& one) {
  if (!one.defined()) {
    words.push_back(undefined);
    return;
  }
  auto* impl = one.unsafeGetTensorImpl();
  bool here = is_gpu(one);
  words.push_back(here ? tensor : of_host);
  words.push_back(static_cast<int64_t>(one.scalar_type()) | (impl->is_wrapped_number() << 8) | (one.is_conj() << 9) |
                  (one.is_neg() << 10) | (one.dim() << 16) | (static_cast<int64_t>(one.device().index()) << 32));
  words.insert(words.end(), one.sizes().begin(), one.sizes().end());
  words.insert(words.end(), one.strides().begin(), one.strides().end());
  if (!here) return;
  auto* storage = one.storage().unsafeGetStorageImpl();
  words.push_back(one.storage_offset());
  words.push_back(number(storage));
  words.push_back(static_cast<int64_t>(storage->nbytes()));
}

bool CallKey::add(const c10::IValue& value, bool floats) {
  auto put = [&](Kind kind, int64_t word) {
    words.push_back(kind);
    words.push_back(word);
    return true;
  };
  auto put_double = [&](double word) { return put(floating, floats ? std::bit_cast<int64_t>(word) : 0); };
  auto all = [&](const auto& values, auto one) {
    put(list, static_cast<int64_t>(values.size()));
    for (const auto& each : values) one(each);
    return true;
  };
  if (value.isTensor()) {
    const at::Tensor& one = value.toTensor();
    if (one.defined() && one.layout() != at::kStrided) return false;
    add(one);
    return true;
  }
  if (value.isNone()) return put(none, 0);
  if (value.isInt()) return put(integer, value.toInt());
  if (value.isDouble()) return put_double(value.toDouble());
  if (value.isBool()) return put(boolean, value.toBool());
  if (value.isDevice())
    return put(device, (static_cast<int64_t>(value.toDevice().type()) << 8) | (value.toDevice().index() & 0xff));
  if (value.isTensorList()) return all(value.toTensorList().vec(), [&](const at::Tensor& one) { add(one); });
  if (value.isOptionalTensorList())
    return all(value.toOptionalTensorVector(),
               [&](const std::optional<at::Tensor>& one) { add(one ? *one : at::Tensor()); });
  if (value.isIntList()) return all(value.toIntVector(), [&](int64_t one) { words.push_back(one); });
  if (value.isDoubleList()) return all(value.toDoubleVector(), put_double);
  if (value.isString()) return all(value.toStringRef(), [&](char one) { words.push_back(one); });
  if (value.isComplexDouble()) {
    auto both = value.toComplexDouble();
    return put(complex, std::bit_cast<int64_t>(both.real())) && put(complex, std::bit_cast<int64_t>(both.imag()));
  }
  if (!value.isList()) return false;  // a generator, a stream, a symbol
  put(list, static_cast<int64_t>(value.toListRef().size()));
  for (const c10::IValue& one : value.toListRef())
    if (!add(one, floats)) return false;
  return true;
}

bool CallKey::read(const c10::OperatorHandle& op, const Signature& says, const c10::IValue* arguments, size_t count) {
  words.reserve(16 * count);
  words.push_back(reinterpret_cast<int64_t>(&op.schema()));
  words.push_back(static_cast<int64_t>(c10::typeMetaToScalarType(c10::get_default_dtype())));
  for (size_t i = 0; i < count; ++i)
    if (!add(arguments[i], says.shaped_by_floats)) return false;
  return true;
}

size_t CallKey::hash() const {
  uint64_t mixed = words.size();
  for (int64_t word : words) {
    mixed = (mixed ^ static_cast<uint64_t>(word)) * 0x9E3779B97F4A7C15ull;
    mixed ^= mixed >> 32;
  }
  return mixed;
}

ShapeCache& shape_cache() {
  static auto* one = new ShapeCache();
  return *one;
}

std::shared_ptr<const Outcome> ShapeCache::find(const CallKey& key) {
  std::lock_guard<std::mutex> guard(lock_);
  auto found = known_.find(key);
  return found == known_.end() ? nullptr : found->second;
}

void ShapeCache::keep(const CallKey& key, Outcome outcome) {
  std::lock_guard<std::mutex> guard(lock_);
  if (known_.size() >= MOST_CALLS) known_.clear();
  known_.emplace(key, std::make_shared<const Outcome>(std::move(outcome)));
}

void ShapeCache::clear() {
  std::lock_guard<std::mutex> guard(lock_);
  known_.clear();
}

void keep_outcome(const CallKey& key, const std::string& name, const Signature& says, const c10::IValue* results,
                  const std::vector<at::Tensor>& read, const std::vector<at::Tensor>& made,
                  const std::vector<at::Tensor>& written) {
  Outcome outcome;
  std::vector<const c10::StorageImpl*> own;  // of what was made, in the order of `made`
  for (auto& one : made) {
    Made now;
    own.push_back(nullptr);
    if (now.defined = one.defined(); now.defined) {
      auto* storage = one.storage().unsafeGetStorageImpl();
      now = {true, one.dtype(), one.sizes().vec(), one.strides().vec(), one.storage_offset(), key.number_of(storage),
             storage->nbytes()};
      own.back() = storage;
    }
    outcome.made.push_back(std::move(now));
  }
  for (size_t i = 0; i < says.returned.size(); ++i) {
    auto& value = results[i];
    outcome.results.push_back(
        {says.returned[i], value.isTensorList() ? static_cast<int>(value.toTensorList().size()) : -1});
  }
  int arguments = static_cast<int>(key.storages.size());
  auto add = [&](const std::vector<at::Tensor>& tensors, bool write) {
    for (auto& tensor : tensors) {
      if (!is_gpu(tensor)) continue;
      auto* storage = tensor.storage().unsafeGetStorageImpl();
      int number = key.number_of(storage);
      if (number < 0)
        number = arguments + static_cast<int>(std::find(own.begin(), own.end(), storage) - own.begin());
      for (auto& range : ranges_of(tensor))
        outcome.places.push_back({number, range.begin - address_of(storage), range.end - address_of(storage), write});
    }
  };
  add(read, false);
  add(made, true);
  add(written, true);
  outcome.work = work_of(name, read, made, written);
  shape_cache().keep(key, std::move(outcome));
}

void replay(const Outcome& outcome, const CallKey& key, const std::string& name, torch::jit::Stack& stack,
            size_t first) {
  std::vector<at::Tensor> made;
  std::vector<uintptr_t> begins;
  for (auto* storage : key.storages) begins.push_back(address_of(storage));
  for (auto& one : outcome.made) {
    made.push_back(!one.defined       ? at::Tensor()
                   : one.storage >= 0 ? view_of(key.storages[static_cast<size_t>(one.storage)], one.dtype, one.sizes,
                                                one.strides, one.offset)
                                      : fresh(one.bytes, one.dtype, one.sizes, one.strides, one.offset));
    begins.push_back(one.defined ? address_of(made.back().storage().unsafeGetStorageImpl()) : 0);
  }
  std::vector<Access> accesses;
  accesses.reserve(outcome.places.size());
  for (auto& place : outcome.places) {
    uintptr_t base = begins[static_cast<size_t>(place.storage)];
    accesses.push_back({{base + place.begin, base + place.end}, place.write});
  }
  enqueue(name, outcome.work, accesses);
  std::vector<c10::IValue> results;
  auto next = made.begin();
  for (auto& result : outcome.results) {
    if (result.argument >= 0) {
      results.push_back(stack[first + static_cast<size_t>(result.argument)]);
    } else if (result.list < 0) {
      results.emplace_back(std::move(*next++));
    } else {
      results.emplace_back(std::vector<at::Tensor>(next, next + result.list));
      next += result.list;
    }
  }
  stack.resize(first);
  for (auto& result : results) stack.push_back(std::move(result));
}

}  // namespace simulated_gpu

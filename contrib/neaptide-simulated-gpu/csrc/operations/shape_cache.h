// With fake data, what an operation does follows from the shapes of its arguments. It is kept here, so
// that an equal call needs no kernel of meta.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <memory>
#include <optional>
#include <unordered_map>

#include "device/device.h"
#include "operations/signature.h"

namespace simulated_gpu {

// A call as a list of words: the operation, scalars, and each tensor's shape, place and storage.
// Equal words mean equal results. Storages are numbered in the order in which they appear.
class CallKey {
 public:
  std::vector<int64_t> words;
  std::vector<c10::StorageImpl*> storages;

  // False where an argument has no such words.
  bool read(const c10::OperatorHandle& op, const Signature& says, const c10::IValue* arguments, size_t count);
  size_t hash() const;
  int number_of(const c10::StorageImpl* storage) const;  // -1: of no argument

 private:
  std::unordered_map<const c10::StorageImpl*, int> numbers_;  // where there are many

  bool add(const c10::IValue& value, bool floats);
  void add(const at::Tensor& tensor);
  int64_t number(c10::StorageImpl* storage);
};

struct Made {  // a tensor that an operation returned
  bool defined = false;
  caffe2::TypeMeta dtype;
  std::vector<int64_t> sizes, strides;
  int64_t offset = 0;
  int storage = -1;  // the argument's that it is a view of; -1: memory of its own
  size_t bytes = 0;  // of that memory
};

struct Result {
  int argument = -1;  // the one that is returned
  int list = -1;      // the length of a list; -1: one tensor
};

struct Place {  // what is read or written, from the begin of a storage: of an argument, then of `made`
  int storage;
  uintptr_t begin, end;
  bool write;
};

struct Outcome {
  std::vector<Result> results;
  std::vector<Made> made;
  std::vector<Place> places;
  Work work;
};

class ShapeCache {
 public:
  bool enabled = true;
  std::shared_ptr<const Outcome> find(const CallKey& key);
  void keep(const CallKey& key, Outcome outcome);
  void clear();

 private:
  struct Hash {
    size_t operator()(const CallKey& key) const { return key.hash(); }
  };
  struct Equal {
    bool operator()(const CallKey& a, const CallKey& b) const { return a.words == b.words; }
  };
  std::mutex lock_;
  std::unordered_map<CallKey, std::shared_ptr<const Outcome>, Hash, Equal> known_;
};

ShapeCache& shape_cache();

// Note what the call did: `results` is what it returned, `tensors` what it read, made and wrote.
void keep_outcome(const CallKey& key, const std::string& name, const Signature& says, const c10::IValue* results,
                  const std::vector<at::Tensor>& read, const std::vector<at::Tensor>& made,
                  const std::vector<at::Tensor>& written);

// Do to the arguments on the stack what is known of an equal call.
void replay(const Outcome& outcome, const CallKey& key, const std::string& name, torch::jit::Stack& stack,
            size_t first);

}  // namespace simulated_gpu

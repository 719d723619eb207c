// What a schema says of an operation, read once.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <vector>

namespace simulated_gpu {

struct Signature {
  std::vector<bool> writes, generator;  // by argument
  std::vector<int> returned;            // by result: the argument that is returned, or -1
  bool reveals = false;                 // the host learns a value or a shape: it has waited
  bool mixes = false;                   // index tensors may be of the host
  bool shaped_by_shapes = false;        // shapes and scalars of the arguments decide those of the results
  bool shaped_by_floats = true;         // the scalars that decide may be floating-point numbers
};

const Signature& signature_of(const c10::OperatorHandle& op);

}  // namespace simulated_gpu

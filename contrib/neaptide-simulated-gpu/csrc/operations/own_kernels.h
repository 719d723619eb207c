// Operations that the device does itself. Each file registers its own and adds their names.
#pragma once

#include <torch/library.h>

#include <string>
#include <unordered_set>

namespace simulated_gpu {

using Names = std::unordered_set<std::string>;

void register_creation(torch::Library& library, Names& names);
void register_copies(torch::Library& library, Names& names);
void register_attention(torch::Library& library, Names& names);
void register_histogram(torch::Library& library, Names& names);

// Register all of them; return their names, without "aten::".
inline Names register_own_kernels(torch::Library& library) {
  Names names;
  register_creation(library, names);
  register_copies(library, names);
  register_attention(library, names);
  register_histogram(library, names);
  return names;
}

template <class F>
void add(torch::Library& library, Names& names, const char* name, F&& function) {
  library.impl(name, std::forward<F>(function));
  names.insert(name);
}

}  // namespace simulated_gpu

// What a program that is not of torch reads and writes: Triton's kernels, collectives.
#pragma once

#include "device/device.h"

namespace simulated_gpu {

// Ranges of bytes, apart from each other.
class Ranges {
 public:
  void add(uintptr_t begin, uintptr_t end);
  size_t bytes() const;
  void append_to(std::vector<Access>& accesses, bool write) const;

 private:
  std::map<uintptr_t, uintptr_t> ends_;
};

struct IllegalAccess : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct Traffic {  // of one launch
  Ranges read, written;

  void add(const at::Tensor& tensor, bool write);
  // Where the `size` bytes at a device's address, or at one of pinned memory, are in truth. Notes the
  // access. Throws IllegalAccess where nothing is allocated.
  uintptr_t resolve(uintptr_t address, size_t size, bool reads, bool writes);
  size_t bytes() const { return read.bytes() + written.bytes(); }
  std::vector<Access> accesses() const;
};

}  // namespace simulated_gpu

// Twins: tensors of the CPU (or of meta, where data are fake) over the bytes of tensors of the device.
#pragma once

#include <ATen/core/Tensor.h>

#include <utility>
#include <vector>

namespace simulated_gpu {

class Twins {  // for one call of one operation
 public:
  Twins();
  at::Tensor of(const at::Tensor& ours);
  // A result of the CPU's kernel as a tensor of the device. It shares an argument's storage where
  // the kernel returned a view of it.
  at::Tensor adopt(const at::Tensor& result);
  // The kernel may have resized an argument that it writes: do the same to ours. Return whether it did.
  bool follow(const at::Tensor& ours, const at::Tensor& twin);
  const bool fake;

 private:
  std::vector<std::pair<c10::StorageImpl*, c10::Storage>> storages_;  // ours, the twin's
};

// Tensors of the device: over a storage that is there, and over memory of their own.
at::Tensor view_of(c10::StorageImpl* storage, caffe2::TypeMeta dtype, at::IntArrayRef sizes, at::IntArrayRef strides,
                   int64_t offset);
at::Tensor fresh(size_t bytes, caffe2::TypeMeta dtype, at::IntArrayRef sizes, at::IntArrayRef strides, int64_t offset);

}  // namespace simulated_gpu

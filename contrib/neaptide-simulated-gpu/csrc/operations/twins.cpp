#include "operations/twins.h"

#include <c10/core/CPUAllocator.h>

#include <cstring>

#include "device/device.h"

namespace simulated_gpu {
namespace {

c10::Storage storage_over(size_t size, at::DataPtr data, c10::Allocator* allocator) {
  return c10::Storage(c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), size,
                                                            std::move(data), allocator, true));
}

at::Tensor tensor_over(c10::Storage storage, c10::DispatchKey key, caffe2::TypeMeta dtype, at::IntArrayRef sizes,
                       at::IntArrayRef strides, int64_t offset) {
  auto made = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(key), dtype);
  made.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides, offset);
  return made;
}

}  // namespace

Twins::Twins() : fake((settle_fake(), machine().fake)) {}

at::Tensor Twins::of(const at::Tensor& ours) {
  c10::Storage storage;
  auto* impl = ours.storage().unsafeGetStorageImpl();
  for (auto& [known, twin] : storages_)
    if (known == impl) storage = twin;
  if (!storage) {
    auto device = at::Device(fake ? at::kMeta : at::kCPU);
    void* bytes = fake || !impl->nbytes() ? nullptr : bytes_at(impl->data());
    storage = storage_over(impl->nbytes(), at::DataPtr(bytes, device), c10::GetAllocator(device.type()));
    storages_.emplace_back(impl, storage);
  }
  auto twin = tensor_over(std::move(storage), fake ? c10::DispatchKey::Meta : c10::DispatchKey::CPU, ours.dtype(),
                          ours.sizes(), ours.strides(), ours.storage_offset());
  auto* made = twin.unsafeGetTensorImpl();
  made->_set_conj(ours.is_conj());
  made->_set_neg(ours.is_neg());
  if (ours.unsafeGetTensorImpl()->is_wrapped_number()) made->set_wrapped_number(true);
  return twin;
}

at::Tensor Twins::adopt(const at::Tensor& result) {
  if (!result.defined()) return result;
  TORCH_CHECK(result.layout() == at::kStrided, "the simulated GPU has strided tensors only, not ", result.layout());
  auto* theirs = result.storage().unsafeGetStorageImpl();
  for (auto& [ours, twin] : storages_)
    if (twin.unsafeGetStorageImpl() == theirs)
      return view_of(ours, result.dtype(), result.sizes(), result.strides(), result.storage_offset());
  size_t size = theirs->nbytes();
  if (fake) return fresh(size, result.dtype(), result.sizes(), result.strides(), result.storage_offset());
  auto data = new_memory(size, theirs->set_data_ptr(at::DataPtr(nullptr, at::kCPU)));
  return tensor_over(storage_over(size, std::move(data), device_allocator()), GPU_KEY, result.dtype(), result.sizes(),
                     result.strides(), result.storage_offset());
}

bool Twins::follow(const at::Tensor& ours, const at::Tensor& twin) {
  size_t need = twin.storage().nbytes();
  bool grows = need > ours.storage().nbytes();
  if (grows) resize_storage(ours.storage(), need);
  if (!fake && need) {
    void* bytes = bytes_at(ours.storage().data());
    if (bytes != twin.storage().data()) std::memcpy(bytes, twin.storage().data(), need);
  }
  bool differs = ours.sizes() != twin.sizes() || ours.strides() != twin.strides();
  if (differs)
    ours.unsafeGetTensorImpl()->set_sizes_and_strides(twin.sizes(), twin.strides(), twin.storage_offset());
  return grows || differs;
}

at::Tensor view_of(c10::StorageImpl* storage, caffe2::TypeMeta dtype, at::IntArrayRef sizes, at::IntArrayRef strides,
                   int64_t offset) {
  auto shared = c10::Storage(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(storage));
  return tensor_over(std::move(shared), GPU_KEY, dtype, sizes, strides, offset);
}

at::Tensor fresh(size_t bytes, caffe2::TypeMeta dtype, at::IntArrayRef sizes, at::IntArrayRef strides, int64_t offset) {
  return tensor_over(storage_over(bytes, new_memory(bytes), device_allocator()), GPU_KEY, dtype, sizes, strides,
                     offset);
}

}  // namespace simulated_gpu

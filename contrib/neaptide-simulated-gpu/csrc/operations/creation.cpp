// Tensors come to be, are seen otherwise, and get another size or storage.
#include <ATen/EmptyTensor.h>
#include <ATen/native/TensorFactories.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>

#include "device/device.h"
#include "operations/own_kernels.h"

namespace simulated_gpu {
namespace {

OnDevice on(std::optional<at::Device> device) {
  return OnDevice(device && device->has_index() ? device->index() : current_device());
}

at::Tensor empty(c10::SymIntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                 std::optional<at::Device> device, std::optional<bool> pinned,
                 std::optional<at::MemoryFormat> format) {
  TORCH_CHECK(!pinned.value_or(false), "Only dense CPU tensors can be pinned");
  auto there = on(device);
  return at::detail::empty_generic(C10_AS_INTARRAYREF_SLOW(size), device_allocator(), c10::DispatchKeySet(GPU_KEY),
                                   c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(c10::SymIntArrayRef size, c10::SymIntArrayRef stride, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout>, std::optional<at::Device> device, std::optional<bool>) {
  auto there = on(device);
  return at::detail::empty_strided_generic(C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride),
                                           device_allocator(), c10::DispatchKeySet(GPU_KEY),
                                           c10::dtype_or_default(dtype));
}

// Zeros without memory, of which torch makes tangents.
at::Tensor zeros(c10::SymIntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                 std::optional<at::Device> device, std::optional<bool>) {
  auto there = on(device);
  static at::native::ZeroTensorAllocator allocator(gpu(current_device()));
  return at::detail::empty_generic(C10_AS_INTARRAYREF_SLOW(size), &allocator,
                                   c10::DispatchKeySet(GPU_KEY).add(c10::DispatchKey::ZeroTensor),
                                   c10::dtype_or_default(dtype), std::nullopt);
}

at::Tensor as_strided(const at::Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride,
                      std::optional<c10::SymInt> offset) {
  return at::native::as_strided_tensorimpl(self, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride),
                                           offset ? std::optional<int64_t>(offset->expect_int()) : std::nullopt);
}

at::Tensor view(const at::Tensor& self, c10::SymIntArrayRef size) {
  return at::native::view(self, C10_AS_INTARRAYREF_SLOW(size));
}

at::Tensor reshape_alias(const at::Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride) {
  return at::native::_reshape_alias(self, C10_AS_INTARRAYREF_SLOW(size), C10_AS_INTARRAYREF_SLOW(stride));
}

const at::Tensor& resize_(const at::Tensor& self, c10::SymIntArrayRef size, std::optional<at::MemoryFormat> format) {
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_sizes_contiguous(C10_AS_INTARRAYREF_SLOW(size));
  if (format && *format != at::MemoryFormat::Preserve) impl->empty_tensor_restride(*format);
  auto need = static_cast<size_t>(self.numel() + self.storage_offset()) * self.element_size();
  if (need > self.storage().nbytes()) resize_storage(self.storage(), need);
  return self;
}

at::Tensor& set_storage(at::Tensor& self, at::Storage source, c10::SymInt offset, c10::SymIntArrayRef size,
                        c10::SymIntArrayRef stride) {
  return at::native::set_storage_cpu_(self, std::move(source), offset.expect_int(), C10_AS_INTARRAYREF_SLOW(size),
                                      C10_AS_INTARRAYREF_SLOW(stride));
}

at::Tensor& set_source(at::Tensor& self, at::Storage source) {
  auto length = static_cast<int64_t>(source.nbytes() / self.element_size());
  return at::native::set_storage_cpu_(self, std::move(source), 0, {length}, {});
}

at::Tensor& set_nothing(at::Tensor& self) {
  auto nothing = at::empty({0}, self.options());
  return at::native::set_storage_cpu_(self, nothing.storage(), 0, {0}, {});
}

}  // namespace

void register_creation(torch::Library& library, Names& names) {
  add(library, names, "empty.memory_format", &empty);
  add(library, names, "empty_strided", &empty_strided);
  add(library, names, "_efficientzerotensor", &zeros);
  add(library, names, "as_strided", &as_strided);
  add(library, names, "view", &view);
  add(library, names, "_reshape_alias", &reshape_alias);
  add(library, names, "unfold", &at::native::unfold);
  add(library, names, "view_as_real", &at::native::view_as_real);
  add(library, names, "view_as_complex", &at::native::view_as_complex);
  add(library, names, "resize_", &resize_);
  add(library, names, "set_.source_Storage_storage_offset", &set_storage);
  add(library, names, "set_.source_Storage", &set_source);
  add(library, names, "set_.source_Tensor", &at::native::set_tensor_);
  add(library, names, "set_", &set_nothing);
}

}  // namespace simulated_gpu

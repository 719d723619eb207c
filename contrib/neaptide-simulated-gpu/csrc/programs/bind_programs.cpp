// The Python side of programs: a launch's traffic, its entry on a stream, a tensor's bytes.
#include "programs/bind_programs.h"

#include <pybind11/numpy.h>
#include <pybind11/stl.h>
#include <torch/csrc/utils/pybind.h>

#include <cmath>

#include "programs/programs.h"
#include "operations/twins.h"

namespace py = pybind11;

namespace simulated_gpu {
namespace {

constexpr int DENSE = py::array::c_style | py::array::forcecast;
using Addresses = py::array_t<uint64_t, DENSE>;
using Mask = py::array_t<bool, DENSE>;

// The true addresses of a tile of elements; those that the mask leaves out stay 0.
Addresses resolve(Traffic& traffic, const Addresses& addresses, const Mask& mask, size_t size, bool reads, bool writes) {
  std::vector<py::ssize_t> shape(addresses.shape(), addresses.shape() + addresses.ndim());
  Addresses found(shape);
  const uint64_t* at = addresses.data();
  const bool* wanted = mask.data();
  uint64_t* to = found.mutable_data();
  py::ssize_t count = addresses.size();
  Machine::Guard guard(machine().lock);
  for (py::ssize_t i = 0; i < count;) {
    if (!wanted[i]) {
      to[i++] = 0;
      continue;
    }
    py::ssize_t last = i + 1;  // a run of neighbours is one access
    while (last < count && wanted[last] && at[last] == at[last - 1] + size) ++last;
    uint64_t first = traffic.resolve(at[i], static_cast<size_t>(last - i) * size, reads, writes);
    for (py::ssize_t place = i; place < last; ++place) to[place] = first + static_cast<uint64_t>(place - i) * size;
    i = last;
  }
  return found;
}

// A launch on the current stream that takes as long as its operations or its bytes need.
void enter_program(const std::string& name, const Traffic& traffic, double operations, bool half, double bytes) {
  auto& m = machine();
  auto& profile = m.device(current_device()).profile;
  double seconds = std::max(operations / (half ? profile.flops_half : profile.flops_single), bytes / profile.bandwidth);
  m.launch(name, current_stream(), Engine::compute, seconds + profile.launch_device, traffic.accesses(),
           static_cast<size_t>(bytes));
  note_places();
}

// a * b + c, rounded once.
template <class T>
py::array_t<T> fused(const py::array_t<T, DENSE>& a, const py::array_t<T, DENSE>& b, const py::array_t<T, DENSE>& c) {
  std::vector<py::ssize_t> shape(a.shape(), a.shape() + a.ndim());
  py::array_t<T> found(shape);
  for (py::ssize_t i = 0; i < a.size(); ++i) found.mutable_data()[i] = std::fma(a.data()[i], b.data()[i], c.data()[i]);
  return found;
}

}  // namespace

void bind_programs(py::module_& module) {
  py::register_exception<IllegalAccess>(module, "IllegalAccess", PyExc_RuntimeError);
  py::class_<Traffic>(module, "Traffic")
      .def(py::init<>())
      .def("add", &Traffic::add)
      .def("resolve", &resolve)
      .def("bytes", &Traffic::bytes);
  module.def("enter_program", &enter_program);
  module.def("fused", &fused<float>);
  module.def("fused", &fused<double>);
  // The bytes of a tensor of the device as a tensor of the CPU, or of meta where data are fake. It is
  // valid as long as the tensor is.
  module.def("bytes_of", [](const at::Tensor& tensor) { return Twins().of(tensor); });
  module.def("resize_storage", [](const at::Tensor& tensor, size_t size) { resize_storage(tensor.storage(), size); });
  module.def("is_fake", [] { return machine().fake; });
}

}  // namespace simulated_gpu

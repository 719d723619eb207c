// The Python module: settings, findings, and what torch.cuda needs that torch has no interface for.
#include <pybind11/functional.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <torch/csrc/Generator.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/utils/pybind.h>

#include "programs/bind_programs.h"
#include "device/device.h"
#include "operations/shape_cache.h"

namespace py = pybind11;

namespace simulated_gpu {

void define_memory(py::module_& module);  // memory_module.cpp

namespace {

PyObject* place_of_call = nullptr;  // a function: the lines of the program that are being run

std::vector<std::pair<const char*, double*>> rates_of(Profile& profile) {
  return {{"flops_half", &profile.flops_half},         {"flops_single", &profile.flops_single},
          {"bandwidth", &profile.bandwidth},           {"to_device", &profile.to_device},
          {"to_host", &profile.to_host},               {"peer", &profile.peer},
          {"host_bandwidth", &profile.host_bandwidth}, {"launch_host", &profile.launch_host},
          {"launch_device", &profile.launch_device},   {"copy_latency", &profile.copy_latency},
          {"disk_read", &profile.disk_read},           {"disk_write", &profile.disk_write},
          {"host_flops", &profile.host_flops}};
}

void configure(int device, const py::dict& given) {
  auto& m = machine();
  Machine::Guard guard(m.lock);
  auto& here = m.device(device);
  for (auto& [name, rate] : rates_of(here.profile))
    if (given.contains(name)) *rate = given[name].cast<double>();
  if (given.contains("capacity")) here.memory->capacity = given["capacity"].cast<size_t>();
  if (given.contains("expandable_segments")) here.memory->expandable = given["expandable_segments"].cast<bool>();
}

py::dict rates(int device) {
  auto& m = machine();
  Machine::Guard guard(m.lock);
  auto& here = m.device(device);
  py::dict found;
  for (auto& [name, rate] : rates_of(here.profile)) found[name] = *rate;
  found["capacity"] = here.memory->capacity;
  found["expandable_segments"] = here.memory->expandable;
  return found;
}

py::dict statistics() {
  auto& m = machine();
  Machine::Guard guard(m.lock);
  py::dict found, busy, streams, operations;
  for (size_t i = 0; i < ENGINES; ++i) {
    double total = 0;
    for (int device = 0; device < m.device_count; ++device) total += m.device(device).engines[i].total();
    busy[ENGINE_NAMES[i]] = total;
  }
  for (size_t i = 0; i < m.stream_count(); ++i) {
    auto& one = m.stream(static_cast<int>(i));
    if (one.operations) streams[py::str(one.name)] = py::make_tuple(one.operations, one.time, one.busy);
  }
  for (auto& [name, total] : m.by_operation) operations[py::str(name)] = py::make_tuple(total.first, total.second);
  found["seconds"] = m.host_time();
  found["host_waited"] = m.host_waited;
  found["host_worked"] = m.host_worked;
  found["busy"] = busy;
  found["streams"] = streams;
  found["operations"] = operations;
  found["launches"] = m.launches;
  return found;
}

py::list trace() {
  auto& m = machine();
  Machine::Guard guard(m.lock);
  py::list found;
  for (auto& one : m.trace)
    found.append(py::make_tuple(one.name, m.stream(one.stream).name, ENGINE_NAMES[static_cast<size_t>(one.engine)],
                                one.start, one.end, one.bytes));
  return found;
}

void operation_of_host(const std::string& name, int thread, const std::string& engine,
                       const std::vector<at::Tensor>& reads, const std::vector<at::Tensor>& writes,
                       std::optional<double> bytes, double operations) {
  std::vector<Access> accesses;
  double all = 0;
  auto add = [&](const std::vector<at::Tensor>& tensors, bool write) {
    for (auto& tensor : tensors) {
      TORCH_CHECK(tensor.device().is_cpu(), name, " is of the host, and a tensor is on ", tensor.device());
      all += static_cast<double>(tensor.nbytes());
      add_pinned(accesses, tensor, write);
    }
  };
  add(reads, false);
  add(writes, true);
  auto* last = ENGINE_NAMES + ENGINES;
  auto* found = std::find(ENGINE_NAMES + static_cast<size_t>(Engine::disk_read), last, engine);
  TORCH_CHECK(found != last, "no engine of the host: '", engine, "'; there is disk_read, disk_write, host_arithmetic");
  host_operation(name, thread, static_cast<Engine>(found - ENGINE_NAMES), bytes.value_or(all), operations, accesses);
}

}  // namespace

void note_places() {
  auto& m = machine();
  if (m.placed == m.races.size() || !place_of_call) return;
  py::gil_scoped_acquire gil;
  auto place = py::reinterpret_borrow<py::object>(place_of_call)().cast<std::string>();
  Machine::Guard guard(m.lock);
  for (; m.placed < m.races.size(); ++m.placed) m.races[m.placed] += place;
}

PYBIND11_MODULE(_C, module) {
  auto& m = machine();
  c10::SetAllocator(GPU, device_allocator());
  at::setHostAllocator(GPU, host_allocator());

  module.def("configure", &configure);
  module.def("rates", &rates);
  module.def("set_device_count", [&m](int count) {
    TORCH_CHECK(1 <= count && count <= MAX_DEVICES, "from 1 to ", MAX_DEVICES, " devices, not ", count);
    m.device_count = count;
  });
  module.def("device_count", [&m] { return m.device_count; });
  module.def("capacity", [&m](int device) { return m.device(device).memory->capacity; });
  module.def("set_fake", &set_fake);
  module.def("end_fake_later", &end_fake_later);
  module.def("use_shape_cache", [](bool on) { shape_cache().enabled = on; });
  module.def("set_tracing", [&m](bool on) { m.tracing = on; });
  module.def("reset", [&m] { m.reset(); });
  module.def("races", [&m] { return m.races; });
  module.def("take_races", [&m](size_t from) {
    Machine::Guard guard(m.lock);
    auto first = m.races.begin() + static_cast<std::ptrdiff_t>(std::min(from, m.races.size()));
    std::vector<std::string> taken(first, m.races.end());
    m.races.erase(first, m.races.end());
    m.placed = std::min(m.placed, m.races.size());
    return taken;
  });
  module.def("statistics", &statistics);
  module.def("trace", &trace);
  module.def("set_place_of_call", [](py::object function) { place_of_call = function.release().ptr(); });
  module.def("name_range", [&m](uintptr_t address, size_t size, const std::string& name) {
    Machine::Guard guard(m.lock);
    m.name_range({address, address + size}, name);
  });
  module.def("forget_name", [&m](uintptr_t address) {
    Machine::Guard guard(m.lock);
    m.forget_name(address);
  });
  module.def("name_stream", [&m](int64_t id, int device, const std::string& name) {
    Machine::Guard guard(m.lock);
    m.stream(id ? static_cast<int>(id) : device).name = name;
  });

  module.def("pin", [&m](uintptr_t address, size_t size) {
    Machine::Guard guard(m.lock);
    if (m.pinning({address, address + size}) != Machine::Pinning::pageable) return false;
    m.pin({address, address + size});
    return true;
  });
  module.def("unpin", [&m](uintptr_t address) {
    bool known = m.unpin(address);
    note_places();
    return known;
  });
  module.def("seconds_between", [](uintptr_t first, uintptr_t second) {
    return reinterpret_cast<Event*>(second)->time - reinterpret_cast<Event*>(first)->time;
  });
  module.def("exchange_device", &exchange_device);
  module.def("current_device", &current_device);
  module.def("new_host_thread", [&m](const std::string& name) { return m.new_host_thread(name); });
  module.def("exchange_host_thread", [&m](int thread) { return m.exchange_host_thread(thread); });
  module.def("host_operation", &operation_of_host);
  module.def("host_read", &host_read);
  module.def("exchange_stream", [&m](int64_t id, int device) {
    TORCH_CHECK(!id || !m.stream(static_cast<int>(id)).of_host, "a thread of the host runs no kernels: stream ", id);
    int before = exchange_stream(id ? static_cast<int>(id) : device);
    return before < MAX_DEVICES ? 0 : before;
  });
  module.def("empty_cache", [] { device_allocator()->emptyCache(); });
  define_memory(module);
  // Autograd's threads take the GIL as they end. Where Python is gone by then, the process aborts.
  module.def("stop_autograd", [] {
    py::gil_scoped_release no_gil;
    torch::autograd::Engine::get_default_engine().stop();
  });
  bind_programs(module);
  bind_process_group(module);
  module.def("default_generator", [](int device) {
    return py::reinterpret_steal<py::object>(THPGenerator_initDefaultGenerator(default_generator(device)));
  });
}

}  // namespace simulated_gpu

// For Python: the allocator's counters, segments and events, in the form of torch's own functions.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <atomic>

#include "device/device.h"

namespace py = pybind11;

namespace simulated_gpu {
namespace {

std::atomic<bool> recording{false};
PyObject* listener = nullptr;  // a function: it is given events

py::dict counts(const Counts& from) {
  constexpr const char* pools[] = {"all", "small_pool", "large_pool"};
  py::dict found;
  for (size_t i = 0; i < 3; ++i) {
    auto& one = from.of[i];
    py::dict values;
    values["current"] = one.current;
    values["peak"] = one.peak;
    values["allocated"] = one.allocated;
    values["freed"] = one.freed;
    found[pools[i]] = values;
  }
  return found;
}

py::dict memory_stats(int device) {
  auto& m = machine();
  Machine::Guard guard(m.lock);
  auto& now = m.device(device).memory->statistics;
  py::dict found;
  found["allocation"] = counts(now.allocations);
  found["segment"] = counts(now.segments);
  found["active"] = counts(now.active);
  found["inactive_split"] = counts(now.inactive_split);
  found["allocated_bytes"] = counts(now.allocated_bytes);
  found["reserved_bytes"] = counts(now.reserved_bytes);
  found["active_bytes"] = counts(now.active_bytes);
  found["inactive_split_bytes"] = counts(now.inactive_split_bytes);
  found["requested_bytes"] = counts(now.requested_bytes);
  py::dict never;  // no size is kept from being split
  for (auto* key : {"current", "peak", "allocated", "freed"}) never[key] = 0;
  found["oversize_allocations"] = never;
  found["oversize_segments"] = never;
  found["max_split_size"] = -1;
  found["num_alloc_retries"] = now.retries;
  found["num_ooms"] = now.out_of_memory;
  found["num_sync_all_streams"] = now.synchronizations;
  found["num_device_alloc"] = now.device_allocations;
  found["num_device_free"] = now.device_frees;
  return found;
}

const char* state_of(const Chunk& chunk) {
  return chunk.allocated ? "active_allocated" : chunk.waiting ? "active_awaiting_free" : "inactive";
}

int64_t stream_id(int stream) { return stream < MAX_DEVICES ? 0 : stream; }

py::dict segment(int device, const Chunk* head) {
  size_t total = 0, allocated = 0, active = 0, requested = 0;
  py::list blocks;
  for (auto* chunk = head; chunk && chunk->mapped; chunk = chunk->after) {
    bool used = chunk->allocated || chunk->waiting;
    total += chunk->size;
    allocated += chunk->allocated ? chunk->size : 0;
    active += used ? chunk->size : 0;
    requested += used ? chunk->requested : 0;
    py::dict block;
    block["address"] = chunk->address;
    block["size"] = chunk->size;
    block["requested_size"] = used ? chunk->requested : 0;
    block["state"] = state_of(*chunk);
    blocks.append(block);
  }
  py::dict found;
  found["device"] = device;
  found["address"] = head->address;
  found["total_size"] = total;
  found["allocated_size"] = allocated;
  found["active_size"] = active;
  found["requested_size"] = requested;
  found["stream"] = stream_id(head->stream);
  found["segment_type"] = head->pool == small_pool ? "small" : "large";
  found["segment_pool_id"] = py::make_tuple(0, 0);
  found["is_expandable"] = head->expandable;
  found["blocks"] = blocks;
  return found;
}

py::list segments() {
  auto& m = machine();
  Machine::Guard guard(m.lock);
  py::list found;
  for (int device = 0; device < m.device_count; ++device)
    for (auto* head : m.segments(device)) found.append(segment(device, head));
  return found;
}

void record_memory(bool on) {
  auto& m = machine();
  Machine::Guard guard(m.lock);
  recording = on;
  for (int device = 0; device < MAX_DEVICES; ++device) {
    m.device(device).memory->recording = on;
    m.device(device).memory->events.clear();
  }
}

}  // namespace

void note_memory() {
  if (!recording || !Py_IsInitialized()) return;
  auto& m = machine();
  std::vector<std::tuple<int, MemoryEvent>> taken;
  double seconds;
  {
    Machine::Guard guard(m.lock);
    seconds = m.host_time();
    for (int device = 0; device < m.device_count; ++device) {
      auto& events = m.device(device).memory->events;
      for (auto& event : events) taken.emplace_back(device, event);
      events.clear();
    }
  }
  if (taken.empty()) return;
  py::gil_scoped_acquire gil;
  py::list given;
  for (auto& [device, event] : taken)
    given.append(py::make_tuple(device, event.action, event.address, event.size, stream_id(event.stream),
                                static_cast<int64_t>(seconds * 1e6)));
  py::reinterpret_borrow<py::object>(listener)(given);
}

void define_memory(py::module_& module) {
  module.def("memory_stats", &memory_stats);
  module.def("segments", &segments);
  module.def("record_memory", &record_memory);
  module.def("set_memory_listener", [](py::object function) { listener = function.release().ptr(); });
}

}  // namespace simulated_gpu

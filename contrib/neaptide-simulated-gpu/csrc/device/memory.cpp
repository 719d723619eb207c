// Device memory and pinned host memory, as torch allocates them.
#include <ATen/ops/empty.h>
#include <c10/core/CPUAllocator.h>

#include <cstring>

#include "device/device.h"

namespace simulated_gpu {
namespace {

struct Held {  // the context of a device pointer
  Block* block;
  at::DataPtr bytes;  // of the CPU's allocator; empty for fake memory
  size_t size;
};

// For torch's profiler: the memory is the device's and not, as the CPU's allocator says, the host's.
void report(const Held& held, int64_t sign) {
  if (!c10::memoryProfilingEnabled()) return;
  int64_t size = sign * static_cast<int64_t>(held.size);
  if (held.bytes) c10::reportMemoryUsageToProfiler(held.bytes.get(), -size, 0, 0, at::Device(at::kCPU));
  int device = held.block->device;
  auto& now = machine().device(device).memory->statistics;
  c10::reportMemoryUsageToProfiler(reinterpret_cast<void*>(held.block->range.begin), size,
                                   static_cast<size_t>(now.allocated_bytes.of[0].current),
                                   static_cast<size_t>(now.reserved_bytes.of[0].current), gpu(device));
}

void free_held(void* context) {
  std::unique_ptr<Held> held(static_cast<Held*>(context));
  report(*held, -1);
  machine().release(held->block);
  note_memory();
}

[[noreturn]] void out_of_memory(int device, size_t size) {
  auto& memory = *machine().device(device).memory;
  auto& now = memory.statistics;
  TORCH_CHECK_WITH(OutOfMemoryError, false, "CUDA out of memory. Tried to allocate ", size, " bytes. Simulated GPU ", device,
                   " has a capacity of ", memory.capacity, " bytes, of which ", now.reserved_bytes.of[0].current,
                   " are reserved and ", now.allocated_bytes.of[0].current, " allocated.");
  std::abort();
}

void copy_counts(c10::CachingAllocator::StatArray& into, const Counts& from) {
  for (size_t i = 0; i < into.size(); ++i) {
    auto& one = from.of[i];
    into[i].current = one.current;
    into[i].peak = one.peak;
    into[i].allocated = one.allocated;
    into[i].freed = one.freed;
  }
}

struct Allocator final : c10::DeviceAllocator {
  at::DataPtr allocate(size_t size) override { return new_memory(size); }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, size_t count) const override {
    if (void* bytes = bytes_at(to)) std::memcpy(bytes, bytes_at(from), count);
  }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {
    for (int device = 0; device < machine().device_count; ++device) machine().empty_cache(device);
    note_memory();
  }
  void recordStream(const at::DataPtr& data, c10::Stream stream) override {
    auto* held = static_cast<Held*>(data.get_context());
    if (!held) return;
    Machine::Guard guard(machine().lock);
    held->block->recorded.push_back(stream_index(stream));
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    Machine::Guard guard(machine().lock);
    const MemoryStatistics& ours = machine().device(device).memory->statistics;
    c10::CachingDeviceAllocator::DeviceStats found;
    copy_counts(found.allocated_bytes, ours.allocated_bytes);
    copy_counts(found.reserved_bytes, ours.reserved_bytes);
    copy_counts(found.active_bytes, ours.active_bytes);
    copy_counts(found.inactive_split_bytes, ours.inactive_split_bytes);
    copy_counts(found.requested_bytes, ours.requested_bytes);
    copy_counts(found.allocation, ours.allocations);
    copy_counts(found.segment, ours.segments);
    copy_counts(found.active, ours.active);
    copy_counts(found.inactive_split, ours.inactive_split);
    found.num_alloc_retries = ours.retries;
    found.num_ooms = ours.out_of_memory;
    found.num_device_alloc = ours.device_allocations;
    found.num_device_free = ours.device_frees;
    found.num_sync_all_streams = ours.synchronizations;
    return found;
  }
  void resetAccumulatedStats(c10::DeviceIndex device) override {
    Machine::Guard guard(machine().lock);
    machine().device(device).memory->statistics.reset_accumulated();
  }
  void resetPeakStats(c10::DeviceIndex device) override {
    Machine::Guard guard(machine().lock);
    machine().device(device).memory->statistics.each([](Counts& counts) { counts.reset_peak(); });
  }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override {
    Machine::Guard guard(machine().lock);
    auto& memory = *machine().device(device).memory;
    auto used = static_cast<size_t>(memory.statistics.reserved_bytes.of[0].current);
    return {memory.capacity - std::min(used, memory.capacity), memory.capacity};
  }
};

// torch's own keeps a block until the streams that used it are done with it, so no race is told
// where it is freed. Sizes are rounded to powers of two, as torch rounds them.
struct PinnedAllocator final : at::HostAllocator {
  at::DataPtr allocate(size_t size) override {
    size_t rounded = 1;
    while (rounded < size) rounded *= 2;
    auto owned = std::make_unique<at::DataPtr>(c10::GetCPUAllocator()->allocate(rounded));
    void* address = owned->get();
    auto begin = reinterpret_cast<uintptr_t>(address);
    Machine::Guard guard(machine().lock);
    machine().pin({begin, begin + rounded});
    return {address, owned.release(), &drop, at::Device(at::kCPU)};
  }
  static void drop(void* context) {
    std::unique_ptr<at::DataPtr> owned(static_cast<at::DataPtr*>(context));
    machine().unpin_quietly(reinterpret_cast<uintptr_t>(owned->get()));
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void* to, const void* from, size_t count) const override { default_copy_data(to, from, count); }
  bool record_event(void*, void*, c10::Stream) override { return true; }
  void empty_cache() override {}
  at::HostStats get_stats() override { return {}; }
  void reset_accumulated_stats() override {}
  void reset_peak_stats() override {}
};

}  // namespace

c10::DeviceAllocator* device_allocator() {
  static auto* one = new Allocator();
  return one;
}

at::HostAllocator* host_allocator() {
  static auto* one = new PinnedAllocator();
  return one;
}

at::DataPtr new_memory(size_t size, at::DataPtr bytes) {
  settle_fake();
  int device = current_device();
  TORCH_CHECK(device < machine().device_count, "CUDA error: invalid device ordinal: ", device, " of ",
              machine().device_count, " simulated devices");
  if (size == 0) return {nullptr, gpu(device)};
  Block* block = machine().allocate(device, size, current_stream(device));
  note_places();
  note_memory();
  if (!block) out_of_memory(device, size);
  if (!machine().fake && !bytes) bytes = c10::GetCPUAllocator()->allocate(size);
  block->data = bytes.get();
  void* address = reinterpret_cast<void*>(block->range.begin);
  auto* held = new Held{block, std::move(bytes), size};
  report(*held, 1);
  return {address, held, &free_held, gpu(device)};
}

void* bytes_at(const void* address) {
  auto at = reinterpret_cast<uintptr_t>(address);
  Block* block = machine().find(at);
  if (!block || !block->data) return nullptr;
  return static_cast<char*>(block->data) + (at - block->range.begin);
}

void resize_storage(const c10::Storage& storage, size_t size) {
  auto* impl = storage.unsafeGetStorageImpl();
  OnDevice on(impl->device().index());
  auto fresh = new_memory(size);
  if (size_t kept = std::min(size, impl->nbytes()); kept && !machine().fake)
    std::memcpy(bytes_at(fresh.get()), bytes_at(impl->data()), kept);
  impl->set_data_ptr_noswap(std::move(fresh));
  impl->set_nbytes(size);
}

}  // namespace simulated_gpu

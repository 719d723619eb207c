// What the files of torch's side share: the device type CUDA, its current stream, its parts.
#pragma once

#include <ATen/core/CachingHostAllocator.h>
#include <ATen/core/Tensor.h>
#include <c10/core/CachingDeviceAllocator.h>

#include <atomic>

#include "model/machine.h"

namespace simulated_gpu {

constexpr auto GPU = c10::DeviceType::CUDA;
constexpr auto GPU_KEY = c10::DispatchKey::CUDA;

inline c10::Device gpu(int index) { return {GPU, static_cast<c10::DeviceIndex>(index)}; }
inline bool is_gpu(const at::Tensor& tensor) { return tensor.defined() && tensor.device().type() == GPU; }

// Of this thread. A stream is its index in the machine; torch's id of a default stream is 0.
int current_device();
int exchange_device(int index);
int current_stream(int device);
inline int current_stream() { return current_stream(current_device()); }
int exchange_stream(int stream);
int stream_index(const c10::Stream& stream);
c10::Stream torch_stream(int stream);

struct OnDevice {  // the current device is another one for a while
  explicit OnDevice(int device) : before(exchange_device(device)) {}
  ~OnDevice() { exchange_device(before); }
  OnDevice(const OnDevice&) = delete;
  int before;
};

c10::DeviceAllocator* device_allocator();
at::HostAllocator* host_allocator();

// Memory on the current device, for its current stream. `bytes`: what it holds already, if anything.
at::DataPtr new_memory(size_t size, at::DataPtr bytes = {});
// Where the bytes behind a device address are; null for fake memory.
void* bytes_at(const void* address);
void resize_storage(const c10::Storage& storage, size_t size);

const at::Generator& default_generator(int device);
// The CPU's generator that draws for a generator of the device.
std::optional<at::Generator> inner_generator(const at::Generator& generator);
at::Generator new_generator(int device);

// The ranges of memory that a tensor covers. A tensor with gaps is given row by row, up to a limit.
std::vector<Range> ranges_of(const at::Tensor& tensor);
void add_accesses(std::vector<Access>& accesses, const at::Tensor& tensor, bool write);

// What an operation costs: floating-point operations, bytes, and whether half precision computes them.
struct Work {
  double operations = 0, bytes = 0;
  bool half = false;
};
// Floating-point operations; 0 where memory bounds the time. `out` may be unknown: empty.
double operations_of(const std::string& name, const std::vector<at::Tensor>& in, const std::vector<at::Tensor>& out);
Work work_of(const std::string& name, const std::vector<at::Tensor>& in, const std::vector<at::Tensor>& out,
             const std::vector<at::Tensor>& written);
void enqueue(const std::string& name, const Work& work, const std::vector<Access>& accesses);

// Enqueue an operation that reads `in` and writes `out` and `written`, on the current stream.
void launch(const std::string& name, const std::vector<at::Tensor>& in, const std::vector<at::Tensor>& out,
            const std::vector<at::Tensor>& written);
void wait_for_current_stream();

double fake_value();  // what every element of fake data is said to be
void set_fake(bool on, double value);
void end_fake_later();  // for an error that holds fake tensors: data are real when these are gone
void settle_fake();     // make that so. Call it before anything that tensors are made of

// Not 0: what the host computes is the simulation's, not the program's.
extern std::atomic<int> unseen;
// Work of a thread of the host beside the main one.
void host_operation(const std::string& name, int thread, Engine engine, double bytes, double operations,
                    const std::vector<Access>& accesses);
// The host reads a tensor now, by something that is no operation of torch. It takes no time.
void host_read(const std::string& name, const at::Tensor& tensor);
// The ranges of a host tensor where races are told: pinned ones. Other memory comes and goes unseen.
void add_pinned(std::vector<Access>& accesses, const at::Tensor& tensor, bool write);

// Append the line of the program to races told since the last call. Call it without the lock.
void note_places();

// Give Python the allocator's events since the last call, where it records them. The same holds.
void note_memory();

}  // namespace simulated_gpu

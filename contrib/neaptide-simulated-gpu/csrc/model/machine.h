// The simulated machine: devices with streams, engines and memory; one host; who touched what when.
// It knows nothing of torch. Its methods take its lock; what they return is a copy.
#pragma once

#include <array>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "model/caching.h"
#include "model/engine.h"
#include "model/shadow.h"

namespace simulated_gpu {

constexpr int MAX_DEVICES = 8;
constexpr int STREAMS_OF_A_POOL = 32;  // as torch has for each device and priority; then they repeat

// Bytes and operations per second; seconds.
struct Profile {
  double flops_half = 1e12, flops_single = 1e12;
  double bandwidth = 1e12, to_device = 1e10, to_host = 1e10, peer = 1e10, host_bandwidth = 2e10;
  double launch_host = 5e-6, launch_device = 2e-6, copy_latency = 8e-6;
  double disk_read = 3e9, disk_write = 2e9, host_flops = 5e11;
};

struct Stream {
  std::string name;
  int device;
  Clock clock;  // what has happened before the operation that is enqueued next
  uint64_t operations = 0;
  double time = 0, busy = 0;  // when the last operation ends; seconds of work
  bool of_host = false;       // a thread of the host beside the main one
};

struct Event {
  Clock clock;
  double time = 0;
  uint64_t epoch = 0;  // the machine's at the record: a reset makes older times meaningless
};

struct Block {  // one allocation on a device
  Range range;
  int device, stream;
  Chunk* chunk;
  std::vector<int> recorded;  // streams named by record_stream
  void* data = nullptr;       // where the bytes are in truth; null for fake memory
};

struct Operation {  // an entry of the trace
  std::string name;
  int stream;
  Engine engine;
  double start, end;
  size_t bytes;
};

struct Device {
  Profile profile;
  std::unique_ptr<CachingModel> memory;
  std::array<Schedule, ENGINES> engines;
  std::array<std::vector<int>, 2> pools;  // streams of normal and of high priority
  std::array<size_t, 2> next{0, 0};
};

class Machine {
 public:
  using Guard = std::lock_guard<std::recursive_mutex>;
  std::recursive_mutex lock;

  Machine();

  // -- settings -------------------------------------------------------------------------------
  int device_count = 1;
  bool fake = false, tracing = false;
  Device& device(int index) { return devices_[static_cast<size_t>(index)]; }

  // -- streams and events ---------------------------------------------------------------------
  int new_stream(int device, bool high_priority);
  Stream& stream(int index) { return streams_.at(static_cast<size_t>(index)); }
  size_t stream_count() const { return streams_.size(); }
  void record(Event& event, int stream);
  void wait(int stream, const Event& event);
  bool reached(const Event& event);
  bool reached_stream(int stream);
  void synchronize(const Event& event);
  void synchronize_stream(int stream);
  void synchronize_device(int device);
  void synchronize();

  // An operation of a stream: its duration in seconds, and the memory it reads and writes.
  void launch(const std::string& name, int stream, Engine engine, double duration,
              const std::vector<Access>& accesses, size_t bytes);

  // -- threads of the host beside the main one --------------------------------------------------
  // Each is a stream: it has an order of its own, waits for events and records them.
  int new_host_thread(const std::string& name);
  int exchange_host_thread(int index);  // what this thread of the process is; -1: the main one
  int host_thread() const;

  // -- the host -------------------------------------------------------------------------------
  void host_touch(const std::string& name, const Access& access);
  void host_work(double seconds);
  void host_wait_for(int stream);  // in time only: a copy from pageable memory
  double host_time() const { return host_time_; }

  // -- memory ---------------------------------------------------------------------------------
  // Null where the device is full.
  Block* allocate(int device, size_t size, int stream);
  void release(Block* block);
  Block* find(uintptr_t address);
  void empty_cache(int device);
  std::vector<const Chunk*> segments(int device);
  void pin(const Range& range) { pinned_[range.begin] = range.end; }
  bool unpin(uintptr_t begin);       // the program does so itself: copies under way are told
  void unpin_quietly(uintptr_t begin);
  enum class Pinning { pageable, pinned, across };  // across: over two registrations
  Pinning pinning(const Range& range);

  // -- what was found -------------------------------------------------------------------------
  std::vector<std::string> races;
  size_t placed = 0;  // of these races, those whose lines of the program are noted
  void name_range(const Range& range, const std::string& name) { names_[range.begin] = {range.end, name}; }
  void forget_name(uintptr_t begin) { names_.erase(begin); }
  std::string describe(uintptr_t address);
  std::vector<Operation> trace;
  std::unordered_map<std::string, std::pair<uint64_t, double>> by_operation;  // how often, seconds
  uint64_t launches = 0;
  double host_waited = 0, host_worked = 0;
  void reset();  // clocks, engines and findings start again; memory stays

 private:
  std::array<Device, MAX_DEVICES> devices_;
  std::vector<Stream> streams_;
  Clock host_;  // what the host's main thread knows to have ended
  double host_time_ = 0;
  uint64_t epoch_ = 0;
  Shadow shadow_;
  std::map<uintptr_t, Block*> blocks_;
  std::map<uintptr_t, uintptr_t> pinned_;
  std::map<uintptr_t, std::pair<uintptr_t, std::string>> names_;
  std::vector<std::string> operation_names_{"?"};
  std::unordered_map<std::string, uint32_t> name_indices_;
  std::unordered_map<std::string, size_t> told_;
  struct Freed {  // memory that its stream's next allocation may be given
    std::vector<Touch> touches;
    std::string what;
  };
  std::unordered_map<int, std::vector<Freed>> freed_;  // by the stream it was allocated on
  struct Waiting {
    Chunk* chunk;
    std::vector<Event> events;  // of the streams of record_stream, at the moment it was freed
  };
  std::array<std::vector<Waiting>, MAX_DEVICES> waiting_;

  Clock& own_clock();  // of the host's thread that calls
  double& own_time();
  bool polled();  // not reached; to ask took time
  uint32_t name_index(const std::string& name);
  std::string describe(const Touch& touch);
  void tell(const std::string& key, const std::string& text);
  void host_reaches(const Clock& clock, double time);
  void recycle_reached(int device);
  void recycle_all(int device);
  void check_reuse(int stream);
};

Machine& machine();

// Addresses of device memory. Nothing is ever readable there: the host's read of a device pointer
// ends in a segmentation fault, as on a machine with a GPU.
uintptr_t reserve_addresses(size_t size);
void unreserve_addresses(uintptr_t address, size_t size);

}  // namespace simulated_gpu

#include "model/machine.h"

namespace simulated_gpu {
namespace {

constexpr int MAIN = -1;
constexpr double POLL = 1e-6;  // seconds that the host takes to ask whether work has ended
thread_local int this_thread = MAIN;

}  // namespace

Machine& machine() {
  static auto* one = new Machine();  // never destroyed: tensors outlive every order of exit
  return *one;
}

Machine::Machine() {
  for (int index = 0; index < MAX_DEVICES; ++index) {
    auto forget = [this, index](uintptr_t address, size_t size) {
      synchronize_device(index);  // as cudaFree does
      shadow_.forget({address, address + size});
      unreserve_addresses(address, size);
    };
    device(index).memory = std::make_unique<CachingModel>(reserve_addresses, forget);
    std::string suffix = index ? " of device " + std::to_string(index) : "";
    streams_.push_back(Stream{"default" + suffix, index, {}});
  }
}

// -- streams and events -------------------------------------------------------------------------

int Machine::new_stream(int index, bool high_priority) {
  Guard guard(lock);
  auto& pool = device(index).pools[high_priority];
  auto& next = device(index).next[high_priority];
  if (pool.size() < STREAMS_OF_A_POOL) {
    int made = static_cast<int>(streams_.size());
    streams_.push_back(Stream{"stream " + std::to_string(made), index, {}});
    pool.push_back(made);
  }
  return pool[next++ % STREAMS_OF_A_POOL];
}

int Machine::new_host_thread(const std::string& name) {
  Guard guard(lock);
  streams_.push_back(Stream{name, 0, {}});
  streams_.back().of_host = true;
  return static_cast<int>(streams_.size()) - 1;
}

int Machine::exchange_host_thread(int index) { return std::exchange(this_thread, index); }

int Machine::host_thread() const { return this_thread; }

Clock& Machine::own_clock() { return this_thread == MAIN ? host_ : stream(this_thread).clock; }

double& Machine::own_time() { return this_thread == MAIN ? host_time_ : stream(this_thread).time; }

void Machine::record(Event& event, int index) {
  Guard guard(lock);
  Stream& one = stream(index);
  join(one.clock, own_clock());
  event = {one.clock, std::max(one.time, own_time()), epoch_};
}

void Machine::wait(int index, const Event& event) {
  Guard guard(lock);
  Stream& one = stream(index);
  join(one.clock, event.clock);
  if (event.epoch == epoch_) one.time = std::max(one.time, event.time);
}

bool Machine::reached(const Event& event) {
  Guard guard(lock);
  if (event.epoch == epoch_ && event.time > own_time()) return polled();
  join(own_clock(), event.clock);
  return true;
}

bool Machine::reached_stream(int index) {
  Guard guard(lock);
  Stream& one = stream(index);
  if (one.time > own_time()) return polled();
  join(own_clock(), one.clock);
  return true;
}

bool Machine::polled() {
  own_time() += POLL;
  return false;
}

void Machine::host_reaches(const Clock& clock, double time) {
  join(own_clock(), clock);
  if (time <= own_time()) return;
  if (this_thread == MAIN) host_waited += time - host_time_;
  own_time() = time;
}

void Machine::synchronize(const Event& event) {
  Guard guard(lock);
  host_reaches(event.clock, event.epoch == epoch_ ? event.time : 0);
}

void Machine::synchronize_stream(int index) {
  Guard guard(lock);
  host_reaches(stream(index).clock, stream(index).time);
}

void Machine::synchronize_device(int index) {
  Guard guard(lock);
  for (auto& one : streams_)
    if (one.device == index && !one.of_host) host_reaches(one.clock, one.time);
}

void Machine::synchronize() {
  Guard guard(lock);
  for (auto& one : streams_) host_reaches(one.clock, one.time);
}

void Machine::launch(const std::string& name, int index, Engine engine, double duration,
                     const std::vector<Access>& accesses, size_t bytes) {
  Guard guard(lock);
  Stream& one = stream(index);
  Device& here = device(one.device);
  Touch now{index, ++one.operations, name_index(name)};
  join(one.clock, own_clock());
  auto ordered = [&](const Touch& before) {
    return before.stream == index || covers(one.clock, before.stream, before.operation);
  };
  for (auto& access : accesses) {
    if (access.range.begin >= access.range.end) continue;
    shadow_.touch(access, now, ordered, [&](uintptr_t address, const Touch& before, bool written) {
      const char* how = written ? "written" : "read";
      tell(name + how + operation_names_[before.name] + std::to_string(before.stream),
           describe(now) + (access.write ? " writes " : " reads ") + describe(address) + ", " + how + " by " +
               describe(before) + ", and nothing orders the two");
    });
  }
  if (one.clock.size() < streams_.size()) one.clock.resize(streams_.size(), 0);
  one.clock[static_cast<size_t>(index)] = one.operations;
  if (!one.of_host) {
    ++launches;
    own_time() += here.profile.launch_host;
  }
  auto& schedule = here.engines[static_cast<size_t>(engine)];
  double ready = std::max(one.time, own_time());
  one.time = schedule.occupy(std::min(host_time_, ready), ready, duration);
  one.busy += duration;
  auto& [count, seconds] = by_operation[name];
  ++count;
  seconds += duration;
  if (tracing) trace.push_back({name, index, engine, one.time - duration, one.time, bytes});
}

// -- the host -----------------------------------------------------------------------------------

void Machine::host_touch(const std::string& name, const Access& access) {
  Guard guard(lock);
  auto ordered = [&](const Touch& before) { return covers(own_clock(), before.stream, before.operation); };
  shadow_.look(access, ordered, [&](uintptr_t address, const Touch& before, bool written) {
    const char* how = written ? "written" : "read";
    tell("host" + name + how + operation_names_[before.name] + std::to_string(before.stream),
         "the host's " + name + (access.write ? " writes " : " reads ") + describe(address) + ", " + how + " by " +
             describe(before) + ", for which the host has not waited");
  });
}

void Machine::host_work(double seconds) {
  Guard guard(lock);
  host_time_ += seconds;
  host_worked += seconds;
}

void Machine::host_wait_for(int index) {
  Guard guard(lock);
  host_reaches({}, stream(index).time);
}

// -- what was found -----------------------------------------------------------------------------

uint32_t Machine::name_index(const std::string& name) {
  auto [found, is_new] = name_indices_.try_emplace(name, static_cast<uint32_t>(operation_names_.size()));
  if (is_new) operation_names_.push_back(name);
  return found->second;
}

std::string Machine::describe(uintptr_t address) {
  Guard guard(lock);
  auto named = names_.upper_bound(address);
  if (named != names_.begin()) {
    auto& [begin, it] = *std::prev(named);
    if (address < it.first) return "'" + it.second + "'+" + std::to_string(address - begin);
  }
  if (Block* block = find(address))
    return "a device block of " + std::to_string(block->range.end - block->range.begin) + " bytes+" +
           std::to_string(address - block->range.begin);
  return "host memory at " + std::to_string(address);
}

std::string Machine::describe(const Touch& touch) {
  return operation_names_[touch.name] + " (operation " + std::to_string(touch.operation) + " of stream '" +
         stream(touch.stream).name + "')";
}

void Machine::tell(const std::string& key, const std::string& text) {
  if (told_[key]++) return;
  races.push_back(text);
}

void Machine::reset() {
  Guard guard(lock);
  synchronize();
  ++epoch_;
  host_time_ = host_waited = host_worked = 0;
  for (auto& one : streams_) one.time = one.busy = 0;
  for (auto& one : devices_) {
    for (auto& engine : one.engines) engine.reset();
    one.memory->statistics.each([](Counts& counts) { counts.reset_peak(); });
  }
  races.clear();
  placed = 0;
  told_.clear();
  trace.clear();
  by_operation.clear();
  launches = 0;
}

}  // namespace simulated_gpu

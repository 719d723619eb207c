#include "machine.h"

#include <sys/mman.h>

#include <stdexcept>

namespace simulated_gpu {

Machine& machine() {
  static auto* one = new Machine();  // never destroyed: tensors outlive every order of exit
  return *one;
}

Machine::Machine() {
  for (int index = 0; index < MAX_DEVICES; ++index) {
    device(index).memory = std::make_unique<CachingModel>(reserve_addresses, unreserve_addresses);
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

void Machine::record(Event& event, int index) {
  Guard guard(lock);
  Stream& one = stream(index);
  join(one.clock, host_);
  event = {one.clock, std::max(one.time, host_time_), epoch_};
}

void Machine::wait(int index, const Event& event) {
  Guard guard(lock);
  Stream& one = stream(index);
  join(one.clock, event.clock);
  if (event.epoch == epoch_) one.time = std::max(one.time, event.time);
}

bool Machine::reached(const Event& event) {
  Guard guard(lock);
  if (event.epoch == epoch_ && event.time > host_time_) return false;
  join(host_, event.clock);
  return true;
}

bool Machine::reached_stream(int index) {
  Guard guard(lock);
  Stream& one = stream(index);
  if (one.time > host_time_) return false;
  join(host_, one.clock);
  return true;
}

void Machine::host_reaches(const Clock& clock, double time) {
  join(host_, clock);
  if (time <= host_time_) return;
  host_waited += time - host_time_;
  host_time_ = time;
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
    if (one.device == index) host_reaches(one.clock, one.time);
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
  ++launches;
  join(one.clock, host_);
  if (tell_races) {
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
  }
  if (one.clock.size() < streams_.size()) one.clock.resize(streams_.size(), 0);
  one.clock[static_cast<size_t>(index)] = one.operations;
  host_time_ += here.profile.launch_host;
  auto& schedule = here.engines[static_cast<size_t>(engine)];
  one.time = schedule.occupy(host_time_, std::max(one.time, host_time_), duration);
  one.busy += duration;
  auto& [count, seconds] = by_operation[name];
  ++count;
  seconds += duration;
  if (tracing) trace.push_back({name, index, engine, one.time - duration, one.time, bytes});
}

// -- the host -----------------------------------------------------------------------------------

void Machine::host_touch(const std::string& name, const Access& access) {
  Guard guard(lock);
  if (!tell_races) return;
  auto ordered = [&](const Touch& before) { return covers(host_, before.stream, before.operation); };
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
  has_news = true;
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
  told_.clear();
  trace.clear();
  by_operation.clear();
  launches = 0;
}

// -- memory -------------------------------------------------------------------------------------

Block* Machine::find(uintptr_t address) {
  Guard guard(lock);
  auto after = blocks_.upper_bound(address);
  if (after == blocks_.begin()) return nullptr;
  Block* block = std::prev(after)->second;
  return address < block->range.end ? block : nullptr;
}

Block* Machine::allocate(int index, size_t size, int stream_index) {
  Guard guard(lock);
  recycle_reached(index);
  Chunk* chunk = device(index).memory->allocate(size, stream_index, [&] { recycle_all(index); });
  if (!chunk) return nullptr;
  check_reuse(stream_index);
  auto* block = new Block{{chunk->address, chunk->address + size}, index, stream_index, chunk, {}};
  blocks_[chunk->address] = block;
  return block;
}

void Machine::release(Block* block) {
  Guard guard(lock);
  std::string what = describe(block->range.begin);
  names_.erase(block->range.begin);
  blocks_.erase(block->range.begin);
  auto& recorded = block->recorded;
  auto touches = shadow_.forget(block->range);
  auto harmless = [&](const Touch& touch) {
    return touch.stream == block->stream ||
           std::find(recorded.begin(), recorded.end(), touch.stream) != recorded.end();
  };
  touches.erase(std::remove_if(touches.begin(), touches.end(), harmless), touches.end());
  if (tell_races && !touches.empty()) freed_[block->stream].push_back({touches, what});
  Waiting wait{block->chunk, {}};
  for (int index : recorded) {
    if (index == block->stream) continue;
    wait.events.emplace_back();
    record(wait.events.back(), index);
  }
  device(block->device).memory->give_back(block->chunk, !wait.events.empty());
  if (!wait.events.empty()) waiting_[static_cast<size_t>(block->device)].push_back(std::move(wait));
  delete block;
}

// The caching allocator gives a stream's freed memory to that stream's next allocation at once.
void Machine::check_reuse(int index) {
  auto found = freed_.find(index);
  if (found == freed_.end()) return;
  Clock known = stream(index).clock;
  join(known, host_);
  for (auto& freed : found->second)
    for (auto& touch : freed.touches)
      if (!covers(known, touch.stream, touch.operation))
        tell("reuse" + operation_names_[touch.name] + std::to_string(touch.stream),
             "an allocation of stream '" + stream(index).name + "' may get the memory of " + freed.what +
                 ", which is freed and still used by " + describe(touch) +
                 ": record_stream is missing, or a wait before the free");
  freed_.erase(found);
}

void Machine::recycle_reached(int index) {
  auto& waiting = waiting_[static_cast<size_t>(index)];
  auto over = [&](Waiting& one) {
    for (auto& event : one.events)
      if (event.epoch == epoch_ && event.time > host_time_) return false;
    device(index).memory->recycle(one.chunk);
    return true;
  };
  waiting.erase(std::remove_if(waiting.begin(), waiting.end(), over), waiting.end());
}

void Machine::recycle_all(int index) {
  for (auto& one : waiting_[static_cast<size_t>(index)])
    for (auto& event : one.events) host_reaches({}, event.epoch == epoch_ ? event.time : 0);
  recycle_reached(index);
}

void Machine::empty_cache(int index) {
  Guard guard(lock);
  recycle_all(index);
  device(index).memory->release_cached();
}

Machine::Pinning Machine::pinning(const Range& range) {
  Guard guard(lock);
  auto after = pinned_.upper_bound(range.begin);
  if (after == pinned_.begin()) return Pinning::pageable;
  uintptr_t end = std::prev(after)->second;
  if (range.begin >= end) return Pinning::pageable;
  return range.end <= end ? Pinning::pinned : Pinning::across;
}

bool Machine::unpin(uintptr_t begin) {
  Guard guard(lock);
  auto found = pinned_.find(begin);
  if (found == pinned_.end()) return false;
  std::string what = describe(begin);
  for (auto& touch : shadow_.forget({begin, found->second}))
    if (tell_races && !covers(host_, touch.stream, touch.operation))
      tell("unpin" + operation_names_[touch.name],
           "pinned " + what + " is unregistered while " + describe(touch) + " still uses it");
  pinned_.erase(found);
  return true;
}

void Machine::unpin_quietly(uintptr_t begin) {
  Guard guard(lock);
  auto found = pinned_.find(begin);
  if (found == pinned_.end()) return;
  shadow_.forget({begin, found->second});
  pinned_.erase(found);
}

// -- addresses ----------------------------------------------------------------------------------

namespace {

constexpr size_t RESERVED = size_t(1) << 45;
std::map<uintptr_t, size_t>& gaps() {  // by address: how many bytes are free
  static auto* one = [] {
    void* base = mmap(nullptr, RESERVED, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) throw std::runtime_error("simulated_gpu: this process may not reserve 32 TiB of addresses");
    return new std::map<uintptr_t, size_t>{{round_up(reinterpret_cast<uintptr_t>(base), 2 * MIB), RESERVED - 2 * MIB}};
  }();
  return *one;
}

}  // namespace

uintptr_t reserve_addresses(size_t size) {
  for (auto at = gaps().begin(); at != gaps().end(); ++at) {
    auto [address, room] = *at;
    if (room < size) continue;
    gaps().erase(at);
    if (room > size) gaps()[address + size] = room - size;
    return address;
  }
  throw std::runtime_error("simulated_gpu: no addresses are left for device memory");
}

void unreserve_addresses(uintptr_t address, size_t size) {
  auto after = gaps().lower_bound(address);
  if (after != gaps().end() && after->first == address + size) {
    size += after->second;
    after = gaps().erase(after);
  }
  if (after != gaps().begin() && std::prev(after)->first + std::prev(after)->second == address)
    std::prev(after)->second += size;
  else
    gaps()[address] = size;
}

}  // namespace simulated_gpu

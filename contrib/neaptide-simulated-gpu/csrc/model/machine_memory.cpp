// The machine's memory: blocks, what freed ones are still used by, pinned ranges of the host.
#include <algorithm>

#include "model/machine.h"

namespace simulated_gpu {

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
  auto& recorded = block->recorded;
  auto touches = shadow_.forget(block->range);
  Touch last;  // of its own stream: another stream that gets the memory next has to wait for it
  for (auto& touch : touches)
    if (touch.stream == block->stream && touch.operation > last.operation) last = touch;
  if (last.exists()) shadow_.mark(block->range, last);
  auto harmless = [&](const Touch& touch) {
    return touch.stream == block->stream ||
           std::find(recorded.begin(), recorded.end(), touch.stream) != recorded.end();
  };
  touches.erase(std::remove_if(touches.begin(), touches.end(), harmless), touches.end());
  if (!touches.empty()) freed_[block->stream].push_back({touches, describe(block->range.begin)});
  names_.erase(block->range.begin);
  blocks_.erase(block->range.begin);
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
  join(known, own_clock());
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
      if (event.epoch == epoch_ && event.time > own_time()) return false;
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

std::vector<const Chunk*> Machine::segments(int index) {
  Guard guard(lock);
  std::vector<Chunk*> used;
  for (auto& [address, block] : blocks_)
    if (block->device == index) used.push_back(block->chunk);
  for (auto& one : waiting_[static_cast<size_t>(index)]) used.push_back(one.chunk);
  return device(index).memory->segments(used);
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
    if (!covers(own_clock(), touch.stream, touch.operation))
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

}  // namespace simulated_gpu

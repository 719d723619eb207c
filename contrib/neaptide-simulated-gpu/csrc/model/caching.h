// The arithmetic of torch's CUDA caching allocator, over addresses that nothing lies behind.
// Rounding, pools, splitting, merging and release are those of c10/cuda/CUDACachingAllocator.cpp;
// with expandable segments a segment grows in pages at its end instead of being one allocation.
#pragma once

#include <functional>
#include <map>
#include <set>
#include <tuple>
#include <vector>

#include "model/chunk.h"

namespace simulated_gpu {

class CachingModel {
 public:
  // `reserve`: addresses for a segment of so many bytes; `unreserve`: they are free again.
  CachingModel(std::function<uintptr_t(size_t)> reserve, std::function<void(uintptr_t, size_t)> unreserve)
      : reserve_(std::move(reserve)), unreserve_(std::move(unreserve)) {}

  size_t capacity = size_t(1) << 34;
  bool expandable = false;
  MemoryStatistics statistics;
  bool recording = false;
  std::vector<MemoryEvent> events;  // while recording

  // Return a chunk of at least `size` bytes, or null where the device has too little memory left.
  // `free_waiting` ends the wait of every freed chunk that some stream still used.
  Chunk* allocate(size_t size, int stream, const std::function<void()>& free_waiting) {
    size_t rounded = std::max(ROUND, round_up(size, ROUND));
    Pool pool = rounded <= SMALL ? small_pool : large_pool;
    Chunk* found = cached(pool, stream, rounded);
    if (!found) found = fresh(pool, stream, rounded);
    if (!found) {
      ++statistics.retries;
      ++statistics.synchronizations;
      free_waiting();
      release_cached();
      found = cached(pool, stream, rounded);
      if (!found) found = fresh(pool, stream, rounded);
    }
    if (!found) {
      ++statistics.out_of_memory;
      note("oom", capacity - reserved_, size, stream);
      return nullptr;
    }
    if (found->size - rounded >= least_rest(pool)) put(divide(found, rounded));
    found->allocated = true;
    found->requested = size;
    statistics.allocations.add(pool, 1);
    statistics.allocated_bytes.add(pool, as_signed(found->size));
    statistics.requested_bytes.add(pool, as_signed(size));
    statistics.active.add(pool, 1);
    statistics.active_bytes.add(pool, as_signed(found->size));
    note("alloc", found->address, size, stream);
    return found;
  }

  // The program gave it back. `waits`: a stream named by record_stream still uses it.
  void give_back(Chunk* chunk, bool waits) {
    chunk->allocated = false;
    chunk->waiting = waits;
    note("free_requested", chunk->address, chunk->requested, chunk->stream);
    statistics.allocations.add(chunk->pool, -1);
    statistics.allocated_bytes.add(chunk->pool, -as_signed(chunk->size));
    if (!waits) recycle(chunk);
  }

  // No stream uses it any more: the next allocation of its stream may have it.
  void recycle(Chunk* chunk) {
    chunk->waiting = false;
    note("free_completed", chunk->address, chunk->requested, chunk->stream);
    statistics.active.add(chunk->pool, -1);
    statistics.active_bytes.add(chunk->pool, -as_signed(chunk->size));
    statistics.requested_bytes.add(chunk->pool, -as_signed(chunk->requested));
    for (Chunk* neighbour : {chunk->before, chunk->after}) merge(chunk, neighbour);
    put(chunk);
  }

  // The first chunk of each run of mapped chunks, by address. `used`: those that are not free.
  std::vector<const Chunk*> segments(const std::vector<Chunk*>& used) const {
    std::map<uintptr_t, const Chunk*> heads;
    auto add = [&](const Chunk* chunk) {
      while (chunk->before && chunk->before->mapped) chunk = chunk->before;
      heads[chunk->address] = chunk;
    };
    for (auto* chunk : used) add(chunk);
    for (auto& pool : free_)
      for (auto* chunk : pool) add(chunk);
    std::vector<const Chunk*> found;
    for (auto& [address, chunk] : heads) found.push_back(chunk);
    return found;
  }

  void release_cached() {
    for (auto& pool : free_) {
      std::vector<Chunk*> all(pool.begin(), pool.end());
      for (Chunk* chunk : all) chunk->expandable ? shrink(chunk) : release(chunk);
    }
  }

 private:
  struct Order {  // torch's
    bool operator()(const Chunk* a, const Chunk* b) const {
      return std::tie(a->stream, a->size, a->address) < std::tie(b->stream, b->size, b->address);
    }
  };
  std::function<uintptr_t(size_t)> reserve_;
  std::function<void(uintptr_t, size_t)> unreserve_;
  std::set<Chunk*, Order> free_[2];
  std::map<std::pair<int, int>, std::vector<Chunk*>> rooms_;  // by pool and stream: not mapped yet
  size_t reserved_ = 0;

  void note(const char* action, uintptr_t address, size_t size, int stream) {
    if (recording) events.push_back({action, address, size, stream});
  }
  static int64_t as_signed(size_t size) { return static_cast<int64_t>(size); }
  size_t least_rest(Pool pool) const { return pool == small_pool || expandable ? ROUND : SMALL + 1; }

  void put(Chunk* chunk) {
    free_[chunk->pool].insert(chunk);
    count_split(chunk, 1);
  }

  void take(Chunk* chunk) {
    free_[chunk->pool].erase(chunk);
    count_split(chunk, -1);
  }

  void count_split(Chunk* chunk, int sign) {
    if (chunk->expandable || chunk->whole()) return;
    statistics.inactive_split.add(chunk->pool, sign);
    statistics.inactive_split_bytes.add(chunk->pool, sign * as_signed(chunk->size));
  }

  Chunk* cached(Pool pool, int stream, size_t size) {
    Chunk wanted{0, size, pool, stream};
    auto found = free_[pool].lower_bound(&wanted);
    if (found == free_[pool].end() || (*found)->stream != stream) return nullptr;
    Chunk* chunk = *found;
    take(chunk);
    return chunk;
  }

  bool reserve_bytes(Pool pool, size_t size) {
    if (reserved_ + size > capacity) return false;
    reserved_ += size;
    statistics.reserved_bytes.add(pool, as_signed(size));
    ++statistics.device_allocations;
    return true;
  }

  void unreserve_bytes(Pool pool, size_t size) {
    reserved_ -= size;
    statistics.reserved_bytes.add(pool, -as_signed(size));
    ++statistics.device_frees;
  }

  Chunk* fresh(Pool pool, int stream, size_t size) {
    if (expandable) return grow(pool, stream, size);
    size_t segment = size <= SMALL ? SMALL_SEGMENT : size < MIDDLE ? LARGE_SEGMENT : round_up(size, ROUND_SEGMENT);
    if (!reserve_bytes(pool, segment)) return nullptr;
    statistics.segments.add(pool, 1);
    auto* made = new Chunk{reserve_(segment), segment, pool, stream};
    note("segment_alloc", made->address, segment, stream);
    return made;
  }

  // Map pages behind the free end of the stream's segment until `size` bytes lie there.
  Chunk* grow(Pool pool, int stream, size_t size) {
    size_t page = page_of(pool);
    auto& rooms = rooms_[{pool, stream}];
    if (rooms.empty()) rooms.push_back(new_room(pool, stream));
    for (Chunk*& room : rooms) {
      Chunk* front = room->before;
      bool joins = front && is_free(front);
      size_t have = joins ? front->size : 0;
      size_t need = round_up(size - std::min(have, size), page);
      if (need == 0 || need > room->size) continue;
      if (!reserve_bytes(pool, need)) return nullptr;
      Chunk* mapped = room;
      if (need < room->size)
        room = divide(room, need);
      else
        rooms.erase(rooms.begin() + (&room - rooms.data()));
      mapped->mapped = true;
      note("segment_map", mapped->address, need, stream);
      merge(mapped, front);
      return mapped;
    }
    return nullptr;
  }

  Chunk* new_room(Pool pool, int stream) {
    size_t size = round_up(capacity + capacity / 8, LARGE_SEGMENT);
    auto* room = new Chunk{reserve_(size), size, pool, stream};
    room->mapped = false;
    room->expandable = true;  // torch does not count it among the segments
    return room;
  }

  // The chunk keeps its first `size` bytes; return a new one of the rest.
  Chunk* divide(Chunk* chunk, size_t size) {
    auto* rest = new Chunk{chunk->address + size, chunk->size - size, chunk->pool, chunk->stream};
    rest->mapped = chunk->mapped;
    rest->expandable = chunk->expandable;
    chunk->size = size;
    rest->before = chunk;
    rest->after = chunk->after;
    if (rest->after) rest->after->before = rest;
    chunk->after = rest;
    return rest;
  }

  void absorb(Chunk* into, Chunk* neighbour) {
    if (neighbour == into->before) {
      into->address = neighbour->address;
      into->before = neighbour->before;
      if (into->before) into->before->after = into;
    } else {
      into->after = neighbour->after;
      if (into->after) into->after->before = into;
    }
    into->size += neighbour->size;
    delete neighbour;
  }

  void merge(Chunk* into, Chunk* neighbour) {
    if (!neighbour || !is_free(neighbour)) return;
    take(neighbour);
    absorb(into, neighbour);
  }

  void release(Chunk* chunk) {  // a segment that is free as a whole goes back to the device
    if (!chunk->whole()) return;
    take(chunk);
    unreserve_bytes(chunk->pool, chunk->size);
    statistics.segments.add(chunk->pool, -1);
    note("segment_free", chunk->address, chunk->size, chunk->stream);
    unreserve_(chunk->address, chunk->size);
    delete chunk;
  }

  // Whole pages of a free chunk of an expandable segment go back; what is left stays mapped.
  void shrink(Chunk* chunk) {
    size_t page = page_of(chunk->pool);
    uintptr_t origin = segment_start(chunk);
    uintptr_t begin = origin + round_up(chunk->address - origin, page);
    uintptr_t end = origin + (chunk->address + chunk->size - origin) / page * page;
    if (begin >= end) return;
    take(chunk);
    Chunk* hole = chunk;
    if (chunk->address < begin) {
      hole = divide(chunk, begin - chunk->address);
      put(chunk);
    }
    if (end - begin < hole->size) put(divide(hole, end - begin));
    unreserve_bytes(hole->pool, hole->size);
    note("segment_unmap", hole->address, hole->size, hole->stream);
    hole->mapped = false;
    auto& rooms = rooms_[{hole->pool, hole->stream}];
    for (Chunk* neighbour : {hole->before, hole->after}) {
      if (!neighbour || neighbour->mapped) continue;
      rooms.erase(std::find(rooms.begin(), rooms.end(), neighbour));
      absorb(hole, neighbour);
    }
    rooms.push_back(hole);
    std::sort(rooms.begin(), rooms.end(), [](Chunk* a, Chunk* b) { return a->address < b->address; });
  }

  static size_t page_of(Pool pool) { return pool == small_pool ? SMALL_SEGMENT : LARGE_SEGMENT; }
  static bool is_free(const Chunk* chunk) { return chunk->mapped && !chunk->allocated && !chunk->waiting; }
  static uintptr_t segment_start(const Chunk* chunk) {
    while (chunk->before) chunk = chunk->before;
    return chunk->address;
  }
};

}  // namespace simulated_gpu

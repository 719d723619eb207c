// Parts of segments, and the sizes by which torch's CUDA caching allocator makes them.
#pragma once

#include "model/statistics.h"

namespace simulated_gpu {

constexpr size_t KIB = 1024, MIB = 1024 * KIB;
constexpr size_t ROUND = 512;               // every block is a multiple of this
constexpr size_t SMALL = 1 * MIB;           // blocks up to this size share small segments
constexpr size_t SMALL_SEGMENT = 2 * MIB;
constexpr size_t MIDDLE = 10 * MIB;         // below this size blocks share large segments
constexpr size_t LARGE_SEGMENT = 20 * MIB;
constexpr size_t ROUND_SEGMENT = 2 * MIB;   // larger ones get a segment of their own

inline size_t round_up(size_t size, size_t unit) { return (size + unit - 1) / unit * unit; }

struct Chunk {  // part of a segment; torch says block
  uintptr_t address;
  size_t size;
  Pool pool;
  int stream;
  size_t requested = 0;
  bool allocated = false;
  bool mapped = true;   // false: room that an expandable segment may still grow into
  bool waiting = false;  // freed by the program, kept for a stream that has not ended with it
  bool expandable = false;
  Chunk *before = nullptr, *after = nullptr;
  bool whole() const { return !before && !after; }
};

struct MemoryEvent {  // by torch's names; `size` is what was asked for, or a segment's
  const char* action;
  uintptr_t address;
  size_t size;
  int stream;
};

}  // namespace simulated_gpu

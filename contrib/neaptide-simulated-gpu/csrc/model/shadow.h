// Shadow memory: for each range of bytes, the operations that last wrote and read it.
#pragma once

#include <iterator>
#include <map>
#include <vector>

#include "model/clock.h"

namespace simulated_gpu {

// One operation of one stream. `name` is an index into the machine's table of operation names.
struct Touch {
  int stream = -1;
  uint64_t operation = 0;
  uint32_t name = 0;
  bool exists() const { return stream >= 0; }
};

struct Range {
  uintptr_t begin, end;
};

struct Access {
  Range range;
  bool write;
};

class Shadow {
 public:
  // Note that `now` reads or writes a range. `conflict(address, before, was_write)` is called for
  // every earlier operation that conflicts with it and that `ordered(before)` does not accept.
  template <class Ordered, class Conflict>
  void touch(const Access& access, const Touch& now, Ordered ordered, Conflict conflict) {
    each(access.range, [&](uintptr_t address, Span& span) {
      if (span.write.exists() && !ordered(span.write)) conflict(address, span.write, true);
      if (!access.write) return add_read(span, now);
      for (auto& read : span.reads)
        if (!ordered(read)) conflict(address, read, false);
      span.write = now;
      span.reads.clear();
    });
    if (access.write) join_spans(access.range);
  }

  // The same question for the host, which leaves no trace: it has ended when it returns.
  template <class Ordered, class Conflict>
  void look(const Access& access, Ordered ordered, Conflict conflict) const {
    auto at = spans_.upper_bound(access.range.begin);
    if (at != spans_.begin()) --at;
    for (; at != spans_.end() && at->first < access.range.end; ++at) {
      const Span& span = at->second;
      if (span.end <= access.range.begin) continue;
      uintptr_t address = std::max(access.range.begin, at->first);
      if (span.write.exists() && !ordered(span.write)) conflict(address, span.write, true);
      if (access.write)
        for (auto& read : span.reads)
          if (!ordered(read)) conflict(address, read, false);
    }
  }

  // Drop what is known of a range, and return the operations that touched it last.
  std::vector<Touch> forget(const Range& range) {
    std::vector<Touch> touches;
    split(range.begin);
    split(range.end);
    auto at = spans_.lower_bound(range.begin);
    while (at != spans_.end() && at->first < range.end) {
      if (at->second.write.exists()) touches.push_back(at->second.write);
      touches.insert(touches.end(), at->second.reads.begin(), at->second.reads.end());
      at = spans_.erase(at);
    }
    return touches;
  }

  // Note an operation as the last one that wrote a range.
  void mark(const Range& range, const Touch& touch) {
    forget(range);
    spans_.emplace(range.begin, Span{range.end, touch, {}});
  }

 private:
  struct Span {
    uintptr_t end;
    Touch write;
    std::vector<Touch> reads;  // since the write: the last one of each stream
  };
  std::map<uintptr_t, Span> spans_;

  static void add_read(Span& span, const Touch& now) {
    for (auto& read : span.reads)
      if (read.stream == now.stream) {
        read = now;
        return;
      }
    span.reads.push_back(now);
  }

  void split(uintptr_t at) {
    auto found = spans_.upper_bound(at);
    if (found == spans_.begin()) return;
    --found;
    if (found->first < at && at < found->second.end) {
      Span rest = found->second;
      found->second.end = at;
      spans_.emplace(at, std::move(rest));
    }
  }

  // Call f for each span of the range, after splitting at its ends; gaps become empty spans.
  template <class F>
  void each(const Range& range, F f) {
    split(range.begin);
    split(range.end);
    uintptr_t at = range.begin;
    auto found = spans_.lower_bound(range.begin);
    while (at < range.end) {
      if (found == spans_.end() || found->first > at) {
        uintptr_t end = found == spans_.end() ? range.end : std::min(range.end, found->first);
        found = spans_.emplace_hint(found, at, Span{end, {}, {}});
      }
      f(found->first, found->second);
      at = found->second.end;
      ++found;
    }
  }

  void join_spans(const Range& range) {  // after a write all its spans are equal
    auto first = spans_.find(range.begin);
    if (first == spans_.end()) return;
    auto next = std::next(first);
    while (next != spans_.end() && next->first < range.end) {
      first->second.end = next->second.end;
      next = spans_.erase(next);
    }
  }
};

}  // namespace simulated_gpu

#include "programs/programs.h"

#include <sstream>

namespace simulated_gpu {
namespace {

constexpr size_t MOST_RANGES = 4096;  // of more, those in one block count as one range with its gaps

}  // namespace

void Ranges::add(uintptr_t begin, uintptr_t end) {
  auto next = ends_.upper_bound(begin);
  if (next != ends_.begin() && std::prev(next)->second >= begin) {
    --next;
    if (next->second >= end) return;
    begin = next->first;
  }
  while (next != ends_.end() && next->first <= end) {
    end = std::max(end, next->second);
    next = ends_.erase(next);
  }
  ends_.emplace_hint(next, begin, end);
}

size_t Ranges::bytes() const {
  size_t total = 0;
  for (auto& [begin, end] : ends_) total += end - begin;
  return total;
}

void Ranges::append_to(std::vector<Access>& accesses, bool write) const {
  Block* last = nullptr;
  for (auto& [begin, end] : ends_) {
    Block* block = ends_.size() > MOST_RANGES ? machine().find(begin) : nullptr;
    if (block && block == last)
      accesses.back().range.end = end;
    else
      accesses.push_back({{begin, end}, write});
    last = block;
  }
}

void Traffic::add(const at::Tensor& tensor, bool write) {
  for (auto& range : ranges_of(tensor)) (write ? written : read).add(range.begin, range.end);
}

uintptr_t Traffic::resolve(uintptr_t address, size_t size, bool reads, bool writes) {
  auto& m = machine();
  uintptr_t end = address + size, found = address;
  if (Block* block = m.find(address); block && end <= block->range.end) {
    found = reinterpret_cast<uintptr_t>(block->data) + (address - block->range.begin);
  } else if (m.pinning({address, end}) != Machine::Pinning::pinned) {
    std::ostringstream what;
    what << "CUDA error: an illegal memory access was encountered: " << size << " bytes at 0x" << std::hex << address
         << (block ? " reach over the end of " + m.describe(address) : std::string(" are in no tensor"));
    throw IllegalAccess(what.str());
  }
  if (reads) read.add(address, end);
  if (writes) written.add(address, end);
  return found;
}

std::vector<Access> Traffic::accesses() const {
  std::vector<Access> found;
  read.append_to(found, false);
  written.append_to(found, true);
  return found;
}

}  // namespace simulated_gpu

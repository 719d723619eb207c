// Addresses of device memory, from one reserved range behind which nothing lies.
#include <sys/mman.h>

#include <stdexcept>

#include "model/machine.h"

namespace simulated_gpu {
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

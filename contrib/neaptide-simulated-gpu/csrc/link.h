// The link between devices of several processes: when a collective runs, and who waits for it.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "device.h"
#include "twins.h"

namespace simulated_gpu {

using Tensors = std::vector<at::Tensor>;
using Work = c10::intrusive_ptr<c10d::Work>;

struct Exchange {  // one collective, or one message
  const char* name;
  c10d::OpType type;
  Tensors reads, writes;
  double bytes;  // over this device's link
  int steps;     // messages one after another
  bool async;    // on the group's stream, or on the current one as NCCL's that are waited for at once
};

// The processes' devices. Bytes and times go through `host`, a process group of the CPU.
class Link {
 public:
  explicit Link(c10::intrusive_ptr<c10d::Backend> host) : host(std::move(host)) {}

  const c10::intrusive_ptr<c10d::Backend> host;
  int rank() const { return host->getRank(); }
  int size() const { return host->getSize(); }

  // Enqueue an exchange and move its bytes now. `agreed` returns the start that the processes agree
  // on, given when this one is ready; `move` moves the bytes, and is not called for fake data. What
  // `move` returns has to be waited for before the bytes are there, or is null.
  Work run(const Exchange& what, const std::function<double(double)>& agreed, const std::function<Work(Twins&)>& move);
  // The largest of the processes' numbers.
  double largest(double mine);

 private:
  std::array<int, MAX_DEVICES> streams_{};  // of the group, by device; 0 where none is there yet
  int stream(int device);
};

}  // namespace simulated_gpu

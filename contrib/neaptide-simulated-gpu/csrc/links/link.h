// The link between devices of several processes: when a collective runs, and who waits for it.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include "device/device.h"
#include "operations/twins.h"

namespace simulated_gpu {

using Tensors = std::vector<at::Tensor>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

struct Exchange {  // one collective, or one message
  const char* name;
  c10d::OpType type;
  Tensors reads, writes;
  double bytes;  // over this device's link
  int steps;     // messages one after another
  bool async;    // on the group's stream, or on the current one as NCCL's that are waited for at once
};

// What NCCL's returns: `wait` makes the current stream wait, not the host.
class LinkWork final : public c10d::Work {
 public:
  LinkWork(int rank, const Exchange& what, int device, int stream, Event done);

  bool isCompleted() override { return machine().reached(done_); }
  bool isSuccess() const override { return true; }
  bool wait(std::chrono::milliseconds) override;
  void synchronize() override { wait(std::chrono::milliseconds(0)); }
  void blockCurrentStream() override { synchronize(); }
  Tensors result() override { return results_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }

  std::vector<WorkPtr> pending;  // messages that this process has handed over and the other not yet received

 private:
  const int device_;
  const Event done_;
  const Tensors results_;
  Tensors kept_;  // until somebody waits: freed before, their memory would be used again too early
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

// The processes' devices. Bytes and times go through `host`, a process group of the CPU.
class Link {
 public:
  explicit Link(c10::intrusive_ptr<c10d::Backend> host) : host(std::move(host)) {}

  const c10::intrusive_ptr<c10d::Backend> host;

  // Enqueue an exchange and move its bytes now. `agreed` returns the start that the processes agree
  // on, given when this one is ready; `move` moves the bytes, and is not called for fake data.
  c10::intrusive_ptr<LinkWork> run(const Exchange& what, const std::function<double(double)>& agreed,
                                   const std::function<void(Twins&)>& move);
  double largest(double mine);  // of the processes' numbers

 private:
  std::array<int, MAX_DEVICES> streams_{};  // of the group, by device; 0 where none is there yet
  int stream(int device);
};

}  // namespace simulated_gpu

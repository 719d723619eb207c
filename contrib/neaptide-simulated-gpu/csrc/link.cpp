#include "link.h"

#include <ATen/ops/full.h>
#include <ATen/record_function.h>

namespace simulated_gpu {
namespace {

// What NCCL's returns: `wait` makes the current stream wait, not the host.
class LinkWork final : public c10d::Work {
 public:
  LinkWork(int rank, const Exchange& what, int device, int stream, Event done, ::simulated_gpu::Work pending)
      : c10d::Work(rank, what.type), device_(device), done_(std::move(done)), results_(what.writes), kept_(what.reads),
        pending_(std::move(pending)) {
    future_ = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()),
                                                       std::vector<c10::Device>{gpu(device)});
    int before = exchange_stream(stream);
    future_->markCompleted(c10::IValue(results_));
    exchange_stream(before);
  }

  bool isCompleted() override { return machine().reached(done_); }
  bool isSuccess() const override { return true; }
  bool wait(std::chrono::milliseconds) override {
    if (auto pending = std::move(pending_)) pending->wait();
    machine().wait(current_stream(device_), done_);
    if (opType_ == c10d::OpType::BARRIER) machine().synchronize(done_);
    kept_.clear();
    return true;
  }
  void synchronize() override { wait(std::chrono::milliseconds(0)); }
  void blockCurrentStream() override { synchronize(); }
  Tensors result() override { return results_; }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return future_; }

 private:
  const int device_;
  const Event done_;
  const Tensors results_;
  Tensors kept_;  // until somebody waits: freed before, their memory would be used again too early
  ::simulated_gpu::Work pending_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;
};

struct Unseen {  // what the host does for the simulation takes no simulated time
  Unseen() { ++unseen; }
  ~Unseen() { --unseen; }
};

}  // namespace

std::atomic<int> unseen{0};

int Link::stream(int device) {
  auto& m = machine();
  int& known = streams_[static_cast<size_t>(device)];
  if (!known) {
    known = m.new_stream(device, false);
    m.stream(known).name = "collectives of device " + std::to_string(device);
  }
  return known;
}

double Link::largest(double mine) {
  Tensors numbers{at::full({1}, mine, at::kDouble)};
  c10d::AllreduceOptions options;
  options.reduceOp = c10d::ReduceOp::MAX;
  host->allreduce(numbers, options)->wait();
  return *numbers[0].const_data_ptr<double>();
}

Work Link::run(const Exchange& what, const std::function<double(double)>& agreed,
               const std::function<Work(Twins&)>& move) {
  auto& m = machine();
  at::AutoDispatchBelowADInplaceOrView below;
  Unseen guard;
  const at::Tensor& first = what.reads.empty() ? what.writes.at(0) : what.reads[0];
  for (auto* tensors : {&what.reads, &what.writes})
    for (auto& tensor : *tensors) {
      TORCH_CHECK(tensor.device() == first.device(), what.name, ": tensors on ", first.device(), " and ", tensor.device());
      TORCH_CHECK(tensor.is_contiguous(), what.name, ": Tensors must be contiguous");
    }
  int device = first.device().index();
  OnDevice on(device);
  int current = current_stream(), stream = what.async ? this->stream(device) : current;
  Event begin;
  m.record(begin, current);
  m.wait(stream, begin);
  m.record(begin, stream);
  begin.time = agreed(begin.time);
  m.wait(stream, begin);

  Work pending;
  Twins twins;
  if (!twins.fake) pending = move(twins);
  std::vector<Access> accesses;
  for (auto& tensor : what.reads) add_accesses(accesses, tensor, false);
  for (auto& tensor : what.writes) add_accesses(accesses, tensor, true);
  auto& profile = m.device(device).profile;
  double seconds = what.bytes / profile.peer + what.steps * profile.copy_latency + profile.launch_device;
  m.launch(what.name, stream, Engine::peer, seconds, accesses, static_cast<size_t>(what.bytes));
  note_places();
  Event done;
  m.record(done, stream);
  return c10::make_intrusive<LinkWork>(rank(), what, device, stream, std::move(done), std::move(pending));
}

}  // namespace simulated_gpu

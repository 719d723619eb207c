#include "links/link.h"

#include <ATen/ops/full.h>
#include <ATen/record_function.h>

namespace simulated_gpu {
namespace {

struct Unseen {  // what the host does for the simulation takes no simulated time
  Unseen() { ++unseen; }
  ~Unseen() { --unseen; }
};

}  // namespace

std::atomic<int> unseen{0};

LinkWork::LinkWork(int rank, const Exchange& what, int device, int stream, Event done)
    : c10d::Work(rank, what.type), device_(device), done_(std::move(done)), results_(what.writes), kept_(what.reads),
      future_(c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()),
                                                       std::vector<c10::Device>{gpu(device)})) {
  int before = exchange_stream(stream);
  future_->markCompleted(c10::IValue(results_));
  exchange_stream(before);
}

bool LinkWork::wait(std::chrono::milliseconds) {
  for (auto& message : pending) message->wait();
  pending.clear();
  machine().wait(current_stream(device_), done_);
  if (opType_ == c10d::OpType::BARRIER) machine().synchronize(done_);
  kept_.clear();
  return true;
}

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

c10::intrusive_ptr<LinkWork> Link::run(const Exchange& what, const std::function<double(double)>& agreed,
                                       const std::function<void(Twins&)>& move) {
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

  Twins twins;
  if (!twins.fake) move(twins);
  std::vector<Access> accesses;
  for (auto& tensor : what.reads) add_accesses(accesses, tensor, false);
  for (auto& tensor : what.writes) add_accesses(accesses, tensor, true);
  auto& profile = m.device(device).profile;
  double seconds = what.bytes / profile.peer + what.steps * profile.copy_latency + profile.launch_device;
  m.launch(what.name, stream, Engine::peer, seconds, accesses, static_cast<size_t>(what.bytes));
  note_places();
  Event done;
  m.record(done, stream);
  return c10::make_intrusive<LinkWork>(host->getRank(), what, device, stream, std::move(done));
}

}  // namespace simulated_gpu

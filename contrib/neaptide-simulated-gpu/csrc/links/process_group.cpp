// Collectives among processes with a simulated device each: a backend of torch.distributed.
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <pybind11/chrono.h>
#include <pybind11/pybind11.h>
#include <torch/csrc/utils/pybind.h>

#include "programs/bind_programs.h"
#include "links/link.h"

namespace py = pybind11;

namespace simulated_gpu {
namespace {

using c10d::OpType;
using c10d::ReduceOp;

double bytes_of(const Tensors& tensors) {
  double total = 0;
  for (auto& tensor : tensors) total += static_cast<double>(tensor.nbytes());
  return total;
}

Tensors flat(const Tensors& tensors) {
  Tensors found;
  for (auto& tensor : tensors) found.push_back(tensor.view({-1}));
  return found;
}

class SimulatedBackend final : public c10d::Backend {
 public:
  explicit SimulatedBackend(c10::intrusive_ptr<c10d::Backend> host)
      : c10d::Backend(host->getRank(), host->getSize()), link_(std::move(host)) {}

  const std::string getBackendName() const override { return "simulated"; }
  void setSequenceNumberForGroup() override {}
  uint64_t getSequenceNumberForGroup() override { return sequence_; }
  void setTimeout(std::chrono::milliseconds timeout) override { link_.host->setTimeout(timeout); }

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    bool from = options.rootRank == getRank();
    Exchange what{"broadcast", OpType::BROADCAST, from ? tensors : Tensors{}, from ? Tensors{} : tensors,
                  bytes_of(tensors), getSize() - 1, options.asyncOp};
    return collective(what, [&](Twins& twins) {
      for (auto& tensor : tensors) {
        Tensors one{twins.of(tensor)};
        host().broadcast(one, options)->wait();
      }
    });
  }

  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    Exchange what{"all_reduce", OpType::ALLREDUCE, tensors, tensors, 2 * share(bytes_of(tensors)), 2 * (getSize() - 1),
                  options.asyncOp};
    return collective(what, [&](Twins& twins) {
      for (auto& tensor : tensors) reduce_all(twins.of(tensor), options.reduceOp);
    });
  }
  WorkPtr allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& options) override {
    return allreduce(tensors, options);
  }

  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& options) override {
    bool to = options.rootRank == getRank();
    Exchange what{"reduce", OpType::REDUCE, tensors, to ? tensors : Tensors{}, bytes_of(tensors), getSize() - 1,
                  options.asyncOp};
    return collective(what, [&](Twins& twins) {
      auto sum = twins.of(tensors[0]).clone();  // a ring leaves the others' tensors as they are
      reduce_all(sum, options.reduceOp);
      if (to) twins.of(tensors[0]).copy_(sum);
    });
  }

  WorkPtr allgather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override {
    return gather_all({outputs[0]}, inputs, options.asyncOp);
  }
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& options) override {
    Tensors inputs{input};
    return gather_all({rows(output)}, inputs, options.asyncOp);
  }
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& options) override {
    std::vector<Tensors> all;
    for (auto& output : outputs) all.push_back(rows(output));
    return gather_all(all, inputs, options.asyncOp);
  }

  WorkPtr reduce_scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ReduceScatterOptions& options) override {
    return scatter_all(outputs, {inputs[0]}, options);
  }
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& options) override {
    return scatter_all({output}, {rows(input)}, options);
  }
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                       const c10d::ReduceScatterOptions& options) override {
    std::vector<Tensors> all;
    for (auto& input : inputs) all.push_back(rows(input));
    return scatter_all(outputs, all, options);
  }

  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& to_sizes,
                     std::vector<int64_t>& from_sizes, const c10d::AllToAllOptions& options) override {
    Exchange what{"all_to_all", OpType::ALLTOALL_BASE, {input}, {output}, share(bytes_of({input})), getSize() - 1,
                  options.asyncOp};
    return collective(what, [&](Twins& twins) {
      auto to = twins.of(output), from = twins.of(input);
      host().alltoall_base(to, from, to_sizes, from_sizes, options)->wait();
    });
  }
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& options) override {
    Exchange what{"all_to_all", OpType::ALLTOALL, inputs, outputs, share(bytes_of(inputs)), getSize() - 1, options.asyncOp};
    return collective(what, [&](Twins& twins) {
      Tensors to, from;
      std::vector<int64_t> to_sizes, from_sizes;
      for (auto& each : outputs) to.push_back(twins.of(each).view({-1})), to_sizes.push_back(each.numel());
      for (auto& each : inputs) from.push_back(twins.of(each).view({-1})), from_sizes.push_back(each.numel());
      auto joined = at::cat(to), given = at::cat(from);
      auto parts = joined.split_with_sizes(to_sizes);  // gloo's call empties the sizes
      host().alltoall_base(joined, given, to_sizes, from_sizes, options)->wait();
      for (size_t i = 0; i < to.size(); ++i) to[i].copy_(parts[i]);
    });
  }

  WorkPtr gather(std::vector<Tensors>& outputs, Tensors& inputs, const c10d::GatherOptions& options) override {
    bool to = options.rootRank == getRank();
    Exchange what{"gather", OpType::GATHER, inputs, to ? outputs[0] : Tensors{},
                  bytes_of(inputs) * (to ? getSize() - 1 : 1), 1, options.asyncOp};
    return collective(what, [&](Twins& twins) {
      Tensors from = twinned(twins, inputs);
      std::vector<Tensors> into;
      if (to) into.push_back(twinned(twins, outputs[0]));
      host().gather(into, from, options)->wait();
    });
  }
  WorkPtr scatter(Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ScatterOptions& options) override {
    bool from = options.rootRank == getRank();
    Exchange what{"scatter", OpType::SCATTER, from ? inputs[0] : Tensors{}, outputs,
                  bytes_of(outputs) * (from ? getSize() - 1 : 1), 1, options.asyncOp};
    return collective(what, [&](Twins& twins) {
      Tensors into = twinned(twins, outputs);
      std::vector<Tensors> given;
      if (from) given.push_back(twinned(twins, inputs[0]));
      host().scatter(into, given, options)->wait();
    });
  }

  // A message: the receiver starts when the sender has. Tags of the user's are even, those of times odd.
  WorkPtr send(Tensors& tensors, int to, int tag) override {
    Exchange what{"send", OpType::SEND, tensors, {}, bytes_of(tensors), 1, true};
    std::vector<WorkPtr> handed_over;
    auto work = link_.run(
        what,
        [&](double mine) {
          Tensors time{at::full({1}, mine, at::kDouble)};
          handed_over.push_back(host().send(time, to, 2 * tag + 1));
          return mine;
        },
        [&](Twins& twins) {
          Tensors one = twinned(twins, tensors);
          handed_over.push_back(host().send(one, to, 2 * tag));
        });
    work->pending = std::move(handed_over);
    return work;
  }
  WorkPtr recv(Tensors& tensors, int from, int tag) override {
    Exchange what{"recv", OpType::RECV, {}, tensors, bytes_of(tensors), 1, true};
    return link_.run(
        what,
        [&](double mine) {
          Tensors time{at::full({1}, 0.0, at::kDouble)};
          host().recv(time, from, 2 * tag + 1)->wait();
          return std::max(mine, *time[0].const_data_ptr<double>());
        },
        [&](Twins& twins) {
          Tensors one = twinned(twins, tensors);
          host().recv(one, from, 2 * tag)->wait();
        });
  }

  WorkPtr barrier(const c10d::BarrierOptions& options) override {
    int device = options.device ? options.device->index() : current_device();
    if (!options.device && !options.device_ids.empty()) device = static_cast<int>(options.device_ids[0]);
    Tensors token{at::empty({1}, at::TensorOptions(gpu(device)))};
    Exchange what{"barrier", OpType::BARRIER, token, token, 0, 2 * (getSize() - 1), true};
    return collective(what, [](Twins&) {});
  }

 private:
  Link link_;
  uint64_t sequence_ = 0;

  c10d::Backend& host() { return *link_.host; }
  double share(double bytes) const { return bytes * (getSize() - 1) / getSize(); }  // of a ring
  Tensors rows(const at::Tensor& tensor) const { return tensor.view({-1}).chunk(getSize()); }

  static Tensors twinned(Twins& twins, const Tensors& tensors) {
    Tensors found;
    for (auto& tensor : tensors) found.push_back(twins.of(tensor));
    return found;
  }

  WorkPtr collective(const Exchange& what, const std::function<void(Twins&)>& move) {
    ++sequence_;
    return link_.run(what, [&](double mine) { return link_.largest(mine); }, move);
  }

  void reduce_all(const at::Tensor& twin, const ReduceOp& by) {
    c10d::AllreduceOptions options;
    bool average = by == ReduceOp::AVG;
    options.reduceOp = average ? ReduceOp(ReduceOp::SUM) : by;
    Tensors one{twin};
    host().allreduce(one, options)->wait();
    if (average) one[0].div_(getSize());
  }

  WorkPtr gather_all(const std::vector<Tensors>& outputs, Tensors& inputs, bool async) {
    Tensors written;
    for (auto& each : outputs) written.insert(written.end(), each.begin(), each.end());
    Exchange what{"all_gather", OpType::ALLGATHER, inputs, written, share(bytes_of(written)), getSize() - 1, async};
    return collective(what, [&](Twins& twins) {
      for (size_t i = 0; i < inputs.size(); ++i) {
        Tensors from{twins.of(inputs[i]).view({-1})};
        std::vector<Tensors> into{flat(twinned(twins, outputs[i]))};
        host().allgather(into, from, {})->wait();
      }
    });
  }

  WorkPtr scatter_all(const Tensors& outputs, const std::vector<Tensors>& inputs, const c10d::ReduceScatterOptions& options) {
    Tensors read;
    for (auto& each : inputs) read.insert(read.end(), each.begin(), each.end());
    Exchange what{"reduce_scatter", OpType::REDUCE_SCATTER, read, outputs, share(bytes_of(read)), getSize() - 1,
                  options.asyncOp};
    return collective(what, [&](Twins& twins) {
      for (size_t i = 0; i < outputs.size(); ++i) {
        auto sum = at::cat(flat(twinned(twins, inputs[i])));
        reduce_all(sum, options.reduceOp);
        int64_t before = 0;
        for (int rank = 0; rank < getRank(); ++rank) before += inputs[i][static_cast<size_t>(rank)].numel();
        twins.of(outputs[i]).view({-1}).copy_(sum.narrow(0, before, outputs[i].numel()));
      }
    });
  }
};

}  // namespace

void bind_process_group(py::module_& module) {
  // Once torch.distributed is there: the class, made of a process group of the CPU among the same
  // processes. It has the methods of NCCL's that torch calls by that name.
  module.def("define_process_group", [module](const py::function& host) {
    py::class_<SimulatedBackend, c10::intrusive_ptr<SimulatedBackend>, c10d::Backend>(module, "ProcessGroup")
        .def(py::init([host](const py::object& store, int rank, int size, const py::object& options) {
          auto made = host(store, rank, size, options).cast<c10::intrusive_ptr<c10d::Backend>>();
          return c10::make_intrusive<SimulatedBackend>(made);
        }))
        .def_property_readonly("uid", [](SimulatedBackend&) { return 0; })
        .def("_set_default_timeout", &SimulatedBackend::setTimeout)
        .def("_add_ephemeral_timeout", [](SimulatedBackend&, const py::object&) {})
        .def("_group_start", [](SimulatedBackend&) {})
        .def("_group_end", [](SimulatedBackend&) {});
  });
}

}  // namespace simulated_gpu

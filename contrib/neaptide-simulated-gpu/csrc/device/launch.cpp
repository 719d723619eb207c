// What an operation reads and writes, how long it takes, and where in the program it stands.
#include <unordered_set>

#include "device/device.h"

namespace simulated_gpu {
namespace {

constexpr size_t MOST_ROWS = 64;  // a tensor of more rows is taken as one range with its gaps

// Whether an operation in place begins with what is there. Those that fill do not.
bool reads_what_it_writes(const std::string& name) {
  static const std::unordered_set<std::string> fill{
      "aten::fill_",       "aten::zero_",   "aten::normal_",      "aten::uniform_",   "aten::random_",
      "aten::exponential_", "aten::cauchy_", "aten::log_normal_", "aten::geometric_", "aten::bernoulli_",
      "aten::_foreach_zero_", "aten::copy_", "aten::_foreach_copy_",
  };
  return name.back() == '_' && !fill.count(name);
}

}  // namespace

double operations_of(const std::string& name, const std::vector<at::Tensor>& in, const std::vector<at::Tensor>& out) {
  auto product = [](const at::Tensor& a, int64_t columns) {
    return 2.0 * static_cast<double>(a.numel()) * static_cast<double>(columns);
  };
  auto columns_of = [](const at::Tensor& weight) { return weight.numel() / weight.size(0); };
  if (name == "aten::mm" || name == "aten::bmm" || name == "aten::_int_mm") return product(in[0], in[1].size(-1));
  if (name == "aten::addmm" || name == "aten::baddbmm") return product(in[1], in[2].size(-1));
  if (name == "aten::addmv") return product(in[1], 1);
  if (name == "aten::mv" || name == "aten::dot") return product(in[0], 1);
  if (name == "aten::_scaled_dot_product_flash_attention_for_cpu") return 2 * product(in[0], in[1].size(-2)) / 2;
  if (name == "aten::_scaled_dot_product_flash_attention_for_cpu_backward")
    return 5 * product(in[1], in[2].size(-2)) / 2;
  if (out.empty()) return 0;
  if (name == "aten::convolution" || name == "aten::_convolution") return product(out[0], columns_of(in[1]));
  if (name == "aten::convolution_backward") return 2 * product(in[0], columns_of(in[2]));
  return 0;
}

std::vector<Range> ranges_of(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.numel()) return {};
  auto size = static_cast<uintptr_t>(tensor.element_size());
  auto base = reinterpret_cast<uintptr_t>(tensor.storage().data()) +
              static_cast<uintptr_t>(tensor.storage_offset()) * size;
  if (tensor.is_contiguous()) return {{base, base + static_cast<uintptr_t>(tensor.numel()) * size}};
  std::vector<std::pair<uintptr_t, uintptr_t>> dims;  // stride in bytes, size; the innermost first
  for (int64_t d = 0; d < tensor.dim(); ++d)
    if (tensor.size(d) > 1 && tensor.stride(d))
      dims.emplace_back(static_cast<uintptr_t>(tensor.stride(d)) * size, static_cast<uintptr_t>(tensor.size(d)));
  std::sort(dims.begin(), dims.end());
  uintptr_t run = size;
  size_t inner = 0;
  for (; inner < dims.size() && dims[inner].first <= run; ++inner) run += dims[inner].first * (dims[inner].second - 1);
  std::vector<uintptr_t> starts{base};
  for (size_t d = inner; d < dims.size(); ++d) {
    auto [stride, count] = dims[d];
    if (starts.size() * count > MOST_ROWS) {
      for (size_t rest = d; rest < dims.size(); ++rest) run += dims[rest].first * (dims[rest].second - 1);
      return {{base, starts.back() + run}};
    }
    size_t known = starts.size();
    for (uintptr_t i = 1; i < count; ++i)
      for (size_t j = 0; j < known; ++j) starts.push_back(starts[j] + i * stride);
  }
  std::vector<Range> ranges;
  for (uintptr_t start : starts) ranges.push_back({start, start + run});
  return ranges;
}

void add_accesses(std::vector<Access>& accesses, const at::Tensor& tensor, bool write) {
  for (auto& range : ranges_of(tensor)) accesses.push_back({range, write});
}

Work work_of(const std::string& name, const std::vector<at::Tensor>& in, const std::vector<at::Tensor>& out,
             const std::vector<at::Tensor>& written) {
  Work work{operations_of(name, in, out)};
  auto add = [&](const std::vector<at::Tensor>& tensors, bool write) {
    for (auto& tensor : tensors) {
      if (!is_gpu(tensor)) continue;
      work.bytes += static_cast<double>(tensor.numel()) * static_cast<double>(tensor.element_size());
      work.half |= !write && tensor.is_floating_point() && tensor.element_size() < 4;
    }
  };
  add(in, false);
  add(out, true);
  add(written, true);
  if (reads_what_it_writes(name)) add(written, false);
  return work;
}

void enqueue(const std::string& name, const Work& work, const std::vector<Access>& accesses) {
  auto& m = machine();
  auto& profile = m.device(current_device()).profile;
  double rate = work.half ? profile.flops_half : profile.flops_single;
  double seconds = std::max(work.operations / rate, work.bytes / profile.bandwidth);
  m.launch(name, current_stream(), Engine::compute, seconds + profile.launch_device, accesses,
           static_cast<size_t>(work.bytes));
  note_places();
}

void launch(const std::string& name, const std::vector<at::Tensor>& in, const std::vector<at::Tensor>& out,
            const std::vector<at::Tensor>& written) {
  std::vector<Access> accesses;
  auto add = [&](const std::vector<at::Tensor>& tensors, bool write) {
    for (auto& tensor : tensors)
      if (is_gpu(tensor)) add_accesses(accesses, tensor, write);
  };
  add(in, false);
  add(out, true);
  add(written, true);
  enqueue(name, work_of(name, in, out, written), accesses);
}

}  // namespace simulated_gpu

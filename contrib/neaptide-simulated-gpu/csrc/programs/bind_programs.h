#pragma once

#include <pybind11/pybind11.h>

namespace simulated_gpu {

void bind_programs(pybind11::module_& module);
void bind_process_group(pybind11::module_& module);

}  // namespace simulated_gpu

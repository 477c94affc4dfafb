// Names by which people ask for machines and GPUs.
#pragma once

#include <string>

#include "bench/machine/machine.h"

namespace precbench {

/// Returns a preset by its name, one of its other names, or words of its driver's name or its own in any letter
/// case ("h200", "gb200", "H100 PCIe", "5060"); null if there is none.
const Machine* find_preset_machine(const std::string& words);

/// Returns the name of the machine's GPU: the driver's, or the preset's where the driver's is not known.
const std::string& gpu_name_of(const Machine& machine);

}  // namespace precbench

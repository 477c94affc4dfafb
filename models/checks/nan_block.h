// Memory filled with NaN for checks and tests.
#pragma once

#include <cstdint>

#include "kernels/device/device.h"

namespace precbench::checks {

/// Device memory filled with NaN, so that reads of unwritten memory are noticed. On the CPU a page takes time and memory only
/// once it is written: steps need a small part of their block.
class NanBlock : public DeviceBlock {
 public:
  NanBlock(Device& device, std::int64_t bytes);
};

}  // namespace precbench::checks

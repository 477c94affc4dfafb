// The Linux control groups around this process, which limit its memory and CPU time.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace precbench {

struct ControlGroup {
  int version;  ///< 1 or 2: the names of a group's files differ
  std::filesystem::path folder;
};

/// Returns the groups of a controller ("memory", "cpu") around this process, each followed by those that contain it.
/// Groups of version 2 are listed whether or not they have the controller. Empty where there are none. `root` stands for /.
std::vector<ControlGroup> control_groups(const std::string& controller,
                                         const std::filesystem::path& root = "/");

}  // namespace precbench

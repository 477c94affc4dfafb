// Linux control groups of this process, which limit its memory and CPU time.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace precbench {

struct ControlGroup {
  int version;  ///< 1 or 2: file names of a group differ
  std::filesystem::path folder;
};

/// Returns the groups of a controller ("memory", "cpu") around this process, each followed by those that
/// contain it. Version 2 groups are listed whether or not they have the controller. Empty if there are none.
/// `root` replaces /.
std::vector<ControlGroup> control_groups(const std::string& controller,
                                         const std::filesystem::path& root = "/");

}  // namespace precbench

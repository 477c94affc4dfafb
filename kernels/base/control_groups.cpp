// Reads /proc/self/cgroup. See control_groups.h.
#include "kernels/base/control_groups.h"

#include <fstream>

namespace precbench {
namespace {

namespace fs = std::filesystem;

/// Returns the mount point of a version 1 controller: its own name, or the names of all controllers that
/// share the mount.
fs::path mount_of(const std::string& controller, const std::string& sharing, const fs::path& root) {
  const fs::path groups = root / "sys/fs/cgroup";
  std::error_code error;
  return fs::is_directory(groups / controller, error) ? groups / controller : groups / sharing;
}

}  // namespace

std::vector<ControlGroup> control_groups(const std::string& controller, const fs::path& root) {
  std::vector<ControlGroup> found;
  // Lines are "4:cpu,cpuacct:/a/b" for version 1, "0::/a/b" for version 2. Each group limits all those below
  // it. In a container the host's part of the path does not exist.
  std::ifstream lines(root / "proc/self/cgroup");
  for (std::string line; std::getline(lines, line);) {
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool unified = controllers.empty();
    if (!unified && ("," + controllers + ",").find("," + controller + ",") == std::string::npos) continue;
    const fs::path mount = unified ? root / "sys/fs/cgroup" : mount_of(controller, controllers, root);
    for (fs::path group = fs::path(line.substr(second + 1)).relative_path();; group = group.parent_path()) {
      found.push_back({unified ? 2 : 1, mount / group});
      if (group.empty()) break;
    }
  }
  return found;
}

}  // namespace precbench

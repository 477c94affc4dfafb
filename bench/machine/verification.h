// Results of `precbench doctor --run` on this machine: which native paths agree with the CPU. Kept in the user's
// cache folder, by GPU model, driver, library versions and build. Cases read them: a path that disagrees is
// emulated until the user trusts it, and records say whether their paths were verified.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/gpu/device_info.h"

namespace precbench {

/// Properties for which a verification holds. Another value of any of them makes another verification.
using VerifiedMachine = std::map<std::string, std::string>;
VerifiedMachine verified_machine(const GpuProperties& gpu);
/// Returns commit and flags of the build; of a build with uncommitted changes also the program's size and time.
std::string build_identity();

struct PathVerdict {
  bool agrees = false;
  std::string detail;  ///< what was measured; where it disagrees, the first case
};

struct Verification {
  VerifiedMachine machine;
  std::string created;                       ///< of the last change: "2025-01-31T12:00:00Z"
  bool trusted = false;                      ///< paths that disagree may run natively
  std::map<std::string, PathVerdict> paths;  ///< by name (native_path.h)
};

/// Returns the folder of cached results: $XDG_CACHE_HOME/precbench or ~/.cache/precbench; empty without a home.
std::filesystem::path cache_folder();
/// Returns the file of a machine in that folder; empty without a folder.
std::filesystem::path verification_file(const VerifiedMachine& machine);
/// Returns null if there is no file for the machine, or none that can be understood.
std::optional<Verification> read_verification(const VerifiedMachine& machine);
/// Replaces the machine's file. Throws std::runtime_error with the reason if it cannot be written.
void write_verification(const Verification& verification);

/// Returns the paths that must not run natively; empty if the user trusts them.
DemotedPaths demoted_paths(const Verification& verification);

/// Returns `options` without what a verification demotes: GEMMs, and one of two attention implementations where
/// the options leave the choice.
GpuOptions without_demoted(GpuOptions options, const Verification* verification);

/// Opens a GPU with what this machine's verification demotes.
std::unique_ptr<Device> open_gpu(int ordinal, const GpuOptions& options = {});

/// One GEMM of a case that runs natively.
struct NativeGemm {
  GemmRecipe gemm;
  GemmRole role;
};
/// Returns the paths of these GEMMs, their quantizers and the attention implementation that are not verified.
std::vector<std::string> unverified_paths(const std::vector<NativeGemm>& gemms, const std::string& attention,
                                          const Verification* verification);

}  // namespace precbench

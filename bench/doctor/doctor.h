// `precbench doctor`: what is wrong with this machine, and do its native paths compute what the CPU computes?
#pragma once

#include <string>
#include <vector>

#include "bench/doctor/machine_state.h"
#include "bench/doctor/run_checks.h"

namespace CLI {
class App;
}

namespace precbench {

struct DoctorCommand {
  bool run = false, quick = false, verbose = false, share = false, trust = false;
  std::string model;            ///< preset or file whose shapes are checked; empty: none
  std::string device = "auto";  ///< "auto", "cpu" or a GPU device
  int gpu = -1;                 ///< the GPU to check; -1: all
};
CLI::App* add_doctor_command(CLI::App& app, DoctorCommand& command);

/// Exit statuses of `doctor`.
inline constexpr int kDoctorAgrees = 0;     ///< nothing is wrong
inline constexpr int kDoctorDisagrees = 1;  ///< a line says FAIL
inline constexpr int kDoctorUnjudged = 3;   ///< interrupted, or there is no GPU to check

/// Returns the exit status. Throws InvalidInput for flags that do not go together or an unknown model.
int doctor(const DoctorCommand& command);

/// A device to check, and the machine for which its verdicts are kept; empty: they are not kept.
struct DeviceToCheck {
  CheckedDevice device;
  VerifiedMachine machine;
};

struct Diagnosis {
  HealthLines lines;
  checks::Findings findings;
  std::vector<Verification> verifications;  ///< one for each kind of machine, as kept
  bool complete = true;                     ///< not interrupted
};
/// Checks every device in turn and keeps the verdicts. Verdicts on paths that were not judged this time stay.
Diagnosis diagnose(const std::vector<DeviceToCheck>& devices, const PathCheckOptions& options);

/// Returns at most 2,000 bytes of plain text for an issue.
std::string share_text(const MachineFacts& facts, const HealthLines& lines,
                       const std::vector<Verification>& verifications);

}  // namespace precbench

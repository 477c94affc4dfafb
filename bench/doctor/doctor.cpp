// The command `doctor`. See doctor.h.
#include "bench/doctor/doctor.h"

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <ctime>
#include <set>

#include "bench/process/signals.h"
#include "bench/process/standard_error.h"
#include "kernels/base/errors.h"
#include "kernels/base/parse_number.h"
#include "kernels/base/plural.h"
#include "kernels/checks/check_collectives.h"
#include "kernels/device/devices.h"
#include "results/record/provenance.h"
#include "results/text/lines.h"

namespace precbench {
namespace {

bool has_failure(const HealthLines& lines) {
  return std::any_of(lines.begin(), lines.end(),
                     [](const HealthLine& line) { return line.health == Health::fail; });
}

void print(const std::string& text) {
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
}

/// Returns the verification that is kept for each kind of GPU.
std::vector<Verification> kept_verifications(const MachineFacts& facts) {
  std::vector<Verification> kept;
  for (const GpuFacts& gpu : facts.gpus) {
    const VerifiedMachine machine = verified_machine(gpu.properties);
    if (std::any_of(kept.begin(), kept.end(), [&](const Verification& v) { return v.machine == machine; }))
      continue;
    if (auto found = read_verification(machine)) kept.push_back(std::move(*found));
  }
  return kept;
}

/// Returns the paths that disagree, with the first case of each.
std::vector<std::string> disagreements(const Verification& verification) {
  std::vector<std::string> all;
  for (const auto& [path, verdict] : verification.paths)
    if (!verdict.agrees) all.push_back(fmt::format("{} ({})", path, verdict.detail));
  return all;
}

HealthLine line_of(const Verification& verification) {
  const std::vector<std::string> wrong = disagreements(verification);
  const std::string paths = plural(verification.paths.size(), "path");
  if (wrong.empty())
    return {Health::ok, "verified", fmt::format("{}, {} agree", verification.created, paths)};
  return {Health::fail, "verified",
          fmt::format("{}, {} of {} disagree; {}", verification.created, wrong.size(), paths,
                      verification.trusted
                          ? "trusted: they run natively, and records say that they are not verified"
                          : "they are emulated; doctor --trust runs them natively")};
}

HealthLines lines_of(const std::vector<Verification>& kept, const MachineFacts& facts) {
  HealthLines lines;
  for (const Verification& verification : kept) lines.push_back(line_of(verification));
  if (kept.empty() && !facts.gpus.empty())
    lines.push_back(
        {Health::unknown, "verified", "no native path yet; precbench doctor --run checks them all"});
  return lines;
}

std::vector<DeviceToCheck> gpus_to_check(const DoctorCommand& command, const MachineFacts& facts) {
  if (command.device == "cpu") return {{checked_cpu(), {}}};
  if (command.gpu >= std::ssize(facts.gpus))
    throw InvalidInput(
        fmt::format("doctor: there is no GPU {}: {}", command.gpu,
                    facts.gpus.empty() ? facts.visible.reason : fmt::format("{} usable", facts.gpus.size())));
  std::vector<DeviceToCheck> devices;
  for (const GpuFacts& gpu : facts.gpus)
    if (command.gpu < 0 || command.gpu == gpu.properties.ordinal)
      devices.push_back({checked_gpu(gpu.properties.ordinal), verified_machine(gpu.properties)});
  return devices;
}

/// Checks the collectives of all GPUs, or of two ranks on the CPU.
void check_links(const DoctorCommand& command, const MachineFacts& facts, Diagnosis& diagnosis) {
  const bool on_cpu = command.device == "cpu";
  const int ranks = on_cpu ? 2 : command.gpu >= 0 ? 1 : static_cast<int>(facts.gpus.size());
  if (ranks < 2 || !diagnosis.complete) return;
  if (interrupted()) {
    diagnosis.complete = false;
    diagnosis.lines.push_back({Health::unknown, "collectives", "interrupted: not judged"});
    return;
  }
  constexpr std::int64_t kPerRank = std::int64_t{1} << 16;
  PathCheckResult result;
  try {
    const std::unique_ptr<CommGroup> group = on_cpu ? make_local_group(ranks) : make_gpu_group(ranks, ranks);
    result.findings = checks::check_collectives(
        ranks, *group, [&](int rank) { return on_cpu ? make_cpu_device(1) : make_gpu_device(rank); },
        ranks * kPerRank);
  } catch (const Unsupported& error) {
    diagnosis.lines.push_back({Health::warn, "collectives", error.what()});
  } catch (const std::runtime_error& error) {
    diagnosis.lines.push_back({Health::fail, "collectives", error.what()});
  }
  const HealthLines lines = summary_of("ranks", result);
  diagnosis.lines.insert(diagnosis.lines.end(), lines.begin(), lines.end());
  append(diagnosis.findings, std::move(result.findings));
}

void check_flags(const DoctorCommand& command) {
  for (const auto& [given, flag] :
       {std::pair(command.quick, "--quick"), std::pair(command.verbose, "--verbose"),
        std::pair(!command.model.empty(), "--model"), std::pair(command.gpu >= 0, "--gpu"),
        std::pair(command.device != "auto", "--device")})
    if (given && !command.run) throw InvalidInput(fmt::format("doctor: {} belongs to --run", flag));
  if (command.trust && command.run) throw InvalidInput("doctor: --trust after --run, not with it");
  if (command.device != "auto" && command.device != "cpu" && !is_gpu(command.device))
    throw InvalidInput(fmt::format("doctor: --device: {} is none of auto, cpu, {}", command.device,
                                   fmt::join(gpu_device_names(), ", ")));
  if (command.device == "cpu" && command.gpu >= 0) throw InvalidInput("doctor: --gpu: --device cpu has none");
}

void trust(const MachineFacts& facts, std::vector<Verification>& kept) {
  if (facts.gpus.empty()) throw InvalidInput("doctor: --trust: " + facts.visible.reason);
  if (kept.empty())
    throw InvalidInput("doctor: --trust: nothing has been verified here; run doctor --run first");
  for (Verification& verification : kept) {
    verification.trusted = true;
    write_verification(verification);
  }
}

Diagnosis examine(const DoctorCommand& command, const MachineFacts& facts,
                  const std::vector<DeviceToCheck>& devices) {
  PathCheckOptions options{.quick = command.quick};
  if (!command.model.empty()) options.model = find_model(command.model);
  const InterruptGuard guard;
  options.stop = interrupted;
  std::string kind;
  options.started = [&](const std::string& path) {
    const std::string now = path.substr(0, path.find(' '));
    if (std::exchange(kind, now) != now) log_line(fmt::format("doctor: {} ...", now));
  };
  Diagnosis diagnosis = diagnose(devices, options);
  check_links(command, facts, diagnosis);
  if (devices.empty()) {
    diagnosis.complete = false;
    diagnosis.lines.push_back({Health::unknown, "native paths", "not judged: " + facts.visible.reason});
  }
  return diagnosis;
}

std::string text_of(const checks::Findings& findings) {
  std::string text;
  for (const checks::Finding& finding : findings)
    text += paragraph(fmt::format("{:<8} {}; {}: {}", finding.agrees ? "ok" : "FAIL", finding.path,
                                  finding.what, finding.measured),
                      plain_screen(STDOUT_FILENO), "         ");
  return text;
}

}  // namespace

Diagnosis diagnose(const std::vector<DeviceToCheck>& devices, const PathCheckOptions& options) {
  Diagnosis diagnosis;
  std::map<VerifiedMachine, checks::Findings> by_machine;  // several GPUs may be of one kind
  for (const DeviceToCheck& one : devices) {
    PathCheckResult result = run_checks(one.device, options);
    const HealthLines lines = summary_of(one.device.name, result);
    diagnosis.lines.insert(diagnosis.lines.end(), lines.begin(), lines.end());
    if (!one.machine.empty()) append(by_machine[one.machine], result.findings);
    append(diagnosis.findings, std::move(result.findings));
    if (options.stop()) {
      diagnosis.complete = false;
      break;
    }
  }
  for (const auto& [machine, findings] : by_machine) {
    Verification verification = read_verification(machine).value_or(Verification{});
    verification.machine = machine;
    verification.created = utc_text(std::time(nullptr));
    verification.trusted = false;
    for (auto& [path, verdict] : verdicts_of(findings)) verification.paths[path] = std::move(verdict);
    try {
      write_verification(verification);
    } catch (const std::runtime_error& error) {
      diagnosis.lines.push_back(
          {Health::warn, "verified", fmt::format("not kept, so records will not say so: {}", error.what())});
    }
    diagnosis.verifications.push_back(std::move(verification));
  }
  return diagnosis;
}

std::string share_text(const MachineFacts& facts, const HealthLines& lines,
                       const std::vector<Verification>& verifications) {
  constexpr std::size_t kMost = 2000;
  std::vector<std::string> all = {fmt::format("precbench doctor, build {}", build_identity())};
  for (const GpuFacts& gpu : facts.gpus) {
    const GpuProperties& p = gpu.properties;
    all.push_back(fmt::format("GPU {}: {}; driver {}, CUDA {}, cuDNN {}, NCCL {}", p.ordinal, p.description,
                              p.driver, p.cuda_runtime, p.cudnn.empty() ? "-" : p.cudnn,
                              p.nccl.empty() ? "-" : p.nccl));
  }
  for (const HealthLine& line : lines)
    if (line.health != Health::ok)
      all.push_back(fmt::format("{} {}: {}", name_of(line.health), line.subject, line.text));
  for (const Verification& verification : verifications) {
    all.push_back(
        fmt::format("verified {}: {} native paths", verification.created, verification.paths.size()));
    std::map<std::string, std::size_t> agree;  // paths by kind
    for (const auto& [path, verdict] : verification.paths)
      if (verdict.agrees) ++agree[path.substr(0, path.find(' '))];
    for (const auto& [kind, count] : agree) all.push_back(fmt::format("  {}: {} agree", kind, count));
    for (const std::string& wrong : disagreements(verification)) all.push_back("  disagrees: " + wrong);
  }
  std::string text;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const std::string rest = fmt::format("... and {} more lines\n", all.size() - i);
    std::string line = all[i] + "\n";
    if (line.size() > 300) line = line.substr(0, 296) + "...\n";
    if (text.size() + line.size() + rest.size() > kMost) return text + rest;
    text += line;
  }
  return text;
}

CLI::App* add_doctor_command(CLI::App& app, DoctorCommand& command) {
  CLI::App* sub =
      app.add_subcommand("doctor", "check of this machine, and of its native paths against the CPU");
  sub->footer(
      "Without flags: driver, libraries, clocks and links, in a few seconds.\n\n"
      "Exit status: 0 nothing is wrong\n"
      "             1 a line says FAIL\n"
      "             2 bad input\n"
      "             3 not judged: interrupted, or no GPU\n\n"
      "Examples:\n"
      "  precbench doctor\n"
      "  precbench doctor --run --model llama3.1-8b\n"
      "  precbench doctor --run --quick --share");
  sub->add_flag("--run", command.run,
                "checks of every native quantizer, GEMM, attention and training step against the CPU");
  sub->add_flag("--quick", command.quick, "--run in about 10 seconds per GPU: fewer steps, no rates");
  sub->add_option("--model", command.model, "--run at the shapes of this model, too: preset or JSON file")
      ->type_name("NAME");
  sub->add_option("--device", command.device, "--run on auto, cpu or cuda (default auto)")->type_name("NAME");
  sub->add_option("--gpu", command.gpu, "--run on this GPU alone (default all)")
      ->type_name("N")
      ->check([](const std::string& text) {
        const auto number = parse_number<int>(text);
        return number && *number >= 0 ? std::string() : "not a GPU's number: " + text;
      });
  sub->add_flag("--verbose", command.verbose, "--run with a line for every check");
  sub->add_flag("--trust", command.trust, "native execution of paths that failed, until the next --run");
  sub->add_flag("--share", command.share, "summary for an issue: plain text of at most 2 kB");
  return sub;
}

int doctor(const DoctorCommand& command) {
  check_flags(command);
  if (command.run && !command.model.empty()) find_model(command.model);  // before anything is printed
  const MachineFacts facts = machine_facts();
  HealthLines lines = judge_machine(facts);
  std::vector<Verification> kept = kept_verifications(facts);
  if (command.trust) trust(facts, kept);
  if (!command.run) {
    const HealthLines verified = lines_of(kept, facts);
    lines.insert(lines.end(), verified.begin(), verified.end());
    print(command.share ? share_text(facts, lines, kept) : to_text(lines, plain_screen(STDOUT_FILENO)));
    return has_failure(lines) ? kDoctorDisagrees : kDoctorAgrees;
  }
  const std::vector<DeviceToCheck> devices = gpus_to_check(command, facts);
  if (!command.share) print(to_text(lines, plain_screen(STDOUT_FILENO)));
  const Diagnosis diagnosis = examine(command, facts, devices);
  if (command.verbose) print(text_of(diagnosis.findings));
  HealthLines judged = diagnosis.lines;
  for (const Verification& verification : diagnosis.verifications) judged.push_back(line_of(verification));
  const bool failed = has_failure(lines) || has_failure(judged);
  if (command.share) {
    lines.insert(lines.end(), judged.begin(), judged.end());
    print(share_text(facts, lines, diagnosis.verifications));
  } else {
    print(to_text(judged, plain_screen(STDOUT_FILENO)));
  }
  return !diagnosis.complete ? kDoctorUnjudged : failed ? kDoctorDisagrees : kDoctorAgrees;
}

}  // namespace precbench

// Sections on the environment, and on the meaning of the numbers.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <unordered_map>

#include "kernels/base/plural.h"
#include "results/record/step_time.h"
#include "tools/analysis/columns.h"
#include "tools/report/sections.h"
#include "tools/text/distinct.h"

namespace precbench {
namespace {

/// Range of the known values of a quantity.
struct Span {
  std::size_t count = 0;
  double low = std::numeric_limits<double>::infinity(), high = -low;

  void add(const OptionalNumber& value) {
    if (!value) return;
    ++count;
    low = std::min(low, *value);
    high = std::max(high, *value);
  }
  /// Formats the range: "1450 to 1905 MHz".
  std::string text(const char* unit) const {
    const std::string a = fmt::format("{:.0f}", low), b = fmt::format("{:.0f}", high);
    return a == b ? fmt::format("{} {}", a, unit) : fmt::format("{} to {} {}", a, b, unit);
  }
};

/// Adds GPU telemetry during sampling, and the agreement of interleaved runs.
void add_telemetry(Section& section, const MachineRecords& machine) {
  Span medians, ends, power, temperature, apart;
  std::map<std::string, std::size_t> throttled;
  std::size_t told = 0;
  std::int64_t ecc_errors = 0;
  for (const LocatedRecord* located : machine.records) {
    const Record& record = located->record;
    if (record.timing) apart.add(record.timing->between_runs);
    if (!record.telemetry) continue;
    ++told;
    medians.add(record.telemetry->sm_clock_mhz);
    ends.add(record.telemetry->sm_clock_min_mhz);
    ends.add(record.telemetry->sm_clock_max_mhz);
    power.add(record.telemetry->power_max_w);
    temperature.add(record.telemetry->temperature_c);
    for (const std::string& reason : record.telemetry->throttle_reasons) ++throttled[reason];
    ecc_errors += record.telemetry->ecc_errors.value_or(0);
  }
  Distinct texts;
  if (ends.count > 0) texts.add("SM clock " + ends.text("MHz"));
  if (medians.count > 0) texts.add("a case's median " + medians.text("MHz"));
  if (power.count > 0) texts.add(fmt::format("power up to {:.0f} W", power.high));
  if (temperature.count > 0) texts.add(fmt::format("up to {:.0f} C", temperature.high));
  for (const auto& [reason, times] : throttled)
    texts.add(fmt::format("throttled ({}) in {} of {}", reason, times, plural(told, "case")));
  if (told > 0 && throttled.empty()) texts.add("never throttled");
  if (ecc_errors > 0) texts.add(plural(static_cast<std::size_t>(ecc_errors), "uncorrected ECC error"));
  if (!texts.texts.empty())
    section.lines.push_back(fmt::format("{} while sampling: {}", machine.name, texts.joined()));
  if (apart.count > 0)
    section.lines.push_back(
        fmt::format("{} on {} ran twice, A B B A: the two medians lie at most {:.2f}% apart",
                    plural(apart.count, "case"), machine.name, 100 * apart.high));
}

/// Returns the number of settings in which cases of different environments are compared.
std::size_t mixed_settings(const MachineRecords& machine) {
  return static_cast<std::size_t>(
      std::count_if(machine.analysis.groups.begin(), machine.analysis.groups.end(), [&](const Group& group) {
        std::set<std::size_t> environments;
        bool compared = false;
        for (const Row& row : group.rows) {
          compared = compared || ((row.speedup || row.memory_ratio || row.loss_delta) && !row.is_bf16());
          for (const LocatedRecord* member : row.members) environments.insert(machine.environment_of(member));
        }
        return compared && environments.size() > 1;
      }));
}

/// Adds the common details of a machine's environments, and under a letter the details that differ.
void add_environments(Section& section, const MachineRecords& machine) {
  std::vector<std::vector<std::string>> details;
  for (const Environment& env : machine.environments) details.push_back(details_of(env));
  std::unordered_map<std::string, std::size_t> counts_of;  // number of environments with a detail
  for (const auto& some : details)
    for (const std::string& text : std::set<std::string>(some.begin(), some.end())) ++counts_of[text];
  const auto in_all = [&](const std::string& text) { return counts_of.at(text) == details.size(); };
  const auto chosen = [&](const std::vector<std::string>& some, bool common) {
    Distinct texts;
    for (const std::string& text : some)
      if (in_all(text) == common) texts.add(text);
    return texts.joined();
  };
  const std::string common = chosen(details.front(), true);
  section.lines.push_back(common.empty() ? machine.name : fmt::format("{} ({})", machine.name, common));
  if (details.size() < 2) return;
  std::vector<std::size_t> counts(details.size(), 0);
  for (const LocatedRecord* located : machine.records) ++counts[machine.environment_of(located)];
  for (std::size_t i = 0; i < details.size(); ++i)
    section.lines.push_back(fmt::format("{}, {}: {}", name_of_environment(i), plural(counts[i], "case"),
                                        chosen(details[i], false)));
  const std::size_t mixed = mixed_settings(machine);
  section.lines.push_back(
      fmt::format("{}: builds, boards, hosts or settings differ; {}", machine.name,
                  mixed == 0 ? "each setting is of one of them, so no ratio includes that difference"
                             : "the ratios of " + plural(mixed, "setting") + " include that difference"));
}

}  // namespace

std::vector<std::string> details_of(const Environment& env) {
  constexpr std::size_t kShortHash = 12, kShortBoard = 12;
  std::vector<std::string> details;
  const auto add = [&](const char* before, const std::optional<std::string>& text) {
    if (text) details.push_back(before + *text);
  };
  if (env.gpu) {
    const GpuRecord& gpu = *env.gpu;
    add("compute capability ", gpu.cc);
    if (gpu.memory) details.push_back(bytes_text(static_cast<double>(*gpu.memory)));
    if (gpu.power_limit) details.push_back(fmt::format("power limit {:.0f} W", *gpu.power_limit));
    if (gpu.ecc) details.push_back(*gpu.ecc ? "ECC on" : "ECC off");
    add("driver ", gpu.driver);
    add("", gpu.nvlink);
    if (gpu.uuid) details.push_back("board " + gpu.uuid->substr(0, kShortBoard));
  } else if (env.threads) {
    details.push_back(plural(static_cast<std::size_t>(*env.threads), "thread"));
    if (const auto cpus = cpus_for_threads(env); cpus && *cpus < static_cast<double>(*env.threads))
      details.push_back(fmt::format("{:.3g} CPUs for them", *cpus));
  }
  add("host ", env.host);
  if (env.git)
    details.push_back("precbench " + env.git->substr(0, kShortHash) +
                      (env.dirty.value_or(false) ? " with uncommitted changes" : ""));
  add("", env.build);
  add("", env.compiler);
  add("CUDA ", env.cuda);
  add("cuBLASLt ", env.cublaslt);
  add("cuDNN ", env.cudnn);
  add("NCCL ", env.nccl);
  return details;
}

Section environment_section(const ReportInput& input) {
  Section section{"Environment", {}, {}, {}};
  for (const MachineRecords& machine : input.machines) {
    add_environments(section, machine);
    add_telemetry(section, machine);
  }
  return section;
}

/// Returns the legend of columns, and the denominators and conventions named by the records.
Section legend_section(const ReportInput& input) {
  Distinct legends, conventions;
  for (const MachineRecords& machine : input.machines) {
    const bool judged = !machine.trained.empty();  // the convergence section explains its losses itself
    for (const Column& column : report_columns())
      if (*column.legend && worth_showing(column, machine) && !(judged && column.topic == Topic::loss))
        legends.add(fmt::format("{}: {}", title_of(column, machine.rank), column.legend));
    for (const LocatedRecord* located : machine.records) {
      const Record& record = located->record;
      if (!record.metrics) continue;
      if (record.flops && record.metrics->tflops_per_gpu)
        conventions.add("FLOP convention for attention: " + record.flops->convention);
    }
  }
  Section section{"What the numbers mean", {}, {}, {}};
  if (!legends.texts.empty()) section.lines.push_back(fmt::format("{}", fmt::join(legends.texts, "; ")));
  section.lines.insert(section.lines.end(), conventions.texts.begin(), conventions.texts.end());
  return section;
}

}  // namespace precbench

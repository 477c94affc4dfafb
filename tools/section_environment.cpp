// What the numbers of a report mean, and where they were made.
#include <fmt/format.h>

#include "tools/columns.h"
#include "tools/distinct.h"
#include "tools/sections.h"

namespace precbench {
namespace {

std::string hardware_text(const Environment& env) {
  if (!env.gpu) return env.cpu.value_or("unknown CPU");
  const GpuRecord& gpu = *env.gpu;
  Distinct details;
  if (gpu.cc) details.add("compute capability " + *gpu.cc);
  if (gpu.memory) details.add(bytes_text(static_cast<double>(*gpu.memory)));
  if (gpu.power_limit) details.add(fmt::format("power limit {:.0f} W", *gpu.power_limit));
  if (gpu.ecc) details.add(*gpu.ecc ? "ECC on" : "ECC off");
  if (gpu.driver) details.add("driver " + *gpu.driver);
  if (gpu.nvlink) details.add(*gpu.nvlink);
  return details.texts.empty() ? gpu.name : fmt::format("{} ({})", gpu.name, details.joined());
}

std::string software_text(const Environment& env) {
  constexpr std::size_t kShortHash = 12;
  Distinct parts;
  if (env.git)
    parts.add("precbench " + env.git->substr(0, kShortHash) +
              (env.dirty.value_or(false) ? " with uncommitted changes" : ""));
  if (env.build) parts.add(*env.build);
  if (env.compiler) parts.add(*env.compiler);
  for (const auto& [name, version] : {std::pair("CUDA", &env.cuda), std::pair("cuBLASLt", &env.cublaslt),
                                      std::pair("cuDNN", &env.cudnn), std::pair("NCCL", &env.nccl)})
    if (*version) parts.add(fmt::format("{} {}", name, **version));
  return parts.joined();
}

}  // namespace

/// One line per distinct set of hardware, host and software.
Section environment_section(const ReportInput& input) {
  Section section{"Environment", {}, {}, {}};
  for (const Part& part : input.parts) {
    Distinct lines;
    for (const LocatedRecord* located : part.records) {
      const Environment& env = located->env;
      Distinct details;
      details.add(hardware_text(env));
      if (env.threads && !env.gpu) details.add(plural(static_cast<std::size_t>(*env.threads), "thread"));
      if (env.host) details.add("host " + *env.host);
      details.add(software_text(env));
      lines.add(details.joined());
    }
    section.lines.insert(section.lines.end(), lines.texts.begin(), lines.texts.end());
    if (lines.texts.size() > 1)
      section.lines.push_back(part.machine +
                              ": builds, hosts or settings differ; ratios may include that difference");
  }
  return section;
}

/// What the columns mean, and the denominators and conventions that the records name.
Section legend_section(const ReportInput& input) {
  Distinct legends, conventions;
  for (const Part& part : input.parts) {
    for (const Column& column : report_columns())
      if (*column.legend && worth_showing(column, part))
        legends.add(fmt::format("{}: {}", column.title, column.legend));
    for (const LocatedRecord* located : part.records) {
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

// Peaks of GPUs by the names that drivers report, and the parser of user-provided peaks.
#include "bench/machine/datasheet.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <string_view>
#include <vector>

#include "bench/machine/machine.h"
#include "bench/machine/machine_names.h"
#include "kernels/base/errors.h"
#include "kernels/base/parse_number.h"

namespace precbench {
namespace {

/// Parses a whole text as a positive number; null if it is not one.
std::optional<double> positive_number(std::string_view text) {
  const auto value = parse_number<double>(text);
  return value && std::isfinite(*value) && *value > 0 ? value : std::nullopt;
}

std::string peaks_in_environment() {
  const char* value = std::getenv(kPeaksVariable);
  return value ? value : "";
}

DatasheetRates rates_of(const Machine& machine) {
  return {machine.bf16_tflops,     machine.fp8_tflops, machine.fp4_tflops,
          machine.memory_gb_per_s, machine.source,     machine.memory_gb};
}

}  // namespace

std::optional<DatasheetRates> datasheet_rates(const std::string& gpu_name) {
  const Machine* machine = find_machine_of_gpu(gpu_name);
  return machine ? std::optional(rates_of(*machine)) : std::nullopt;
}

DatasheetGpu find_datasheet_gpu(const std::string& words) {
  if (const Machine* machine = find_preset_machine(words))
    return {gpu_name_of(*machine), machine->memory_gb, usable_bytes(*machine)};
  throw InvalidInput(fmt::format("--gpu: no data sheet of \"{}\"; known: {}, by any of their words", words,
                                 fmt::join(datasheet_names(), ", ")));
}

std::vector<std::string> datasheet_names() {
  std::vector<std::string> names;
  for (const Machine& machine : machine_presets()) names.push_back(gpu_name_of(machine));
  return names;
}

DatasheetRates parse_peaks(const std::string& text) {
  constexpr const char* kForm =
      "bf16=TFLOPS,fp8=TFLOPS,fp4=TFLOPS,memory=GB/s, dense, of which bf16 and memory are required";
  std::map<std::string_view, double> given;
  for (std::string_view rest = text; !rest.empty();) {
    const std::string_view word = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(word.size() + 1, rest.size()));
    const std::string_view key = word.substr(0, word.find('='));
    const auto value = positive_number(word.substr(std::min(key.size() + 1, word.size())));
    const bool known = key == "bf16" || key == "fp8" || key == "fp4" || key == "memory";
    if (!known || !value || !given.emplace(key, *value).second)
      throw InvalidInput(
          fmt::format("{}: \"{}\": \"{}\" is not part of {}", kPeaksVariable, text, word, kForm));
  }
  const auto optional = [&](std::string_view key) {
    const auto found = given.find(key);
    return found == given.end() ? std::nullopt : std::optional(found->second);
  };
  if (!optional("bf16") || !optional("memory"))
    throw InvalidInput(fmt::format("{}: \"{}\" is not {}", kPeaksVariable, text, kForm));
  return {*optional("bf16"), optional("fp8"), optional("fp4"), *optional("memory"),
          fmt::format("given by hand ({})", kPeaksVariable)};
}

std::optional<DatasheetRates> known_peaks(const std::string& gpu_name) {
  if (const std::string text = peaks_in_environment(); !text.empty()) return parse_peaks(text);
  return datasheet_rates(gpu_name);
}

void check_peaks_variable() {
  if (const std::string text = peaks_in_environment(); !text.empty()) parse_peaks(text);
}

std::string no_peaks_known(const std::string& gpu_name) {
  return fmt::format(
      "peaks: those of {} are not known, so there is no MFU; to give them: "
      "{}=bf16=TFLOPS,fp8=TFLOPS,fp4=TFLOPS,memory=GB/s, the dense rates",
      gpu_name, kPeaksVariable);
}

}  // namespace precbench

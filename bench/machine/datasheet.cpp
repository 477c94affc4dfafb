// The table of dense peaks, and the parser of user-provided peaks.
#include "bench/machine/datasheet.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <map>
#include <string_view>
#include <vector>

#include "kernels/base/errors.h"
#include "kernels/base/parse_number.h"

namespace precbench {
namespace {

struct Row {
  const char* name;
  DatasheetRates peak;
};

/// Parses a whole text as a positive number; null if it is not one.
std::optional<double> positive_number(std::string_view text) {
  const auto value = parse_number<double>(text);
  return value && std::isfinite(*value) && *value > 0 ? value : std::nullopt;
}

std::string peaks_in_environment() {
  const char* value = std::getenv(kPeaksVariable);
  return value ? value : "";
}

const std::vector<Row>& table() {
  // Names as reported by cudaGetDeviceProperties. Rates are the data sheets', halved if given for 2:4
  // sparsity. NVIDIA prints the FP4 rates of Blackwell Ultra as "sparse | dense", and they do not differ by a
  // factor of two. Values for a whole board or rack are divided by its number of GPUs.
  static const char* const kA100 = "NVIDIA A100 data sheet";
  static const char* const kH100 = "NVIDIA H100 data sheet, half of the sparse rate";
  static const char* const kH200 = "NVIDIA H200 data sheet, half of the sparse rate";
  static const char* const kH800 = "as the NVIDIA H100 data sheet: H800 differs in NVLink and FP64";
  static const char* const kH20 = "NVIDIA H20 data sheet, dense";
  static const char* const kB200 = "NVIDIA Blackwell architecture brief, HGX B200, dense";
  static const char* const kGB200 = "NVIDIA Blackwell architecture brief, GB200, dense";
  static const char* const kB300 =
      "NVIDIA HGX B300 specifications over 8 GPUs, dense FP4, half of the sparse rates of FP8 and BF16";
  static const char* const kGB300 =
      "NVIDIA GB300 NVL72 specifications over 72 GPUs, dense FP4, half of the sparse rates of FP8 and BF16";
  static const char* const kL40S = "NVIDIA L40S data sheet, dense";
  static const char* const kL4 = "NVIDIA L4 data sheet, half of the sparse rate";
  static const char* const kAda = "NVIDIA Ada architecture whitepaper 2.02, dense, FP32 accumulation";
  static const char* const kRtxBlackwell =
      "NVIDIA RTX Blackwell architecture whitepaper, dense, FP32 accumulation";
  static const char* const kRtxPro =
      "NVIDIA RTX Blackwell PRO architecture whitepaper, dense, FP32 accumulation";
  constexpr auto kNone = std::nullopt;
  static const std::vector<Row> rows = {
      // clang-format off
      // Memory in GB. L40S and L4 keep a sixteenth of their 48 and 24 GB for ECC. A board of 8 B300 has 2.1
      // TB, a rack of 72 GB300 20 TB.
      //                                                       BF16   FP8     FP4     GB/s  source   GB
      {"NVIDIA A100-SXM4-80GB",                               {312,   kNone,  kNone,  2039, kA100, 80}},
      {"NVIDIA A100-SXM4-40GB",                               {312,   kNone,  kNone,  1555, kA100, 40}},
      {"NVIDIA A100-PCIE-40GB",                               {312,   kNone,  kNone,  1555, kA100, 40}},
      {"NVIDIA A100 80GB PCIe",                               {312,   kNone,  kNone,  1935, kA100, 80}},
      {"NVIDIA H100 80GB HBM3",                               {989,   1979,   kNone,  3350, kH100, 80}},  // SXM
      {"NVIDIA H100 PCIe",                                    {756,   1513,   kNone,  2000, kH100, 80}},
      {"NVIDIA H100 NVL",                                     {835,   1671,   kNone,  3900, kH100, 94}},
      {"NVIDIA H200",                                         {989,   1979,   kNone,  4800, kH200, 141}},  // SXM
      {"NVIDIA H200 NVL",                                     {835,   1671,   kNone,  4800, kH200, 141}},
      {"NVIDIA H800",                                         {989,   1979,   kNone,  3350, kH800, 80}},  // SXM
      {"NVIDIA H20",                                          {148,   296,    kNone,  4000, kH20, 96}},
      {"NVIDIA B200",                                         {2250,  4500,   9000,   8000, kB200, 180}},
      {"NVIDIA GB200",                                        {2500,  5000,   10000,  8000, kGB200, 186}},
      {"NVIDIA B300 SXM6 AC",                                 {2250,  4500,   13500,  8000, kB300, 262.5}},
      {"NVIDIA GB300",                                        {2500,  5000,   15000,  8000, kGB300, 277}},
      {"NVIDIA L40S",                                         {362.05, 733,   kNone,  864,  kL40S, 45}},
      {"NVIDIA L4",                                           {121,   242.5,  kNone,  300,  kL4, 22.5}},
      {"NVIDIA GeForce RTX 4090",                             {165.2, 330.3,  kNone,  1008, kAda, 24}},
      {"NVIDIA GeForce RTX 5090",                             {209.5, 419,    1676,   1792, kRtxBlackwell, 32}},
      {"NVIDIA RTX PRO 6000 Blackwell Workstation Edition",   {503.8, 1007.6, 2015.2, 1792, kRtxPro, 96}},
      // clang-format on
  };
  return rows;
}

/// Returns the words of a name in lower case: letters and digits between anything else.
std::vector<std::string> words_of(const std::string& name) {
  std::vector<std::string> words;
  bool inside = false;
  for (const char c : name) {
    const auto u = static_cast<unsigned char>(c);
    if (std::isalnum(u) == 0) {
      inside = false;
      continue;
    }
    if (!inside) words.emplace_back();
    words.back() += static_cast<char>(std::tolower(u));
    inside = true;
  }
  return words;
}

/// Returns true if every asked word is one of the name's, or, since people write "rtx4090", several of them
/// in a row.
bool has_words(const std::string& name, const std::vector<std::string>& asked) {
  const std::vector<std::string> words = words_of(name);
  const auto found = [&](const std::string& word) {
    for (std::size_t first = 0; first < words.size(); ++first) {
      std::string joined;
      for (std::size_t i = first; i < words.size() && joined.size() < word.size(); ++i) joined += words[i];
      if (joined == word) return true;
    }
    return false;
  };
  return !asked.empty() && std::all_of(asked.begin(), asked.end(), found);
}

}  // namespace

std::optional<DatasheetRates> datasheet_rates(const std::string& gpu_name) {
  for (const Row& row : table())
    if (gpu_name == row.name) return row.peak;
  return std::nullopt;
}

DatasheetGpu find_datasheet_gpu(const std::string& words) {
  const std::vector<std::string> asked = words_of(words);
  for (const Row& row : table()) {
    if (!has_words(row.name, asked)) continue;
    const double gb = row.peak.memory_gb.value();
    return {row.name, gb, static_cast<std::int64_t>(gb * kUsableMemory * (std::int64_t{1} << 30))};
  }
  throw InvalidInput(fmt::format("--gpu: no data sheet of \"{}\"; known: {}, by any of their words", words,
                                 fmt::join(datasheet_names(), ", ")));
}

std::vector<std::string> datasheet_names() {
  std::vector<std::string> names;
  for (const Row& row : table()) names.emplace_back(row.name);
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

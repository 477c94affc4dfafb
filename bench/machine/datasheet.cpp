// The table of dense peaks.
#include "bench/machine/datasheet.h"

namespace precbench {
namespace {

struct Row {
  const char* name;
  DatasheetRates peak;
};

}  // namespace

std::optional<DatasheetRates> datasheet_rates(const std::string& gpu_name) {
  // Names as cudaGetDeviceProperties gives them. Rates are the data sheets', halved where they are for 2:4
  // sparsity.
  static const char* const kA100 = "NVIDIA A100 data sheet";
  static const char* const kH100 = "NVIDIA H100 data sheet, half of the sparse rate";
  static const char* const kH200 = "NVIDIA H200 data sheet, half of the sparse rate";
  static const char* const kB200 = "NVIDIA Blackwell architecture brief, HGX B200, dense";
  static const Row rows[] = {
      // clang-format off
      //                         BF16  FP8           GB/s
      {"NVIDIA A100-SXM4-40GB",  {312,  std::nullopt, 1555, kA100}},
      {"NVIDIA A100-SXM4-80GB",  {312,  std::nullopt, 2039, kA100}},
      {"NVIDIA A100-PCIE-40GB",  {312,  std::nullopt, 1555, kA100}},
      {"NVIDIA A100 80GB PCIe",  {312,  std::nullopt, 1935, kA100}},
      {"NVIDIA H100 80GB HBM3",  {989,  1979,         3350, kH100}},  // SXM
      {"NVIDIA H100 PCIe",       {756,  1513,         2000, kH100}},
      {"NVIDIA H100 NVL",        {835,  1671,         3900, kH100}},
      {"NVIDIA H200",            {989,  1979,         4800, kH200}},  // SXM
      {"NVIDIA H200 NVL",        {835,  1671,         4800, kH200}},
      {"NVIDIA B200",            {2250, 4500,         8000, kB200}},
      // clang-format on
  };
  for (const Row& row : rows)
    if (gpu_name == row.name) return row.peak;
  return std::nullopt;
}

}  // namespace precbench

// A machine: a GPU's peaks and memory, and the network between GPUs. Presets are files in results/machines,
// embedded at configure time; a user's file has the same keys. Nothing here asks a GPU: predictions
// of absent machines and the data-sheet peaks (datasheet.h) read the same files.
//
// A machine file is JSON:
//   compute_capability   "9.0"; absent for GPUs without CUDA, which then need `native`
//   native               formats multiplied natively (native_formats.h); default: those of compute_capability
//   bf16_tflops, fp8_tflops, fp4_tflops, memory_gb_per_s, memory_gb   dense peaks of one GPU
//   sustained            {bf16, fp8, fp4}: TFLOP/s that one GPU holds under its power limit, if known
//   levels               the network, innermost first (NetworkLevel); absent: one GPU
//   rates                {from}: machine whose measured fractions of peak are borrowed
//   driver_name, also    name that the driver reports; further names of the preset
//   source               where the numbers beside it come from; levels and sustained have their own
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "kernels/numerics/native_formats.h"

namespace precbench {

/// Fraction of a level's link rate that large messages of a collective reach, by number of ranks. Other
/// numbers of ranks take the nearest entry below, or else the first.
using AchievedByRanks = std::map<int, double>;

/// One level of a network: domains of `gpus` GPUs in which every GPU has a link of `gb_per_s`.
struct NetworkLevel {
  std::string name;       ///< "NVLink", "NIC"
  std::int64_t gpus = 0;  ///< GPUs of one domain; 0: the whole cluster
  double gb_per_s = 0;    ///< one way and per GPU, 10^9 bytes per second
  double alpha_us = 0;    ///< latency of one hop of a ring
  /// Achieved fractions by collective ("all_gather"); "" holds for all that have no entry of their own.
  std::map<std::string, AchievedByRanks> achieved;
  std::string source;
};

/// Rates of one GPU in TFLOP/s by math class.
struct ClassRates {
  std::optional<double> bf16, fp8, fp4;
};

struct Machine {
  std::string name;               ///< of the preset or the file: "h200"
  std::string driver_name;        ///< as the driver reports it; empty: unknown
  std::vector<std::string> also;  ///< further names of the preset
  int capability = 0;             ///< ten times the compute capability: 90; 0: no CUDA
  NativeFormats native;
  double bf16_tflops = 0;  ///< dense, FP32 accumulation
  std::optional<double> fp8_tflops, fp4_tflops;
  double memory_gb_per_s = 0;
  double memory_gb = 0;  ///< capacity as the data sheet says it
  ClassRates sustained;  ///< null: only the peak is known
  std::vector<NetworkLevel> levels;
  std::string rates_from;  ///< preset whose measured rates are used; empty: the machine's own or an H200's
  std::string source;      ///< of peaks and memory
};

/// Usable part of a data sheet's memory. Drivers report its GB in GiB, less what firmware and driver keep:
/// 79.2 GiB on an H100 of 80 GB, 139.8 GiB on an H200 of 141 GB.
inline constexpr double kUsableMemory = 0.98;

/// Returns the bytes of one GPU that a program can count on.
std::int64_t usable_bytes(const Machine& machine);

/// Returns the embedded machines; boards of one GPU model follow each other, the most common first.
const std::vector<Machine>& machine_presets();

/// Returns a preset as find_preset_machine() does (machine_names.h), or the machine of a file (a path that ends in
/// ".json"). Throws InvalidInput that starts with `flag` and names the known presets, or the file and its bad key.
Machine find_machine(const std::string& name_or_path, const std::string& flag = "--on");

/// Returns the preset of a GPU by its exact name (gpu_name_of() in machine_names.h); null if there is none.
const Machine* find_machine_of_gpu(const std::string& name);

/// Returns the machine for `gpus` GPUs on so many nodes, each of which is an NVLink domain unless the domain is a rack; null if
/// no network between nodes is known.
std::optional<Machine> with_nodes(Machine machine, std::int64_t gpus, std::int64_t nodes);

/// Parses a machine file. Throws InvalidInput that starts with `where` and names an unknown key, a missing
/// peak or a number out of range.
Machine machine_from_json(const nlohmann::json& json, const std::string& name, const std::string& where);

/// Reads a JSON file that a user wrote. Throws InvalidInput that starts with `flag` and names the file, and the
/// line and column of a mistake.
nlohmann::json read_description(const std::string& path, const std::string& flag);

/// Returns true if every word of `asked` is one of `name`'s, or several of them in a row: "rtx4090" finds
/// "GeForce RTX 4090". False for an empty `asked`.
bool has_words(const std::string& name, const std::string& asked);

}  // namespace precbench

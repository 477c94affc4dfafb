// Reads and writes verifications. See verification.h.
#include "bench/machine/verification.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>
#include <system_error>

#include "bench/machine/build_info.h"
#include "kernels/base/error_text.h"
#include "kernels/base/fnv1a.h"

namespace precbench {
namespace {

using Json = nlohmann::ordered_json;

constexpr const char* kAttention = "attention ";

std::string absolute_variable(const char* name) {
  const char* value = std::getenv(name);
  return value && value[0] == '/' ? value : "";
}

std::string reason_of(const std::string& path, const PathVerdict& verdict) {
  return fmt::format(
      "demoted by doctor --run: {} disagrees with the CPU ({}); precbench doctor --trust runs it natively",
      path, verdict.detail);
}

Verification from_json(const Json& json) {
  Verification v;
  v.machine = json.at("machine").get<VerifiedMachine>();
  v.created = json.at("created").get<std::string>();
  v.trusted = json.at("trusted").get<bool>();
  for (const auto& [path, verdict] : json.at("paths").items())
    v.paths[path] = {verdict.at("agrees").get<bool>(), verdict.at("detail").get<std::string>()};
  return v;
}

Json to_json(const Verification& v) {
  Json paths = Json::object();
  for (const auto& [path, verdict] : v.paths)
    paths[path] = {{"agrees", verdict.agrees}, {"detail", verdict.detail}};
  return {{"machine", v.machine}, {"created", v.created}, {"trusted", v.trusted}, {"paths", paths}};
}

}  // namespace

std::string build_identity() {
  const BuildInfo& build = build_info();
  std::string identity = fmt::format("{} {}", build.commit, build.flags);
  struct stat program = {};
  if ((std::string(build.commit).empty() || build.dirty) && stat("/proc/self/exe", &program) == 0)
    identity += fmt::format(" {} {}", program.st_size, program.st_mtime);
  return identity;
}

VerifiedMachine verified_machine(const GpuProperties& gpu) {
  return {{"gpu", gpu.name},          {"driver", gpu.driver}, {"cuda", gpu.cuda_runtime},
          {"cublaslt", gpu.cublaslt}, {"cudnn", gpu.cudnn},   {"nccl", gpu.nccl},
          {"build", build_identity()}};
}

std::filesystem::path cache_folder() {
  if (const std::string cache = absolute_variable("XDG_CACHE_HOME"); !cache.empty())
    return std::filesystem::path(cache) / "precbench";
  const std::string home = absolute_variable("HOME");
  return home.empty() ? std::filesystem::path() : std::filesystem::path(home) / ".cache" / "precbench";
}

std::filesystem::path verification_file(const VerifiedMachine& machine) {
  const std::filesystem::path folder = cache_folder();
  if (folder.empty()) return folder;
  std::uint64_t hash = kFingerprintStart;
  for (const auto& [key, value] : machine) add_to_fingerprint(hash, fmt::format("{}={}\n", key, value));
  return folder / fmt::format("verified-{:016x}.json", hash);
}

std::optional<Verification> read_verification(const VerifiedMachine& machine) {
  const std::filesystem::path file = verification_file(machine);
  if (file.empty()) return std::nullopt;
  std::ifstream in(file);
  const Json json = Json::parse(in, nullptr, false);
  if (json.is_discarded()) return std::nullopt;
  try {
    Verification found = from_json(json);
    return found.machine == machine ? std::optional(std::move(found)) : std::nullopt;
  } catch (const nlohmann::json::exception&) {
    return std::nullopt;
  }
}

void write_verification(const Verification& verification) {
  const std::filesystem::path file = verification_file(verification.machine);
  if (file.empty()) throw std::runtime_error("no cache folder: neither XDG_CACHE_HOME nor HOME is set");
  std::error_code error;
  std::filesystem::create_directories(file.parent_path(), error);
  // Readers see the old file or the new one.
  const std::filesystem::path next = fmt::format("{}.{}", file.string(), getpid());
  errno = 0;
  std::ofstream out(next);
  out << to_json(verification).dump(1) << '\n';
  out.close();
  if (!error && out) std::filesystem::rename(next, file, error);
  if (!error && out) return;
  const int reason = errno ? errno : EIO;
  std::error_code ignored;
  std::filesystem::remove(next, ignored);
  throw std::runtime_error(
      fmt::format("cannot write {}: {}", file.string(), error ? error_text(error) : error_text(reason)));
}

DemotedPaths demoted_paths(const Verification& verification) {
  DemotedPaths demoted;
  if (verification.trusted) return demoted;
  bool attention_left = false;
  for (const auto& [path, verdict] : verification.paths) {
    if (!verdict.agrees) demoted[path] = reason_of(path, verdict);
    attention_left |= verdict.agrees && path.starts_with(kAttention);
  }
  if (!attention_left)
    for (const auto& [path, reason] : DemotedPaths(demoted))
      if (path.starts_with(kAttention)) demoted[kEveryGemm] = reason;
  return demoted;
}

GpuOptions without_demoted(GpuOptions options, const Verification* verification) {
  if (!verification) return options;
  options.demoted = demoted_paths(*verification);
  if (options.attention != "auto") return options;
  for (const auto& [bad, other] : {std::pair("own", "cudnn"), std::pair("cudnn", "own")})
    if (options.demoted.contains(kAttention + std::string(bad)) && !options.demoted.contains(kEveryGemm))
      options.attention = other;
  return options;
}

std::unique_ptr<Device> open_gpu(int ordinal, const GpuOptions& options) {
  const auto verification = read_verification(verified_machine(gpu_properties(ordinal)));
  return make_gpu_device(ordinal, without_demoted(options, verification ? &*verification : nullptr));
}

std::vector<std::string> unverified_paths(const std::vector<NativeGemm>& gemms, const std::string& attention,
                                          const Verification* verification) {
  std::set<std::string> used;
  for (const auto& [gemm, role] : gemms) {
    used.insert(gemm_path(gemm, role));
    for (const QuantFormat* format : {&gemm.a, &gemm.b})
      if (format->quantized()) used.insert(quantizer_path(*format));
  }
  for (const std::string& path : attention_paths(attention)) used.insert(path);
  const auto verified = [&](const std::string& path) {
    if (!verification) return false;
    const auto found = verification->paths.find(path);
    return found != verification->paths.end() && found->second.agrees;
  };
  std::vector<std::string> missing;
  for (const std::string& path : used)
    if (!verified(path)) missing.push_back(path);
  return missing;
}

}  // namespace precbench

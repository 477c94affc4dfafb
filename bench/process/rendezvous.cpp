// Reads the environment set by launchers. See rendezvous.h.
#include "bench/process/rendezvous.h"

#include <fmt/format.h>
#include <unistd.h>

#include <optional>

#include "kernels/base/errors.h"
#include "kernels/base/parse_number.h"
#include "kernels/gpu/device_info.h"

namespace precbench {
namespace {

struct Engine {
  const char *rank, *size, *local;
  bool half_is_normal;  ///< true if an allocation sets the size before any process starts
};
constexpr Engine kSlurmStep = {"SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", true};
constexpr Engine kSlurm = {"SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", true};
constexpr Engine kOpenMpi = {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
                             false};
constexpr Engine kTorchrun = {"RANK", "WORLD_SIZE", "LOCAL_RANK", false};

std::optional<int> number(const Variables& environment, const char* name) {
  const auto found = environment.find(name);
  if (found == environment.end()) return std::nullopt;
  const std::string& text = found->second;
  const auto value = parse_number<int>(text);
  if (!value || *value < 0)
    throw InvalidInput(fmt::format("{}: \"{}\" is not a number of processes", name, text));
  return value;
}

/// Returns the place given by one launcher; null if it did not start this process or started no other.
std::optional<Nodes> ask(const Variables& environment, const Engine& engine) {
  const auto rank = number(environment, engine.rank), size = number(environment, engine.size);
  if (!rank && !size) return std::nullopt;
  if (!rank || !size) {
    if (engine.half_is_normal) return std::nullopt;
    throw InvalidInput(fmt::format("{} is set, but {} is not: set both, or neither",
                                   rank ? engine.rank : engine.size, rank ? engine.size : engine.rank));
  }
  if (*rank >= *size)
    throw InvalidInput(fmt::format("{} is {}, but with {} {} the last process is {}", engine.rank, *rank,
                                   engine.size, *size, *size - 1));
  if (*size == 1) return std::nullopt;
  return Nodes{*rank, *size, number(environment, engine.local).value_or(0),
               fmt::format("{} and {}", engine.rank, engine.size)};
}

}  // namespace

Variables process_environment() {
  Variables environment;
  for (char** entry = environ; *entry; ++entry) {
    const std::string text = *entry;
    if (const std::size_t equals = text.find('='); equals != std::string::npos)
      environment[text.substr(0, equals)] = text.substr(equals + 1);
  }
  return environment;
}

Nodes find_nodes(const Variables& environment) {
  std::optional<Nodes> found;
  const Engine& slurm = environment.count(kSlurmStep.size) ? kSlurmStep : kSlurm;
  for (const Engine& engine : {slurm, kOpenMpi, kTorchrun}) {
    const std::optional<Nodes> said = ask(environment, engine);
    if (!said) continue;
    if (!found) {
      found = said;
    } else if (found->index != said->index || found->count != said->count) {
      throw InvalidInput(fmt::format(
          "{} say that this is process {} of {}, {} that it is process {} of {}; unset those of the "
          "launcher that did not start it",
          found->source, found->index, found->count, said->source, said->index, said->count));
    }
  }
  return found.value_or(Nodes());
}

Address rendezvous_address(const Variables& environment, const Nodes& nodes) {
  const auto found = environment.find("NCCL_COMM_ID");
  if (found == environment.end())
    throw InvalidInput(fmt::format(
        "{} say that this is process {} of {}: set NCCL_COMM_ID=HOST:PORT, an address of process 0 that "
        "all can reach, or unset them to run alone",
        nodes.source, nodes.index, nodes.count));
  const std::string& text = found->second;
  const std::size_t colon = text.rfind(':');
  Address address;
  if (colon != std::string::npos) {
    address.host = text.substr(0, colon);
    if (address.host.size() > 2 && address.host.front() == '[' && address.host.back() == ']')
      address.host = address.host.substr(1, address.host.size() - 2);
    address.port = parse_number<int>(std::string_view(text).substr(colon + 1)).value_or(0);
  }
  constexpr int kLastPort = 65534;  // precbench uses the next port
  if (address.host.empty() || address.port < 1 || address.port > kLastPort)
    throw InvalidInput(
        fmt::format("NCCL_COMM_ID: \"{}\" is not HOST:PORT with a port of 1 to {}", text, kLastPort));
  ++address.port;
  return address;
}

std::string shared_secret(const Variables& environment) {
  const auto found = environment.find("PRECBENCH_SECRET");
  if (found == environment.end()) return "";
  if (found->second.empty())
    throw InvalidInput("PRECBENCH_SECRET: is empty; give all processes the same secret, or unset it");
  if (found->second.size() < kShortestSecret)
    throw InvalidInput(fmt::format(
        "PRECBENCH_SECRET: is shorter than {} characters and could be guessed; openssl rand -hex 16 makes one",
        kShortestSecret));
  return found->second;
}

NodeShare share_of(const Nodes& nodes, int ranks, int visible) {
  if (ranks % nodes.count != 0)
    throw InvalidInput(
        fmt::format("--gpus {}: is the total over all processes, and not a multiple of their number, {}",
                    ranks, nodes.count));
  const int local = ranks / nodes.count;
  const bool sees_all = visible >= (nodes.local + 1) * local;
  return {ranks, nodes.index * local, local, sees_all ? nodes.local * local : 0};
}

void check_spread(const std::vector<Case>& cases, const Nodes& nodes) {
  for (const Case& c : cases) {
    if (!is_gpu(c.device))
      throw InvalidInput(fmt::format(
          "--device {}: its ranks live in one process, and this is one of {} ({}); start it alone", c.device,
          nodes.count, nodes.source));
    share_of(nodes, static_cast<int>(c.gpus), 0);
  }
}

}  // namespace precbench

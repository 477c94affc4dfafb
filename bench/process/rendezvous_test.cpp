// The place of a process according to each launcher's environment, and invalid environments.
#include "bench/process/rendezvous.h"

#include "kernels/base/errors.h"
#include "kernels/testing/catch.h"

using namespace precbench;

namespace {

Nodes nodes_of(int index, int count, int local, const char* source) { return {index, count, local, source}; }

Case case_of(const char* device, int gpus) {
  Case c;
  c.device = device;
  c.gpus = gpus;
  return c;
}

}  // namespace

TEST_CASE("find_nodes: each launcher's variables give the process index", "[nodes]") {
  CHECK(find_nodes({}) == Nodes());
  CHECK(find_nodes({{"SLURM_PROCID", "3"}, {"SLURM_NTASKS", "4"}, {"SLURM_LOCALID", "1"}}) ==
        nodes_of(3, 4, 1, "SLURM_PROCID and SLURM_NTASKS"));
  CHECK(find_nodes({{"OMPI_COMM_WORLD_RANK", "1"},
                    {"OMPI_COMM_WORLD_SIZE", "2"},
                    {"OMPI_COMM_WORLD_LOCAL_RANK", "1"}}) ==
        nodes_of(1, 2, 1, "OMPI_COMM_WORLD_RANK and OMPI_COMM_WORLD_SIZE"));
  CHECK(find_nodes({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"LOCAL_RANK", "0"}}) ==
        nodes_of(0, 2, 0, "RANK and WORLD_SIZE"));
  CHECK(find_nodes({{"RANK", "1"}, {"WORLD_SIZE", "2"}}).local == 0);
}

TEST_CASE("find_nodes: a SLURM step's size takes precedence over its allocation's", "[nodes]") {
  CHECK(find_nodes({{"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "8"}, {"SLURM_STEP_NUM_TASKS", "2"}}).count == 2);
  CHECK(find_nodes({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}, {"SLURM_STEP_NUM_TASKS", "1"}}).count == 1);
  // The shell of an allocation in which nothing was started.
  CHECK(find_nodes({{"SLURM_NTASKS", "8"}}) == Nodes());
}

TEST_CASE("find_nodes: nested launchers must agree and single processes are ignored", "[nodes]") {
  const Variables both = {{"SLURM_PROCID", "1"}, {"SLURM_NTASKS", "2"}, {"RANK", "1"}, {"WORLD_SIZE", "2"}};
  CHECK(find_nodes(both).index == 1);
  Variables other = both;
  other["SLURM_PROCID"] = "0";
  CHECK_THROWS_WITH(
      find_nodes(other),
      "SLURM_PROCID and SLURM_NTASKS say that this is process 0 of 2, RANK and WORLD_SIZE that it is "
      "process 1 of 2; unset those of the launcher that did not start it");
  other["SLURM_NTASKS"] = "1";
  CHECK(find_nodes(other) == nodes_of(1, 2, 0, "RANK and WORLD_SIZE"));
}

TEST_CASE("find_nodes: impossible numbers are refused", "[nodes]") {
  CHECK_THROWS_WITH(find_nodes({{"RANK", "2"}, {"WORLD_SIZE", "2"}}),
                    "RANK is 2, but with WORLD_SIZE 2 the last process is 1");
  CHECK_THROWS_WITH(find_nodes({{"RANK", "one"}, {"WORLD_SIZE", "2"}}),
                    "RANK: \"one\" is not a number of processes");
  CHECK_THROWS_WITH(find_nodes({{"RANK", "-1"}, {"WORLD_SIZE", "2"}}),
                    "RANK: \"-1\" is not a number of processes");
  CHECK_THROWS_WITH(find_nodes({{"WORLD_SIZE", "2"}}),
                    "WORLD_SIZE is set, but RANK is not: set both, or neither");
}

TEST_CASE("rendezvous_address: processes meet one port above NCCL's", "[nodes]") {
  const Nodes nodes = nodes_of(1, 2, 0, "RANK and WORLD_SIZE");
  const auto meet = [&](const char* id) { return rendezvous_address({{"NCCL_COMM_ID", id}}, nodes); };
  CHECK(meet("node-1:29500").host == "node-1");
  CHECK(meet("node-1:29500").port == 29501);
  CHECK(meet("[fe80::1]:1").host == "fe80::1");
  for (const char* bad :
       {"node-1", "node-1:", ":29500", "node-1:port", "node-1:65535", "node-1:0", "node-1:1x"})
    CHECK_THROWS_WITH(
        meet(bad), "NCCL_COMM_ID: \"" + std::string(bad) + "\" is not HOST:PORT with a port of 1 to 65534");
  CHECK_THROWS_WITH(
      rendezvous_address({}, nodes),
      "RANK and WORLD_SIZE say that this is process 1 of 2: set NCCL_COMM_ID=HOST:PORT, an address of "
      "process 0 that all can reach, or unset them to run alone");
}

TEST_CASE("shared_secret: returns the variable and refuses short secrets", "[nodes]") {
  const std::string secret = "0123456789abcdef";
  CHECK(shared_secret({}) == "");
  CHECK(shared_secret({{"PRECBENCH_SECRET", secret}}) == secret);
  for (const std::string& guessable : {std::string("x"), secret.substr(1)})
    CHECK_THROWS_WITH(
        shared_secret({{"PRECBENCH_SECRET", guessable}}),
        "PRECBENCH_SECRET: is shorter than 16 characters and could be guessed; openssl rand -hex "
        "16 makes one");
  CHECK_THROWS_WITH(shared_secret({{"PRECBENCH_SECRET", ""}}),
                    "PRECBENCH_SECRET: is empty; give all processes the same secret, or unset it");
}

TEST_CASE("share_of: ranks are divided in order of processes and GPUs in order of local processes",
          "[nodes]") {
  // Two hosts with four GPUs, one process each.
  CHECK(share_of(nodes_of(1, 2, 0, ""), 8, 4) == NodeShare{8, 4, 4, 0});
  // One host, two processes that see all four GPUs.
  CHECK(share_of(nodes_of(0, 2, 0, ""), 4, 4) == NodeShare{4, 0, 2, 0});
  CHECK(share_of(nodes_of(1, 2, 1, ""), 4, 4) == NodeShare{4, 2, 2, 2});
  // The same if the launcher shows each process its own two GPUs.
  CHECK(share_of(nodes_of(1, 2, 1, ""), 4, 2) == NodeShare{4, 2, 2, 0});
  CHECK_THROWS_WITH(share_of(nodes_of(0, 2, 0, ""), 3, 4),
                    "--gpus 3: is the total over all processes, and not a multiple of their number, 2");
}

TEST_CASE("check_spread: only cases on GPUs are spread over processes", "[nodes]") {
  const Nodes nodes = nodes_of(0, 2, 0, "RANK and WORLD_SIZE");
  CHECK_NOTHROW(check_spread({case_of("cuda", 2), case_of("cuda", 4)}, nodes));
  CHECK_THROWS_AS(check_spread({case_of("cuda", 2), case_of("cuda", 1)}, nodes), InvalidInput);
  CHECK_THROWS_WITH(
      check_spread({case_of("cpu", 2)}, nodes),
      "--device cpu: its ranks live in one process, and this is one of 2 (RANK and WORLD_SIZE); start "
      "it alone");
}

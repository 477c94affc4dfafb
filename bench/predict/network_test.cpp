// Times of collectives with known answers: one level, two levels, strided groups, short messages, hops.
#include "bench/predict/network.h"

#include <cmath>
#include <tuple>

#include "kernels/base/errors.h"
#include "kernels/testing/catch.h"
#include "kernels/testing/text_checks.h"

namespace precbench {
namespace {

constexpr double kBytes = 8e9;

/// Eight GPUs with 400 GB/s, of which half is achieved, and 40 GB/s a GPU between domains of eight.
Network two_levels(double alpha_inside = 0, double alpha_between = 0, double gb_between = 40) {
  const std::map<std::string, AchievedByRanks> half{{"", {{1, 0.5}}}}, all{{"", {{1, 1.0}}}};
  return Network(std::vector<NetworkLevel>{{"NVLink", 8, 400, alpha_inside, half, {}},
                                           {"NIC", 0, gb_between, alpha_between, all, {}}});
}

double gather_seconds(const Network& network, const RankGroup& group) {
  return network.seconds(Collective::all_gather, group, kBytes);
}

TEST_CASE("Network: a group inside one domain moves (n - 1) / n at the rate achieved", "[network]") {
  const Network network = two_levels();
  CHECK(gather_seconds(network, {8, 1}) == Approx(7.0 / 8 * 8e9 / 200e9));
  CHECK(gather_seconds(network, {4, 2}) == Approx(3.0 / 4 * 8e9 / 200e9));
  CHECK(network.seconds(Collective::reduce_scatter, {8, 1}, kBytes) == gather_seconds(network, {8, 1}));
  CHECK(network.seconds(Collective::all_reduce, {8, 1}, kBytes) ==
        Approx(2 * gather_seconds(network, {8, 1})));
  CHECK(gather_seconds(network, {1, 1}) == 0);
}

TEST_CASE("Network: ranks of a domain share its NICs and strided groups have fewer of them", "[network]") {
  const Network network = two_levels();
  // 16 ranks on two domains: all eight NICs of a domain carry 15 / 16 of the buffer together.
  CHECK(gather_seconds(two_levels(0, 0, 10), {16, 1}) == Approx(15.0 / 16 * 8e9 / (8 * 10e9)));
  // Every eighth GPU: one member a domain, and one NIC.
  CHECK(gather_seconds(network, {16, 8}) == Approx(15.0 / 16 * 8e9 / 40e9));
  // Every second GPU of four domains.
  CHECK(gather_seconds(network, {16, 2}) == Approx(15.0 / 16 * 8e9 / (4 * 40e9)));
  // The inner level counts where it is slower: eight NICs of 40 GB/s exceed what one GPU achieves inside.
  CHECK(gather_seconds(network, {16, 1}) == Approx(15.0 / 16 * 8e9 / 200e9));
}

TEST_CASE("Network: bus_rate is that of the slowest level", "[network]") {
  const Network network = two_levels(0, 0, 10);
  CHECK(network.bus_rate(Collective::all_gather, {8, 1}) == Approx(200e9));
  CHECK(network.bus_rate(Collective::all_gather, {16, 1}) == Approx(80e9));
  CHECK(network.bus_rate(Collective::all_gather, {16, 8}) == Approx(10e9));
  CHECK(two_levels(0, 0, 40).bus_rate(Collective::all_gather, {16, 1}) == Approx(200e9));
}

TEST_CASE("Network: a ring has a hop of the outer level per domain and of the inner one for the rest",
          "[network]") {
  const double moved = gather_seconds(two_levels(), {32, 1});
  CHECK(gather_seconds(two_levels(2, 0), {32, 1}) == Approx(moved + (32 - 4) * 2e-6));
  CHECK(gather_seconds(two_levels(0, 5), {32, 1}) == Approx(moved + 4 * 5e-6));
  CHECK(gather_seconds(two_levels(2, 5), {4, 8}) == Approx(gather_seconds(two_levels(), {4, 8}) + 4 * 5e-6));
}

TEST_CASE("Network: short messages take the time of a launch", "[network]") {
  const Network network = two_levels();
  for (const Collective collective :
       {Collective::all_gather, Collective::all_reduce, Collective::all_to_all, Collective::send_recv})
    CHECK(network.seconds(collective, {8, 1}, 16) == kShortCollectiveSeconds);
}

TEST_CASE("Network: an all-to-all is bounded by what leaves a GPU and a domain", "[network]") {
  const Network network = two_levels();
  CHECK(network.seconds(Collective::all_to_all, {8, 1}, kBytes) == Approx(7.0 / 8 * 8e9 / 200e9));
  CHECK(network.seconds(Collective::all_to_all, {16, 1}, kBytes) == Approx(8.0 / 16 * 8e9 / 40e9));
}

TEST_CASE("Network: a message crosses the level between its two ranks", "[network]") {
  const Network network = two_levels();
  CHECK(network.seconds(Collective::send_recv, {4, 1}, kBytes) == Approx(8e9 / 200e9));
  CHECK(network.seconds(Collective::send_recv, {4, 8}, kBytes) == Approx(8e9 / 40e9));
}

TEST_CASE("Network: faster links are never slower", "[network]") {
  for (const RankGroup group : {RankGroup{2, 1}, {8, 1}, {16, 1}, {16, 8}, {64, 4}, {512, 1}})
    for (const Collective collective :
         {Collective::all_gather, Collective::all_reduce, Collective::all_to_all, Collective::send_recv}) {
      double before = INFINITY;
      for (const double rate : {10, 20, 40, 80, 160, 1600}) {
        const double now = two_levels(2, 5, rate).seconds(collective, group, 1e8);
        CHECK(now <= before);
        before = now;
      }
    }
}

TEST_CASE("Network: achieved fractions hold from their number of ranks on", "[network]") {
  const Network network(std::vector<NetworkLevel>{
      {"NVLink", 8, 100, 0, {{"", {{2, 0.5}, {4, 0.8}}}, {"all_reduce", {{2, 0.6}}}}, {}}});
  CHECK(network.rate(Collective::all_gather, 0, 2) == Approx(50e9));
  CHECK(network.rate(Collective::all_gather, 0, 3) == Approx(50e9));
  CHECK(network.rate(Collective::all_gather, 0, 8) == Approx(80e9));
  CHECK(network.rate(Collective::all_reduce, 0, 8) == Approx(60e9));
}

TEST_CASE("Network: measured rates hold for groups within a domain, by size and ranks", "[network]") {
  Machine machine;
  machine.levels = {{"NVLink", 8, 100, 1, {{"", {{1, 0.5}}}}, {}}, {"NIC", 0, 10, 1, {{"", {{1, 1.0}}}}, {}}};
  const Network network(machine,
                        {{Collective::all_gather, {{2, {{1e6, 10e9}, {1e8, 40e9}}}, {4, {{1e6, 20e9}}}}}});
  const auto seconds = [&](std::int64_t ranks, std::int64_t stride, double bytes) {
    return network.seconds(Collective::all_gather, {ranks, stride}, bytes);
  };
  CHECK(seconds(2, 1, 1e8) == Approx(0.5 * 1e8 / 40e9));
  CHECK(seconds(2, 1, 1e7) == Approx(0.5 * 1e7 / 20e9));  // halfway in the logarithms
  CHECK(seconds(2, 1, 1e9) == Approx(0.5 * 1e9 / 40e9));
  CHECK(seconds(4, 1, 1e8) == Approx(0.75 * 1e8 / 20e9));
  CHECK(seconds(8, 1, 1e8) == Approx(0.875 * 1e8 / 20e9 + 4e-6));  // four hops more than were measured
  const Network assumed(machine);
  for (const auto& [ranks, stride, bytes] : {std::tuple{2, 1, 9e5}, {2, 8, 1e8}, {16, 1, 1e8}})
    CHECK(seconds(ranks, stride, bytes) == assumed.seconds(Collective::all_gather, {ranks, stride}, bytes));
  CHECK(network.seconds(Collective::all_reduce, {4, 1}, 1e8) ==
        assumed.seconds(Collective::all_reduce, {4, 1}, 1e8));
}

TEST_CASE("Network: refuses groups beyond its outermost level", "[network]") {
  const Network network(std::vector<NetworkLevel>{{"PCIe", 8, 30, 0, {{"", {{1, 1.0}}}}, {}}});
  CHECK_NOTHROW(gather_seconds(network, {8, 1}));
  CHECK(contains(refusal_of([&] {
                   gather_seconds(network, {16, 1});
                 }),
                 "joins 8 GPUs; 16 ranks 1 apart need more"));
  CHECK(contains(refusal_of([] {
                   gather_seconds(Network(std::vector<NetworkLevel>{}), {2, 1});
                 }),
                 "the machine has one GPU: its file has no \"levels\""));
}

TEST_CASE("group_of_ranks and collective_of: read a communicator", "[network]") {
  CHECK(group_of_ranks({3}) == RankGroup{1, 1});
  CHECK(group_of_ranks({0, 8, 16, 24}) == RankGroup{4, 8});
  CHECK(group_of_ranks({0, 1, 8, 9}) == RankGroup{4, 1});
  CHECK(collective_of("reduce_scatter bf16") == Collective::reduce_scatter);
  CHECK(collective_of("all_reduce_max") == Collective::all_reduce);
  CHECK_THROWS_AS(collective_of("broadcast"), std::invalid_argument);
}

TEST_CASE("straggler_factor: is the expected largest of normal times", "[network]") {
  CHECK(straggler_factor(1) == 1);
  // In closed form: 1 / sqrt(pi) and 3 / (2 sqrt(pi)) standard deviations for two and three.
  const double root = std::sqrt(std::acos(-1.0));
  CHECK(straggler_factor(2, 1) == Approx(1 + 1 / root).epsilon(1e-9));
  CHECK(straggler_factor(3, 1) == Approx(1 + 1.5 / root).epsilon(1e-9));
  CHECK(straggler_factor(4, 0.016) == Approx(1 + 0.016 * 1.0293753730).epsilon(1e-9));
  CHECK(straggler_factor(1024) > straggler_factor(512));
}

}  // namespace
}  // namespace precbench

// Published layouts beside proposals: verdicts, reasons, and what `plan --layout published` refuses.
#include "bench/cli/layout_comparison.h"

#include <nlohmann/json.hpp>
#include <string>

#include "bench/cli/cli_testing.h"
#include "kernels/testing/catch.h"
#include "kernels/testing/text_checks.h"

namespace precbench {
namespace {

using testing::precbench_says;
using testing::refused;

/// Returns a point of Megatron: a model of four layers' size that searches fast.
PublishedPoint small_run() {
  PublishedPoint p;
  p.id = "small", p.framework = "megatron", p.model = "llama3.2-1b", p.gpu = "h100-sxm", p.precision = "bf16";
  p.recompute = "none";
  p.gpus = 16, p.seq = 2048, p.global_batch = 32, p.micro_batch = 1;
  p.tp = 8, p.pp = 2, p.dp = 1;
  return p;
}

TEST_CASE("savings_text: the largest saving first, and what it costs", "[plan]") {
  CHECK(savings_text({{"gemm", 0.5}, {"bubble", 0.3}, {"exposed tensor", 0.2}},
                     {{"gemm", 0.52}, {"bubble", 0.05}, {"exposed shard", 0.001}}) ==
        "bubble 300 -> 50.0 ms, exposed tensor 200 -> 0.00 ms; more: gemm 500 -> 520 ms");
  // Less than a hundredth is named only if nothing saves more.
  CHECK(savings_text({{"gemm", 0.5}, {"bubble", 0.5}}, {{"gemm", 0.498}, {"bubble", 0.499}}) ==
        "gemm 500 -> 498 ms");
}

TEST_CASE("compare_layouts: a poor layout is beaten for a reason, and one that is searched is proposed",
          "[plan]") {
  PublishedPoint good = small_run();
  const LayoutComparison poor = compare_layouts({small_run()}).front();
  REQUIRE(poor.found.proposals.size() == kComparedProposals);
  CHECK(poor.verdict == LayoutVerdict::faster);
  CHECK(poor.ratio() > 1.2);
  CHECK(contains(poor.reason, "exposed tensor "));
  const Case& best = poor.found.proposals.front().plan.fields;
  good.tp = best.tensor, good.pp = best.pipeline, good.cp = best.context, good.micro_batch = best.batch;
  good.vp = best.virtual_stages;
  good.dp = 16 / (best.tensor * best.pipeline * best.context);
  const LayoutComparison same = compare_layouts({good}).front();
  CHECK(same.verdict == LayoutVerdict::proposed);
  CHECK(same.place == 1);
  CHECK(same.ratio() >= 1);
  // On the same terms the search is never behind a layout that it tries.
  CHECK(same.found.proposals.front().estimate.step.seconds ==
        poor.found.proposals.front().estimate.step.seconds);
}

TEST_CASE("compare_layouts: a layout that does not fit, and a run that is not predicted, say so", "[plan]") {
  PublishedPoint large = small_run();
  large.model = "llama3.1-70b", large.tp = 2, large.pp = 1, large.dp = 8;
  const LayoutComparison one = compare_layouts({large}).front();
  CHECK_FALSE(one.fits);
  if (one.verdict == LayoutVerdict::neither) CHECK(contains(one.reason, "GiB by the memory model"));
  PublishedPoint unknown = small_run();
  unknown.precision = "int8";
  const LayoutComparison none = compare_layouts({unknown}).front();
  CHECK(none.verdict == LayoutVerdict::unknown);
  CHECK(none.reason == "no recipe like int8");
  CHECK(comparison_json(none)["verdict"] == "not predicted");
}

TEST_CASE("runs_with_layouts: one run of Megatron for each setting and layout", "[plan]") {
  PublishedPoint again = small_run(), few = small_run(), data = small_run(), other = small_run();
  again.precision = "mxfp8";
  few.gpus = 8;
  data.tp = data.pp = 1;
  other.framework = "torchtitan";
  PublishedPoint longer = small_run();
  longer.seq = 4096;
  const auto runs = runs_with_layouts({small_run(), again, few, data, other, longer});
  REQUIRE(runs.size() == 2);
  CHECK(runs[0].precision == "bf16");
  CHECK(runs[1].seq == 4096);
}

TEST_CASE("plan --layout published: compares the runs that match, and refuses what matches none", "[plan]") {
  const std::string points = " --published " PRECBENCH_SOURCE_DIR "/results/published/points.json";
  const auto answer = precbench_says(
      "plan --layout published --model llama3-70b --on h100 --gpus 64 --global-batch 128" + points);
  REQUIRE(answer.status == 0);
  CHECK(contains(answer.text, "mb-2511-llama3-70b-h100-sxm-64-tp4pp8-8192-fp8"));
  CHECK(contains(answer.text, "1 run: 1 "));
  // Points of other sources have machines and models that are not known.
  const auto of_model =
      precbench_says("plan --layout published --model qwen3-30b-a3b --seq 4096 --global-batch 512" + points);
  CHECK(of_model.status == 0);
  CHECK(contains(of_model.text, "1 run: 1 "));
  CHECK(contains(refused("plan --layout published --model llama3-70b --gpus 63" + points),
                 "has no run of Megatron on 16 or more GPUs like this"));
  CHECK(contains(refused("plan --layout published --tensor 2" + points),
                 "--tensor: does not matter to plan --layout published"));
  CHECK(contains(refused("plan --layout published --published nosuch.json"), "nosuch.json"));
  CHECK(contains(refused("plan --layout worst"), "--layout"));
  CHECK(contains(refused("plan --model llama3.2-1b --gpus 8 --seq 128 --global-batch 8"),
                 "--on: plan needs it"));
  CHECK(contains(refused("plan --model llama3.2-1b --gpus 8 --seq 128 --on h100"),
                 "--global-batch: plan needs it"));
  CHECK(contains(refused("plan --model llama3.2-1b --gpus 8 --seq 128 --on h100 --global-batch 8 --out x"),
                 "--out: needs --layout published"));
}

}  // namespace
}  // namespace precbench

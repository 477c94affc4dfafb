// A study file and the defaults of a study.
#include "bench/study/study_settings.h"

#include "bench/study/study.h"
#include "kernels/testing/catch.h"
#include "kernels/testing/temp_directory.h"
#include "kernels/testing/text_checks.h"

using namespace precbench;

namespace {

StudySettings read(const std::string& text) {
  const TempDirectory directory;
  StudySettings settings = default_study({});
  read_study_file(directory.write("study.toml", text), settings);
  return settings;
}

std::string refusal(const std::string& text) {
  const std::string message = refusal_of([&] { read(text); });
  const std::size_t place = message.find("study.toml");
  return place == std::string::npos ? message : message.substr(place + std::string("study.toml").size());
}

}  // namespace

TEST_CASE("read_study_file: a file changes its keys and leaves the rest", "[study]") {
  const StudySettings settings = read(
      "[work]\nmodel = \"15m\"\nseq = 64\n[trunk]\nages = [30, 65, 90]\nlr = 2e-3\n[fork]\nsteps = 40\n"
      "[ladder]\noutlier_ffn = []\nbits = 1\n[control]\nbreak = []\napart = [\"mxfp8_floor:mxfp8\"]\n"
      "[verdict]\nmargin = 0.01\n");
  const StudySettings defaults = default_study({});
  CHECK(settings.work.at("seq").front() == "64");
  CHECK(settings.work.at("batch") == defaults.work.at("batch"));
  CHECK(settings.ages == std::vector<std::int64_t>{30, 65, 90});
  CHECK(settings.trunk.at("lr").front() == "2e-3");
  CHECK(settings.fork.at("lr") == defaults.fork.at("lr"));
  CHECK(settings.fork_steps == 40);
  CHECK(settings.outlier_ffn.empty());
  CHECK(settings.outlier_norm == defaults.outlier_norm);
  CHECK(settings.apart.size() == 1);
  CHECK(settings.breaks.empty());
  CHECK(settings.margin == 0.01);
}

TEST_CASE("read_study_file: invalid settings are refused with their line", "[study]") {
  CHECK(refusal("[trunks]\n").starts_with(":1: unknown section [trunks]"));
  CHECK(refusal("seq = 3\n").starts_with(":1: seq belongs in a section"));
  CHECK(refusal("[fork]\nstep = 3\n") == ":2: unknown key step in [fork]; did you mean steps?");
  CHECK(refusal("[work]\nsteps = 3\n").starts_with(":2: --steps: not available in a study"));
  CHECK(refusal("[work]\nseed = 3\n").starts_with(":2: --seed: not available in a study"));
  CHECK(refusal("[work]\nlr = 1e-3\n").starts_with(":2: --lr: not available in a study"));
  CHECK(refusal("[fork]\nsteps = 3\n") == ":2: steps: 3 is not in [12, 1000000000]");
  CHECK(refusal("[trunk]\nages = []\n").starts_with(":2: ages: no steps"));
  CHECK(refusal("[verdict]\nmargin = much\n") == ":2: margin: \"much\" is not a number");
  CHECK(refusal("[control]\napart = [\"mxfp8\"]\n") == ":2: apart: \"mxfp8\" is not CONTROL:RECIPE");
  CHECK(refusal("[control]\napart = [\"rowwise_e5m2:rowise\"]\n") ==
        ":2: apart: unknown recipe \"rowise\"; did you mean rowwise?");
  CHECK(refusal("\n[control]\nbreak = [\"rowwise_e4m1\", \"mxpf8\"]\n") ==
        ":3: break: unknown recipe \"mxpf8\"; did you mean mxfp8?");
  CHECK(refusal("[work]\nbatch = [1, 2]\n") == ":2: --batch: a study takes one value");
}

TEST_CASE("read_study_file: the incumbent is a single recipe or none", "[study]") {
  CHECK(default_study({}).against.empty());
  CHECK(read("[verdict]\nagainst = \"mxfp8\"\n").against == "mxfp8");
  CHECK(read("[verdict]\nagainst = []\n").against.empty());
  CHECK(refusal("[verdict]\nagainst = [\"mxfp8\", \"rowwise\"]\n") ==
        ":2: against: takes one recipe, or none");
  CHECK(refusal("[verdict]\nagainst = \"mxpf8\"\n") ==
        ":2: against: unknown recipe \"mxpf8\"; did you mean mxfp8?");
}

TEST_CASE("read_study_file: sensitivity cells are read and invalid ones refused", "[study][sensitivity]") {
  CHECK(default_study({}).sensitivity.empty());
  CHECK(read("[sensitivity]\ncells = [\"gemms\", \"best\"]\nbatches = 5\n").sensitivity == "gemms,best");
  CHECK(read("[sensitivity]\ncells = []\n").sensitivity.empty());
  CHECK(contains(refusal("[sensitivity]\ncells = [\"gems\"]\n"),
                 ":2: cells: --sensitivity: \"gems\" is none of"));
  CHECK(refusal("[sensitivity]\nbatches = 0\n") == ":2: batches: 0 is not in [1, 10000]");
  CHECK(refusal("[work]\nsensitivity = \"gemms\"\n")
            .starts_with(":2: --sensitivity: not available in a study"));
  StudyCommand command;
  command.axes = {{"recipe", {"rowwise"}}, {"device", {"cpu"}}};
  command.sensitivity_only = true;
  CHECK(refusal_of([&] { study(command); }) == "--sensitivity-only: needs cells: add --sensitivity standard");
  command.axes["sensitivity"] = {"block"};
  CHECK(contains(refusal_of([&] { study(command); }),
                 "--sensitivity: \"block\" is none of standard, all, gemms"));
}

TEST_CASE("default_study: with --init-from trunks re-warm at a low rate until the loss is steady",
          "[study][init]") {
  for (const bool gpu : {false, true}) {
    const StudySettings plain = default_study({.on_gpu = gpu}),
                        trained = default_study({.on_gpu = gpu, .trained = true});
    CHECK_FALSE(plain.steady);
    CHECK(trained.steady);
    for (const Axes* part : {&trained.trunk, &trained.fork}) {
      CHECK(part->at("lr").front() == "1e-4");
      CHECK(part->at("warmup").front() == "20");
    }
    CHECK(trained.fork_steps == 150);
    CHECK(trained.trunks >= 3);
    CHECK(trained.work == plain.work);
    const std::vector<std::int64_t> ages = trained.kept_ages();
    CHECK(ages.size() >= 3);
    for (std::size_t i = 1; i < ages.size(); ++i) CHECK(ages[i] == 2 * ages[i - 1]);
  }
}

TEST_CASE("kept_ages: with steady ages they are at least two doublings of the first", "[study][init]") {
  CHECK(read("[trunk]\nages = \"steady\"\n[rewarm]\nfirst = 20\nmost = 170\n").kept_ages() ==
        std::vector<std::int64_t>{20, 40, 80, 160});
  CHECK(read("[trunk]\nages = [10, 20]\n[rewarm]\nfirst = 20\n").kept_ages() ==
        std::vector<std::int64_t>{10, 20});
  CHECK(refusal_of([] {
          read("[trunk]\nages = \"steady\"\n[rewarm]\nfirst = 20\nmost = 39\n").kept_ages();
        }).starts_with("[rewarm]: first = 20 and most = 39 leave no step to compare with"));
  CHECK(refusal("[trunk]\nages = \"steadily\"\n") == ":2: ages: \"steadily\" is not a whole number");
  CHECK(refusal("[trunk]\ntrained_tokens = \"lots\"\n") ==
        ":2: trained_tokens: \"lots\" is not a number of tokens, such as 300B, 2T or 1.5e9");
}

// Tests the command from end to end, on the records that come with the program.
#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "kernels/testing/catch.h"
#include "kernels/testing/processes.h"
#include "kernels/testing/temp_directory.h"
#include "kernels/testing/text_checks.h"
#include "results/record/line_reader.h"
#include "results/record/record_file.h"
#include "results/record/record_line.h"

using namespace precbench;

namespace {

using Json = nlohmann::ordered_json;

Answer advise(const std::string& arguments) {
  return output_of("COLUMNS=80 " PRECBENCH_BINARY_DIR "/precbench advise " + arguments);
}

Json advise_json(const std::string& arguments, int status = 0) {
  const Answer answer = advise(arguments + " --json");
  INFO(answer.text);
  REQUIRE(answer.status == status);
  return Json::parse(answer.text);
}

const Json* row_of(const Json& json, const std::string& recipe, const std::string& gather = "") {
  for (const Json& row : json.at("rows"))
    if (row.at("recipe") == recipe && (gather.empty() || row.at("gather") == gather)) return &row;
  return nullptr;
}

}  // namespace

TEST_CASE("advise: committed rows are the committed speeds", "[advise]") {
  const Json json = advise_json("--model llama3.1-8b --gpus 4 --gpu h200 --seq 4096 --tokens 1T --price 2.5");
  CHECK(json.at("gpu") == "NVIDIA H200");
  const Json* row = row_of(json, "tensorwise", "fp8");
  REQUIRE(row);
  CHECK(row->at("source") == "committed");
  CHECK(row->at("speedup").at("mean") > 1.3);
  CHECK(row->at("dollars_per_billion_tokens") > 10);
  CHECK(row->at("kwh_per_billion_tokens") > 5);
  CHECK(row->at("loss_gap").at("evidence") == "law");
  CHECK(row->at("loss_gap").at("trained_models") >= 6);
  const Json* bf16 = row_of(json, "bf16");
  REQUIRE(bf16);
  CHECK(bf16->at("speedup").at("mean") == 1);
  // Speeds that are predicted beside a measured BF16 have the predicted speed-up over it.
  int predicted = 0;
  for (const Json& one : json.at("rows")) {
    if (!one.at("tokens_per_s").is_number()) continue;
    INFO(one.dump());
    CHECK(one.at("tokens_per_s").get<double>() / bf16->at("tokens_per_s").get<double>() ==
          Approx(one.at("speedup").at("mean").get<double>()).epsilon(0.005));
    predicted += one.at("source") == "predicted";
  }
  CHECK(predicted > 0);
  // Both sides of the speed-up are of one source.
  CHECK(std::abs(row->at("tokens_per_s").get<double>() / bf16->at("tokens_per_s").get<double>() /
                     row->at("speedup").at("mean").get<double>() -
                 1) < 1e-9);
}

TEST_CASE("advise: --stack decides by that stack's speed, with ours beside it", "[advise][stack]") {
  const std::string question = "--model llama3.1-8b --gpus 8 --gpu h100 --tokens 2T";
  const Json ours = advise_json(question), theirs = advise_json(question + " --stack pytorch");
  const Json *own = row_of(ours, "tensorwise"), *row = row_of(theirs, "tensorwise");
  REQUIRE((own && row));
  CHECK(row->at("stack") == "pytorch");
  CHECK(row->at("own_speedup") == own->at("speedup"));
  CHECK(row->at("speedup").at("mean") < own->at("speedup").at("mean"));
  CHECK(row->at("equal_loss_speedup").at("mean") < own->at("equal_loss_speedup").at("mean"));
  CHECK(row->at("tokens_per_s") < row->at("own_tokens_per_s"));
  // With our speed another recipe is recommended, and the answer says so.
  REQUIRE(ours.at("recommended").at("recipe") != theirs.at("recommended").at("recipe"));
  CHECK(contains(theirs.dump(), "in our step"));
  CHECK(row_of(theirs, "bf16")->at("speedup").at("mean") == 1);
  const Answer text = advise(question + " --stack pytorch");
  CHECK(contains(text.text, "pytorch: our speed times a factor"));
  CHECK(advise(question + " --stack jax").status == 2);
}

TEST_CASE("advise: a GPU of another generation with another answer is named under Changes", "[advise]") {
  const Json hopper = advise_json("--model llama3.1-8b --gpus 8 --gpu h100 --tokens 1T");
  const Json blackwell = advise_json("--model llama3.1-8b --gpus 8 --gpu b200 --tokens 1T");
  const std::string other = blackwell.at("recommended").at("recipe");
  REQUIRE(hopper.at("recommended").at("recipe") != other);
  const Json change = {{"change", "on B200"}, {"recommended", other}};
  CHECK(std::count(hopper.at("changes").begin(), hopper.at("changes").end(), change) == 1);
  // The same answer there is no change, and the text says which GPU was tried.
  const Answer same = advise("--model qwen3-30b-a3b --gpus 64 --gpu b200 --tokens 5T");
  CHECK(contains(same.text, "Changes: none found"));
  CHECK(contains(same.text, "H100.\n"));
}

TEST_CASE("advise: a model and GPU without records of their own are predicted", "[advise]") {
  const Json json = advise_json("--model qwen3-4b --gpus 8 --gpu h100");
  CHECK(json.at("gpu") == "NVIDIA H100 80GB HBM3");
  const Json* row = row_of(json, "tensorwise");
  REQUIRE(row);
  CHECK(row->at("source") == "predicted");
  CHECK(row->at("speedup").at("mean") > 1.1);
  CHECK(row->at("speedup").at("mean") < 1.6);
  CHECK(row->at("fits") == true);
  CHECK(json.at("notes").dump().find("Predicted by the cost model for NVIDIA H100 80GB HBM3") !=
        std::string::npos);
}

TEST_CASE("advise: own records are preferred to committed ones", "[advise]") {
  const TempDirectory folder;
  const RecordSet set = read_records({PRECBENCH_SOURCE_DIR "/results/h200x4/scaling.jsonl.xz"});
  for (const LocatedRecord& located : set.records) {
    Record record = located.record;
    if (record.case_fields.at("gpus") != 4) continue;
    append_record(folder / "records.jsonl", record);
  }
  const Json json = advise_json("--model llama3.1-8b --gpus 4 --gpu h200 --seq 4096 --records " +
                                (folder / "records.jsonl"));
  const Json* row = row_of(json, "tensorwise");
  REQUIRE(row);
  CHECK(row->at("source") == "measured");
}

TEST_CASE("advise: exit status says whether there is a recommendation", "[advise]") {
  CHECK(advise("--model llama3.1-8b --gpus 4 --gpu h200 --tokens 1T").status == 0);
  const Answer large = advise("--model llama3.1-405b --gpus 1 --gpu h200");
  INFO(large.text);
  CHECK(large.status == 1);
  CHECK(large.text.starts_with("Nothing fits: NVIDIA H200 has "));
  CHECK(contains(large.text, "It fits with --gpus "));
  const Answer emulated = advise("--model llama3.1-8b --gpus 1 --gpu h200 --recipe mxfp8");
  INFO(emulated.text);
  CHECK(emulated.status == 0);
  CHECK(contains(emulated.text, "Emulated: mxfp8."));
  const Answer ampere = advise("--model llama3.2-1b --gpu a100-sxm4-80gb");
  INFO(ampere.text);
  CHECK(ampere.status == 0);
  CHECK(ampere.text.starts_with("bf16: NVIDIA A100-SXM4-80GB multiplies neither FP8 nor FP4.\n"));
}

TEST_CASE(
    "advise: where training all weights does not fit, adapters do, and all weights with the change that it names",
    "[advise]") {
  const std::string work = "--model llama3.1-8b --gpu h100 --tokens 100M";
  const Json adapters = advise_json(work + " --gpus 1");
  CHECK(adapters.at("training") == "lora");
  CHECK(adapters.at("recommended").at("recipe") == "bf16");
  CHECK(adapters.at("recommended").at("setting").at("lora_rank") == 16);
  const std::string change = adapters.at("would_fit");
  INFO(change);
  REQUIRE(contains(change, "--gpus "));
  const Json changed = advise_json(work + " " + change);
  CHECK(changed.at("training") == "full");
}

TEST_CASE("advise: a GPU's native formats are compared without being asked for", "[advise]") {
  const Json blackwell = advise_json("--model llama3.1-8b --gpus 8 --gpu b200 --tokens 1T");
  for (const char* recipe : {"mxfp8", "nvfp4"}) {
    INFO(recipe);
    const Json* row = row_of(blackwell, recipe);
    REQUIRE(row);
    CHECK(row->at("speedup").at("mean") > 1.2);
    CHECK(row->at("loss_gap").at("trained_models") >= 3);
  }
  CHECK_FALSE(row_of(blackwell, "blockwise"));
  CHECK(blackwell.at("emulated").dump() == R"(["blockwise"])");
  const Json hopper = advise_json("--model llama3.1-8b --gpus 8 --gpu h100 --tokens 1T");
  CHECK_FALSE(row_of(hopper, "mxfp8"));
  CHECK(row_of(hopper, "blockwise"));
}

TEST_CASE("advise: a schedule's speed is the mean over the run", "[advise]") {
  // nvfp4 is nvfp4_all without the last layers for 82% of the steps, then BF16.
  const Json json =
      advise_json("--model llama3.1-8b --gpus 8 --gpu b200 --tokens 1T --recipe nvfp4,nvfp4_all");
  const double whole = row_of(json, "nvfp4_all")->at("speedup").at("mean");
  const double mixed = row_of(json, "nvfp4")->at("speedup").at("mean");
  const double layers = 5.0 / 32;  // last:0.15, rounded up
  CHECK(mixed == Approx(1 / (0.82 * ((1 - layers) / whole + layers) + 0.18)).epsilon(0.03));
}

TEST_CASE("advise: the setting of every recipe fits and has as many tokens per step", "[advise]") {
  for (const char* work :
       {"--model llama3.1-8b --gpus 2 --gpu h100", "--model llama3.1-70b --gpus 256 --gpu h100",
        "--model qwen3-8b --gpus 6 --gpu h100"}) {
    const Json json = advise_json(work);
    double tokens = 0;
    for (const Json& row : json.at("rows")) {
      INFO(work << ' ' << row.at("recipe"));
      CHECK(row.at("fits") == true);
      CHECK(row.at("peak_bytes") <= json.at("case_bytes"));
      const Json& setting = row.at("setting");
      double own = setting.at("batch").get<double>() * setting.at("accumulation").get<double>();
      for (const char* ranks : {"tensor", "pipeline", "context"})
        if (setting.contains(ranks)) own /= setting.at(ranks).get<double>();
      if (tokens > 0) CHECK(own == tokens);
      tokens = own;
    }
  }
}

TEST_CASE("advise: predicted speed-ups are those of one predictor, with its interval", "[advise]") {
  // A step of a dry run on the same machine is the reference.
  for (const char* work : {"--model qwen3-4b --gpus 8 --seq 4096 --batch 4 --parallel fsdp",
                           "--model llama3.1-8b --gpus 8 --seq 32768 --batch 1 --parallel fsdp --context 2 "
                           "--recompute block"}) {
    const Json dry =
        Json::parse(output_of(std::string(PRECBENCH_BINARY_DIR "/precbench sweep --dry-run --json ") +
                              "--on h100-sxm --recipe bf16,tensorwise,blockwise " + work + " 2> /dev/null")
                        .text);
    const Json json = advise_json(std::string(work) + " --gpu h100 --gather bf16 --accumulation 1" +
                                  (contains(work, "--recompute") ? "" : " --recompute none"));
    for (const Json& wanted : dry.at("cases")) {
      const std::string recipe = wanted.at("case").at("recipe");
      INFO(work << ": " << recipe);
      const Json* row = row_of(json, recipe, "bf16");
      REQUIRE(row);
      const Json& speedup = row->at("speedup");
      CHECK(speedup.at("mean").get<double>() == Approx(wanted.at("over_bf16").get<double>()));
      CHECK(speedup.at("low").get<double>() == Approx(wanted.at("over_bf16_80").at(0).get<double>()));
      CHECK(row->at("tokens_per_s").get<double>() == Approx(wanted.at("tokens_per_s").get<double>()));
    }
  }
}

TEST_CASE("advise: ranks that share sequences have more of them and the sweep that measures has their flags",
          "[advise]") {
  const std::string work =
      "--model llama3.1-8b --gpus 8 --gpu h100 --seq 32768 --recompute block --reshard off";
  const auto measured_by = [&](const char* context) {
    const std::string text = advise(work + context).text;
    return text.substr(std::min(text.size(), text.find("precbench sweep")));
  };
  // 16,384 tokens of a GPU are half a sequence, or four eighths of one.
  const std::string alone = measured_by(""), shared = measured_by(" --context 8");
  INFO(alone << shared);
  CHECK(contains(alone, "--batch 1 "));
  CHECK_FALSE(contains(alone, "--context"));
  // On the four GPUs that measure.
  CHECK(contains(shared, "--batch 2 "));
  CHECK(contains(shared, "--context 4"));
  CHECK(contains(shared, "--reshard off"));
}

TEST_CASE("advise: large models and experts get layouts of ranks, which it says it only predicts",
          "[advise]") {
  const Json dense =
      advise_json("--model llama3.1-405b --gpus 1024 --gpu h100 --tokens 15T --recipe tensorwise");
  const Json& setting = dense.at("recommended").at("setting");
  CHECK(dense.at("recommended").at("recipe") == "tensorwise");
  CHECK(setting.at("tensor").get<int>() * setting.at("pipeline").get<int>() > 1);
  CHECK(dense.at("recommended").at("runs") == false);
  CHECK(contains(dense.at("notes").dump(), "precbench runs no pipeline"));
  CHECK(contains(dense.at("notes").dump(), "precbench plan searches more"));
  // The commands that measure it run on four GPUs.
  for (const std::string command : dense.at("measure")) {
    CHECK(contains(command, "--gpus 4"));
    CHECK_FALSE(contains(command, "--tensor"));
    CHECK_FALSE(contains(command, "--pipeline"));
  }
  const Json experts = advise_json("--model qwen3-30b-a3b --gpus 8 --gpu b200 --tokens 1T --recipe mxfp8");
  CHECK(row_of(experts, "mxfp8")->at("setting").at("ep").get<int>() > 1);
  const Json given =
      advise_json("--model llama3.1-70b --gpus 64 --gpu h100 --tokens 1T --recipe tensorwise --tensor 8");
  for (const Json& row : given.at("rows")) CHECK(row.at("setting").at("tensor") == 8);
}

TEST_CASE("advise: --kept holds for every recipe's setting, whose memory it changes", "[advise][kept]") {
  const std::string question =
      "--model llama3.1-8b --gpus 8 --gpu h100 --tokens 1T --batch 1 --recompute none --recipe tensorwise";
  const auto bytes_of = [&](const std::string& kept) {
    std::map<std::string, double> bytes;
    const Json json = advise_json(question + kept);
    for (const char* recipe : {"bf16", "tensorwise"}) {
      const Json row = *row_of(json, recipe);
      CHECK(row.at("setting").value("kept", "recipe") == (kept.empty() ? "recipe" : "torchao"));
      bytes[recipe] = row.at("peak_bytes");
    }
    return bytes;
  };
  const auto least = bytes_of(""), kept = bytes_of(" --kept torchao");
  CHECK(kept.at("bf16") > least.at("bf16"));
  CHECK(kept.at("tensorwise") > least.at("tensorwise"));
}

TEST_CASE("advise: the commands that measure run and fit", "[advise]") {
  for (const char* question : {"--model llama3.1-8b --gpus 8 --gpu h100 --tokens 1T",
                               "--model llama3.1-405b --gpus 1024 --gpu h100 --tokens 15T",
                               "--model qwen3-30b-a3b --gpus 8 --gpu b200 --tokens 1T",
                               "--model llama3.1-8b --gpus 1 --gpu h100 --tokens 100M",
                               "--model smollm2-135m --gpus 1 --gpu h100 --tokens 2T"}) {
    INFO(question);
    const Json json = advise_json(question);
    const Json& commands = json.at("measure");
    REQUIRE_FALSE(commands.empty());
    CHECK(commands.size() <= 2);
    const std::string sweep = commands.at(0), wanted = json.at("best").is_null()
                                                           ? json.at("recommended").at("recipe")
                                                           : json.at("best");
    INFO(sweep);
    CHECK(contains(sweep, wanted));
    CHECK(sweep.starts_with("precbench sweep --model "));
    const std::string on = contains(question, "b200") ? "b200" : "h100-sxm";
    std::string flags = sweep.substr(std::string("precbench sweep").size());
    flags.erase(flags.find(" --out "));
    const Answer dry =
        output_of(PRECBENCH_BINARY_DIR "/precbench sweep --dry-run --json --device cuda --on " + on +
                  (contains(sweep, "nvfp4") ? " --steps 100" : "") + flags + " 2> /dev/null");
    INFO(dry.text);
    REQUIRE(dry.status == 0);
    for (const Json& one : Json::parse(dry.text).at("cases")) CHECK(one.at("fits") == "yes");
    if (commands.size() > 1) {
      const std::string study = commands.at(1);
      CHECK(contains(study, "precbench study --model "));
      CHECK(contains(study, "--recipe " + wanted));
      CHECK(contains(study, "--data TEXT"));
    }
  }
}

TEST_CASE("advise: the answer stands in 12 lines of 80 columns", "[advise]") {
  for (const char* question :
       {"--model llama3.1-8b --gpus 8 --gpu h100 --tokens 1T --price 2.5",
        "--model llama3.1-70b --gpus 64 --gpu b200 --tokens 15T", "--model qwen3-30b-a3b --gpus 8 --gpu b200",
        "--model llama3.1-405b --gpus 1024 --gpu h100 --tokens 15T --price 2",
        "--model 125m --gpu a100-sxm-80gb", "--model llama3.1-8b --gpus 1 --gpu rtx-4090 --tokens 100M",
        "--model smollm2-135m --gpu h100 --tokens 2T",
        "--model qwen3-0.6b --gpus 8 --gpu h100 --tokens 100M --price 2.5"}) {
    const std::string text = advise(question).text;
    INFO(text);
    const std::string answer = text.substr(0, text.find("\n\n"));
    CHECK(std::count(answer.begin(), answer.end(), '\n') < 12);
    CHECK(contains(answer, " GPU-hours"));
    CHECK(longest_line(text) <= 80);
  }
}

TEST_CASE("advise: the answer names a recipe with the higher mean, and notes only what the tables have",
          "[advise]") {
  const std::string close = advise("--model llama3.1-8b --gpus 8 --gpu h100 --tokens 2T").text;
  INFO(close);
  CHECK(contains(close, "Chosen by its low end; tensorwise has the highest mean: 1."));
  CHECK_FALSE(contains(close, "young models:"));
  CHECK(contains(close, "parameters at 249 tokens"));
  CHECK(contains(advise("--model qwen3-30b-a3b --gpus 8 --gpu h100 --tokens 1T").text, "active parameters"));
  CHECK(contains(advise("--model llama3.1-8b --gpus 8 --gpu h100 --tokens 15T").text,
                 "\nRisk: The run takes more than a year."));
}

TEST_CASE("advise: published runs of about this size and length are named", "[advise]") {
  const Answer same = advise("--model llama3.1-8b --gpus 8 --gpu b200 --tokens 15T");
  INFO(same.text);
  CHECK(contains(same.text, "Published run in mxfp8 (dense, up to 8B, 15T tokens): matches BF16"));
  CHECK_FALSE(contains(advise("--model llama3.1-8b --gpus 8 --gpu b200 --tokens 100B").text, ", 15T tokens"));
}

TEST_CASE("advise: what all weights need is not what adapters need", "[advise]") {
  const Answer adapters = advise("--model qwen2.5-14b --gpus 1 --gpu rtx-4090 --tokens 100M");
  INFO(adapters.text);
  const std::string before = "Training all weights takes at least ";
  const std::size_t at = adapters.text.find(before);
  REQUIRE(at != std::string::npos);
  // 14.8B parameters: master weights and two moments in FP32 alone need 165 GiB.
  CHECK(std::stod(adapters.text.substr(at + before.size())) > 165);
}

TEST_CASE("advise: a model cut to fewer layers is timed, not studied", "[advise]") {
  const Json commands =
      advise_json("--model llama3.1-405b --gpus 1024 --gpu h100 --tokens 15T").at("measure");
  REQUIRE(commands.size() == 1);
  CHECK(contains(commands.at(0).get<std::string>(), " --layers "));
}

TEST_CASE("advise: the deployment changes the loss gap", "[advise]") {
  const std::string run = "--model llama3.1-8b --gpus 4 --gpu h200 --seq 4096 --tokens 15T";
  const Json in_bf16 = advise_json(run), in_recipe = advise_json(run + " --serve recipe");
  CHECK(in_bf16.at("serve") == "bf16");
  CHECK(in_recipe.at("serve") == "recipe");
  CHECK(row_of(in_recipe, "tensorwise")->at("loss_gap").at("nats").at("mean") <
        row_of(in_bf16, "tensorwise")->at("loss_gap").at("nats").at("mean"));
  const Json failing = advise_json(run + " --recipe tensorwise_delayed");
  CHECK(row_of(failing, "tensorwise_delayed")->at("known_failure").at("where") == "arXiv 2409.12517");
}

TEST_CASE("advise: nvfp4, whose last blocks stay in BF16, has the speed of a pipeline", "[advise]") {
  const Json json = advise_json("--model llama3.1-70b --gpus 128 --gpu b200 --tokens 5T --recipe nvfp4");
  const Json *bf16 = row_of(json, "bf16"), *nvfp4 = row_of(json, "nvfp4");
  REQUIRE((bf16 && nvfp4));
  CHECK(bf16->at("setting").at("pipeline") > 1);
  CHECK(nvfp4->at("setting").at("pipeline") > 1);
  CHECK(nvfp4->at("speedup").at("mean") > 1);
}

TEST_CASE("advise: bad input is one line and status 2", "[advise]") {
  const auto refusal = [](const std::string& arguments) { return refusal_in(advise(arguments)); };
  CHECK(contains(refusal("--model llama3.1-8b --gpu h200 --serve fp8"), "--serve"));
  CHECK(contains(refusal("--gpu h200"), "--model: advise needs a model"));
  CHECK(contains(refusal("--model no-such-model --gpu h200"), "unknown model \"no-such-model\""));
  CHECK(contains(refusal("--model llama3.1-8b --gpu h300"), "--gpu: unknown GPU \"h300\"; known are "));
  CHECK(contains(refusal("--model llama3.1-8b --gpu h200 --price 0"),
                 "--price: needs a number above 0, not 0"));
  CHECK(contains(refusal("--model llama3.1-8b --gpu h200 --tokens lots"),
                 "--tokens: \"lots\" is not a number of tokens"));
  CHECK(contains(refusal("--model llama3.1-8b --gpu h200 --base nowhere.csv"), "--base: needs --tokens"));
  CHECK(contains(refusal("--model llama3.1-8b --gpu h200 --tokens 1T --base nowhere.csv"),
                 "nowhere.csv: no such file"));
  CHECK(contains(refusal("--model llama3.1-8b --gpu h200 --seq 1024,2048"),
                 "--seq: advise takes one value, not 1024,2048"));
  CHECK(contains(refusal("--model llama3.1-8b --gpu h200 --lr 1"), "--lr: does not matter to advise"));
  CHECK(contains(
      refusal("--model llama3.1-8b --gpu b200 --recipe nvfp4 --steps 1000"),
      "--steps: does not matter to advise; give the length of the run in tokens, as in --tokens 1T"));
  CHECK(contains(refusal("--model llama3.1-8b --gpu h200 --recipe nosuch"), "nosuch"));
  CHECK(contains(refusal("--model llama3.1-8b --gpu h200 --records nowhere"), "nowhere"));
}

TEST_CASE("advise: text fits 80 columns", "[advise]") {
  for (const char* arguments : {"--model llama3.1-8b --gpus 4 --gpu h200 --tokens 15T --price 2.5",
                                "--model llama3.2-1b --gpu h100", "--model moe-4b-a1b --gpu h200 --tokens 1T",
                                "--model llama3.1-405b --gpus 64 --gpu h200 --recompute block"}) {
    const Answer answer = advise(arguments);
    INFO(answer.text);
    CHECK(answer.status != 2);
    CHECK(longest_line(answer.text) <= 80);
  }
}

TEST_CASE("advise: own records with noisy step times are doubted and damaged lines are named", "[advise]") {
  const TempDirectory folder;
  LineReader committed(PRECBENCH_SOURCE_DIR "/results/h200/single.jsonl.xz", kRecordLimits.bytes);
  std::string lines;
  while (committed.next()) {
    Json record = Json::parse(committed.line());
    bool longer = false;
    for (Json& sample : record["timing"]["samples_ms"])
      sample = sample.get<double>() * ((longer = !longer) ? 1.2 : 0.8);
    lines += record.dump() + '\n';
  }
  const std::string records = folder.write("r.jsonl", lines + "{\"half");
  const Answer answer = advise("--model llama3.2-1b --gpu h200 --records " + records);
  INFO(answer.text);
  CHECK(contains(answer.text, ": half-written last line, left out\n"));
  CHECK(contains(answer.text, "step times are noisy"));
}

// Command line: grids from flags and sweep files, and output of the built binary.
#include "bench/cli/cli.h"

#include <fmt/format.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "bench/cli/cli_testing.h"
#include "bench/process/link.h"
#include "bench/process/rendezvous_testing.h"
#include "kernels/gpu/device_info.h"
#include "kernels/testing/processes.h"
#include "kernels/testing/temp_directory.h"
#include "kernels/testing/text_checks.h"

using namespace precbench;
using namespace precbench::testing;

namespace {

constexpr const char* kFileTooLarge = "File too large; the limit is that of ulimit -f, or of the file system";

}  // namespace

TEST_CASE("run: with a full disk the record is printed and the status is 1", "[cli]") {
  const TempDirectory directory;
  // 1,024 bytes: enough for the file that LLVM's OpenMP creates at start, too few for a record.
  const Answer answer = output_of("trap '' XFSZ; ulimit -f 2; " PRECBENCH_BINARY_DIR
                                  "/precbench run --device cpu --batch 1 --seq 32 --steps 1 --out " +
                                  (directory / "out"));
  CHECK(answer.status == 1);
  CHECK(answer.text.find("\"status\": \"ok\"") != std::string::npos);
  CHECK(answer.text.find("precbench: cannot write " + (directory / "out/records.jsonl") + ": ") !=
        std::string::npos);
}

TEST_CASE("run and sweep: --save-final on a full disk is a warning and status 1", "[cli]") {
  const TempDirectory directory;
  // 64 blocks of 512 or 1,024 bytes, depending on the shell: the record of one step fits, the weights of tiny
  // do not. The limit's signal must not end the program.
  const std::string limited = "ulimit -f 64; " PRECBENCH_BINARY_DIR "/precbench ",
                    flags = " --device cpu --batch 1 --seq 32 --steps 1 --save-final " + (directory / "w") +
                            " --out " + (directory / "out");
  const std::string line = "precbench: not written: --save-final: " + (directory / "w") +
                           ": cannot be written (" + kFileTooLarge + ")\n";
  const Answer run = output_of("(" + limited + "run" + flags + ")");
  CHECK(run.status == 1);
  CHECK(contains(run.text, line));
  CHECK(contains(run.text, "\"status\": \"ok\""));
  const Answer sweep = output_of("(" + limited + "sweep --fresh --quiet" + flags + ")");
  CHECK(sweep.status == 1);
  CHECK(contains(sweep.text, line));
  // The row exists, and the next start without the limit writes the file.
  const Answer again = precbench_says("sweep --quiet" + flags);
  CHECK(again.status == 0);
  CHECK(std::filesystem::file_size(directory / "w") > 65536);
}

TEST_CASE("run and sweep: a checkpoint on a full disk is a failure that the same command mends", "[cli]") {
  const TempDirectory directory;
  const std::string limited = "ulimit -f 64; " PRECBENCH_BINARY_DIR "/precbench ",
                    flags = " --device cpu --batch 1 --seq 32 --steps 2 --checkpoint-every 1 --out " +
                            (directory / "out");
  const std::string line = "precbench: not written: the checkpoint after step 1: ";
  const Answer run = output_of("(" + limited + "run" + flags + ")");
  CHECK(run.status == 1);
  CHECK(contains(run.text, line));
  CHECK(contains(run.text, "\"status\": \"crashed\""));
  CHECK(!contains(run.text, "\"status\": \"ok\""));
  const Answer sweep = output_of("(" + limited + "sweep --fresh --quiet" + flags + ")");
  CHECK(sweep.status == 1);
  CHECK(contains(sweep.text, line));
  const Answer again = precbench_says("sweep --quiet" + flags);
  INFO(again.text);
  CHECK(again.status == 0);
}

TEST_CASE("report: an output file on a full disk is one line and status 2", "[cli]") {
  const TempDirectory directory;
  const std::string baseline = PRECBENCH_SOURCE_DIR "/results/baseline/cpu-tiny.jsonl";
  for (const char* format : {"html", "csv", "json", "md"}) {
    INFO(format);
    const std::string file = directory / format;
    CHECK(refusal_in(output_of("(ulimit -f 1; " PRECBENCH_BINARY_DIR "/precbench report " + baseline +
                               " --format " + format + " -o " + file + ")")) ==
          "precbench: cannot write " + file + ": " + kFileTooLarge);
  }
}

TEST_CASE("error messages: terminal control characters are replaced", "[cli]") {
  const TempDirectory directory;
  const std::string file = directory.write("s.toml", "\033[31mmodel = 1\n");
  CHECK(refused("sweep --config " + file).find(":1: unknown key  [31mmodel; ") != std::string::npos);
  CHECK(refused("sweep \"$(printf '\\033[2J')\"") == "precbench: unexpected argument  [2J; see --help");
}

TEST_CASE("list recipes --recipe: one recipe is shown in full", "[cli]") {
  const Answer answer = output_of(PRECBENCH_BINARY_DIR "/precbench list recipes --recipe mxfp8_w2d");
  CHECK(contains(answer.text, "\"reference\": \"TransformerEngine enable_2d_quantization\""));
  CHECK(contains(answer.text, "32x32"));
  CHECK(contains(answer.text, "wgrad"));
  CHECK(refused("list recipes --recipe mxpf8") == "precbench: unknown recipe \"mxpf8\"; did you mean mxfp8?");
  CHECK(refused("list models --recipe mxfp8") == "precbench: list: --recipe belongs to list recipes");
}

TEST_CASE("list recipes --recipe: standard output is a valid recipe file", "[cli]") {
  const TempDirectory directory;
  for (const char* name : {"mxfp8_w2d", "nvfp4", "tensorwise_delayed", "msamp_o3"}) {
    const std::string file = directory / (std::string(name) + ".json"), table = directory / "table";
    INFO(name);
    CHECK(output_of("(" PRECBENCH_BINARY_DIR "/precbench list recipes --recipe " + std::string(name) + " >" +
                    file + " 2>" + table + ")")
              .status == 0);
    const auto json = nlohmann::ordered_json::parse(file_text(file));
    CHECK(json.at("name") == name);
    CHECK(contains(file_text(table), "wgrad"));
    CHECK(precbench_says("list recipes --recipe " + file).status == 0);
  }
}

TEST_CASE("sweep: the report command that it prints works for any folder name", "[cli]") {
  const TempDirectory directory;
  const std::string out = directory / "it's my run";
  const std::string command =
      precbench_says("sweep --device cpu --batch 1 --seq 32 --steps 1 --out \"" + out + "\"").text;
  const std::size_t at = command.rfind("precbench report ");
  REQUIRE(at != command.npos);
  const Answer answer = output_of(PRECBENCH_BINARY_DIR "/" + command.substr(at, command.size() - at - 1));
  INFO(answer.text);
  CHECK(answer.status == 0);
  CHECK(contains(answer.text, "precbench report: 1 case"));
}

TEST_CASE("dry run: a recipe that cannot run is one row with its reason", "[cli]") {
  const auto dry = [](const std::string& arguments) {
    const Answer answer = precbench_says("sweep --dry-run --device cpu " + arguments);
    INFO(answer.text);
    CHECK(answer.status == 0);
    return answer.text;
  };
  const std::string six = dry("--recipe bf16,tensorwise,rowwise,blockwise,mxfp8,nvfp4");
  CHECK(contains(six, "unsupported: nvfp4: schedule: needs a number of steps: add --steps N"));
  CHECK(contains(six, "6 cases"));
  const std::string of_mxfp8 = six.substr(six.find("\ntiny   mxfp8 ") + 1);
  CHECK(contains(of_mxfp8.substr(0, of_mxfp8.find('\n')), " activations "));  // has its memory segments
  // So are optimizer state, optimizers and layers that a recipe does not support.
  CHECK(contains(dry("--recipe bf16,coat --optimizer lion"), "unsupported: --optimizer lion: "));
  CHECK(contains(dry("--recipe bf16,tensorwise_delayed --keep-bf16 q"),
                 "unsupported: --keep-bf16: tensorwise_delayed has one delayed scale for qkv"));
  CHECK(contains(dry("--recipe bf16,mxfp8 --keep-bf16 first:99"), "none would run in mxfp8"));
  // So is a case that exceeds any memory.
  const std::string large = dry("--model tiny,llama3.1-405b --batch 65535 --seq 32768");
  CHECK(contains(large, "oom: llama3.1-405b with 65535 x 32768 tokens: a rank needs more than 32 PiB"));
  CHECK(contains(large, "2 cases"));
  // If no case can run, the command is refused.
  CHECK(refused("sweep --dry-run --device cpu --recipe nvfp4,nvfp4_rne") ==
        "precbench: nvfp4: schedule: needs a number of steps: add --steps N");
}

TEST_CASE("sweep: a recipe that cannot run is a row and costs the others nothing", "[cli]") {
  const TempDirectory directory;
  const std::string sweep =
      "sweep --device cpu --batch 1 --seq 32 --time-limit 1 --recipe bf16,nvfp4 --quiet --out " +
      (directory / "out");
  const Answer answer = precbench_says(sweep);
  CHECK(answer.status == 0);
  // On a busy machine, a warning of noisy step times follows.
  CHECK(answer.text.starts_with(
      "precbench: 1 of 2 cases cannot run: nvfp4: schedule: needs a number of steps: add --steps N\n"));
  const std::string rows = file_text(directory / "out/records.jsonl");
  CHECK(std::count(rows.begin(), rows.end(), '\n') == 2);
  CHECK(contains(rows, "\"status\":\"unsupported\""));
  CHECK(contains(rows, "\"error\":\"nvfp4: schedule: needs a number of steps: add --steps N\""));
  CHECK(precbench_says("report " + (directory / "out")).status == 0);
  CHECK(precbench_says(sweep).status == 0);  // resumes from the existing rows
  CHECK(file_text(directory / "out/records.jsonl") == rows);
}

TEST_CASE("sweep: without bf16 the start says that nothing can be compared", "[cli]") {
  const TempDirectory directory;
  const std::string line =
      "precbench: no case has the recipe bf16, so the report will have no speed-up and no loss to compare with; "
      "add bf16 to --recipe\n";
  const std::string options = " --device cpu --batch 1 --seq 32 --steps 1 --out " + (directory / "out");
  CHECK(contains(precbench_says("sweep --dry-run --recipe rowwise,mxfp8" + options).text, line));
  const Answer sweep = precbench_says("sweep --recipe rowwise --quiet" + options);
  CHECK(sweep.status == 0);
  CHECK(sweep.text.starts_with(line));
  CHECK(!contains(precbench_says("sweep --dry-run --recipe bf16,mxfp8" + options).text, line));
}

TEST_CASE("lists of two numbers that look like a decimal comma get a hint", "[cli]") {
  const std::string dry = "sweep --dry-run --device cpu ";
  const Answer two = precbench_says(dry + "--lr 1,5e-4");
  CHECK(two.status == 0);
  CHECK(contains(two.text,
                 "precbench: --lr: 1,5e-4 is two values, 1 and 5e-4; with a decimal point it is 1.5e-4\n"));
  CHECK(contains(two.text, "2 cases"));
  CHECK(contains(precbench_says(dry + "--seq 1,024").text,
                 "precbench: --seq: 1,024 is two values, 1 and 024; without the comma it is 1024\n"));
  CHECK(
      refused(dry + "--lr 0,0003") ==
      "precbench: --lr: must be above 0, not 0; 0,0003 is two values, 0 and 0003; with a decimal point it is 0.0003");
  CHECK(
      refused("run --device cpu --lr 1,5e-4") ==
      "precbench: --lr: run takes one value, not 1,5e-4; 1,5e-4 is two values, 1 and 5e-4; with a decimal point it is "
      "1.5e-4");
  CHECK(refused(dry + "--weight-decay 0,1") ==
        "precbench: --weight-decay: \"0,1\" is not a number; with a decimal point it is 0.1");
  for (const char* list :
       {"--lr 1e-4,3e-4", "--lr 0.1,5e-4", "--seq 64,128", "--lr 1,2,3", "--recipe bf16,mxfp8"})
    CHECK(!contains(precbench_says(dry + list).text, "is two values"));
}

TEST_CASE("run and sweep: an unsupported case prints its reason and the status is 1", "[cli]") {
  const TempDirectory directory;
  const std::string odd = " --device cpu --gpus 3 --parallel hsdp --shard-group 2 --steps 1",
                    why = "precbench: unsupported: --shard-group: 2 does not divide 3 ranks\n",
                    sweep = "sweep --quiet --batch 1 --seq 32 --out " + (directory / "out") + odd;
  const Answer one = precbench_says("run" + odd);
  CHECK(one.status == 1);
  CHECK(one.text.ends_with(why));
  const Answer none = precbench_says(sweep);
  CHECK(none.status == 1);
  CHECK(none.text == "precbench: no case is ok: 1 unsupported\n");
  CHECK(precbench_says(sweep + " --gpus 2").status == 0);  // gpus 3 and 2
}

TEST_CASE("list recipes: repeated operands are abbreviated", "[cli]") {
  const std::string text = precbench_says("list recipes").text;
  const auto row = [&](const std::string& name) {
    const std::size_t at = text.find("\n" + name + " ");
    REQUIRE(at != text.npos);
    return text.substr(at + 1, text.find('\n', at + 1) - at - 1);
  };
  CHECK(contains(row("rowwise"), "e4m3 row f32_pow2  as fprop "));
  CHECK(contains(row("tensorwise"), "e5m2 and e4m3 tensor f32                 as dgrad "));
  CHECK(contains(row("quartet"), "e2m1 1x32 ue8m0/floor x0.75 rh32, "));
  CHECK(contains(row("bf16"), "bf16        bf16         bf16 "));
}

TEST_CASE("full standard output: one line and status 2", "[cli]") {
  for (const char* command :
       {"list recipes", "list recipes --recipe mxfp8", "sweep --dry-run --device cpu", "--help"}) {
    INFO(command);
    const Answer answer =
        output_of("(" PRECBENCH_BINARY_DIR "/precbench " + std::string(command) + " >/dev/full)");
    CHECK(refusal_in(answer) == "precbench: cannot write standard output: No space left on device");
  }
}

TEST_CASE("several processes: process 0 warns if PRECBENCH_SECRET is not set", "[cli][together]") {
  const TempDirectory directory;
  // Returns the program's output up to the moment it waits for the other process.
  const auto said = [&](const char* secret) {
    const Address address = free_address();
    const std::string file = directory / (secret ? "closed" : "open");
    const pid_t pid = in_background([&] {
      errors_to(file);
      setenv("RANK", "0", 1);
      setenv("WORLD_SIZE", "2", 1);
      setenv("NCCL_COMM_ID", fmt::format("127.0.0.1:{}", address.port - 1).c_str(), 1);
      secret ? setenv("PRECBENCH_SECRET", secret, 1) : unsetenv("PRECBENCH_SECRET");
      return execl(PRECBENCH_BINARY_DIR "/precbench", "precbench", "sweep", "--device", "cuda", "--gpus", "2",
                   "--out", "none", nullptr);
    });
    CHECK(eventually(
        [&] { return contains(file_text(file), " is waiting for process 1 at ") || !alive(pid); }));
    kill(pid, SIGKILL);
    CHECK(exit_status(pid) == -SIGKILL);
    return file_text(file);
  };
  const std::string warning = "PRECBENCH_SECRET is not set: until all 2 processes have met, any program ";
  CHECK(contains(said(nullptr), warning));
  const std::string with_secret = said("0123456789abcdef");
  CHECK(!contains(with_secret, warning));
  // Process 0 knows its own GPUs, and says so before it waits.
  const std::string unsupported =
      "precbench: process 0 of 2: --device cuda: " + find_gpus().reason + "; its cases will be unsupported\n";
  CHECK((find_gpus().count > 0 ||
         with_secret.starts_with(unsupported + "precbench: process 0 of 2 is waiting for ")));
}

TEST_CASE("dry run: the last line has the number of cases and explains the columns", "[cli]") {
  const auto last_line = [](const std::string& arguments) {
    std::string text = precbench_says("sweep --dry-run --device cpu " + arguments).text;
    text.pop_back();
    return text.substr(text.rfind('\n') + 1);
  };
  const std::string meaning =
      "; GiB/GPU is the largest peak of any GPU; model FLOPs, causal attention halved";
  CHECK(last_line("") == "1 case" + meaning);
  CHECK(last_line("--seq 64,128") == "2 cases" + meaning);
  // A reduced number of layers is shown even if all cases have it.
  CHECK(contains(precbench_says("sweep --dry-run --model tiny --layers 2 --device cpu").text, "layers"));
  CHECK(!contains(precbench_says("sweep --dry-run --model tiny --device cpu").text, "layers"));
}

TEST_CASE("model file: ignored keys are warnings of dry run and sweep and run", "[cli]") {
  const TempDirectory directory;
  const std::string model =
      directory.write("small/config.json",
                      R"({"model_type": "mixtral", "hidden_size": 64, "intermediate_size": 96,
    "vocab_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "num_local_experts": 4,
    "max_position_embeddings": 32, "router_aux_loss_coef": 0.02})");
  const std::string loss =
      "precbench: small: router_aux_loss_coef 0.02 is not read: --aux sets the coefficient of the balance loss\n";
  const std::string positions =
      "precbench: small: seq 64 is beyond the 32 positions that the model is made for\n";
  const std::string options = " --device cpu --batch 1 --steps 1 --model " + model;
  for (const std::string& arguments :
       {"sweep --dry-run --seq 32,64 --recipe bf16,tensorwise" + options,
        "sweep --seq 32,64 --recipe bf16,tensorwise --out " + (directory / "out") + options,
        "run --seq 64" + options}) {
    INFO(arguments);
    const Answer all = precbench_says(arguments),
                 silenced = output_of("(" PRECBENCH_BINARY_DIR "/precbench " + arguments + " 2>/dev/null)");
    CHECK(all.status == 0);
    for (const std::string& line : {loss, positions}) {
      const std::size_t first = all.text.find(line);
      CHECK(first != std::string::npos);
      CHECK(all.text.find(line, first + 1) == std::string::npos);
      CHECK_FALSE(contains(silenced.text, line));
    }
  }
  CHECK(contains(file_text(directory / "out/records.jsonl"), "small: router_aux_loss_coef 0.02 is not read"));
}

TEST_CASE("list models --model: parameters and FLOPs and warnings of one model", "[cli]") {
  const TempDirectory directory;
  const std::string model =
      directory.write("small/config.json",
                      R"({"model_type": "qwen3_moe", "hidden_size": 128, "intermediate_size": 384,
    "moe_intermediate_size": 128, "vocab_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 32, "num_local_experts": 8, "num_experts_per_tok": 2, "mystery": 1})");
  const Answer answer = precbench_says("list models --model " + model);
  CHECK(answer.status == 0);
  // Embedding and head, norms; per block: attention, norms, router, and 8 experts or the 2 active ones.
  const int shared = 2 * 256 * 128 + 128 + 2 * (128 * 128 * 2 + 2 * 64 * 128 + 2 * 32 + 2 * 128 + 8 * 128),
            expert = 2 * 3 * 128 * 128;
  CHECK(contains(answer.text, fmt::format("parameters                  {}\n", shared + 8 * expert)));
  CHECK(contains(answer.text, fmt::format("active parameters           {}\n", shared + 2 * expert)));
  // 6 FLOPs per active weight of a linear layer except the router, plus 6 L s H D for attention.
  const double flops =
      6.0 * (256 * 128 + 2 * (128 * 128 * 2 + 2 * 64 * 128) + 2 * expert) + 6.0 * 2 * 8192 * 128;
  CHECK(contains(answer.text, fmt::format("FLOPs per token             {:.4e}\n", flops)));
  CHECK(contains(answer.text, "experts, top_k, expert ffn  8, 2, 128\n"));
  CHECK(contains(answer.text, "\nwarning: keys that are not known here were left out: mystery\n"));
  const Answer preset = precbench_says("list models --model llama3.1-8b");
  CHECK(contains(preset.text, "parameters                 8030261248\n"));
  CHECK(contains(preset.text, "5.7914e+10\n"));
  CHECK(contains(preset.text, "\nno warnings\n"));
  CHECK(refused("list models --model lama3.1-8b") ==
        "precbench: unknown model \"lama3.1-8b\"; did you mean llama3.1-8b?");
  CHECK(refused("list recipes --model tiny") == "precbench: list: --model belongs to list models");
}

TEST_CASE("sweep: changed data or initial weights make another case", "[cli]") {
  const TempDirectory directory;
  const std::string text = directory.write("text.txt", std::string(100, 'a'));
  const std::string weights = directory / "w.safetensors",
                    run = "run --device cpu --batch 1 --seq 32 --steps 1 ";
  const auto cases = [&] {
    const std::string sweep = "sweep --quiet --device cpu --batch 1 --seq 32 --steps 1 --data " + text +
                              " --init-from " + weights + " --out " + (directory / "out");
    CHECK(precbench_says(sweep).status == 0);
    const std::string rows = file_text(directory / "out/records.jsonl");
    return std::count(rows.begin(), rows.end(), '\n');
  };
  REQUIRE(precbench_says(run + "--save-init " + weights).status == 0);
  CHECK(cases() == 1);
  CHECK(cases() == 1);
  directory.write("text.txt", std::string(99, 'a') + "b");
  CHECK(cases() == 2);
  REQUIRE(precbench_says(run + "--seed 1 --save-init " + weights).status == 0);
  CHECK(cases() == 3);
}

TEST_CASE("run: --save-init creates its folder", "[cli]") {
  const TempDirectory directory;
  const std::string file = directory / "new/init.safetensors";
  CHECK(precbench_says("run --device cpu --batch 1 --seq 32 --steps 1 --save-init " + file).status == 0);
  CHECK(std::filesystem::file_size(file) > 0);
}

TEST_CASE("sweep and run: --eval-data equal to --data is one warning for all cases", "[cli]") {
  const TempDirectory directory;
  std::string lines;
  for (int i = 0; i < 200; ++i) lines += "line " + std::to_string(i) + "\n";
  const std::string text = directory.write("text.txt", lines),
                    same = " --data " + text + " --eval-tokens 64 --eval-data " + text,
                    options = " --device cpu --batch 1 --seq 32 --steps 1",
                    told = "\nprecbench: --eval-data: holds what --data holds";
  const auto times_told = [&](const std::string& arguments) {
    const Answer answer = precbench_says(arguments);
    INFO(answer.text);
    CHECK(answer.status == 0);
    int times = 0;
    for (std::size_t at = 0; (at = ("\n" + answer.text).find(told, at)) != std::string::npos; ++at) ++times;
    return times;
  };
  const std::string sweep = "sweep --seed 1-2 --quiet --out " + directory.path().string() + "/";
  CHECK(times_told(sweep + "same" + options + same) == 1);
  CHECK(times_told(sweep + "none" + options + " --data " + text) == 0);
  CHECK(times_told("run" + options + same) == 1);
  CHECK(times_told("run" + options + " --data " + text) == 0);
}

TEST_CASE("list models: FLOPs per token in both conventions", "[cli]") {
  const std::string text = precbench_says("list models").text;
  const std::size_t row = text.find("llama3.1-8b ");
  REQUIRE(row != std::string::npos);
  const std::string line = text.substr(row, text.find('\n', row) - row);
  CHECK(line.ends_with("57.914"));  // torchtitan's own number, 5.7914e10
}

TEST_CASE("help and version: status 0 and all flags with defaults", "[cli]") {
  const Answer help = precbench_says("sweep --help");
  CHECK(help.status == 0);
  for (const Field& field : case_fields()) CHECK(contains(help.text, "\n  " + flag_of(field)));
  // study --help has a study's defaults and omits flags that it refuses.
  const std::string study = precbench_says("study --help").text;
  const auto line_of = [&](const std::string& flag) {
    const std::size_t at = std::min(study.find("  " + flag + " "), study.find("  " + flag + ", "));
    return at == std::string::npos ? "" : study.substr(at, study.find("\n  --", at + 1) - at);
  };
  CHECK(line_of("--seq").find("(default 512 on a GPU, 128 elsewhere)") != std::string::npos);
  CHECK(line_of("--batch").find("(default 64 on a GPU, 4 elsewhere)") != std::string::npos);
  CHECK(line_of("--data").find("(default /usr/share/common-licenses)") != std::string::npos);
  CHECK(line_of("--master").find("(default fp32)") != std::string::npos);
  CHECK((line_of("--recipe") != "" && line_of("--recipe").find("default") == std::string::npos));
  for (const char* refused_flag : {"--steps", "--seed", "--lr", "--fork-from", "--checkpoint-every"})
    CHECK(line_of(refused_flag) == "");
  CHECK(help.text.find("(default synthetic)") != std::string::npos);
  CHECK(precbench_says("--version").text.starts_with("precbench "));
  CHECK(precbench_says("--help").status == 0);
  for (const char* command : {"", "sweep "})
    CHECK(precbench_says(std::string(command) + "--help").text.find("Exit status: 0 ") != std::string::npos);
}

TEST_CASE("sweep: a repeated flag appends to its axis", "[cli]") {
  CLI::App app;
  SweepCommand command;
  add_sweep_command(app, command);
  std::vector<std::string> words = {"precbench", "sweep",    "--recipe", "bf16", "--recipe=mxfp8,rowwise",
                                    "--lr",      "1e-5",     "--warmup", "1",    "--warmup",
                                    "2",         "--device", "cpu"};
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  CHECK(!parse_command_line(app, static_cast<int>(argv.size()), argv.data()));
  const auto grid = grid_of(command);
  REQUIRE(grid.size() == 3);
  CHECK((grid[2].fields.recipe == "rowwise" && grid[2].fields.lr == 1e-5 && grid[2].fields.warmup == 2));
}

TEST_CASE("sweep file: flags override every section", "[sweep-file]") {
  const TempDirectory directory;
  SweepCommand command;
  command.config = directory.write(
      "s.toml",
      "device = \"cpu\"\nrecipe = [\"bf16\", \"mxfp8\"]\n[a]\nseq = 64\n[b]\nseq = 128\nlr = 0.5\n");
  CHECK(grid_of(command).size() == 4);
  command.axes["recipe"] = {"rowwise"};
  command.axes["seq"] = {"32,256"};
  const auto grid = grid_of(command);
  REQUIRE(grid.size() == 4);
  for (const Plan& plan : grid) CHECK(plan.fields.recipe == "rowwise");
  CHECK((grid[0].fields.seq == 32 && grid[1].fields.seq == 256 && grid[2].fields.lr == 0.5));
  command.axes["lr"] = {"0.5"};
  CHECK(grid_of(command).size() == 2);  // the two sections are now the same grid
}

// Command line: error messages of the built binary for bad input.
#include "bench/cli/cli.h"

#include <unistd.h>

#include <filesystem>
#include <stdexcept>
#include <system_error>

#include "bench/cli/cli_testing.h"
#include "kernels/base/errors.h"
#include "kernels/testing/temp_directory.h"
#include "kernels/testing/text_checks.h"

using namespace precbench;
using namespace precbench::testing;

TEST_CASE("bad input: one line and exit status 2", "[cli]") {
  CHECK(refused("sweep --reciep bf16") == "precbench: unknown flag --reciep; did you mean --recipe?");
  CHECK(refused("sweep --rec bf16") == "precbench: unknown flag --rec; did you mean --recipe?");
  CHECK(refused("sweep --reciep=bf16") == "precbench: unknown flag --reciep=bf16; did you mean --recipe?");
  CHECK(
      refused("sweep --grouped loop") ==
      "precbench: unknown flag --grouped; removed: experts run in the fastest grouped GEMM that the GPU supports");
  CHECK(refused("run --xyzzyxyzzyxyzzy") == "precbench: unknown flag --xyzzyxyzzyxyzzy; see --help");
  CHECK(refused("swep --recipe bf16") == "precbench: unknown command swep; did you mean sweep?");
  CHECK(refused("sweep tiny") == "precbench: unexpected argument tiny; see --help");
  CHECK(refused("list") == "precbench: list: needs recipes, models or devices");
  CHECK(refused("list modles") == "precbench: list: unknown word modles; did you mean models?");
  CHECK(refused("sweep --device cpu --at-once 2 --gpus 2") ==
        "precbench: --at-once: needs cases of one rank, but one has --gpus 2");
  CHECK(refused("sweep --device cpu --at-once 2 --interleave") ==
        "precbench: --at-once: not available with --interleave or several processes");
  CHECK(refused("study --recipe bf16 --device cpu") ==
        "precbench: --recipe: a study compares recipes with bf16: name at least one other");
  CHECK(
      refused("study --recipe mxfp8 --steps 10").starts_with("precbench: --steps: not available in a study"));
  CHECK(refused("study --recipe mxfp8 --device cpu --data /nowhere") ==
        "precbench: --data: /nowhere does not exist; give a folder of text or a token file");
  CHECK(refused("sweep --device cpu --seq 0") == "precbench: --seq: must be at least 1, not 0");
  CHECK(refused("sweep --device cpu --batch 0") == "precbench: --batch: must be at least 1, not 0");
  CHECK(refused("sweep --device cpu --seq ''") == "precbench: --seq: empty value in \"\"");
  CHECK(refused("sweep --device cpu --seq 128-1024*1") == "precbench: --seq: range 128-1024*1 never ends");
  CHECK(refused("sweep --device cpu --parallel fsdq") ==
        "precbench: --parallel: unknown value \"fsdq\"; did you mean fsdp? it is one of ddp, fsdp, hsdp");
  CHECK(refused("sweep --device cpu --recipe bf16,mxfp9").find("mxfp8") != std::string::npos);
  CHECK(refused("sweep --device cpu --model tinny").find("tiny") != std::string::npos);
  CHECK(refused("sweep --device cpu --timeout -1") == "precbench: --timeout: must not be negative");
  CHECK(refused("sweep --timeout abc") ==
        "precbench: --timeout: \"abc\" is not a number of seconds, such as 90, 10s, 30m or 2h");
  CHECK(refused("sweep --config none.toml") == "precbench: --config: none.toml: no such file");
  CHECK(refused("sweep --device cpu --data none.txt").find("none.txt") != std::string::npos);
  CHECK(refused("run --device cpu --data none.txt").find("none.txt") != std::string::npos);
  CHECK(refused("sweep --device cpu --out /dev/null/x") ==
        "precbench: --out: cannot make /dev/null/x: Not a directory");
}

TEST_CASE("bad input: words of other programs lead to what is meant here", "[cli][hint]") {
  const auto hint = [](const std::string& arguments) {
    const std::string line = refused(arguments);
    INFO(line);
    CHECK(line.size() < 400);
    return line;
  };
  const std::string
      dry = "sweep --dry-run --device cpu ",
      only_predicted =
          "2: predicted only, a run does not support it; use sweep --dry-run --on MACHINE";
  CHECK(contains(hint(dry + "--recipe float8"), "did you mean tensorwise, or the set fp8?"));
  CHECK(contains(hint(dry + "--recipe nosuch"), "; precbench list recipes has all"));
  CHECK(contains(hint(dry + "--model nosuch"), "; precbench list models has all"));
  CHECK(contains(hint(dry + "--parallel fdsp"), "did you mean fsdp?"));
  CHECK(contains(hint(dry + "--parallel FSDP"), "did you mean fsdp?"));
  for (const char* flag :
       {"--pp 2", "--pipeline 2", "--tp 2 --pp 2", "--virtual-stages 2", "--micro-batches 2"})
    for (const std::string command : {"run ", "sweep ", "study ", "sweep --dry-run "})
      CHECK(contains(hint(command + "--device cpu --recipe mxfp8 " + flag), only_predicted));
  CHECK(contains(hint(dry + "--parallel tp"), "add --tensor N, the ranks that divide every matrix"));
  CHECK(contains(hint(dry + "--parallel pipeline"),
                 "add --pipeline N, which sweep --dry-run --on MACHINE predicts"));
  CHECK(contains(hint(dry + "--tensor-model-parallel-size 8"), "did you mean --tensor?"));
  CHECK(contains(hint("sweep --dry-run --device gpu"), "did you mean cuda?"));
  CHECK(contains(hint("study --trunks 1"), "trunks is a key of [ladder] or [trunk] in the file of --config"));
  CHECK(contains(hint("study --margin 0.1"), "margin is a key of [verdict] in the file of --config"));
  CHECK(hint("list devices --device cuda") == "precbench: unknown flag --device; see --help");
  CHECK(hint("version") == "precbench: unknown command version; did you mean --version?");
  CHECK(precbench_says("-V").text == precbench_says("--version").text);
  CHECK(hint("sweep --recipe") == "precbench: --recipe: needs a value; see --help");
  CHECK(hint("sweep --out") == "precbench: --out: needs a value; see --help");
  CHECK(contains(hint("advise --model tiny --loro 16"), "did you mean --lora?"));
  CHECK(contains(hint("sweep --batch-size 4"), "did you mean --batch?"));
}

TEST_CASE("recipes and sets: any letter case", "[cli][hint]") {
  const std::string dry = "sweep --dry-run --device cpu --json --recipe ";
  CHECK(precbench_says(dry + "FP8").text == precbench_says(dry + "fp8").text);
  CHECK(precbench_says(dry + "BF16,MXFP8").text == precbench_says(dry + "bf16,mxfp8").text);
}

TEST_CASE("numbers: exponents are read, suffixes answered with what to write", "[cli][hint]") {
  const std::string dry = "sweep --dry-run --device cpu --json ";
  CHECK(precbench_says(dry + "--seq 1e2").text == precbench_says(dry + "--seq 100").text);
  CHECK(precbench_says(dry + "--steps 1e3 --seq 1e2-4e2*2").text ==
        precbench_says(dry + "--steps 1000 --seq 100-400*2").text);
  CHECK(precbench_says(dry + "--time-limit 2m").text == precbench_says(dry + "--time-limit 120").text);
  CHECK(precbench_says(dry + "--time-limit 10s --timeout 1h").status == 0);
  CHECK(refused(dry + "--seq 8k") == "precbench: --seq: \"8k\" is not a whole number; write 8192 or 8000");
  CHECK(refused(dry + "--seq 1.5k") ==
        "precbench: --seq: \"1.5k\" is not a whole number; write 1536 or 1500");
  CHECK(refused(dry + "--steps 1M") ==
        "precbench: --steps: \"1M\" is not a whole number or auto; write 1048576 or 1000000");
  CHECK(contains(refused(dry + "--steps 2000 --checkpoint-at 1k"), "; write 1024 or 1000"));
  CHECK(contains(refused(dry + "--time-limit 10x"), "is not a number of seconds, such as 90, 10s or 2m"));
  const TempDirectory directory;
  const auto file = [&](const std::string& text) {
    return dry + "--config " + directory.write("sweep.toml", text);
  };
  CHECK(precbench_says(file("seq = \"1e2\"\ntime_limit = \"2m\"\n")).text ==
        precbench_says(dry + "--seq 100 --time-limit 120").text);
  CHECK(precbench_says(file("seq = 1e2\n")).text == precbench_says(dry + "--seq 100").text);
  CHECK(contains(refused(file("seq = \"8k\"\n")), "\"8k\" is not a whole number; write 8192 or 8000"));
  CHECK(contains(refused("study --dry-run --device cpu --recipe mxfp8 --config " +
                         directory.write("study.toml", "[trunk]\ntrunks = \"2k\"\n")),
                 "; write 2048 or 2000"));
}

TEST_CASE("sweep --dry-run: fails if no case can run", "[cli][hint]") {
  const std::string nothing =
      "sweep --dry-run --device cpu --gpus 2 --parallel fsdp --recipe rowwise --gather fp8 ";
  const Answer answer = precbench_says(nothing);
  INFO(answer.text);
  CHECK(answer.status != 0);
  CHECK(precbench_says("sweep --dry-run --on h200 --model tiny --recipe bf16").status == 0);
}

TEST_CASE("error messages: file names cannot inject GitHub Actions commands", "[cli]") {
  CHECK(refused("sweep --config '##[error]x.toml'") == "precbench: --config: ## [error]x.toml: no such file");
  CHECK(refused("check out --baseline '::stop-commands::x'").find(" ::") == std::string::npos);
  CHECK(refused("report '::error::x.jsonl'").find(": :error::x.jsonl") != std::string::npos);
}

TEST_CASE("run: a list or range is refused with a pointer to sweep", "[cli]") {
  CHECK(refused("run --recipe bf16,rowwise") ==
        "precbench: --recipe: run takes one value, not bf16,rowwise; sweep takes lists, ranges and sets");
  CHECK(refused("run --seq 64-256*2").find("run takes one value") != std::string::npos);
  for (const char* set : {"fp8", "native"})
    CHECK(refused("run --recipe " + std::string(set)).find("run takes one value") != std::string::npos);
}

TEST_CASE("bad input: empty or repeated or oversized values are refused", "[cli]") {
  CHECK(refused("sweep --config ''") == "precbench: --config: empty name");
  CHECK(refused("sweep --out ''") == "precbench: --out: empty name");
  CHECK(refused("run --out ''") == "precbench: --out: empty name");
  CHECK(refused("sweep --device cpu --data ''") == "precbench: --data: empty name");
  CHECK(refused("run --device cpu --data ''") == "precbench: --data: empty name");
  CHECK(refused("sweep sweep") == "precbench: unexpected argument sweep: given twice");
  CHECK(refused("sweep --dry-run --seq 64 128") == "precbench: unexpected argument 128; see --help");
  CHECK(refused("sweep --dry-run --seq 64,,128") == "precbench: --seq: empty value in \"64,,128\"");
  CHECK(refused("sweep --dry-run --recipe bf16,") == "precbench: --recipe: empty value in \"bf16,\"");
  CHECK(refused("sweep --dry-run --seed 1-10000+1 --batch 1-10000+1") ==
        "precbench: more than 100000 cases, the limit of a sweep");
  const std::string digits(120'000, '1');
  for (const std::string& number : {digits, "1-" + digits}) {
    const std::string refusal = refused("sweep --dry-run --seq " + number);
    CHECK(refusal.starts_with("precbench: --seq: "));
    CHECK(refusal.size() < 1000);
  }
}

TEST_CASE("run and sweep: a name that is not UTF-8 is refused before anything runs", "[cli]") {
  const TempDirectory directory;
  for (const char* command : {"run", "sweep"})
    CHECK(refused(std::string(command) + " --device cpu --steps 1 --data \"$(printf '\\377')\" ")
              .ends_with(" is not valid UTF-8; choose another name"));
  // The folder's name is not in the record.
  CHECK(precbench_says("sweep --quiet --device cpu --batch 1 --seq 32 --steps 1 --out \"" +
                       (directory / "$(printf '\\377')") + "\"")
            .status == 0);
}

TEST_CASE("named pipe as an input file: refused without waiting", "[cli]") {
  const TempDirectory directory;
  const std::string pipe = directory / "pipe.json";
  REQUIRE(output_of("mkfifo " + pipe).status == 0);
  CHECK(refused("sweep --dry-run --config " + pipe) ==
        "precbench: --config: " + pipe + ": not a regular file");
  CHECK(refused("sweep --dry-run --model " + pipe) == "precbench: " + pipe + ": not a regular file");
  CHECK(refused("run --recipe " + pipe) == "precbench: " + pipe + ": not a regular file");
}

TEST_CASE("model or recipe file: deep nesting is refused", "[cli]") {
  const TempDirectory directory;
  const std::string brackets(150'000, '['),
      file = directory.write("deep.json",
                             "{\"a\":" + brackets + std::string(150'000, ']') + ",\"b\":1,\"c\":2}");
  CHECK(refused("sweep --dry-run --model " + file) == "precbench: " + file + ": nested deeper than 32");
  CHECK(refused("sweep --dry-run --recipe " + file) == "precbench: " + file + ": nested deeper than 32");
}

TEST_CASE("address space limit: too little for the threads is refused at once", "[cli][address-space]") {
  const std::string program =
      "ulimit -v 100000; OMP_NUM_THREADS=2 timeout -s KILL 1800 " PRECBENCH_BINARY_DIR "/precbench ";
  const Answer version = output_of(program + "--version");
  if (version.text.find("error while loading shared libraries") != std::string::npos) {
    WARN("skipped: this build's libraries, CUDA's among them, do not fit into the limit");
    return;
  }
  // Commands that do not train work.
  CHECK(version.status == 0);
  CHECK(output_of(program + "sweep --flub").status == 2);
  for (const char* command : {"run --device cpu --steps 1", "sweep --device cpu --steps 1 --out none"}) {
    const Answer answer = output_of(program + command);
    CHECK(
        refusal_in(answer) ==
        "precbench: this process may use 97 MiB of address space (ulimit -v), and needs 512 with 2 threads: raise "
        "the limit, or set OMP_NUM_THREADS");
  }
}

TEST_CASE("OMP_NUM_THREADS: more than 4096 threads are refused in one line", "[cli]") {
  for (const char* threads : {"4097", "99999", "99999999999"})
    for (const char* command : {"run --device cpu --steps 1", "sweep --device cpu --steps 1 --out none",
                                "study --device cpu --recipe mxfp8 --out none"}) {
      INFO(threads << ", " << command);
      const std::string said = refusal_in(output_of(
          fmt::format("OMP_NUM_THREADS={} {}/precbench {}", threads, PRECBENCH_BINARY_DIR, command)));
      CHECK(said.starts_with("precbench: OMP_NUM_THREADS: "));
      CHECK(said.ends_with(" threads, at most 4096 are possible"));
    }
  // A command that computes nothing does not check the number of threads.
  CHECK(output_of("OMP_NUM_THREADS=99999 " PRECBENCH_BINARY_DIR "/precbench --version").status == 0);
}

TEST_CASE("sweep file: a binary file is refused in one line", "[cli]") {
  const TempDirectory directory;
  const std::string file = directory.write("program.toml", std::string("\177ELF\2\1\1\0\0\0", 10));
  CHECK(refused("sweep --config " + file) == "precbench: --config: " + file + ": a binary file, not TOML");
  CHECK(refused("study --recipe mxfp8 --config " + file) ==
        "precbench: --config: " + file + ": a binary file, not TOML");
}

TEST_CASE("sweep --out: missing permissions are reported by a dry run as by the sweep", "[cli]") {
  if (::geteuid() == 0) return;  // root writes everywhere
  const TempDirectory directory;
  std::filesystem::permissions(directory.path(),
                               std::filesystem::perms::owner_read | std::filesystem::perms::owner_exec);
  for (const char* dry : {"", "--dry-run "}) {
    CHECK(refused(std::string("sweep --device cpu ") + dry + "--out " + (directory / "new")) ==
          "precbench: --out: cannot make " + (directory / "new") + ": Permission denied");
    CHECK(refused(std::string("sweep --device cpu ") + dry + "--out " + directory.path().string()) ==
          "precbench: --out: cannot write to " + directory.path().string() + ": Permission denied");
  }
  std::filesystem::permissions(directory.path(), std::filesystem::perms::owner_all);
}

TEST_CASE("folder as an input file: refused with its name", "[cli]") {
  const TempDirectory directory;
  const std::string folder = directory / "folder.json";
  std::filesystem::create_directory(folder);
  CHECK(refused("sweep --dry-run --config " + folder) ==
        "precbench: --config: " + folder + ": a folder, not a file");
  CHECK(refused("sweep --dry-run --model " + folder) == "precbench: --model: " + folder + ": Is a directory");
  CHECK(refused("run --recipe " + folder) == "precbench: --recipe: " + folder + ": Is a directory");
  CHECK(refused("run --device cpu --data " + folder).find(folder) != std::string::npos);
  CHECK(refused("run --device cpu --init-from " + folder).find(folder) != std::string::npos);
}

TEST_CASE("sweep --model: a checkpoint folder stands for its config.json", "[cli]") {
  const TempDirectory directory;
  const std::string config = directory.write("mine/config.json", "{}");
  CHECK(refused("sweep --device cpu --model " + (directory / "mine"))
            .starts_with("precbench: " + config + ": "));
}

TEST_CASE("dry run: bad input is refused as by the sweep", "[cli]") {
  const TempDirectory directory;
  CHECK(refused("sweep --dry-run --device cpu --data none.txt").find("none.txt") != std::string::npos);
  CHECK(refused("sweep --dry-run --device cpu --init-from none.safetensors") ==
        "precbench: --init-from: none.safetensors: No such file or directory");
  CHECK(refused("sweep --dry-run --batch 1000000000 --seq 1000000000") ==
        "precbench: --batch, --seq, --accumulation, --gpus: 1e+18 tokens per step; the limit is 2147483647");
  CHECK(refused("sweep --dry-run --device cpu --model llama3.1-405b --batch 65535 --seq 32768") ==
        "precbench: llama3.1-405b with 65535 x 32768 tokens: a rank needs more than 32 PiB");
  CHECK(
      refused("sweep --dry-run --device cpu --steps 9223372036854775807") ==
      "precbench: --steps: must be at most 1000000, not 9223372036854775807: a record lists every step of a run");
  const std::string file = directory.write("file", "");
  std::filesystem::create_directory(directory / "made");
  for (const std::string& out : {file, file + "/below"})
    CHECK(refused("sweep --dry-run --device cpu --out " + out) ==
          "precbench: --out: cannot make " + out + ": Not a directory");
  std::filesystem::create_directory(directory / "made/records.jsonl");
  CHECK(refused("sweep --dry-run --device cpu --out " + (directory / "made")) ==
        "precbench: --out: " + (directory / "made/records.jsonl") + ": a folder, not a file");
  const std::string packed = directory.write("packed/records.jsonl.xz", "");
  CHECK(refused("sweep --dry-run --device cpu --out " + (directory / "packed")) ==
        "precbench: --out: " + packed +
            ": nothing can be added to packed records; unpack them first: xz -d " + packed);
  // A dry run writes nothing.
  CHECK(precbench_says("sweep --dry-run --device cpu --out " + (directory / "new/out")).status == 0);
  CHECK(precbench_says("sweep --dry-run --device cpu --save-init " + (directory / "new/w")).status == 0);
  CHECK(!std::filesystem::exists(directory / "new"));
}

TEST_CASE("dry run: output files that cannot be created are refused as by the run", "[cli]") {
  const TempDirectory directory;
  const std::string named = directory / std::string(300, 'x'), nearly = directory / std::string(250, 'x'),
                    file = directory.write("file", ""), dangling = directory / "dangling";
  std::filesystem::create_symlink(directory / "nowhere", dangling);
  std::string deep = directory.path().string();
  while (deep.size() < 4090) deep += "/" + std::string(100, 'd');
  for (const std::string& out : {std::string("/proc/x"), std::string("/proc/x/y"), std::string("/sys/x"),
                                 named, named + "/below", file + "/below", dangling, deep}) {
    INFO(out);
    const std::string refusal = refused("sweep --dry-run --device cpu --out " + out);
    CHECK(refusal.starts_with("precbench: --out: cannot make " + out.substr(0, 300)));
    CHECK(refused("sweep --device cpu --steps 1 --out " + out) == refusal);
  }
  CHECK(refused("sweep --dry-run --device cpu --out /proc")
            .starts_with("precbench: --out: cannot write to /proc: "));
  const std::string dry = "sweep --dry-run --device cpu --steps 1 --out " + (directory / "out") + " ",
                    run = "run --device cpu --steps 1 ";
  for (const char* flag : {"--save-init", "--save-final", "--save-grads"})
    for (const std::string& path :
         {std::string("/proc/x"), named, nearly, file + "/below", dangling + "/below"}) {
      const std::string with = std::string(flag) + " " + path;
      INFO(with);
      CHECK(refused(dry + with) == refused(run + with));
    }
  CHECK(refused(dry + "--checkpoint-every 1 --checkpoint-dir /proc/x")
            .starts_with("precbench: --checkpoint-dir: cannot make the folder /proc/x: "));
  // Neither leaves anything behind or touches a file.
  for (const auto& entry : std::filesystem::directory_iterator(directory.path()))
    CHECK((entry.path() == file || entry.path() == dangling));
}

TEST_CASE("sweep --data: files that are neither text nor tokens are refused with a remedy", "[cli]") {
  const TempDirectory directory;
  const std::string text = directory.write("text.txt", std::string(4096, 'a')), packed = text + ".gz",
                    dry = "sweep --dry-run --device cpu ",
                    why = packed + ": gzip-compressed: unpack it first (gunzip)";
  REQUIRE(output_of("gzip -k " + text).status == 0);
  CHECK(refused(dry + "--data " + packed) == "precbench: " + why);
  CHECK(refused(dry + "--data " + text + " --eval-tokens 64 --eval-data " + packed) ==
        "precbench: --eval-data: " + why);
}

TEST_CASE("unused options: an option without effect on any case is refused", "[cli]") {
  const TempDirectory directory;
  const std::string dry = "sweep --dry-run --device cpu ";
  CHECK(refused(dry + "--eval-tokens 64") ==
        "precbench: --eval-tokens: needs held-out text: add --eval-data FILE");
  CHECK(refused("study --device cpu --recipe mxfp8 --eval-tokens 64 --out " + (directory / "out"))
            .starts_with("precbench: --eval-tokens: needs"));
  CHECK(refused("sweep --dry-run --config " +
                directory.write("s.toml", "device = cpu\n[a]\nreshard = off\n[b]\nseq = 64\n"))
            .starts_with("precbench: --reshard: only sharded ranks gather weights"));
}

TEST_CASE("run: an option without effect is a warning", "[cli]") {
  const Answer answer = precbench_says("run --device cpu --batch 1 --seq 32 --steps 1 --reshard off");
  CHECK(answer.status == 0);
  CHECK(answer.text.find("precbench: not read: --reshard: only sharded ranks gather weights") !=
        std::string::npos);
}

TEST_CASE("unused options: defaults and options with effect on some case are accepted", "[cli]") {
  const TempDirectory directory;
  directory.write("text/a.c", std::string(4096, 'a'));
  const auto taken = [&](const std::string& arguments) {
    const Answer answer = precbench_says("sweep --dry-run --device cpu " + arguments);
    INFO(answer.text);
    CHECK(answer.status == 0);
  };
  taken("--glob '*.c' --data " + (directory / "text"));
  taken("--reshard on,off --parallel ddp,fsdp --gpus 1,2");
  taken("--grad-sync every,last --parallel ddp,fsdp --gpus 1,2 --accumulation 1,2");
  taken("--warmup 20 --steps 10,20");
  taken("--time-limit 5 --steps auto,20");
  taken("--glob '*' --eval-tokens 65536 --checkpoint-keep last --reshard on --reduce-amax off");
  // A key of the file that a flag has made useless is ignored.
  taken("--steps 3 --config " + directory.write("s.toml", "warmup = 10\ntime_limit = 5\n"));
}

TEST_CASE("model file: bad shapes are refused before anything runs", "[cli]") {
  const TempDirectory directory;
  const std::string model = directory.write(
      "odd.json",
      R"({"layers": 1, "width": 48, "ffn": 96, "heads": 3, "kv_heads": 2, "head_dim": 16, "vocab": 256})");
  CHECK(refused("sweep --device cpu --out " + (directory / "out") + " --model tiny," + model)
            .find("kv_heads") != std::string::npos);
  CHECK(!std::filesystem::exists(directory / "out"));
}

TEST_CASE("several processes: run and CPU sweeps are refused", "[cli][together]") {
  const auto as_one_of_two = [](const std::string& arguments) { return "RANK=1 WORLD_SIZE=2 " + arguments; };
  CHECK(refused("run --device cpu", as_one_of_two("")) ==
        "precbench: RANK and WORLD_SIZE say that this is process 1 of 2, but run has one process: use "
        "sweep for several");
  CHECK(refused("sweep --device cpu --gpus 2", as_one_of_two("NCCL_COMM_ID=localhost:29500 ")) ==
        "precbench: --device cpu: its ranks live in one process, and this is one of 2 (RANK and "
        "WORLD_SIZE); start it alone");
  CHECK(refused("sweep --device cuda --gpus 2", as_one_of_two("NCCL_COMM_ID=localhost "))
            .starts_with("precbench: NCCL_COMM_ID: \"localhost\" is not HOST:PORT"));
  CHECK(refused("sweep --device cuda --gpus 2", as_one_of_two("")).find("set NCCL_COMM_ID") !=
        std::string::npos);
  CHECK(refused("sweep --device cuda --gpus 3", as_one_of_two("NCCL_COMM_ID=localhost:29500 "))
            .starts_with("precbench: --gpus 3: "));
  // Only process 0 does a dry run, which needs no address.
  CHECK(precbench_says("sweep --dry-run --device cpu", as_one_of_two("")).text == "");
  CHECK(precbench_says("sweep --dry-run --device cpu", "RANK=0 WORLD_SIZE=2 ").text.find("tiny") !=
        std::string::npos);
}

TEST_CASE("exit_status_of: an exception is one line and an exit status", "[cli]") {
  CHECK(exit_status_of([] { return 130; }) == 130);
  CHECK(exit_status_of([]() -> int { throw InvalidInput("x"); }) == 2);
  CHECK(exit_status_of([]() -> int { throw OutOfMemory("raise vm.max_map_count", 1); }) == 2);
  CHECK(exit_status_of([]() -> int { throw std::system_error(std::make_error_code(std::errc::io_error)); }) ==
        2);
  CHECK(exit_status_of([]() -> int { throw std::runtime_error("CUDA"); }) == 1);
  CHECK(exit_status_of([]() -> int { throw std::logic_error("a bug"); }) == 1);
}

TEST_CASE("sweep --init-from: files beyond the address space are refused in one line", "[cli]") {
  const TempDirectory directory;
  // Sparse files that together exceed the 128 TiB that a process may map.
  for (int i = 0; i < 9; ++i) {
    const std::string path = directory.write("text" + std::to_string(i) + ".txt", "");
    std::error_code error;
    std::filesystem::resize_file(path, std::uintmax_t{15} << 40, error);
    if (error) {
      WARN("skipped: no file of 15 TiB here: " << error.message());
      return;
    }
  }
  const std::string refusal =
      refused("sweep --device cpu --out " + (directory / "out") + " --data " + directory.path().string());
  CHECK(refusal.find("raise vm.max_map_count") != std::string::npos);
}

TEST_CASE("CPU case beyond host memory: oom before any allocation", "[cli][address-space]") {
  // The limit protects the machine if the program fails to refuse.
  const Answer answer = output_of("ulimit -v 16000000; " PRECBENCH_BINARY_DIR
                                  "/precbench run --device cpu --model llama3.1-405b --steps 1");
  CHECK(answer.status == 1);
  CHECK(answer.text.find("\"status\": \"oom\"") != std::string::npos);
  CHECK(answer.text.find(" GiB are predicted for one rank on the CPU, ") != std::string::npos);
  CHECK(answer.text.find(" GiB are available\"") != std::string::npos);
}

TEST_CASE("sweep file: errors name the section unless a flag causes them", "[sweep-file]") {
  const TempDirectory directory;
  SweepCommand command;
  command.config = directory.write("s.toml", "device = cpu\n[a]\nsteps = 1\n[b]\nschedule = cosine\n");
  CHECK_THROWS_WITH(grid_of(command),
                    command.config + " [b]: --schedule cosine needs a number of steps: add --steps N");
  command.axes["seq"] = {"0"};
  CHECK_THROWS_WITH(grid_of(command), "--seq: must be at least 1, not 0");
}

TEST_CASE("sweep --save-init: several cases with the same file are refused", "[sweep-file]") {
  SweepCommand command;
  command.axes = {{"device", {"cpu"}}, {"recipe", {"bf16,mxfp8"}}, {"save_final", {"w.safetensors"}}};
  CHECK_THROWS_WITH(grid_of(command), "--save-final: 2 cases would write the same file; choose one case");
  command.axes["recipe"] = {"bf16"};
  CHECK(grid_of(command).size() == 1);
}

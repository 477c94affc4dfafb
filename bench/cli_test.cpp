// The command line: what flags and sweep files add up to, and the built binary's answers to bad input.
#include "bench/cli.h"

#include <filesystem>
#include <stdexcept>
#include <system_error>

#include "kernels/errors.h"
#include "tools/catch.h"
#include "tools/temp_directory.h"
#include "tools/test_processes.h"

using namespace precbench;

namespace {

/// `variables`: "NAME=value ", in front of the program.
Answer precbench_says(const std::string& arguments, const std::string& variables = "") {
  return output_of(variables + PRECBENCH_BINARY_DIR "/precbench " + arguments);
}

std::string refused(const std::string& arguments, const std::string& variables = "") {
  INFO(arguments);
  return refusal_in(precbench_says(arguments, variables));
}

}  // namespace

TEST_CASE("bad input gets one line and exit status 2", "[cli]") {
  CHECK(refused("sweep --reciep bf16") == "precbench: unknown flag --reciep; did you mean --recipe?");
  CHECK(refused("sweep --reciep=bf16") == "precbench: unknown flag --reciep=bf16; did you mean --recipe?");
  CHECK(refused("run --xyzzyxyzzyxyzzy") ==
        "precbench: unknown flag --xyzzyxyzzyxyzzy; --help lists what there is");
  CHECK(refused("swep --recipe bf16") == "precbench: unknown command swep; did you mean sweep?");
  CHECK(refused("sweep tiny") == "precbench: unexpected argument tiny; --help lists what there is");
  CHECK(refused("") == "precbench: which command? sweep, run, list, report or check; --help explains them");
  CHECK(refused("list modles") == "precbench: list: unknown word modles; did you mean models?");
  CHECK(refused("sweep --device cpu --seq 0") == "precbench: --seq: must be at least 1, not 0");
  CHECK(refused("sweep --device cpu --batch 0") == "precbench: --batch: must be at least 1, not 0");
  CHECK(refused("sweep --device cpu --seq ''") == "precbench: --seq: empty value in \"\"");
  CHECK(refused("sweep --device cpu --seq 128-1024*1") == "precbench: --seq: range 128-1024*1 never ends");
  CHECK(refused("sweep --device cpu --parallel fsdq") ==
        "precbench: --parallel: unknown value \"fsdq\"; did you mean fsdp? it is one of ddp, fsdp, hsdp");
  CHECK(refused("sweep --device cpu --recipe bf16,mxfp9").find("mxfp8") != std::string::npos);
  CHECK(refused("sweep --device cpu --model tinny").find("tiny") != std::string::npos);
  CHECK(refused("sweep --device cpu --timeout -1") == "precbench: --timeout: must not be negative");
  CHECK(refused("sweep --config none.toml") == "precbench: --config: none.toml: No such file or directory");
  CHECK(refused("sweep --device cpu --data none.txt").find("none.txt") != std::string::npos);
  CHECK(refused("run --device cpu --data none.txt").find("none.txt") != std::string::npos);
  CHECK(refused("sweep --device cpu --out /dev/null/x") ==
        "precbench: --out: cannot make /dev/null/x: Not a directory");
}

TEST_CASE("bad shapes of a model file are refused before anything runs", "[cli]") {
  const TempDirectory directory;
  const std::string model = directory.write(
      "odd.json",
      R"({"layers": 1, "width": 48, "ffn": 96, "heads": 3, "kv_heads": 2, "head_dim": 16, "vocab": 256})");
  CHECK(refused("sweep --device cpu --out " + (directory / "out") + " --model tiny," + model)
            .find("kv_heads") != std::string::npos);
  CHECK(!std::filesystem::exists(directory / "out"));
}

TEST_CASE("processes that were started together are refused what one has to do alone", "[cli][together]") {
  const auto as_one_of_two = [](const std::string& arguments) { return "RANK=1 WORLD_SIZE=2 " + arguments; };
  CHECK(refused("run --device cpu", as_one_of_two("")) ==
        "precbench: RANK and WORLD_SIZE say that this is process 1 of 2, but run is for one: sweep spreads "
        "a case over several");
  CHECK(refused("sweep --device cpu --gpus 2", as_one_of_two("NCCL_COMM_ID=localhost:29500 ")) ==
        "precbench: --device cpu: its ranks live in one process, and this is one of 2 (RANK and "
        "WORLD_SIZE); start it alone");
  CHECK(refused("sweep --device cuda --gpus 2", as_one_of_two("NCCL_COMM_ID=localhost "))
            .starts_with("precbench: NCCL_COMM_ID: \"localhost\" is not HOST:PORT"));
  CHECK(refused("sweep --device cuda --gpus 2", as_one_of_two("")).find("set NCCL_COMM_ID") !=
        std::string::npos);
  CHECK(refused("sweep --device cuda --gpus 3", as_one_of_two("NCCL_COMM_ID=localhost:29500 "))
            .starts_with("precbench: --gpus 3: "));
  // A dry run is process 0's alone, and needs no address.
  CHECK(precbench_says("sweep --dry-run --device cpu", as_one_of_two("")).text == "");
  CHECK(precbench_says("sweep --dry-run --device cpu", "RANK=0 WORLD_SIZE=2 ").text.find("tiny") !=
        std::string::npos);
}

TEST_CASE("a dry run ends with how many cases it has and what its columns mean", "[cli]") {
  const auto last_line = [](const std::string& arguments) {
    std::string text = precbench_says("sweep --dry-run --device cpu " + arguments).text;
    text.pop_back();
    return text.substr(text.rfind('\n') + 1);
  };
  const std::string meaning = "; memory is the peak of the fullest GPU; model FLOPs, causal attention halved";
  CHECK(last_line("") == "1 case" + meaning);
  CHECK(last_line("--seq 64,128") == "2 cases" + meaning);
}

TEST_CASE("an exception is one line and an exit status", "[cli]") {
  CHECK(exit_status_of([] { return 130; }) == 130);
  CHECK(exit_status_of([]() -> int { throw InvalidInput("x"); }) == 2);
  CHECK(exit_status_of([]() -> int { throw OutOfMemory("raise vm.max_map_count", 1); }) == 2);
  CHECK(exit_status_of([]() -> int { throw std::system_error(std::make_error_code(std::errc::io_error)); }) ==
        2);
  CHECK(exit_status_of([]() -> int { throw std::runtime_error("CUDA"); }) == 1);
  CHECK(exit_status_of([]() -> int { throw std::logic_error("a bug"); }) == 1);
}

TEST_CASE("files that cannot be mapped are refused in one line", "[cli]") {
  const TempDirectory directory;
  // Sparse files that together exceed the 128 TiB which a process may map.
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

TEST_CASE("a case that this machine's memory cannot hold is oom before it takes any", "[cli]") {
  // The limit is the machine's protection, should the program not do as it must.
  const Answer answer = output_of("ulimit -v 16000000; " PRECBENCH_BINARY_DIR
                                  "/precbench run --device cpu --model llama3.1-405b --steps 1");
  CHECK(answer.status == 1);
  CHECK(answer.text.find("\"status\": \"oom\"") != std::string::npos);
  CHECK(answer.text.find(" GiB are predicted for one rank on the CPU, ") != std::string::npos);
  CHECK(answer.text.find(" GiB are available\"") != std::string::npos);
}

TEST_CASE("run makes the folder that it saves to", "[cli]") {
  const TempDirectory directory;
  const std::string file = directory / "new/init.safetensors";
  CHECK(precbench_says("run --device cpu --batch 1 --seq 32 --steps 1 --save-init " + file).status == 0);
  CHECK(std::filesystem::file_size(file) > 0);
}

TEST_CASE("list models shows the FLOPs of a token in both conventions", "[cli]") {
  const std::string text = precbench_says("list models").text;
  const std::size_t row = text.find("llama3.1-8b ");
  REQUIRE(row != std::string::npos);
  const std::string line = text.substr(row, text.find('\n', row) - row);
  CHECK(line.ends_with("57.914"));  // torchtitan's own number, 5.7914e10
}

TEST_CASE("help and version succeed", "[cli]") {
  const Answer help = precbench_says("sweep --help");
  CHECK(help.status == 0);
  for (const Field& field : case_fields()) CHECK(help.text.find(flag_of(field) + " ") != std::string::npos);
  CHECK(precbench_says("--version").text.starts_with("precbench "));
  CHECK(precbench_says("--help").status == 0);
}

TEST_CASE("a repeated flag appends to its axis", "[cli]") {
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
  CHECK((grid[2].recipe == "rowwise" && grid[2].lr == 1e-5 && grid[2].warmup == 2));
}

TEST_CASE("flags win over the sweep file, in every section", "[sweep-file]") {
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
  for (const Case& c : grid) CHECK(c.recipe == "rowwise");
  CHECK((grid[0].seq == 32 && grid[1].seq == 256 && grid[2].lr == 0.5));
  command.axes["lr"] = {"0.5"};
  CHECK(grid_of(command).size() == 2);  // the two sections have become the same grid
}

TEST_CASE("one file cannot be written by several cases", "[sweep-file]") {
  SweepCommand command;
  command.axes = {{"device", {"cpu"}}, {"recipe", {"bf16,mxfp8"}}, {"save_final", {"w.safetensors"}}};
  CHECK_THROWS_WITH(grid_of(command), "--save-final: 2 cases would write the same file; choose one case");
  command.axes["recipe"] = {"bf16"};
  CHECK(grid_of(command).size() == 1);
}

TEST_CASE("the sweep files of the repository are valid", "[sweep-file]") {
  int seen = 0;
  for (const auto& entry : std::filesystem::directory_iterator(PRECBENCH_SOURCE_DIR "/bench/sweeps")) {
    if (entry.path().extension() != ".toml") continue;
    INFO(entry.path());
    SweepCommand command;
    command.config = entry.path();
    CHECK(grid_of(command).size() > 1);
    ++seen;
  }
  CHECK(seen >= 4);
}

TEST_CASE("the grid of the B200 article is 5 models, 3 lengths, 3 GPU counts and 2 recipes", "[sweep-file]") {
  SweepCommand command;
  command.config = PRECBENCH_SOURCE_DIR "/bench/sweeps/b200-blog.toml";
  const auto grid = grid_of(command);
  CHECK(grid.size() == 5 * 3 * 3 * 2);
  for (const Case& c : grid) CHECK((c.lr == 1e-5 && c.seed == 42 && c.batch == 1));
}

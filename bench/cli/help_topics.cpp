// Texts of the topics, from the tables that the program itself uses. See help_topics.h.
#include "bench/cli/help_topics.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "bench/cli/axis.h"
#include "bench/cli/recipe_sets.h"
#include "bench/machine/datasheet.h"
#include "results/text/lines.h"

namespace precbench {
namespace {

std::string values(const std::vector<HelpPage>&, const Screen& screen) {
  std::vector<NamedText> rows = {
      {"--recipe bf16,mxfp8", "list; repeating the flag appends to it"},
      {"--seq 1024-8192*2", "range by factor: 1024, 2048, 4096, 8192"},
      {"--seq 128-512+128", "range by step: 128, 256, 384, 512"},
      {"--seed 1-3", fmt::format("range by step 1, of at most {} values", kMaxWithoutStep)},
      {"--steps 1e3", "1000; 8k is refused, because it may mean 8192 or 8000"},
      {"--time-limit 90", "seconds, or with a unit: 500ms, 10s, 2m, 1h"},
      {"--model Qwen/Qwen3-8B", "preset by its Hugging Face name, in any letter case"},
      {"--model FILE.json", "config.json, or a model of your own"},
      {"--recipe FILE.json", "recipe of your own"},
      {"--model -, --config -", "file from standard input"}};
  for (const RecipeSet& set : recipe_sets())
    rows.emplace_back(fmt::format("--recipe {}", set.name), set.what);
  return definitions(rows, screen);
}

std::string status(const std::vector<HelpPage>& pages, const Screen& screen) {
  std::vector<std::string> parts;
  for (const HelpPage& page : pages) {
    const std::size_t at = page.footer.text.find("Exit status");
    if (at != std::string::npos)
      parts.push_back(fmt::format("{}\n{}", page.name, page.footer.text.substr(at)));
  }
  return fitted_lines(fmt::format("{}\n", fmt::join(parts, "\n\n")), screen);
}

std::string environment(const std::vector<HelpPage>&, const Screen& screen) {
  const std::vector<NamedText> rows = {
      {kPeaksVariable,
       "peak rates of a GPU without data sheet: bf16=TFLOPS,fp8=TFLOPS,fp4=TFLOPS,memory=GB/s"},
      {"PRECBENCH_SECRET", "secret that the processes of one sweep share"},
      {"RANK, WORLD_SIZE, LOCAL_RANK",
       "this process and the number of processes of a sweep, as torchrun sets them"},
      {"SLURM_PROCID, SLURM_NTASKS", "the same, as Slurm sets them"},
      {"NCCL_COMM_ID", "host:port of the first process"},
      {"OMP_NUM_THREADS", "threads of the CPU device"},
      {"COLUMNS", "width of tables and help where the output is no terminal (default 100)"},
      {"GITHUB_ACTIONS", "true: check prints annotations"},
      {"GITHUB_STEP_SUMMARY", "file to which check appends its result as Markdown"}};
  return definitions(rows, screen);
}

}  // namespace

const std::vector<HelpTopic>& help_topics() {
  static const std::vector<HelpTopic> topics = {
      {"values", "lists, ranges, sets and names that flags take", values},
      {"status", "exit status of every command", status},
      {"environment", "environment variables", environment},
  };
  return topics;
}

}  // namespace precbench

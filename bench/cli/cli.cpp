// The commands sweep, run and list, with flags generated from the field table. See cli.h.
#include "bench/cli/cli.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <map>
#include <set>
#include <string_view>
#include <system_error>

#include "bench/case/plan.h"
#include "bench/cli/config_file.h"
#include "bench/cli/dry_run.h"
#include "bench/cli/list.h"
#include "bench/cli/list_json.h"
#include "bench/cli/predictions.h"
#include "bench/cli/recipe_sets.h"
#include "bench/machine/datasheet.h"
#include "bench/measure/session.h"
#include "bench/process/signals.h"
#include "bench/process/standard_error.h"
#include "bench/process/worker.h"
#include "bench/step/lost_files.h"
#include "bench/sweep/case_files.h"
#include "bench/sweep/disk_space.h"
#include "bench/sweep/finish_row.h"
#include "bench/sweep/progress.h"
#include "bench/sweep/sweep_folder.h"
#include "bench/sweep/warnings.h"
#include "kernels/base/errors.h"
#include "kernels/base/parse_count.h"
#include "kernels/base/standard_input.h"
#include "kernels/gpu/device_info.h"

namespace precbench {
namespace {

/// Validates the name of a file or folder. Returns an error message, empty if the name is valid.
std::string not_empty(const std::string& name) { return name.empty() ? "empty name" : ""; }

/// Rewrites a whole number such as 1e1 for CLI11, which reads digits only; leaves other text to its check.
std::string whole_number(const std::string& text) {
  const auto value = parse_whole(text);
  return value ? fmt::format("{}", *value) : text;
}

/// Returns the grid of the given fields: those with one value are set in every case, the others are axes.
std::vector<Case> expand(const Axes& given) {
  Case base;
  Axes axes;
  for (const auto& [name, words] : given) {
    const Field& field = *find_field(name);
    if (field.axis)
      axes[name] = words;
    else
      set_text(base, field, words.front());
  }
  return expand_grid(base, axes);
}

/// Puts checkpoints next to the records unless --checkpoint-dir is given.
void place_checkpoints(Case& c, const std::string& out) {
  if (writes_checkpoints(c) && c.checkpoint_dir.empty() && !out.empty())
    c.checkpoint_dir = (std::filesystem::path(out) / "checkpoints").string();
}

/// Sets the options for concurrent cases. Throws InvalidInput if the cases cannot run concurrently.
void run_at_once(const std::vector<Plan>& grid, const Nodes& nodes, SweepOptions& options) {
  if (options.interleave || nodes.count > 1)
    throw InvalidInput("--at-once: not available with --interleave or several processes");
  for (const Plan& plan : grid)
    if (plan.ranks > 1)
      throw InvalidInput(
          fmt::format("--at-once: needs cases of one rank, but one has --gpus {}", plan.ranks));
  options.gpus = std::max(1, find_gpus().count);
  if (!grid.front().on_gpu) share_threads(options.at_once);
}

/// Reports the cases that cannot run, one line per reason.
void print_refused(const std::vector<Plan>& grid) {
  std::map<std::string, std::size_t> cases;  // keyed by reason
  for (const Plan& plan : grid)
    if (plan.refusal) ++cases[*plan.refusal];
  for (const auto& [why, count] : cases)
    log_line(fmt::format("precbench: {} of {} cannot run: {}", count, count_cases(grid.size()), why));
}

/// Refuses models and recipes from standard input in cases that run in processes of their own.
void refuse_standard_input(const std::vector<Plan>& grid) {
  for (const Plan& plan : grid)
    for (const auto& [flag, path] :
         {std::pair("--model", plan.fields.model), std::pair("--recipe", plan.fields.recipe)})
      if (path == kStandardInput)
        throw InvalidInput(fmt::format(
            "{} -: cases run in processes of their own, which cannot read standard input: use a file, or --dry-run or "
            "run",
            flag));
}

/// Warns of a sweep without bf16, in which nothing can be compared.
void warn_without_baseline(const std::vector<Plan>& grid) {
  const std::string& baseline = builtin_recipes().front().name;
  const auto is_baseline = [&](const Plan& plan) { return plan.recipe.name == baseline; };
  if (std::none_of(grid.begin(), grid.end(), is_baseline))
    log_line(fmt::format(
        "precbench: no case has the recipe {0}, so the report will have no speed-up and no loss to "
        "compare with; add {0} to --recipe",
        baseline));
}

/// Prints which cases cannot run, a missing baseline, and the warnings of the models.
void print_warnings_of(const std::vector<Plan>& grid) {
  print_refused(grid);
  warn_without_baseline(grid);
  print_model_warnings(grid);
}

/// Runs this process's part of a sweep over several processes.
int sweep_together(const std::vector<Plan>& grid, SweepOptions options, const Nodes& nodes,
                   const Variables& environment) {
  const Address address = rendezvous_address(environment, nodes);
  const std::string secret = shared_secret(environment);
  std::vector<Case> cases;
  for (const Plan& plan : grid) cases.push_back(plan.fields);
  check_spread(cases, nodes);
  // Known before the processes meet, so it is said before they wait for each other.
  if (const VisibleGpus gpus = find_gpus(); gpus.count == 0)
    log_line(fmt::format("precbench: process {} of {}: --device {}: {}; its cases will be unsupported",
                         nodes.index, nodes.count, cases.front().device, gpus.reason));
  if (nodes.index > 0) return run_worker(nodes, address, secret, cases, options.child);
  if (secret.empty() && !options.quiet)
    log_line(fmt::format(
        "PRECBENCH_SECRET is not set: until all {} processes have met, any program of this version "
        "that reaches {} can be one of them",
        nodes.count, to_string(address)));
  Coordinator coordinator(nodes, address, secret, {}, cases);
  options.coordinator = &coordinator;
  check_files(grid);
  print_warnings_of(grid);
  const int status = run_sweep(grid, options);
  coordinator.finish(status == kSweepInterrupted ? kSweepInterrupted : kSweepDone);
  return status;
}

/// Serializes to valid UTF-8: invalid bytes in file and host names are replaced.
std::string text_of(const nlohmann::ordered_json& json) {
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

/// Pretty-prints JSON with every array on one line: a loss curve is one line, not a thousand.
std::string pretty(const nlohmann::ordered_json& json, int indent) {
  if (!json.is_object() || json.empty()) return text_of(json);
  const std::string pad(static_cast<std::size_t>(indent) + 2, ' ');
  std::string text;
  for (const auto& [key, value] : json.items())
    text +=
        fmt::format("{}{}{}: {}", text.empty() ? "{\n" : ",\n", pad, text_of(key), pretty(value, indent + 2));
  return text + "\n" + std::string(static_cast<std::size_t>(indent), ' ') + "}";
}

/// Reads the command's sweep file. Without one, returns a single empty grid and no options.
SweepFile sweep_file_of(const SweepCommand& command) {
  SweepFile file;
  if (command.config.empty())
    file.grids.emplace_back();
  else
    file = read_sweep_file(command.config);
  return file;
}

/// Returns the cases of one section, overridden by the flags. Errors name the section.
std::vector<Plan> cases_of(const SweepCommand& command, const SweepFile::Grid& grid) {
  Axes axes = command.axes;
  axes.insert(grid.axes.begin(), grid.axes.end());  // does not overwrite flags
  try {
    expand_native(axes);
    std::vector<Case> cases = expand(axes);
    for (Case& c : cases) choose_device(c);
    return validate(cases);
  } catch (const InvalidInput& error) {
    if (command.config.empty()) throw;
    const std::string section = grid.section.empty() ? "" : fmt::format(" [{}]", grid.section);
    throw InvalidInput(fmt::format("{}{}: {}", command.config, section, error.what()));
  }
}

std::vector<Plan> grid_of(const SweepCommand& command, const SweepFile& file) {
  for (const auto& [name, words] : command.axes) check_words(*find_field(name), words);
  std::vector<Plan> cases;
  std::set<std::string> ids;
  for (const SweepFile::Grid& grid : file.grids) {
    for (Plan& plan : cases_of(command, grid))
      if (ids.insert(plan.id).second) cases.push_back(std::move(plan));
    check_count(cases.size());
  }
  const Case& first = cases.front().fields;
  for (const char* name : {"save_init", "save_final", "save_grads"})
    if (const Field& field = *find_field(name); cases.size() > 1 && !get_text(first, field).empty())
      throw InvalidInput(fmt::format("{}: {} cases would write the same file; choose one case",
                                     flag_of(field), cases.size()));
  return cases;
}

/// Warns of lists of two numbers that look like one number with a comma.
void warn_of_commas(const SweepCommand& command, const SweepFile& file) {
  const auto warn_of = [](const Axes& axes) {
    for (const auto& [name, words] : axes)
      if (const std::string hint = comma_hint(*find_field(name), words); !hint.empty())
        log_line(fmt::format("precbench: {}: {}", flag_of(*find_field(name)), hint));
  };
  warn_of(command.axes);
  for (const SweepFile::Grid& grid : file.grids) warn_of(grid.axes);
}

/// Returns the command with the device of the GPU that --gpu or --on names, unless --device is given. Throws
/// InvalidInput for an unknown GPU or machine, without --dry-run, and beside a --device that is no GPU.
SweepCommand for_named_gpu(SweepCommand command) {
  if (command.json && !command.dry_run)
    throw InvalidInput("--json: needs --dry-run; the records of a sweep are JSON already");
  if (!command.stack.empty()) {
    find_stack(command.stack);
    if (command.on.empty() || !command.dry_run)
      throw InvalidInput(
          fmt::format("--stack: {}: its speed is predicted: add --dry-run --on MACHINE", command.stack));
  }
  if (command.gpu.empty() && command.on.empty()) return command;
  if (!command.gpu.empty() && !command.on.empty())
    throw InvalidInput("--gpu: --on names the GPU already; give one of them");
  const char* flag = command.on.empty() ? "--gpu" : "--on";
  if (!command.dry_run)
    throw InvalidInput(
        fmt::format("{}: {}: add --dry-run; cases run on this machine's", flag,
                    command.on.empty() ? "names a GPU to plan for" : "names a machine to predict"));
  // An unknown name is an error, whatever the cases are.
  if (command.on.empty())
    find_memory_limit(command.gpu);
  else
    find_machine(command.on);
  const auto device = command.axes.find("device");
  if (device == command.axes.end())
    command.axes["device"] = {gpu_device_names().front()};
  else if (std::none_of(device->second.begin(), device->second.end(), is_gpu))
    throw InvalidInput(fmt::format("{}: --device {} is no GPU", flag, device->second.front()));
  return command;
}

/// Prints the dry run of a grid. Returns false if no case can run.
bool predict_and_print(const std::vector<Plan>& grid, const SweepCommand& command) {
  if (!command.on.empty())
    return print_predictions(grid, CostModel(find_machine(command.on)), command.json,
                             command.stack.empty() ? Stack::precbench : find_stack(command.stack));
  const bool on_gpu = std::any_of(grid.begin(), grid.end(), [](const Plan& plan) { return plan.on_gpu; });
  const std::optional<MemoryLimit> limit = on_gpu ? find_memory_limit(command.gpu) : std::nullopt;
  return command.json ? print_dry_run_json(grid, limit) : print_dry_run(grid, limit);
}

nlohmann::ordered_json json_of_list(const ListCommand& command) {
  if (command.what == "recipes") return recipes_json(command.recipe);
  return command.what == "models" ? models_json(command.model) : devices_json();
}

}  // namespace

void choose_device(Case& c) {
  if (c.device != "auto") return;
  static const std::string chosen = [] {
    if (const auto warning = cpu_fallback_warning(find_gpus())) log_line("precbench: " + *warning);
    return best_device();
  }();
  c.device = chosen;
}

std::optional<std::string> default_of_case(const Field& field) {
  static const Case defaults;
  return get_text(defaults, field);
}

void add_fields(CLI::App& app, Axes& axes, bool sweep, const DefaultOf& default_of) {
  for (const Field& field : case_fields()) {
    std::string help = field.help;
    if (*field.unit) help += fmt::format(" [{}]", field.unit);
    const std::optional<std::string> value = default_of(field);
    if (value && !value->empty()) help += fmt::format(" (default {})", *value);
    const bool several = sweep && field.axis;
    const auto store = [&axes, &field, several](const std::string& given) {
      axes[field.name] = several ? split(given, '\n') : std::vector{given};
    };
    std::string names = flag_of(field);
    if (const std::string alias = alias_flag_of(field); !alias.empty()) names += "," + alias;
    CLI::Option* option = app.add_option_function<std::string>(names, store, help);
    option->group(value ? field.group : "");
    several ? option->join() : option->take_last();  // joined by newlines
    const bool text = std::holds_alternative<std::string Case::*>(field.member);
    const std::string type = field.choices.empty() ? (text                 ? "TEXT"
                                                      : field.is_integer() ? "N"
                                                                           : "X")
                                                   : fmt::format("{}", fmt::join(field.choices, "|"));
    option->type_name(several ? type + ",..." : type);
  }
}

void add_sweep_flags(CLI::App& app, SweepCommand& command, const SweepHelp& help) {
  add_fields(app, command.axes, true, help.default_of);
  const auto named = [&](CLI::Option* option, const char* type) {
    return option->type_name(type)->check(not_empty)->group(help.group);
  };
  named(app.add_option("--config", command.config, help.config), "FILE");
  named(app.add_option("--out", command.out, help.out), "DIR");
  named(app.add_option("--timeout", command.timeout,
                       "time limit per case, as in 90, 30m or 2h; 0: none [s] (default 3600)"),
        "S");
  named(app.add_option("--at-once,--jobs", command.options.at_once, help.at_once), "N")
      ->transform(whole_number)
      ->check(CLI::Range(1, kMostStopped).description(""));
  app.add_flag("--dry-run", command.dry_run, help.dry_run)->group(help.group);
  app.add_flag("--fresh", command.options.fresh,
               "restart from the first case; old records are kept as records.jsonl.N")
      ->group(help.group);
  app.add_flag("--retry-failed", command.options.retry_failed, "retry of crashed and timed-out cases")
      ->group(help.group);
  app.add_flag("--quiet", command.options.quiet, "no progress output")->group(help.group);
}

CLI::App* add_sweep_command(CLI::App& app, SweepCommand& command) {
  CLI::App* sub = app.add_subcommand("sweep", "grid of cases, each measured in a process of its own");
  sub->footer(
      "Values: lists (--recipe bf16,mxfp8) and ranges (--seq 1024-8192*2, --seq 128-512+128, --seed 1-3).\n"
      "The same command resumes an interrupted sweep.\n"
      "\n"
      "Exit status: 0 every case has its row (ok, oom, unsupported, diverged)\n"
      "             1 as 0, but a case crashed or timed out, none is ok, or an output file is lost\n"
      "             2 bad input\n"
      "             130 cases are left: interrupted, a process lost, or the disk full\n"
      "\n"
      "Examples:\n"
      "  # first sweep: the tiny model, on a GPU or the CPU\n"
      "  precbench sweep --model tiny --recipe bf16,rowwise,mxfp8 --steps 40 --out out/first\n"
      "  # speed of three recipes at three sequence lengths\n"
      "  precbench sweep --model llama3.2-1b --recipe bf16,tensorwise,blockwise --seq 2048-8192*2 --batch 1\n"
      "  # four GPUs, weights gathered in BF16 or FP8\n"
      "  precbench sweep --model llama3.1-8b --recipe tensorwise --gpus 4 --parallel fsdp --gather bf16,fp8\n"
      "  # does it fit eight H100, and what would? planned without a GPU\n"
      "  precbench sweep --dry-run --model Qwen/Qwen3-8B --recipe bf16,mxfp8 --gpus 8 --parallel fsdp --gpu h100\n"
      "  # speed of two recipes on 256 GPUs of a GB200 cluster, predicted\n"
      "  precbench sweep --dry-run --on gb200-nvl72 --model llama3.1-70b --recipe bf16,mxfp8 --gpus 256 --parallel fsdp\n"
      "  # grid from a file\n"
      "  precbench sweep --config bench/sweeps/baseline-cpu.toml");
  add_sweep_flags(
      *sub, command,
      {.group = "Sweep",
       .config = "sweep file (TOML), - for standard input; flags override it",
       .out = "output folder for records.jsonl (default out)",
       .dry_run = "table of the cases with predicted memory and FLOPs, whether they fit, and what would; no "
                  "case runs",
       .at_once = "concurrent cases of one rank each; their rows have no speed (default 1)"});
  sub->add_option("--gpu", command.gpu,
                  "GPU that a dry run plans for, by words of its name: h100, b200 (default this machine's)")
      ->type_name("NAME")
      ->check(not_empty)
      ->group("Sweep");
  sub->add_option("--on", command.on,
                  "machine of a dry run that predicts speeds: h100-sxm, gb200-nvl72, ... or a machine file")
      ->type_name("NAME|FILE.json")
      ->check(not_empty)
      ->group("Sweep");
  sub->add_option("--stack", command.stack,
                  "training software whose predicted speed stands beside ours, with --on: pytorch, megatron")
      ->type_name("NAME")
      ->check(not_empty)
      ->group("Sweep");
  sub->add_flag("--json", command.json, "output of --dry-run as JSON")->group("Sweep");
  sub->add_flag("--interleave", command.options.interleave,
                "order A B B A of the recipes of a setting, so that drift cancels in their ratios")
      ->group("Sweep");
  return sub;
}

std::vector<Plan> grid_of(const SweepCommand& command) { return grid_of(command, sweep_file_of(command)); }

int sweep(const SweepCommand& given) {
  const SweepCommand command = for_named_gpu(given);
  SweepOptions options = command.options;
  const SweepFile file = sweep_file_of(command);
  options.out = command.out.value_or(file.out.value_or(options.out));
  options.timeout_s =
      command.timeout ? parse_timeout(*command.timeout) : file.timeout_s.value_or(options.timeout_s);
  options.interleave = options.interleave || file.interleave.value_or(false);
  if (options.out.empty()) throw InvalidInput("--out: empty folder name");
  std::vector<Plan> grid = grid_of(command, file);
  Axes of_file;
  for (const SweepFile::Grid& section : file.grids) of_file.insert(section.axes.begin(), section.axes.end());
  refuse_unfit(grid, command.axes, of_file, command.on.empty());
  warn_of_commas(command, file);
  for (Plan& plan : grid) {
    place_checkpoints(plan.fields, options.out);
    if (options.interleave && writes_checkpoints(plan.fields))
      throw InvalidInput("--interleave: runs every case twice, which --checkpoint-every does not support");
  }
  check_peaks_variable();
  const Variables environment = process_environment();
  const Nodes nodes = find_nodes(environment);
  if (options.at_once > 1) run_at_once(grid, nodes, options);
  if (command.dry_run) {
    try_files(grid);
    if (nodes.index > 0) return kSweepDone;
    check_out(options.out);
    warn_without_baseline(grid);
    print_model_warnings(grid);
    if (const auto why =
            space_shortage(grid, options.fresh ? Earlier::moved_aside : Earlier::used, options.free_bytes))
      log_line("precbench: " + *why);
    const bool any_runs = predict_and_print(grid, command);
    if (!any_runs) log_line("precbench: no case can run");
    return any_runs ? kSweepDone : kSweepFailures;
  }
  refuse_standard_input(grid);
  if (nodes.count > 1) return sweep_together(grid, options, nodes, environment);
  check_files(grid);
  print_warnings_of(grid);
  return run_sweep(grid, options);
}

CLI::App* add_run_command(CLI::App& app, RunCommand& command) {
  CLI::App* sub = app.add_subcommand("run", "single case in this process; its record on standard output");
  sub->footer(
      "Exit status: 0 the case is ok; 1 it is not, or an output file is lost; 2 bad input.\n"
      "\n"
      "Examples:\n"
      "  # ten steps of the tiny model, on a GPU or the CPU\n"
      "  precbench run --model tiny --recipe mxfp8 --steps 10\n"
      "  # one case for a profiler\n"
      "  precbench run --model llama3.2-1b --recipe tensorwise --seq 4096 --batch 1 --steps 8\n"
      "  # the record into a folder that report reads\n"
      "  precbench run --model tiny --steps 10 --out out/one\n"
      "  # gradients compared with those of BF16\n"
      "  precbench run --model tiny --recipe nvfp4_all --steps 1 --fidelity-batches 2");
  add_fields(*sub, command.axes, false);
  sub->add_option("--out", command.out, "folder whose records.jsonl also gets the record")
      ->type_name("DIR")
      ->check(not_empty);
  return sub;
}

int run(const RunCommand& command) {
  Case c;
  for (const auto& [name, words] : command.axes) {
    const Field& field = *find_field(name);
    const std::vector<std::string> values = field.axis ? expand_axis(field, words) : words;
    const bool set = name == "recipe" && recipes_in(words.front());
    if (field.axis && (values.size() > 1 || set)) {
      const std::string hint = comma_hint(field, words);
      throw InvalidInput(fmt::format("{}: run takes one value, not {}; {}", flag_of(field), words.front(),
                                     hint.empty() ? "sweep takes lists, ranges and sets" : hint));
    }
    set_text(c, field, values.front());
  }
  choose_device(c);
  place_checkpoints(c, command.out);
  const Plan plan = validate(c);
  refuse_unfit({plan}, {}, {}, true);
  if (const Nodes nodes = find_nodes(process_environment()); nodes.count > 1)
    throw InvalidInput(
        fmt::format("{} say that this is process {} of {}, but run has one process: use sweep for "
                    "several",
                    nodes.source, nodes.index, nodes.count));
  check_outputs(plan);
  print_input_warnings(plan);
  if (const auto why = space_shortage({plan}, Earlier::used, free_bytes_at)) throw InvalidInput(*why);
  check_peaks_variable();
  if (!command.out.empty()) const SweepFolder writable(command.out);
  // Not an error: the case may come from a grid in which other cases use the option.
  if (const auto why = unused_option({plan}, command.axes, {})) log_line("precbench: not read: " + *why);
  const Record record = finish_row(plan, run_case(plan));
  std::fputs((pretty(record, 0) + "\n").c_str(),
             stdout);  // before the file, so that a full disk does not lose it
  if (!command.out.empty()) append_to_folder(command.out, record);
  std::fflush(stdout);  // keeps the record contiguous if both streams share a target
  print_model_warnings({plan});
  for (const std::string& warning : immediate_warnings(record)) log_line("precbench: " + warning);
  if (record.status == Status::ok) return lost_files(record).empty() ? 0 : 1;
  log_line("precbench: " + describe_outcome(record));
  return 1;
}

CLI::App* add_list_command(CLI::App& app, ListCommand& command) {
  CLI::App* sub = app.add_subcommand("list", "recipes, models or devices of this machine");
  sub->add_option("what", command.what, "recipes, models or devices")->type_name("");
  sub->add_option("--recipe", command.recipe,
                  "one recipe in full: built-in name, JSON file or - (list recipes)")
      ->type_name("NAME")
      ->check(not_empty);
  sub->add_option("--model", command.model,
                  "one model with its warnings: preset, JSON file or - (list models)")
      ->type_name("NAME")
      ->check(not_empty);
  sub->add_flag("--json", command.json, "JSON for scripts, in place of tables");
  sub->footer(
      "Examples:\n"
      "  # a recipe file to start from\n"
      "  precbench list recipes --recipe mxfp8 > my.json\n"
      "  # the size of a model on the Hugging Face hub, from its config.json\n"
      "  precbench list models --model Qwen/Qwen3-8B\n"
      "  # what runs natively here\n"
      "  precbench list devices --json");
  return sub;
}

int list(const ListCommand& command) {
  const std::string& what = command.what;
  if (!command.recipe.empty() && what != "recipes")
    throw InvalidInput("list: --recipe belongs to list recipes");
  if (!command.model.empty() && what != "models") throw InvalidInput("list: --model belongs to list models");
  if (command.json && (what == "recipes" || what == "models" || what == "devices"))
    std::fputs(
        (json_of_list(command).dump(2, ' ', true, nlohmann::ordered_json::error_handler_t::replace) + "\n")
            .c_str(),
        stdout);
  else if (!command.recipe.empty())
    list_recipe(command.recipe);
  else if (!command.model.empty())
    list_model(command.model);
  else if (what == "recipes")
    list_recipes();
  else if (what == "models")
    list_models();
  else if (what == "devices")
    list_devices();
  else if (what.empty())
    throw InvalidInput("list: needs recipes, models or devices");
  else if (const std::string near = nearest(what, {"recipes", "models", "devices"}); near.empty())
    throw InvalidInput(fmt::format("list: unknown word {}; it is one of recipes, models, devices", what));
  else
    throw InvalidInput(fmt::format("list: unknown word {}; did you mean {}?", what, near));
  return 0;
}

}  // namespace precbench

// The command line of precbench. Exit status: 0 done, 1 done with failures, 2 bad input, 130 ended with cases
// left; `check` has its own (tools/gate/check_command.h).
#include <fmt/format.h>

#include <CLI/CLI.hpp>

#include "bench/case/case.h"
#include "bench/cli/cli.h"
#include "bench/cli/help_command.h"
#include "bench/cli/plan_command.h"
#include "bench/cli/predict_command.h"
#include "bench/doctor/doctor.h"
#include "bench/machine/cpu_level.h"
#include "bench/machine/environment.h"
#include "bench/machine/host_memory.h"
#include "bench/measure/session.h"
#include "bench/process/case_process.h"
#include "bench/process/standard_error.h"
#include "bench/process/sweep_status.h"
#include "bench/study/study.h"
#include "bench/study/study_settings.h"
#include "results/record/record.h"
#include "tools/gate/check_command.h"
#include "tools/import/import_command.h"
#include "tools/program/advise_program.h"
#include "tools/program/explain_program.h"
#include "tools/program/import_program.h"
#include "tools/program/law_program.h"
#include "tools/program/rates_program.h"
#include "tools/report/report_cli.h"
#include "tools/report/study_command.h"

namespace {

/// Returns "precbench run" with the flags that are not at their defaults.
std::string rerun_command(const nlohmann::ordered_json& fields) {
  static const nlohmann::ordered_json defaults = precbench::case_to_json({});
  nlohmann::ordered_json given = nlohmann::ordered_json::object();
  for (const auto& [name, value] : fields.items())
    if (name == "model" || name == "recipe" || value != defaults.value(name, nlohmann::ordered_json()))
      given[name] = value;
  return precbench::rerun_with_all_flags(given);
}

int run_program(int argc, char** argv) {
  using namespace precbench;
  CLI::App app(
      "precbench: speed, memory and convergence of low-precision training recipes compared with BF16",
      "precbench");
  app.set_help_flag("-h,--help", "this help");
  app.footer(
      "Exit status: 0 done; 1 done, but something failed; 2 bad input; 3 undecided (check, advise, doctor); "
      "130 interrupted with cases left. precbench help status has the details.");
  app.set_version_flag("-V,--version",
                       fmt::format("precbench {} (record schema {}, method {})", PRECBENCH_VERSION,
                                   kSchemaVersion, kMethodVersion),
                       "version of the program, its record schema and its method");
  SweepCommand sweep_command;
  StudyCommand study_command;
  RunCommand run_command;
  ReportOptions report_options;
  CheckOptions check_options;
  ListCommand list_command;
  HelpCommand help_command;
  AdviseCommand advise_command;
  ExplainCommand explain_command;
  DoctorCommand doctor_command;
  PredictCommand predict_command;
  PlanCommand plan_command;
  ImportOptions import_options;
  RatesCommand rates_command;
  LawCommand law_command;
  CLI::App* sweep_sub = add_sweep_command(app, sweep_command);
  CLI::App* study_sub = add_study_command(app, study_command);
  CLI::App* run_sub = add_run_command(app, run_command);
  CLI::App* list_sub = add_list_command(app, list_command);
  CLI::App* report_sub = add_report_command(app, report_options);
  CLI::App* check_sub = add_check_command(app, check_options);
  CLI::App* help_sub = add_help_command(app, help_command);
  CLI::App* advise_sub = add_advise_command(app, advise_command);
  CLI::App* explain_sub = add_explain_command(app, explain_command);
  CLI::App* doctor_sub = add_doctor_command(app, doctor_command);
  CLI::App* predict_sub = add_predict_command(app, predict_command);
  CLI::App* plan_sub = add_plan_command(app, plan_command);
  CLI::App* import_sub = add_import_command(app, import_options);
  CLI::App* rates_sub = add_rates_command(app, rates_command);
  CLI::App* law_sub = add_law_command(app, law_command);
  app.add_subcommand("run-case", "one case of a sweep, as bench/process/case_process.h describes")->group("");
  if (const auto status = parse_command_line(app, argc, argv, study_flag_hint)) return *status;
  const bool sweeps = *sweep_sub && !sweep_command.dry_run;
  const bool studies = *study_sub && !study_command.dry_run;
  if (sweeps || studies || *run_sub) {
    survive_broken_pipes();
    if (const auto why = thread_limit_reason(openmp_threads())) {
      log_line("precbench: " + *why);
      return kBadInputExit;
    }
  }
  const auto command = [&] {
    if (*sweep_sub) return sweep(sweep_command);
    if (*study_sub) {
      const int status = study(study_command);
      if (studies && status != kSweepInterrupted) finish_study(*study_command.out);
      return status;
    }
    if (*run_sub) return run(run_command);
    if (*list_sub) return list(list_command);
    if (*report_sub) {
      report_options.history_cases = {case_to_json({}), rerun_command};
      return report(report_options);
    }
    if (*help_sub) return help(app, help_command);
    if (*check_sub) return check(check_options, rerun_command);
    if (*advise_sub) return advise(advise_command);
    if (*explain_sub) return explain(explain_command);
    if (*doctor_sub) return doctor(doctor_command);
    if (*predict_sub) return predict(predict_command);
    if (*plan_sub) return plan_layouts(plan_command);
    if (*import_sub) return import_logs(import_options, import_host());
    if (*rates_sub) return rates(rates_command);
    if (*law_sub) return law(law_command);
    return child_main(  // run-case
        [](const Case& c, const NodeShare& share, StepBoard& board) {
          return run_case(validate(c, Refusals::kept), share, &board);
        });
  };
  return exit_status_of(command, sweeps || studies ? Printed::words : Printed::result);
}

}  // namespace

int main(int argc, char** argv) {
  precbench::refuse_old_cpu();
  precbench::keep_standard_streams();
  precbench::survive_file_limits();
  return run_program(argc, argv);
}

// Renders the gate's result: for terminals, job summaries, CI systems and programs.
#pragma once

#include <functional>
#include <string>

#include "results/text/screen.h"
#include "tools/gate/gate.h"

namespace precbench {

/// Returns the command that runs a case again, from its fields.
using RerunCommand = std::function<std::string(const nlohmann::ordered_json& fields)>;

/// Returns "precbench run --model tiny ..." with every field as a flag, except fields whose names cannot be
/// flags. Includes fields at their defaults, which a command of the program itself can omit.
std::string rerun_with_all_flags(const nlohmann::ordered_json& fields);

/// Returns a summary, a table of all cases, the failed ones with reasons, and the notes; then the commands
/// that rerun failed cases.
std::string gate_term(const GateResult& result, const std::string& baseline, const RerunCommand& rerun,
                      const Screen& screen = {});
std::string gate_markdown(const GateResult& result, const std::string& baseline, const RerunCommand& rerun);

/// Returns a line for each metric that did not pass: "peak memory BIGGER, 10.00 GiB -> 10.25 GiB: +2.50%,
/// 2.00% are allowed".
std::vector<std::string> gate_complaints(const CaseResult& result);

/// Returns "2 of 8 cases: 1 SLOWER, 1 MISSING".
std::string gate_summary(const GateResult& result);

/// Returns JUnit XML with one test case per case, its time and, as output, a line for each metric; a
/// regression is a failure, an inconclusive case an error, or as GateResult::inconclusive says: skipped or a
/// failure.
std::string gate_junit(const GateResult& result, const RerunCommand& rerun);

/// Returns GitHub workflow commands, one line for each case that did not pass: ::error for a
/// regression, else ::warning.
std::string gate_annotations(const GateResult& result, const RerunCommand& rerun);

/// Returns {baseline, exit, summary, cases: [{id, case, label, verdict, baseline_records, seconds, rerun,
/// metrics: [...]}], notes}. Unknown values are null.
nlohmann::ordered_json gate_json(const GateResult& result, const std::string& baseline,
                                 const RerunCommand& rerun);

}  // namespace precbench

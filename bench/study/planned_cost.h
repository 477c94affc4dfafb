// Cost of a study before it runs: cases at a time, steps and time of its parts, and how the plan is printed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bench/case/plan.h"
#include "bench/study/study_plan.h"
#include "bench/study/study_settings.h"
#include "bench/study/study_time.h"

namespace precbench {

/// Number of cases that fit at a time, and the number of GPUs.
struct Concurrency {
  int at_once = 1, gpus = 1;
  bool on_gpu = false;
};

/// Returns one case per thread on the CPU, and a few on every GPU, which hides the start of processes: as
/// many as fit into three quarters of the free memory. `wanted`: that many instead; 0: none. Throws InvalidInput for
/// several cases of several ranks.
Concurrency concurrency_for(const std::vector<Plan>& plans, int wanted);

/// Part of a study, or all of it, and its cost.
struct PlannedPart {
  std::string name;
  std::size_t cases = 0;
  std::int64_t steps = 0;
  std::optional<double> seconds;  ///< null without an estimate of the time
};

/// Returns the cost of each part of the study and, last, of all. `pace`: null without an estimate of the time.
std::vector<PlannedPart> planned_parts(const std::vector<StudyCase>& cases,
                                       const std::optional<StudyPace>& pace, const Concurrency& concurrency);

/// Prints the cost of each part of the study and of all.
void print_plan(const std::vector<StudyCase>& cases, const std::vector<PlannedPart>& parts,
                const std::string& heading);

/// Prints the plan as JSON.
void print_plan_json(const std::vector<PlannedPart>& parts, const Concurrency& concurrency,
                     const std::string& heading);

/// Returns "study of tiny on cpu: 3 trunks, forks of 60 steps after 100, 200; ...; checkpoints of 0.1 GB and
/// rows in out/study".
std::string plan_heading(const StudySettings& settings, const std::vector<std::string>& models,
                         const std::vector<Plan>& trunks, const Concurrency& concurrency,
                         const std::string& out);

}  // namespace precbench

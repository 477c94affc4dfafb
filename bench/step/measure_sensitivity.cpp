// Measures and summarizes the cells, then the best of them together. See sensitivity.h.
#include "bench/step/measure_sensitivity.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <utility>

#include "results/record/statistics.h"

namespace precbench {
namespace {

using Cells = std::vector<SensitivityCell>;

/// Results of one cell, by batch.
using Batches = std::vector<BatchFidelity>;

/// Runs one batch with the cell's recipe. Norms are recomputed instead of kept, which gives the same bits in
/// less memory: a set of layers in BF16 then never needs more memory than the cells that it consists of.
BatchFidelity run(Rank& rank, const Plan& plan, const SensitivityCell& cell, GradientComparison& comparison) {
  TransformerOptions options = rank.transformer_options(cell.layers);
  options.recompute_norms = true;
  Transformer transformer(rank.device(), rank.arena(), rank.parameters(), plan.model, options);
  return comparison.with(transformer);
}

/// Measures all cells on the tokens of the steps from `first` on. Returns the results by cell.
std::vector<Batches> measure(Rank& rank, const Plan& plan, const DataSource& data, ReferencePlace place,
                             const Cells& cells, std::int64_t first) {
  // All batches use the recipe that the run begins with.
  const std::int64_t last_step =
      plan.later.empty() ? plan.fields.fidelity_batches : plan.later.front().from - 1;
  std::vector<Batches> results(cells.size());
  DelayedScaling* delayed = rank.parameters().delayed();
  std::optional<DelayedScaling::Snapshot> before;
  if (delayed) before = delayed->snapshot();
  std::vector<DelayedScaling::Snapshot> histories;  // each cell has its own
  if (delayed) histories.assign(cells.size(), *before);
  for (std::int64_t batch = 0; batch < plan.fields.fidelity_batches; ++batch) {
    rank.prepare(data, first + batch, 0);
    GradientComparison comparison(rank, plan, place);
    for (std::size_t i = 0; i < cells.size(); ++i) {
      // Delayed scaling starts fresh for every cell at the first batch, wherever in the data that is.
      rank.use_layers_of(std::min(batch, last_step));
      if (delayed) delayed->restore(histories[i]);
      results[i].push_back(run(rank, plan, cells[i], comparison));
      if (!delayed) continue;
      delayed->update();
      histories[i] = delayed->snapshot();
    }
  }
  if (delayed) delayed->restore(*before);
  return results;
}

/// Returns the loss minus BF16's, by batch.
std::vector<double> loss_gaps_of(const Batches& batches) {
  std::vector<double> gaps;
  for (const BatchFidelity& batch : batches) gaps.push_back(batch.loss - batch.bf16_loss);
  return gaps;
}

std::vector<double> differences(std::vector<double> a, const std::vector<double>& b) {
  std::transform(a.begin(), a.end(), b.begin(), a.begin(), std::minus<>());
  return a;
}

void add(SensitivityRecord& record, const Layout& layout, const Cells& cells,
         const std::vector<Batches>& results) {
  const std::vector<double> whole = loss_gaps_of(results.front());
  for (std::size_t i = 0; i < cells.size(); ++i) {
    const SensitivityCell& cell = cells[i];
    const Fidelity fidelity = summarize("none", layout, results[i]);
    CellRecord row{cell.name.group,
                   cell.name.kind,
                   cell.name.part,
                   fidelity.loss_difference,
                   interval_of(differences(whole, loss_gaps_of(results[i]))),
                   fidelity.whole,
                   cell.kept_flops,
                   cell.keep_bf16};
    row.note = cell.note;
    record.cells.push_back(std::move(row));
  }
}

/// Returns true if the cell belongs to its group's partition of the recipe. q, k and v do not: they are parts
/// of qkv.
bool is_summand(const SensitivityCell& cell) {
  return cell.name.part != "q" && cell.name.part != "k" && cell.name.part != "v";
}

/// Adds the sums of each group's parts, paired by batch.
void add_sums(SensitivityRecord& record, const Cells& cells, const std::vector<Batches>& results) {
  const std::vector<double> whole = loss_gaps_of(results.front());
  for (const char* group : {"gemms", "operands", "roles", "blocks", "linears"})
    for (const CellKind kind : {CellKind::alone, CellKind::kept}) {
      std::vector<double> sum(whole.size());
      bool any = false;
      for (std::size_t i = 0; i < cells.size(); ++i) {
        if (cells[i].name.group != group || cells[i].name.kind != kind || !is_summand(cells[i])) continue;
        any = true;
        const std::vector<double> gaps = loss_gaps_of(results[i]);
        for (std::size_t b = 0; b < sum.size(); ++b)
          sum[b] += kind == CellKind::alone ? gaps[b] : whole[b] - gaps[b];
      }
      if (any) record.sums.push_back({group, kind, interval_of(sum), interval_of(differences(sum, whole))});
    }
}

/// Returns sets of the cells that recovered some loss, ranked once by loss and once by loss per FLOP. Losses
/// are the same on every rank, so all ranks choose the same sets.
Cells best_sets(const Plan& plan, const Cells& cells, const std::vector<Batches>& results) {
  const double whole = mean_and_spread(loss_gaps_of(results.front())).mean;
  struct Candidate {
    const SensitivityCell* cell;
    double bought, per_flop;
  };
  std::vector<Candidate> ranked;
  for (const SensitivityCell* cell : candidates_of(cells)) {
    const double bought =
        whole - mean_and_spread(loss_gaps_of(results[static_cast<std::size_t>(cell - cells.data())])).mean;
    if (bought > 0 && cell->kept_flops.value_or(0) > 0)
      ranked.push_back({cell, bought, bought / *cell->kept_flops});
  }
  Cells sets;
  for (const auto& [ranking, member] :
       {std::pair("price", &Candidate::bought), std::pair("price per FLOP", &Candidate::per_flop)}) {
    std::stable_sort(ranked.begin(), ranked.end(), [member = member](const Candidate& a, const Candidate& b) {
      return a.*member > b.*member;
    });
    std::vector<const SensitivityCell*> in_order;
    for (const Candidate& candidate : ranked) in_order.push_back(candidate.cell);
    for (SensitivityCell& set : sets_together(plan, in_order, ranking)) sets.push_back(std::move(set));
  }
  return sets;
}

}  // namespace

SensitivityRecord measure_sensitivity(Rank& rank, const Plan& plan, const DataSource& data,
                                      ReferencePlace place) {
  SensitivityCells made = sensitivity_cells(plan);
  const Layout& layout = rank.parameters().layout();
  const std::vector<Batches> results = measure(rank, plan, data, place, made.cells, 0);
  SensitivityRecord record;
  record.batches = plan.fields.fidelity_batches;
  record.quantized_flops = quantized_flops(plan);
  std::vector<double> bf16_losses;
  for (const BatchFidelity& batch : results.front()) bf16_losses.push_back(batch.bf16_loss);
  record.loss_bf16 = finite(mean_and_spread(bf16_losses).mean);
  record.skipped = std::move(made.skipped);
  add(record, layout, made.cells, results);
  add_sums(record, made.cells, results);
  if (!wants_sets(plan)) return record;
  Cells sets = best_sets(plan, made.cells, results);
  if (sets.empty()) return record;
  // Measured beside the whole recipe on the same tokens; the record already has a row of the whole recipe.
  sets.insert(sets.begin(), made.cells.front());
  const std::vector<Batches> together = measure(rank, plan, data, place, sets, plan.fields.fidelity_batches);
  SensitivityRecord of_sets;
  add(of_sets, layout, sets, together);
  record.cells.insert(record.cells.end(), of_sets.cells.begin() + 1, of_sets.cells.end());
  return record;
}

void account_sensitivity(Rank& rank, const Plan& plan, ReferencePlace place) {
  const Cells cells = sensitivity_cells(plan).cells;
  GradientComparison comparison(rank, plan, place);
  for (const SensitivityCell& cell : cells) run(rank, plan, cell, comparison);
  if (!wants_sets(plan)) return;
  for (const SensitivityCell& set : sets_together(plan, candidates_of(cells), "price"))
    run(rank, plan, set, comparison);
}

}  // namespace precbench

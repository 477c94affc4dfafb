// Queries of a report's tables: columns, rows, pivots and what they refuse.
#include "tools/report/column_table.h"

#include "kernels/testing/catch.h"
#include "kernels/testing/temp_directory.h"
#include "kernels/testing/text_checks.h"
#include "results/record/record_samples.h"
#include "tools/report/report.h"
#include "tools/report/sections_testing.h"

namespace precbench {
namespace {

Table speeds() {
  Table table{
      {{"model", true}, {"seq (tokens)", true}, {"recipe", true}, {"tokens/s"}, {"speed-up over bf16"}},
      {{"1b", "2048", "bf16", "100", "1.00x"},
       {"1b", "2048", "rowwise", "120", "1.20x"},
       {"1b", "4096", "bf16", "90", "1.00x"},
       {"8b", "2048", "bf16", "10", "1.00x"},
       {"8b", "2048", "rowwise", "13", "-"}},
      {2, 3}};
  table.constants = {{"gpus", "1"}, {"master", "bf16"}};
  return table;
}

std::string markdown_of(const ColumnQuery& query) { return render_markdown(query_table(speeds(), query)); }

std::string refused(const ColumnQuery& query) {
  return refusal_of([&] { query_table(speeds(), query); });
}

TEST_CASE("query_table: a pivot makes columns of a field and joins values in its cells", "[column_table]") {
  CHECK(markdown_of({{"tokens/s", "speed-up"}, {}, "recipe", {}}) ==
        "| model | seq (tokens) | bf16, tokens/s |     rowwise |\n"
        "| :---- | :----------- | -------------: | ----------: |\n"
        "| 1b    | 2048         |            100 | 120 (1.20x) |\n"
        "| 1b    | 4096         |             90 |           - |\n"
        "| 8b    | 2048         |             10 |          13 |\n");
  const Table by_seq = query_table(speeds(), {{"tokens/s"}, {"model"}, "seq", {"recipe=bf16"}});
  CHECK(by_seq.columns[1].title == "seq 2048, tokens/s");
  CHECK(by_seq.columns[2].title == "seq 4096");
  CHECK(by_seq.rows.front() == std::vector<std::string>{"1b", "100", "90"});
}

TEST_CASE("query_table: columns that were constant are known and rows can be chosen", "[column_table]") {
  const Table table =
      query_table(speeds(), {{"speed-up"}, {"gpus", "recipe"}, "", {"model=1b,2b", "seq=2048"}});
  CHECK(table.rows ==
        std::vector<std::vector<std::string>>{{"1", "bf16", "1.00x"}, {"1", "rowwise", "1.20x"}});
  // Without --rows: the text columns that still vary.
  CHECK(query_table(speeds(), {{"tokens/s"}, {}, "", {"seq=4096"}}).columns.size() == 1);
  CHECK(query_table(speeds(), {{"tokens/s"}, {}, "", {"model=1b"}}).columns.size() == 3);
}

TEST_CASE("query_table: rows are kept in their order", "[column_table]") {
  Table table{{{"recipe", true}, {"n"}}, {}, {}};
  for (const char* name : {"z", "m", "a", "q"}) table.rows.push_back({name, "1"});
  table.columns.push_back({"p", true});
  for (auto& row : table.rows) row.push_back("only");
  std::string order;
  for (const auto& row : query_table(table, {{"n"}, {"recipe"}, "p", {}}).rows) order += row[0];
  CHECK(order == "zmaq");
}

TEST_CASE("query_table: what cannot be answered is refused with what could be", "[column_table]") {
  CHECK(
      refused({{"tokens"}, {}, "", {}}) ==
      "--columns: no column \"tokens\"; the table has gpus, master, model, seq (tokens), recipe, tokens/s, speed-up over bf16");
  CHECK(contains(refused({{"tokens/s"}, {"lr"}, "", {}}), "--rows: no column \"lr\""));
  CHECK(contains(refused({{"tokens/s"}, {}, "lr", {}}), "--pivot: no column \"lr\""));
  CHECK(contains(refused({{"tokens/s"}, {}, "", {"seq"}}), "--where: \"seq\" is not NAME=VALUE"));
  CHECK(refused({{"tokens/s"}, {}, "", {"seq=1"}}) == "--where: no row has seq=1; the values are 2048, 4096");
  CHECK(refused({{"tokens/s"}, {"model"}, "recipe", {}}) ==
        "--pivot: two rows of 1b, recipe bf16; add to --rows, or to --where: seq (tokens)");
}

TEST_CASE("report --columns: prints the table of a section alone with ratios over any recipe",
          "[column_table]") {
  const TempDirectory folder;
  for (const auto& [recipe, ms] :
       {std::pair("bf16", 250), std::pair("tensorwise", 200), std::pair("rowwise", 100)})
    append_record(folder / "records.jsonl", samples::gpu_record(recipe, ms));
  ReportOptions options{{folder / "records.jsonl"}, "md", folder / "table.md"};
  options.query = {{"tokens/s", "speed-up"}, {}, "", {}};
  const auto printed = [&] {
    REQUIRE(report(options) == 0);
    return file_text(options.output);
  };
  CHECK(printed() ==
        "| recipe     | tokens/s | speed-up |\n| :--------- | -------: | -------: |\n"
        "| bf16       |   65,536 |    1.00x |\n| tensorwise |   81,920 |    1.25x |\n"
        "| rowwise    |  163,840 |    2.50x |\n");
  options.base = "tensorwise";
  const std::string over = printed();
  CHECK(contains(over, "| rowwise    |  163,840 |    2.00x |"));
  CHECK(contains(over, "| bf16       |   65,536 |    0.80x |"));
  CHECK(over.find("| tensorwise") < over.find("| bf16"));
  const auto refusal = [&] { return refusal_of([&] { report(options); }); };
  options.base = "mxfp8";
  CHECK(contains(refusal(), "--base: no record of \"mxfp8\""));
  options.sections = "memory";
  CHECK(refusal() == "--base: only for --section speed");
  options.base = "", options.sections = "", options.format = "csv";
  CHECK(refusal() == "--columns: only for --format term and md");
  options.format = "md", options.query.columns = {}, options.query.pivot = "recipe";
  CHECK(refusal() == "--pivot: needs --columns");
}

}  // namespace
}  // namespace precbench

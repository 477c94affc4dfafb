// Tests figures: their data, and that all text fits without overlap.
#include <algorithm>
#include <cmath>
#include <regex>

#include "kernels/testing/catch.h"
#include "kernels/testing/temp_directory.h"
#include "kernels/testing/text_checks.h"
#include "results/record/record_samples.h"
#include "tools/report/report.h"
#include "tools/report/sections_testing.h"
#include "tools/text/figure_data.h"
#include "tools/text/gnuplot.h"

using namespace precbench;

namespace {

/// Returns records of eight recipes, three seeds, several sequence lengths and GPU counts. Long recipe names
/// come with long model and GPU names.
std::vector<Record> study(std::size_t letters) {
  const bool long_names = letters > 40;
  std::vector<Record> records;
  std::vector<std::string> recipes = {"bf16"};
  for (int i = 1; i < 8; ++i) recipes.push_back(std::string(letters - 1, 'n') + std::to_string(i));
  const auto add = [&](const std::string& recipe, int seq, int gpus, int seed) {
    const double ms = (recipe == "bf16" ? 250 : 200 + 3 * recipe.back() - 3 * '0') * seq / 2048.0;
    Record record =
        samples::gpu_record(recipe, ms, recipe == "bf16" ? 0 : 0.001 * (recipe.back() - '0'), seed);
    record.id = recipe + "-" + std::to_string(seq) + "-" + std::to_string(gpus) + "-" + std::to_string(seed);
    record.case_fields["seq"] = seq;
    samples::set_gpus(record, gpus);
    record.case_fields["parallel"] = gpus > 1 ? "fsdp" : "ddp";
    record.case_fields["master"] = seq == 8192 ? "bf16" : "fp32";
    if (long_names)
      record.case_fields["model"] = "/data/models/an-organisation/the-model-with-a-long-name-70b.json";
    if (long_names) record.env.gpu->name = "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition";
    // Seeds differ far more than recipes.
    for (double& loss : record.training->loss) loss += 0.3 * seed;
    records.push_back(record);
  };
  for (const std::string& recipe : recipes) {
    for (int seed : {1, 2, 3}) add(recipe, 2048, 1, seed);
    for (int seq : {4096, 8192}) add(recipe, seq, 1, 1);
    for (int gpus : {2, 4}) add(recipe, 2048, gpus, 1);
  }
  return records;
}

Document document_of(const TempDirectory& folder, const std::vector<Record>& records) {
  for (const Record& record : records) append_record(folder / "records.jsonl", record);
  return make_report(read_records({folder / "records.jsonl"}));
}

const Figure* figure_of(const Document& document, const std::string& script) {
  for (const Section& section : document.sections)
    for (const Figure& figure : section.figures)
      if (figure.script == script) return &figure;
  return nullptr;
}

/// Text of a drawing and its bounding box. Assumes letters 0.56 font sizes wide, the width of a digit and
/// more than Helvetica's average, and 0.8 font sizes high.
struct Placed {
  std::string text;
  double left, right, top, bottom;
};

std::vector<Placed> texts_of(const std::string& svg) {
  static const std::regex pattern(
      "translate\\(([-0-9.]+),([-0-9.]+)\\)( rotate\\(([0-9.]+)\\))?[^>]*font-size=\"([0-9.]+)\"[^>]*"
      "text-anchor=\"([a-z]+)\">\\s*<text>([\\s\\S]*?)</text>");
  std::vector<Placed> texts;
  for (std::sregex_iterator i(svg.begin(), svg.end(), pattern), end; i != end; ++i) {
    const std::smatch& m = *i;
    std::string text = std::regex_replace(m[7].str(), std::regex("<[^>]*>"), "");
    text = std::regex_replace(text, std::regex("^\\s+|\\s+$"), "");
    const double x = std::stod(m[1]), y = std::stod(m[2]), size = std::stod(m[5]);
    const double length = 0.56 * size * static_cast<double>(text.size());
    const double before = m[6] == "middle" ? length / 2 : m[6] == "end" ? length : 0;
    if (m[3].matched)  // rotated by 270 degrees: the text runs upwards
      texts.push_back({text, x - 0.8 * size, x, y + before - length, y + before});
    else
      texts.push_back({text, x - before, x - before + length, y - 0.8 * size, y});
  }
  return texts;
}

void check_texts_fit(const std::string& svg) {
  std::smatch box;
  REQUIRE(std::regex_search(svg, box, std::regex("viewBox=[\"']0 0 ([0-9.]+) ([0-9.]+)")));
  const double width = std::stod(box[1]), height = std::stod(box[2]);
  const std::vector<Placed> texts = texts_of(svg);
  REQUIRE(texts.size() > 3);
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const Placed& a = texts[i];
    INFO(a.text << ": x " << a.left << " to " << a.right << " of " << width << ", y " << a.top << " to "
                << a.bottom << " of " << height);
    CHECK(a.left >= 0);
    CHECK(a.right <= width);
    CHECK(a.top >= 0);
    CHECK(a.bottom <= height);
    for (std::size_t j = i + 1; j < texts.size(); ++j) {
      const Placed& b = texts[j];
      const bool apart = a.right <= b.left || b.right <= a.left || a.bottom <= b.top || b.bottom <= a.top;
      if (apart) continue;  // a message for each of 100,000 pairs would take most of the time
      INFO("and " << b.text << ": x " << b.left << " to " << b.right << ", y " << b.top << " to "
                  << b.bottom);
      CHECK(apart);
    }
  }
}

/// Returns the titles of the blocks $series and $bars.
std::vector<std::string> legend_of(const std::string& data) {
  std::vector<std::string> titles;
  const std::regex pattern("\n\"([^\"]*)\"\n");
  for (std::sregex_iterator i(data.begin(), data.end(), pattern), end; i != end; ++i)
    titles.push_back((*i)[1]);
  return titles;
}

}  // namespace

TEST_CASE("plot_heading: breaks between fields and shortens long lines", "[figure]") {
  CHECK(plot_heading("tiny, AMD EPYC") == "array heading[1] = ['tiny, AMD EPYC']\n");
  CHECK(plot_heading("llama3.1-8b, seq 8192, batch 1, parallel fsdp, master fp32, NVIDIA H200") ==
        "array heading[2] = ['llama3.1-8b, seq 8192, batch 1, parallel fsdp', 'master fp32, NVIDIA H200']\n");
  CHECK(plot_heading(std::string(80, 'x')) == "array heading[1] = ['" + std::string(51, 'x') + "...']\n");
}

TEST_CASE("axis_of: starts at 0 unless all values are in its upper half", "[figure]") {
  const Axis whole = axis_of({{"a", 1, {{1, {10}}, {2, {100}}}}});
  CHECK(whole.bottom == 0);
  CHECK(whole.top > 100);
  CHECK(whole.remark().empty());
  const Axis upper = axis_of({{"a", 1, {{1, {80, 5}}}}, {"b", 2, {{1, {100, 5}}, {2, {NAN}}}}});
  CHECK(upper.bottom > 70);
  CHECK(upper.bottom < 80);
  CHECK(upper.top > 100);
  CHECK(contains(upper.remark(), "does not start at 0"));
  const Axis flat = axis_of({{"a", 1, {{1, {100}}, {2, {100.1}}}}});
  CHECK(flat.bottom < 96);  // noise looks small
  CHECK(flat.bottom > 0);
  CHECK(axis_of({}).top > axis_of({}).bottom);
}

TEST_CASE("draw_figures: all text is inside the figure and does not overlap", "[figure]") {
  if (!gnuplot_is_there()) return;
  for (std::size_t letters : {6, 13, 22, 30, 47}) {
    INFO("names of " << letters << " letters");
    const TempDirectory folder;
    Document document = document_of(folder, study(letters));
    draw_figures(document, folder / "plots", "");
    CHECK(document.notice.empty());
    for (const char* script :
         {"tflops", "tokens", "scaling", "memory", "time", "loss", "loss_difference", "tradeoff"}) {
      INFO(script);
      CHECK(figure_of(document, script) != nullptr);
    }
    for (const Section& section : document.sections)
      for (const Figure& figure : section.figures) {
        INFO(figure.name);
        const std::string file = file_text((folder / "plots/") + figure.name + ".svg");
        for (const std::string& svg : {figure.svg, file}) {
          check_texts_fit(svg);
          const std::vector<Placed> texts = texts_of(svg);
          for (const std::string& title : legend_of(figure.data)) {
            INFO("legend: " << title);
            CHECK(std::any_of(texts.begin(), texts.end(), [&](const Placed& p) { return p.text == title; }));
          }
        }
      }
  }
}

TEST_CASE("memory figure: the axis explains why a bar may exceed the peak", "[figure]") {
  if (!gnuplot_is_there()) return;
  const TempDirectory folder;
  Document document = document_of(folder, {samples::gpu_record("bf16", 250)});
  draw_figures(document, "", "");
  const Figure* memory = figure_of(document, "memory");
  REQUIRE(memory != nullptr);
  CHECK(contains(memory->svg, "memory per GPU (GiB), each segment at its own highest"));
}

TEST_CASE("time figure: a single bar has the whole legend", "[figure]") {
  if (!gnuplot_is_there()) return;
  const TempDirectory folder;
  Document document = document_of(folder, {samples::gpu_record("bf16", 250)});
  draw_figures(document, "", "");
  const Figure* time = figure_of(document, "time");
  REQUIRE(time != nullptr);
  const std::vector<Placed> texts = texts_of(time->svg);
  for (const char* title :
       {"GEMM", "quantize", "attention", "norm and elementwise", "head and loss", "optimizer", "idle"}) {
    INFO(title);
    CHECK(std::any_of(texts.begin(), texts.end(), [&](const Placed& p) { return p.text == title; }));
  }
}

TEST_CASE("loss_difference figure: the axis covers differences rather than the seeds' spread", "[figure]") {
  if (!gnuplot_is_there()) return;
  const TempDirectory folder;
  Document document = document_of(folder, study(6));
  draw_figures(document, "", "");
  const Figure* difference = figure_of(document, "loss_difference");
  REQUIRE(difference != nullptr);
  // Recipes differ by at most 0.007, seeds by 0.6.
  double highest = 0;
  for (const Placed& text : texts_of(difference->svg))
    if (std::regex_match(text.text, std::regex("-?0\\.[0-9]+")))
      highest = std::max(highest, std::stod(text.text));
  CHECK(highest > 0.005);
  CHECK(highest < 0.02);
}

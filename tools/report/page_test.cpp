// Tests the report as an HTML page: figures, their data, and scripts.
#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <regex>

#include "kernels/base/errors.h"
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

/// Returns records at two sequence lengths, which makes a speed figure.
std::vector<Record> two_lengths(const std::string& recipe) {
  std::vector<Record> records;
  for (int seq : {2048, 4096})
    for (const std::string& name : {std::string("bf16"), recipe}) {
      records.push_back(samples::gpu_record(name, name == "bf16" ? 250 : 200));
      records.back().case_fields["seq"] = seq;
      records.back().id += std::to_string(seq);
    }
  return records;
}

std::string run_report(const TempDirectory& folder, const std::vector<Record>& records,
                       const std::string& format, const std::string& plots = "") {
  for (const Record& record : records) append_record(folder / "records.jsonl", record);
  ReportOptions options{{folder / "records.jsonl"}, format, folder / "report", plots};
  options.sections = format == "term" ? "all" : "";
  options.wide = format == "term";
  setenv("COLUMNS", "110", 1);
  REQUIRE(report(options) == 0);
  return file_text(options.output);
}

/// Returns a table of models and recipes as the sections build it, with row groups.
Document grouped_document() {
  Table table;
  table.columns = {{"model", true}, {"seq (tokens)", true}, {"recipe", true}, {"tokens/s"}, {"peak memory"}};
  table.rows = {{"small", "1", "bf16", "1,000", "2.0 GiB"},
                {"small", "1", "rowwise", "900", "512 MiB"},
                {"small", "1", "mxfp8", "-", "1.5 GiB"},
                {"large", "4096", "bf16", "50", "20.0 GiB"},
                {"large", "4096", "rowwise", "70", "9.0 GiB"}};
  table.group_starts = {3};
  for (int i = 0; i < 12; ++i) {
    table.columns.push_back({"one more"});
    for (auto& row : table.rows) row.push_back("123,456");
  }
  return {"made up", {{"Results", {}, table, {}}}};
}

/// Returns the name of Chromium's executable; empty if there is none.
std::string browser() {
  for (const char* name : {"chromium", "chromium-browser", "google-chrome"})
    if (std::system(fmt::format("command -v {} >/dev/null 2>&1", name).c_str()) == 0) return name;
  return "";
}

/// Opens `page` at phone width, runs `script` in it, and returns its variable `result`.
std::string in_browser(const TempDirectory& folder, std::string page, const std::string& script) {
  const std::string tail = "<script>let result = '';\n" + script +
                           "\ndocument.body.innerHTML = '<pre>' + result + '</pre>';</script>";
  page.insert(page.rfind("</body>"), tail);
  const std::string file = folder.write("page.html", page);
  const std::string command = fmt::format(
      "timeout 1800 {} --headless=new --no-sandbox --disable-gpu --user-data-dir='{}' --window-size=390,844 "
      "--dump-dom 'file://{}' >'{}' 2>/dev/null </dev/null",
      browser(), folder / "profile", file, folder / "dom");
  REQUIRE(std::system(command.c_str()) == 0);
  const std::string dom = file_text(folder / "dom");
  std::smatch result;
  REQUIRE(std::regex_search(dom, result, std::regex("<pre>([\\s\\S]*)</pre>")));
  return result[1];
}

/// Sets PATH to a single folder for the lifetime of the object.
class OnlyPath {
 public:
  explicit OnlyPath(const std::string& folder) : old_(std::getenv("PATH")) {
    setenv("PATH", folder.c_str(), 1);
  }
  ~OnlyPath() { setenv("PATH", old_.c_str(), 1); }

 private:
  std::string old_;
};

}  // namespace

TEST_CASE("plot_safe: names from records cannot become gnuplot commands", "[page]") {
  CHECK(plot_safe("rowwise_gw_hp, 4 GPUs") == "rowwise_gw_hp, 4 GPUs");
  CHECK(plot_safe("a'b\"c`d$e@f\ng;h") == "a_b_c_d_e_f g_h");
  for (const char* hidden : {"\u202e", "\u200b", "\u0085", "\u2028", "\x1b"})
    CHECK(plot_safe("bf" + std::string(hidden) + "16") == "bf 16");
  CHECK(plot_text("heading", "it's") == "heading = 'it_s'\n");
}

TEST_CASE("plot_series: omits empty series and non-finite points", "[page]") {
  const std::string text = plot_series(
      {{"bf16", 1, {{1, {2}}, {2, {NAN}}}}, {"empty", 2, {{1, {INFINITY}}}}, {"rowwise", 3, {{4, {5}}}}});
  CHECK(contains(text, "styles = '1 3 '"));
  CHECK(contains(text, "\"bf16\"\n1 2\n\n\n\"rowwise\"\n4 5\n"));
  CHECK_FALSE(contains(text, "empty"));
  CHECK_FALSE(std::regex_search(text, std::regex("nan|inf", std::regex::icase)));
}

TEST_CASE("plot_bars: stacks bars and omits invisible segments", "[page]") {
  const std::string text = plot_bars({"a", "b"}, {"one", "speck", "two"}, {{10, 0.01, 5}, {20, 0, 1}});
  CHECK(contains(text, "segments = '1 3 '"));
  CHECK(contains(text, "\"one\"\n0 10 1\n0 20 2\n"));
  CHECK(contains(text, "\"two\"\n10 15 1\n20 21 2\n"));
  CHECK_FALSE(contains(text, "speck"));
}

TEST_CASE("svg_for_page: makes a drawing part of the page", "[page]") {
  const std::string svg = svg_for_page(
      "<?xml version=\"1.0\"?>\n<svg width=\"1\"><title>Gnuplot</title><g id=\"p\" stroke='black' "
      "fill=\"rgb(0,0,0)\"/><use xlink:href='#p'/></svg>",
      "f3", "a < b");
  CHECK(svg ==
        "<svg role=\"img\" width=\"1\"><title>a &lt; b</title><g id=\"f3-p\" stroke='currentColor' "
        "fill=\"currentColor\"/><use xlink:href='#f3-p'/></svg>");
}

TEST_CASE("render_html: the page is a single file without external resources", "[page]") {
  const TempDirectory folder;
  std::vector<Record> records = two_lengths("rowwise");
  records.push_back(samples::failed_record("blockwise", Status::crashed, "<script>alert(1)</script> & more"));
  const std::string page = run_report(folder, records, "html");
  CHECK(page.rfind("<!DOCTYPE html>", 0) == 0);
  CHECK(contains(page, "&lt;script&gt;alert(1)&lt;/script&gt; &amp; more"));
  CHECK_FALSE(contains(page, "<script>alert"));
  CHECK_FALSE(
      std::regex_search(page, std::regex("(src|href)=[\"']?(http|//|file)|url\\(['\"]?http|@import")));
  CHECK(contains(page, "prefers-color-scheme: dark"));
  for (const char* title : {"Summary", "Results", "Memory by segment", "Where the time goes", "Convergence", "Environment"})
    CHECK(contains(page, std::string("<h2>") + title + "</h2>"));
  if (!gnuplot_is_there()) return;
  CHECK(contains(page, "<svg role=\"img\""));
  std::vector<std::string> ids;
  const std::regex id_pattern(" id=[\"']([^\"']+)[\"']");
  for (std::sregex_iterator i(page.begin(), page.end(), id_pattern), end; i != end; ++i)
    ids.push_back((*i)[1]);
  std::sort(ids.begin(), ids.end());
  CHECK(std::adjacent_find(ids.begin(), ids.end()) == ids.end());
}

TEST_CASE("render_html: values shared by a group are shown once above it", "[page]") {
  const std::string page = render_html(grouped_document());
  CHECK(contains(page, "<span>model small, seq 1 token</span>"));
  CHECK(contains(page, "<span>model large, seq 4096 tokens</span>"));
  CHECK_FALSE(contains(page, "<td class=\"l\">small</td>"));
  CHECK(contains(page, "<td class=\"l\">rowwise</td>"));
  Document single = grouped_document();  // headings above every row would not help
  single.sections[0].table->group_starts = {1, 2, 3, 4};
  CHECK(contains(render_html(single), "<td class=\"l\">small</td>"));
}

TEST_CASE("report page: clicks sort a table within its groups and the third restores it", "[page]") {
  if (browser().empty()) {
    WARN("skipped: there is no Chromium to run the page's script in");
    return;
  }
  const TempDirectory folder;
  const std::string result = in_browser(folder, render_html(grouped_document()), R"js(
    const rows = () => Array.from(document.querySelectorAll("tbody:not(.name)"), (body) =>
      Array.from(body.rows, (row) => row.cells[0].textContent).join(" ")).join(", ");
    const click = (title) => {
      const heading = Array.from(document.querySelectorAll("th button")).find((b) => b.textContent === title);
      heading.click();
      result += title + " " + heading.parentElement.getAttribute("aria-sort") + ": " + rows() + "\n";
    };
    for (const title of ["tokens/s", "tokens/s", "tokens/s", "peak memory", "recipe", "recipe"]) click(title);)js");
  CHECK(result ==
        "tokens/s descending: bf16 rowwise mxfp8, rowwise bf16\n"
        "tokens/s ascending: rowwise bf16 mxfp8, bf16 rowwise\n"
        "tokens/s null: bf16 rowwise mxfp8, bf16 rowwise\n"
        "peak memory descending: bf16 mxfp8 rowwise, bf16 rowwise\n"
        "recipe ascending: bf16 mxfp8 rowwise, bf16 rowwise\n"
        "recipe descending: rowwise mxfp8 bf16, rowwise bf16\n");
}

TEST_CASE("report page: on a phone a wide table scrolls and its row names stay visible", "[page]") {
  if (browser().empty()) {
    WARN("skipped: there is no Chromium to lay the page out");
    return;
  }
  const TempDirectory folder;
  const std::string result = in_browser(folder, render_html(grouped_document()), R"js(
    const table = document.querySelector(".scroll"), name = document.querySelector("tbody:not(.name) td");
    const number = name.nextElementSibling.getBoundingClientRect();
    result += "page " + (document.documentElement.scrollWidth <= window.innerWidth ? "fits" : "is too wide");
    result += ", number " + (number.right <= window.innerWidth / 2 ? "near" : "far");
    table.scrollLeft = 600;
    result += ", name " + (name.getBoundingClientRect().left >= 0 ? "stays" : "leaves");
    result += ", scrolled " + (table.scrollLeft === 600);)js");
  CHECK(result == "page fits, number near, name stays, scrolled true");
}

TEST_CASE("report: a gnuplot failure is shown with the names of the figures", "[page]") {
  const TempDirectory folder;
  const std::string program =
      folder.write("bin/gnuplot", "#!/bin/sh\necho 'line 1: no such terminal'; exit 1\n");
  std::filesystem::permissions(program, std::filesystem::perms::owner_all);
  const OnlyPath path(folder / "bin");
  const std::string page = run_report(folder, two_lengths("rowwise"), "html");
  for (const char* figure : {"tflops-nvidia-h200-llama3.2-1b, ", "time-nvidia-h200-llama3.2-1b-seq-4096",
                             ": line 1: no such terminal"})
    CHECK(contains(page, figure));
}

TEST_CASE("report: exits with 1 if requested figures could not be drawn", "[page]") {
  const TempDirectory folder;
  for (const Record& record : two_lengths("rowwise")) append_record(folder / "records.jsonl", record);
  // Simulates a full disk: gnuplot writes half a picture and succeeds.
  const std::string program = folder.write(
      "bin/gnuplot", "#!/bin/sh\nname=${3#*output=\\'}\nprintf '<svg><g>' > \"${name%\\'*}\"\nexit 0\n");
  std::filesystem::permissions(program, std::filesystem::perms::owner_all);
  ReportOptions options{{folder / "records.jsonl"}, "html", folder / "report.html", folder / "plots"};
  {
    const OnlyPath path(folder / "bin");
    CHECK(report(options) == 1);
    CHECK(contains(file_text(options.output), "its picture is cut off"));
    CHECK_FALSE(contains(file_text(options.output), "<svg role"));
  }
  const OnlyPath nothing("/nonexistent");
  CHECK(report(options) == 1);
  options.plots.clear();
  CHECK(report(options) == 0);  // the page mentions the missing figures, and --plots was not given
}

TEST_CASE("report: without gnuplot the page has tables and a notice", "[page]") {
  const TempDirectory folder;
  const OnlyPath nothing("/nonexistent");
  const std::string page = run_report(folder, two_lengths("rowwise"), "html");
  CHECK(contains(page, "There is no gnuplot here"));
  CHECK(contains(page, "<td class=\"l\">rowwise</td>"));
  CHECK_FALSE(contains(page, "<svg"));
}

TEST_CASE("report: every figure is written as SVG and PNG with its data", "[page]") {
  if (!gnuplot_is_there()) return;
  const TempDirectory folder;
  const std::string recipe = "`touch " + (folder / "hacked") + "`'\"";
  std::vector<Record> records = two_lengths(recipe);
  for (int seed : {2, 3})
    for (const char* name : {"bf16", "rowwise"})
      records.push_back(samples::gpu_record(name, 220, 0.001 * seed, seed));
  for (int gpus : {2, 4}) {
    records.push_back(samples::gpu_record("bf16", 260, 0, 10 + gpus));
    samples::set_gpus(records.back(), gpus);
    records.back().case_fields["seed"] = 1;
  }
  const std::string text = run_report(folder, records, "md", folder / "plots");
  CHECK_FALSE(contains(text, "could not draw"));
  CHECK_FALSE(std::filesystem::exists(folder / "hacked"));
  for (const char* script :
       {"tflops", "tokens", "scaling", "memory", "time", "loss-nvidia", "loss-difference", "tradeoff"}) {
    INFO(script);
    std::size_t svg = 0, png = 0, dat = 0;
    for (const auto& entry : std::filesystem::directory_iterator(folder / "plots")) {
      const std::string name = entry.path().filename().string();
      if (name.rfind(script, 0) != 0 || entry.file_size() == 0) continue;
      svg += entry.path().extension() == ".svg";
      png += entry.path().extension() == ".png";
      dat += entry.path().extension() == ".dat";
      if (entry.path().extension() == ".svg") CHECK(contains(text, "](plots/" + name + ")"));
    }
    CHECK(svg > 0);
    CHECK(svg == png);
    CHECK(svg == dat);
  }
}

TEST_CASE("report: --plots draws the figures of every format that has sections", "[page]") {
  const TempDirectory folder;
  for (const Record& record : two_lengths("rowwise")) append_record(folder / "records.jsonl", record);
  // Stands for gnuplot: a whole picture under the name that the settings give.
  const std::string program = folder.write(
      "bin/gnuplot",
      "#!/bin/sh\nname=${3#*output=\\'}\nname=${name%\\'*}\ncase $name in\n*.svg) printf '<svg></svg>' ;;\n"
      "*) printf 'IEND' ;;\nesac > \"$name\"\n");
  std::filesystem::permissions(program, std::filesystem::perms::owner_all);
  const OnlyPath path(folder / "bin");
  for (const char* format : {"term", "md", "html"}) {
    INFO(format);
    const std::string plots = folder / std::string("plots-") + format;
    CHECK(report({{folder / "records.jsonl"}, format, folder / "report", plots}) == 0);
    std::size_t files = 0;
    for (const auto& entry : std::filesystem::directory_iterator(plots)) files += entry.file_size() > 0;
    CHECK(files >= 6);  // speed and time, three files each
  }
}

TEST_CASE("report: --plots is refused where it has nothing to draw or nowhere to write", "[page]") {
  const TempDirectory folder;
  const std::string records = folder / "records.jsonl";
  append_record(records, samples::gpu_record("bf16", 250));
  const auto refused = [&](ReportOptions options) { return refusal_of([&] { report(options); }); };
  for (const char* format : {"csv", "json"})
    CHECK(refused({{records}, format, folder / "r", folder / "plots"}) ==
          "--plots: --format " + std::string(format) + " has no figures; leave one of the two out");
  ReportOptions brief{{records}, "term", folder / "r", folder / "plots"};
  brief.brief = true;
  CHECK(contains(refused(brief), "--plots: --brief has no figures"));
  ReportOptions table{{records}, "md", folder / "r", folder / "plots"};
  table.query.columns = {"tokens/s"};
  CHECK(contains(refused(table), "--plots: --columns has no figures"));
  for (const char* format : {"term", "md", "html"}) {
    CHECK(contains(refused({{records}, format, folder / "r", "/proc/plots"}), "cannot make /proc/plots"));
    CHECK(contains(refused({{records}, format, folder / "r", records}), records));
  }
  CHECK_FALSE(std::filesystem::exists(folder / "r"));
}

TEST_CASE("report: a page that cannot be written leaves what was there", "[page]") {
  const TempDirectory folder;
  const std::string records = folder / "records.jsonl", page = folder / "report.html";
  append_record(records, samples::gpu_record("bf16", 250));
  const auto failing = [&] {
    const auto handler = std::signal(SIGXFSZ, SIG_IGN);
    rlimit before{};
    REQUIRE(::getrlimit(RLIMIT_FSIZE, &before) == 0);
    rlimit small = before;
    small.rlim_cur = 100;
    REQUIRE(::setrlimit(RLIMIT_FSIZE, &small) == 0);
    const std::string message = refusal_of([&] { report({{records}, "html", page}); });
    ::setrlimit(RLIMIT_FSIZE, &before);
    std::signal(SIGXFSZ, handler);
    return message;
  };
  CHECK(contains(failing(), "cannot write " + page + ": File too large; the limit is that of ulimit -f"));
  CHECK_FALSE(std::filesystem::exists(page));
  folder.write("report.html", "older");
  CHECK(contains(failing(), "cannot write " + page));
  CHECK(file_text(page) == "older");
  CHECK(std::distance(std::filesystem::directory_iterator(folder.path()), {}) == 2);
}

TEST_CASE("report: a figure of a model with an overlong name is drawn and linked", "[page][hostile]") {
  if (!gnuplot_is_there()) return;
  const TempDirectory folder;
  std::vector<Record> records = two_lengths("mxfp8");
  for (Record& record : records) record.case_fields["model"] = "m" + std::string(5000, 'x');
  const std::string text = run_report(folder, records, "md", folder / "plots");
  CHECK_FALSE(contains(text, "could not draw"));
  std::size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder / "plots")) {
    ++files;
    const std::string name = entry.path().filename().string();
    CHECK(name.size() <= 124);
    if (entry.path().extension() == ".svg") CHECK(contains(text, "](plots/" + name + ")"));
  }
  CHECK(files >= 6);  // speed and time, three files each
}

TEST_CASE("scaling section: efficiency is relative to one GPU with the same work", "[page]") {
  const TempDirectory folder;
  std::vector<Record> records;
  for (int gpus : {1, 2, 4})
    for (const char* recipe : {"bf16", "rowwise"}) {
      const double ms = recipe == std::string("bf16") ? 250 : 200;
      Record record = samples::gpu_record(recipe, gpus == 1 ? ms : ms / 0.9);
      record.id += std::to_string(gpus);
      samples::set_gpus(record, gpus);
      record.case_fields["parallel"] = gpus == 1 ? "ddp" : "fsdp";
      records.push_back(record);
    }
  const std::string text = run_report(folder, records, "term");
  const std::string scaling = text.substr(text.find("\nScaling over GPUs\n"));
  CHECK(contains(scaling,
                 "llama3.2-1b, parallel fsdp, 4 GPUs: 1.25x over bf16 with rowwise; efficiency 90.0%, "
                 "bf16's 90.0%"));
  CHECK(std::regex_search(scaling, std::regex("4 +fsdp +rowwise +294,912 +73,728 +90\\.0% +1\\.25x")));
  CHECK(std::regex_search(scaling, std::regex("1 +ddp +rowwise +81,920 +81,920 +100\\.0%")));
}

TEST_CASE("report: the section of published figures, which is removed, is refused with what replaces it", "[page]") {
  const RecordSet set = samples::set_of(two_lengths("rowwise"));
  try {
    make_report(set, {{}, "published", false});
    FAIL("not refused");
  } catch (const InvalidInput& error) {
    CHECK(std::string(error.what()) ==
          "--section: published is removed; results/predicted has published figures, and predict --published compares them");
  }
}

TEST_CASE("make_json: one case per row with units and null for unknown values", "[page]") {
  const TempDirectory folder;
  const auto json = nlohmann::json::parse(run_report(folder, two_lengths("rowwise"), "json"));
  REQUIRE(json.at("cases").size() == 4);
  CHECK(json.at("cases").at(1).at("case").at("recipe") == "rowwise");
  CHECK(json.at("cases").at(1).at("speedup_vs_bf16") == 1.25);
  CHECK(json.at("cases").at(1).at("error").is_null());
  CHECK(json.at("units").at("peak_memory") == "bytes");
  CHECK(json.at("cases").at(1).at("ids").size() == 1);
}

// Tests precbench check as a program: exit status, output and files.
#include "tools/gate/check_command.h"

#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <filesystem>
#include <tuple>

#include "kernels/testing/catch.h"
#include "kernels/testing/processes.h"
#include "kernels/testing/temp_directory.h"
#include "kernels/testing/text_checks.h"
#include "results/record/record_samples.h"
#include "tools/text/table.h"

using namespace precbench;

namespace {

using Json = nlohmann::ordered_json;

/// Runs the check, for a terminal so wide that no line is wrapped; `variables`: "NAME=value NAME=value".
Answer check_says(const std::string& arguments, const std::string& variables = "") {
  return output_of("env -u GITHUB_ACTIONS -u GITHUB_STEP_SUMMARY COLUMNS=1000 " + variables +
                   " " PRECBENCH_BINARY_DIR "/precbench check " + arguments);
}

std::string write_records(const TempDirectory& directory, const std::string& name,
                          const std::vector<Record>& records) {
  std::string text;
  for (const Record& record : records) text += Json(record).dump() + "\n";
  return directory.write(name, text);
}

const Record kBf16 = samples::gpu_record("bf16", 300);
const Record kMxfp8 = samples::gpu_record("mxfp8", 250);

/// A baseline and a run with one regression, one missing case and one pass.
struct Sample {
  TempDirectory directory;
  std::string baseline =
      write_records(directory, "base.jsonl", {kBf16, kMxfp8, samples::gpu_record("rowwise", 280)});
  std::string run = write_records(directory, "run.jsonl", {kBf16, samples::gpu_record("mxfp8", 300)});
};

}  // namespace

TEST_CASE("check: JSON output is ASCII for any name of a file", "[check][hostile]") {
  const TempDirectory directory;
  const std::string baseline = write_records(directory, "base\u202e.jsonl", {kBf16}),
                    run = write_records(directory, "run\u200b.jsonl", {kBf16}), json = directory / "c.json";
  CHECK(check_says("--baseline " + baseline + " " + run + " --json " + json).status == 0);
  const std::string text = file_text(json);
  CHECK(contains(text, "base\\u202e.jsonl"));
  CHECK(std::all_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 128; }));
}

TEST_CASE("check: the exit status reflects the gravest verdict", "[check]") {
  const TempDirectory directory;
  const std::string baseline = write_records(directory, "base.jsonl", {kBf16, kMxfp8});
  const auto status = [&](const std::vector<Record>& run, const std::string& flags = "") {
    return check_says("--baseline " + baseline + " " + write_records(directory, "run.jsonl", run) + " " +
                      flags)
        .status;
  };
  Record big = kMxfp8, noisy = samples::gpu_record("mxfp8", 300), bare = kMxfp8;
  big.memory->measured->peak *= 2;
  std::vector<double> some_as_before = noisy.timing->samples_ms;
  std::fill_n(some_as_before.begin(), 5, 250);
  samples::set_samples(noisy, some_as_before);
  bare.metrics.reset();
  CHECK(status({kBf16, kMxfp8}) == 0);
  CHECK(status({kBf16, samples::gpu_record("mxfp8", 200)}) == 0);  // FASTER
  CHECK(status({kBf16, samples::gpu_record("mxfp8", 300)}) == 1);  // SLOWER
  CHECK(status({kBf16, samples::gpu_record("mxfp8", 300)}, "--tokens-per-s 30%") == 0);
  CHECK(status({kBf16, samples::gpu_record("mxfp8", 300)}, "--tokens-per-s off") == 0);
  CHECK(status({kBf16, big}) == 1);  // BIGGER
  CHECK(status({kBf16, big}, "--memory off") == 0);
  CHECK(status({kBf16, samples::gpu_record("mxfp8", 250, 0.1)}) == 1);  // WORSE
  CHECK(status({kBf16, samples::gpu_record("mxfp8", 250, 0.1)}, "--loss 10%") == 0);
  CHECK(status({kBf16, noisy}) == 3);                         // NOISY
  CHECK(status({kBf16, bare}) == 3);                          // MISSING metric
  CHECK(status({kBf16}) == 3);                                // MISSING case
  CHECK(status({samples::gpu_record("rowwise", 250)}) == 3);  // no case matches
  CHECK(status({kMxfp8, samples::gpu_record("bf16", 330)}) == 1);
  // Noise passes or fails as asked; what was not measured never passes.
  for (const auto& [treatment, of_noise, of_missing] : {std::tuple("pass", 0, 3), std::tuple("fail", 1, 1)}) {
    const std::string flag = std::string("--inconclusive ") + treatment;
    INFO(flag);
    CHECK(status({kBf16, noisy}, flag) == of_noise);
    CHECK(status({kBf16, bare}, flag) == of_missing);
    CHECK(status({kBf16}, flag) == of_missing);
    CHECK(status({kBf16, kMxfp8}, flag) == 0);
    CHECK(status({kBf16, big}, flag) == 1);
  }
  Record noisy_and_bare = noisy;
  noisy_and_bare.memory->measured.reset();
  CHECK(status({kBf16, noisy_and_bare}, "--inconclusive pass") == 3);
  CHECK(check_says("--baseline " + baseline + " " + baseline + " --inconclusive maybe").status == 2);
}

TEST_CASE("check: --inconclusive decides how other formats show noise", "[check]") {
  const TempDirectory directory;
  Record noisy = samples::gpu_record("mxfp8", 300);
  std::vector<double> some_as_before = noisy.timing->samples_ms;
  std::fill_n(some_as_before.begin(), 5, 250);
  samples::set_samples(noisy, some_as_before);
  const std::string baseline = write_records(directory, "base.jsonl", {kBf16, kMxfp8}),
                    run = write_records(directory, "run.jsonl", {kBf16, noisy}),
                    xml = directory / "check.xml";
  const auto junit = [&](const std::string& flags) {
    const Answer answer = check_says("--baseline " + baseline + " " + run + " --junit " + xml + " " + flags,
                                     "GITHUB_ACTIONS=true");
    return std::pair(answer.text, file_text(xml));
  };
  const auto [plain_text, plain] = junit("");
  CHECK(contains(plain, "failures=\"0\" errors=\"1\""));
  CHECK(contains(plain, "<error type=\"NOISY\""));
  const auto [pass_text, passed] = junit("--inconclusive pass");
  CHECK(contains(passed, "failures=\"0\" errors=\"0\" skipped=\"1\""));
  CHECK(contains(passed, "<skipped type=\"NOISY\""));
  CHECK(contains(pass_text, "NOISY counts as passed (--inconclusive pass)"));
  CHECK(contains(pass_text, "::warning title=NOISY"));
  const auto [fail_text, failed] = junit("--inconclusive fail");
  CHECK(contains(failed, "failures=\"1\" errors=\"0\""));
  CHECK(contains(failed, "<failure type=\"NOISY\""));
  CHECK(contains(fail_text, "::error title=NOISY"));
}

TEST_CASE("check: --accept names cases that cannot be judged against themselves", "[check]") {
  const TempDirectory directory;
  Record few = kMxfp8;
  samples::set_samples(few, {250, 251});
  const std::string run = write_records(directory, "run.jsonl", {kBf16, few}),
                    baseline = directory / "base.jsonl";
  const Answer accepted = check_says("--accept --baseline " + baseline + " " + run);
  INFO(accepted.text);
  CHECK(accepted.status == 0);
  CHECK(contains(accepted.text, "mxfp8: tokens/s cannot be judged against itself: "));
  CHECK(contains(accepted.text,
                 "1 of 2 accepted cases cannot be judged; a check against them will be inconclusive."));
  CHECK(!contains(accepted.text, "bf16: tokens/s cannot"));
  CHECK(check_says("--baseline " + baseline + " " + run).status == 3);
  // A metric that is left out is not judged here either.
  CHECK(!contains(check_says("--accept --tokens-per-s off --baseline " + baseline + " " + run).text,
                  "cannot be judged"));
}

TEST_CASE("check: unreliable records do not pass", "[check]") {
  const TempDirectory directory;
  const std::string baseline = write_records(directory, "base.jsonl", {kMxfp8});
  const auto answer = [&](const std::vector<Record>& run) {
    return check_says("--baseline " + baseline + " " + write_records(directory, "run.jsonl", run));
  };
  Record other_seq = kMxfp8, contradictory = kMxfp8, cut = kMxfp8;
  other_seq.case_fields["seq"] = 64;
  CHECK(answer({other_seq}).status == 3);
  CHECK(contains(answer({other_seq}).text, "run MISSING: other work under the same id: case.seq is 2048 at"));
  contradictory.metrics->tokens_per_s = 99999999;
  CHECK(answer({contradictory}).status == 3);
  CHECK(contains(answer({contradictory}).text, "contradicts itself: metrics.tokens_per_s is 99999999, but"));
  cut.training->loss.resize(5);
  CHECK(answer({cut}).status == 3);
  // The newest of repeated cases is judged, wherever it is, and a note names it.
  Record slow = samples::gpu_record("mxfp8", 280), fast = kMxfp8;
  slow.created = "2025-03-02T12:00:00Z";
  CHECK(answer({slow, fast}).status == 1);
  CHECK(answer({fast, slow}).status == 1);
  CHECK(contains(answer({slow, fast}).text, "run.jsonl:1; the newer one is used"));
  fast.created = slow.created;
  CHECK(answer({slow, fast}).status == 3);
  CHECK(contains(answer({slow, fast}).text, "their times do not tell which is the newest"));
  // Unreliable records do not become a baseline either.
  const std::string fresh = directory / "fresh.jsonl";
  for (const std::vector<Record>& run : {std::vector{contradictory}, std::vector{slow, fast}}) {
    const Answer accepted =
        check_says("--accept --baseline " + fresh + " " + write_records(directory, "run.jsonl", run));
    CHECK(accepted.status == 2);
    CHECK_FALSE(std::filesystem::exists(fresh));
  }
}

TEST_CASE("check: bad input is refused with one line and exit status 2", "[check]") {
  const Sample s;
  const auto refused = [&](const std::string& arguments) {
    INFO(arguments);
    return refusal_in(check_says(arguments));
  };
  const std::string with_baseline = "--baseline " + s.baseline + " ";
  CHECK(refused("--baseline /no/such/file " + s.run) ==
        "precbench: --baseline /no/such/file: no such file; --accept makes it from this run");
  const std::string empty = s.directory.write("empty.jsonl", "");
  CHECK(contains(refused("--baseline " + empty + " " + s.run), "no measured case in it"));
  CHECK(contains(refused("--baseline " + (s.directory / "") + " " + s.run), "a folder; it takes one file"));
  const std::string half = s.directory.write("half.jsonl", file_text(s.baseline) + "{\"schema\": 1, \"meth");
  CHECK(contains(refused("--baseline " + half + " " + s.run), "half.jsonl:4: half-written last line"));
  const std::string foreign = s.directory.write("foreign.txt", "a text\n");
  const std::string why =
      "precbench: --baseline: invalid; repair it or give another file: " + foreign + ":1: not JSON";
  CHECK(refused("--baseline " + foreign + " " + s.run) == why);
  CHECK(refused("--accept --baseline " + foreign + " " + s.run) == why);
  CHECK(file_text(foreign) == "a text\n");
  const std::string twice = write_records(s.directory, "twice.jsonl", {kBf16, kBf16});
  CHECK(contains(refused("--baseline " + twice + " " + s.run), "is repeated at"));
  Record contradictory = kBf16;
  contradictory.metrics->tokens_per_s = 1;
  const std::string wrong = write_records(s.directory, "wrong.jsonl", {contradictory, kMxfp8});
  CHECK(contains(refused("--baseline " + wrong + " " + s.run), "wrong.jsonl:1: contradicts itself"));
  Record here = samples::cpu_record("bf16"), there = here;
  there.env.cpu = "EPYC 9654";
  const std::string machines = write_records(s.directory, "machines.jsonl", {here, there});
  const std::string one_machine = write_records(s.directory, "machine.jsonl", {there});
  CHECK(contains(refused("--baseline " + machines + " " + one_machine), "one case on two machines"));
  CHECK(contains(refused("--accept --baseline " + machines + " " + one_machine), "one case on two machines"));
  CHECK(contains(refused(with_baseline + "/no/such/folder"), "no such file or folder"));
  const std::string text = s.directory.write("notes.txt", "not a record\n");
  CHECK(refused(with_baseline + s.run + " " + text) ==
        "precbench: " + text + ": no record in it (" + text + ":1: not JSON, left out)");
  Record other = kMxfp8;
  other.env.gpu->name = "NVIDIA B200";
  CHECK(contains(refused(with_baseline + write_records(s.directory, "b200.jsonl", {other})), "NVIDIA B200"));
  other = kMxfp8;
  other.method_version = 9;
  CHECK(contains(refused(with_baseline + write_records(s.directory, "m9.jsonl", {other})), "method version"));
  other = kMxfp8;
  other.support->fprop.path = ExecutionPath::emulated;
  CHECK(contains(refused(with_baseline + write_records(s.directory, "emu.jsonl", {other})), "emulated"));
  CHECK(refused(with_baseline + s.run + " --memory 2") ==
        "precbench: --memory: \"2\" is not a percentage such as 3%, nor off");
  CHECK(contains(refused(with_baseline + s.run + " --loss -1%"), "nor off or auto"));
  CHECK(contains(refused(with_baseline + s.run + " --loss off --memory off --tokens-per-s off"),
                 "nothing is left"));
  CHECK(contains(refused(with_baseline + s.run + " --junit /no/such/folder/j.xml"), "cannot write"));
  CHECK(contains(refused(s.run), "--baseline"));
  // Inputs are never overwritten, and no file is written twice.
  const std::string before = file_text(s.baseline);
  CHECK(refused(with_baseline + s.run + " --json " + s.baseline) ==
        "precbench: --json: " + s.baseline + " is read, and would be lost; name another file");
  CHECK(contains(refused(with_baseline + s.run + " --markdown " + (s.directory / "./run.jsonl")), "is read"));
  CHECK(contains(refused(with_baseline + s.run + " --json z --junit z"), "--junit and --json both write z"));
  CHECK(refused("--accept --baseline " + s.run + " " + (s.directory / "")) ==
        "precbench: --baseline " + s.run + ": a file of this run, too; move it out of PATH");
  CHECK(file_text(s.baseline) == before);
}

TEST_CASE("check: the command of a failed case adds its record to the checked ones", "[check]") {
  const Sample s;
  const TempDirectory run;
  write_records(run, "records.jsonl", {kBf16});
  const std::string folder = run.path().string();
  const auto ends = [&](const std::string& path, const std::string& out) {
    const std::string text = check_says("--baseline " + s.baseline + " " + path).text;
    INFO(text);
    const std::size_t command = text.find("  precbench run ");
    REQUIRE(command != text.npos);
    CHECK(text.substr(0, text.find('\n', command)).ends_with(" --out " + out));
  };
  ends(folder, folder);
  ends(folder + "/records.jsonl", folder);
  ends(s.run, "out/again");  // not a sweep folder
}

TEST_CASE("check: invalid lines are reported and their cases MISSING", "[check]") {
  const Sample s;
  Json newer = kMxfp8;
  newer["schema"] = 3;
  const std::string run = s.directory.write(
      "mixed.jsonl", Json(kBf16).dump() + "\n" + newer.dump() + "\n" + Json(kBf16).dump() + "\n{\"sche");
  const Answer answer = check_says("--baseline " + s.baseline + " " + run);
  CHECK(answer.status == 3);
  CHECK(contains(answer.text, "2 MISSING"));
  for (const char* problem : {"mixed.jsonl:2: schema version 3", "mixed.jsonl:1: case 1b-bf16-1 is repeated",
                              "mixed.jsonl:4: half-written last line"})
    CHECK(contains(answer.text, problem));
}

TEST_CASE("check: four times the cases take less than eight times the CPU time", "[check]") {
  const TempDirectory directory;
  const auto seconds = [&](int cases) {  // CPU time of the program
    std::vector<Record> records;
    for (int i = 0; i < cases; ++i) {
      records.push_back(samples::gpu_record("mxfp8", 250));
      records.back().id += std::to_string(i);
      records.back().case_fields["lr"] = 1e-9 * i;
    }
    const std::string file = write_records(directory, "many.jsonl", records);
    const auto used = [] {
      rusage usage;
      ::getrusage(RUSAGE_CHILDREN, &usage);
      return static_cast<double>(usage.ru_utime.tv_sec) + 1e-6 * static_cast<double>(usage.ru_utime.tv_usec);
    };
    const double before = used();
    const Answer answer =
        check_says("--baseline " + file + " - <" + file + " --json " + (directory / "out.json"));
    CHECK(answer.status == 0);
    return used() - before;
  };
  const double few = seconds(500), many = seconds(2000);
  CAPTURE(few, many);
  CHECK(many < 8 * few + 0.1);  // four times as many; quadratic would be 16
}

TEST_CASE("check: an output that cannot be written loses neither the verdict nor other outputs", "[check]") {
  const Sample s;
  const std::string json = s.directory / "j.json";
  const Answer answer = check_says("--baseline " + s.baseline + " " + s.run +
                                   " --junit /dev/full --markdown /dev/full --json " + json);
  CHECK(answer.status == 2);
  CHECK(contains(answer.text, "precbench check: 3 cases: 1 PASS, 1 SLOWER, 1 MISSING\n"));
  CHECK(answer.text.ends_with(
      "precbench: cannot write /dev/full: No space left on device; cannot write /dev/full: No "
      "space left on device\n"));
  CHECK(Json::parse(file_text(json))["exit"] == 1);
  // A failed --accept keeps the old baseline.
  const std::string before = file_text(s.baseline);
  const Answer accepted =
      output_of("(ulimit -f 1; " PRECBENCH_BINARY_DIR "/precbench check --accept --baseline " + s.baseline +
                " " + s.run + ")");
  CHECK(accepted.status == 2);
  CHECK(contains(accepted.text, "precbench: cannot write " + s.baseline +
                                    ".new: File too large; the limit is that of ulimit -f, or of the file "
                                    "system\n"));
  CHECK(file_text(s.baseline) == before);
  CHECK_FALSE(std::filesystem::exists(s.baseline + ".new"));
}

TEST_CASE("check: writes text and Markdown and JUnit and JSON and annotations", "[check]") {
  const Sample s;
  const std::string junit = s.directory / "j.xml", json = s.directory / "j.json", md = s.directory / "c.md",
                    summary = s.directory.write("summary.md", "before\n");
  const Answer answer = check_says("--baseline " + s.baseline + " " + s.run + " --junit " + junit +
                                       " --json " + json + " --markdown " + md,
                                   "GITHUB_ACTIONS=true GITHUB_STEP_SUMMARY=" + summary);
  CHECK(answer.status == 1);
  CHECK(contains(answer.text, "precbench check: 3 cases: 1 PASS, 1 SLOWER, 1 MISSING\n"));
  // The sample record's fields have no program defaults, so each value becomes a flag.
  CHECK(contains(answer.text, "\n  precbench run --model llama3.2-1b --recipe mxfp8 --seq 2048"));
  CHECK(contains(answer.text, "\n::error title=SLOWER%3A llama3.2-1b%2C mxfp8::tokens/s SLOWER, "));
  CHECK(contains(answer.text, "\n::warning title=MISSING%3A llama3.2-1b%2C rowwise::run MISSING"));
  CHECK(file_text(summary) == "before\n" + file_text(md));
  CHECK(contains(file_text(md), "| llama3.2-1b, mxfp8   | SLOWER  | SLOWER -16.7% |"));
  CHECK(contains(file_text(md), "```sh\nprecbench run "));
  CHECK(contains(file_text(junit),
                 "<testsuite name=\"precbench check\" tests=\"3\" failures=\"1\" errors=\"1\""));
  CHECK(contains(file_text(junit), "<failure type=\"SLOWER\" message=\"tokens/s SLOWER, "));
  CHECK(contains(file_text(junit), "name=\"llama3.2-1b, bf16\" time=\"23.000\">"));
  CHECK(contains(file_text(junit), "<system-out>tokens/s PASS, 54613 -&gt; 54613 tokens/s\n"));
  const Json parsed = Json::parse(file_text(json));
  CHECK(parsed["exit"] == 1);
  CHECK(parsed["cases"].size() == 3);
  CHECK(parsed["cases"][1]["verdict"] == "SLOWER");
  CHECK(parsed["cases"][1]["metrics"][0]["tolerance"] == 0.03);
  CHECK(parsed["cases"][2]["metrics"][0]["current"].is_null());
  // Nothing is written without request.
  CHECK_FALSE(contains(check_says("--baseline " + s.baseline + " " + s.run).text, "::error"));
}

TEST_CASE("gate outputs: text of a record cannot break their formats", "[check]") {
  CaseResult one{"id",
                 {{"model", "a b"},
                  {"x; touch pwned #", 1},
                  {"$(id)", "x"},
                  {"data", "it's"},
                  {"glob", ""},
                  {"keep_bf16", "first:1"}},
                 "<&\">\x1b",
                 {}};
  one.metrics.push_back({"run", "", GateVerdict::missing, {}, {}, {}, {}, "50% gone\nnext: line"});
  const GateResult result{{one}, {}};
  CHECK(rerun_with_all_flags(one.fields) ==
        "precbench run --model 'a b' --data 'it'\\''s' --keep-bf16 first:1");
  CHECK(contains(gate_junit(result, rerun_with_all_flags), "name=\"&lt;&amp;&quot;&gt; \""));
  CHECK(contains(gate_annotations(result, rerun_with_all_flags),
                 "::run MISSING: 50%25 gone%0Anext: line%0Aagain: "));
  CaseResult old_form = one;
  old_form.label = "##[add-mask]hello";
  old_form.metrics.front().reason = "a ##[group]b";
  CHECK_FALSE(contains(gate_annotations({{old_form}, {}}, rerun_with_all_flags), "##["));
}

TEST_CASE("check: text of a record is never a workflow command", "[check]") {
  const TempDirectory directory;
  Record record = kMxfp8;
  record.case_fields["model"] = "::add-mask::hello";
  const std::string file = write_records(directory, "base.jsonl", {record, kBf16});
  const std::string arguments = "--baseline " + file + " - <" + file;
  const auto stopped = [&] {
    const Answer answer = check_says(arguments, "GITHUB_ACTIONS=true");
    CHECK(answer.status == 0);
    const std::string start = "::stop-commands::";
    REQUIRE(answer.text.rfind(start, 0) == 0);
    const std::string word = answer.text.substr(start.size(), answer.text.find('\n') - start.size());
    CHECK(word.size() > 30);
    const std::size_t end = answer.text.find("\n::" + word + "::\n");
    CHECK(end < answer.text.size());
    CHECK(answer.text.rfind("add-mask::hello") < end);
    CHECK_FALSE(contains(answer.text, "::add-mask::hello"));  // split as well, in case the
                                                              // runner does not stop
    return word;
  };
  CHECK(stopped() != stopped());
  CHECK_FALSE(contains(check_says(arguments).text, "stop-commands"));
}

TEST_CASE("check: --accept creates and updates a baseline", "[check]") {
  const TempDirectory directory;
  const std::string baseline = directory / "base.jsonl";
  const std::string first =
      write_records(directory, "first.jsonl", {kBf16, samples::failed_record("mxfp8", Status::oom, "full")});
  const Answer made = check_says("--accept --baseline " + baseline + " " + first);
  CHECK(made.status == 0);
  CHECK(contains(made.text, "first.jsonl:2: oom, not accepted"));
  CHECK(contains(made.text, "accepted 1 case into " + baseline + ", which has 1 now"));
  const std::string second =
      write_records(directory, "second.jsonl", {kMxfp8, samples::gpu_record("bf16", 330)});
  CHECK(check_says("--baseline " + baseline + " " + second).status == 1);
  const Answer updated = check_says("--accept --baseline " + baseline + " " + second);
  CHECK(updated.status == 0);
  CHECK(contains(
      updated.text,
      "against the old baseline: 1 case: 1 SLOWER\n  llama3.2-1b, bf16: tokens/s SLOWER, 54613 -> "));
  CHECK(contains(updated.text, "the old baseline is kept as " + baseline + ".1\n"));
  CHECK(check_says("--baseline " + baseline + " " + second).status == 0);
  // Cases missing in this run stay in place.
  CHECK(
      check_says("--accept --baseline " + baseline + " " + write_records(directory, "third.jsonl", {kMxfp8}))
          .status == 0);
  const RecordSet kept = read_records({baseline});
  REQUIRE(kept.records.size() == 2);
  CHECK(kept.records[0].record.timing->median_ms == 330);
  CHECK(kept.records[1].record.case_fields["recipe"] == "mxfp8");
  // The old file is kept, and what got worse is said.
  CHECK(read_records({baseline + ".1"}).records.at(0).record.timing->median_ms == 300);
  CHECK_FALSE(std::filesystem::exists(baseline + ".2"));  // the third run changed nothing
  // A run on another GPU replaces the whole baseline, but only when asked to.
  Record other = kMxfp8;
  other.env.gpu->name = "NVIDIA B200";
  const std::string b200 = write_records(directory, "b200.jsonl", {other});
  const std::string old = file_text(baseline);
  CHECK(contains(refusal_in(check_says("--accept --baseline " + baseline + " " + b200)),
                 "with --replace, --accept replaces"));
  CHECK(file_text(baseline) == old);
  const Answer replaced = check_says("--accept --replace --baseline " + baseline + " " + b200);
  CHECK(replaced.status == 0);
  CHECK(contains(replaced.text, "they are not compared; the old one is replaced whole\n"));
  CHECK(contains(replaced.text, "the old baseline is kept as " + baseline + ".2\n"));
  CHECK(read_records({baseline}).records.size() == 1);
  CHECK(read_records({baseline + ".2"}).records.size() == 2);
  // The name of the other GPU cannot control the terminal.
  other.env.gpu->name = "NVIDIA \x1b[2J\u009b31m";
  const std::string evil = directory / "evil.jsonl";
  CHECK(check_says("--accept --baseline " + evil + " " + write_records(directory, "other.jsonl", {other}))
            .status == 0);
  const Answer shown = check_says("--accept --replace --baseline " + evil + " " + second);
  CHECK(shown.status == 0);
  CHECK(contains(shown.text, "NVIDIA  [2J 31m"));
  // The CPU device differs in kind from every GPU.
  const std::string cpu = write_records(directory, "cpu.jsonl", {samples::cpu_record("bf16")});
  CHECK(contains(refusal_in(check_says("--baseline " + baseline + " " + cpu)), "none (the CPU device)"));
  CHECK(check_says("--accept --replace --baseline " + baseline + " " + cpu).status == 0);
  CHECK(read_records({baseline}).records.size() == 1);
  CHECK(read_records({baseline + ".3"}).records.size() == 1);
  const std::string both = write_records(directory, "both.jsonl", {kBf16, samples::cpu_record("bf16")});
  CHECK(contains(refusal_in(check_says("--accept --baseline " + baseline + " " + both)), "mixes GPU models"));
  CHECK(refusal_in(check_says("--replace --baseline " + baseline + " " + cpu)) ==
        "precbench: --replace: only with --accept");
  // Without a measured case the baseline is unchanged.
  const std::string before = file_text(baseline);
  const std::string failed =
      write_records(directory, "failed.jsonl", {samples::failed_record("mxfp8", Status::oom, "full")});
  CHECK(check_says("--accept --baseline " + baseline + " " + failed).status == 2);
  CHECK(file_text(baseline) == before);
}

TEST_CASE("check: --accept adds repeats of one commit and replaces records of another", "[check]") {
  const TempDirectory directory;
  const std::string baseline = directory / "base.jsonl";
  const auto accept = [&](int day, double ms, const std::string& git, const std::string& flags = "") {
    Record record = samples::gpu_record("bf16", ms);
    record.created = fmt::format("2025-03-{:02}T12:00:00Z", day);
    record.env.git = git;
    return check_says("--accept " + flags + " --baseline " + baseline + " " +
                      write_records(directory, "run.jsonl", {record}))
        .text;
  };
  const auto medians = [&] {
    std::vector<double> found;
    for (const LocatedRecord& one : read_records({baseline}, nullptr, Repeats::all).records)
      found.push_back(*one.record.timing->median_ms);
    return found;
  };
  CHECK(contains(accept(1, 300, "aaa"), "which has 1 now\n"));
  CHECK(contains(accept(2, 301, "aaa"), "which has 1 now (2 records: 2 of each)\n"));
  CHECK(contains(accept(3, 299, "aaa"), "which has 1 now (3 records: 3 of each)\n"));
  CHECK(medians() == std::vector<double>{300, 301, 299});
  CHECK_FALSE(std::filesystem::exists(baseline + ".1"));  // nothing was lost
  // A check names the number of records; the same record again changes nothing.
  CHECK(contains(accept(3, 299, "aaa"), "3 of each"));
  CHECK(contains(check_says("--baseline " + baseline + " " + (directory / "run.jsonl")).text,
                 "the baseline has 3 records of each case"));
  CHECK(contains(accept(4, 310, "bbb"), "the old baseline is kept as " + baseline + ".1\n"));
  CHECK(medians() == std::vector<double>{310});
  CHECK(contains(accept(5, 311, "bbb", "--replace"), "which has 1 now\n"));
  CHECK(medians() == std::vector<double>{311});
}

TEST_CASE("check: --accept says that a case did other work, and does not take it for a repeat", "[check]") {
  const TempDirectory directory;
  const std::string baseline = write_records(directory, "base.jsonl", {kBf16});
  Record other = kBf16;  // under the same id and of the same commit
  other.case_fields["master"] = "bf16";
  other.created = "2025-03-09T12:00:00Z";
  const Answer answer =
      check_says("--accept --baseline " + baseline + " " + write_records(directory, "run.jsonl", {other}));
  CHECK(contains(answer.text, "run MISSING: other work under the same id: case.master is fp32"));
  CHECK(contains(answer.text, "which has 1 now\n"));
  CHECK(std::filesystem::exists(baseline + ".1"));
}

TEST_CASE("check: a baseline among the files of the run is refused", "[check]") {
  const TempDirectory directory;
  const std::string baseline = write_records(directory, "baseline.jsonl", {kBf16});
  const Answer inside = check_says("--baseline " + baseline + " " + directory.path().string());
  CHECK(inside.status == 2);
  CHECK(contains(inside.text, "a file of this run, too; move it out of PATH"));
  std::filesystem::create_symlink(baseline, directory / "link.jsonl");
  CHECK(check_says("--baseline " + (directory / "link.jsonl") + " " + baseline).status == 2);
}

TEST_CASE("check: contradictions and duplicates never pass whatever --inconclusive says", "[check]") {
  const TempDirectory directory;
  const std::string baseline = write_records(directory, "base.jsonl", {kMxfp8});
  const auto status = [&](const std::vector<Record>& run) {
    return check_says("--inconclusive pass --baseline " + baseline + " " +
                      write_records(directory, "run.jsonl", run))
        .status;
  };
  Json null = kMxfp8;
  null["training"]["loss"][50] = nullptr;
  CHECK(check_says("--inconclusive pass --baseline " + baseline + " " +
                   directory.write("null.jsonl", null.dump()))
            .status == 3);
  Record edited = kMxfp8, slower = samples::gpu_record("mxfp8", 300), relabelled = kMxfp8;
  *edited.metrics->tokens_per_s *= 0.9;
  relabelled.schema = 1;
  CHECK(status({edited}) == 3);
  CHECK(status({kMxfp8, slower}) == 3);  // of one time
  CHECK(status({relabelled}) == 3);
}

TEST_CASE("check and report: records may come from standard input and process substitution", "[check]") {
  const Sample sample;
  const std::string program = "env COLUMNS=1000 " PRECBENCH_BINARY_DIR "/precbench ";
  const auto says = [](const std::string& command) { return output_of("(" + command + ")"); };
  const std::string from_file = check_says("--baseline " + sample.baseline + " " + sample.run).text;
  CHECK(contains(from_file, "SLOWER"));
  const std::string check = "cat " + sample.run + " | env -u GITHUB_ACTIONS -u GITHUB_STEP_SUMMARY " +
                            program + "check --baseline " + sample.baseline;
  for (const char* input : {" -", " /dev/stdin"}) {
    CHECK(says(check + input).text == from_file);
    const Answer report = says("cat " + sample.run + " | " + program + "report" + input + " --format csv");
    CHECK(report.status == 0);
    CHECK(contains(report.text, ",standard input:2\n"));
  }
  // The baseline may be a stream as well, unless the run is the same stream or the baseline is written.
  const Answer baseline = says("cat " + sample.baseline + " | env -u GITHUB_ACTIONS -u GITHUB_STEP_SUMMARY " +
                               program + "check --baseline - " + sample.run);
  CHECK(baseline.status == 1);
  CHECK(contains(baseline.text, "Against standard input"));
  CHECK(refusal_in(check_says("--baseline - /dev/stdin")) ==
        "precbench: --baseline and PATH are both standard input, which is read once");
  CHECK(refusal_in(check_says("--accept --baseline - " + sample.run)) ==
        "precbench: --baseline standard input: --accept writes it, so it must be a file");
  CHECK(refusal_in(says(": | " + program + "report -")) == "precbench: standard input: no record in it");
  CHECK(refusal_in(output_of("(" + program + "report - <&-)")) ==
        "precbench: cannot read standard input: Bad file descriptor");
  if (output_of("bash -c true").status == 0)
    CHECK(output_of("bash -c '" + program + "report <(cat " + sample.run + ") <(cat " + sample.baseline +
                    ") --format json'")
              .status == 0);
}

TEST_CASE("check: the command of a failed case quotes folder names with spaces", "[check]") {
  const TempDirectory directory;
  const Sample sample;
  std::filesystem::create_directory(directory / "my run");
  std::filesystem::copy_file(sample.run, directory / "my run/records.jsonl");
  const std::string text =
      check_says("--baseline " + sample.baseline + " \"" + (directory / "my run") + "\"").text;
  CHECK(contains(text, " --out '" + (directory / "my run") + "'\n"));
}

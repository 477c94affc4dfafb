// For tests of a case's rules: command lines that break them, and what they are told.
#pragma once

#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "bench/case/case_testing.h"
#include "bench/case/rules.h"
#include "kernels/base/errors.h"
#include "kernels/testing/catch.h"
#include "kernels/testing/temp_directory.h"
#include "kernels/testing/text_checks.h"

namespace precbench::testing {

struct Sample {
  const char* flags;   ///< "--gpus 2"; "@name" is a file of SampleFiles
  const char* reason;  ///< its beginning; empty: the case is fine
};

/// Models, text and documents that samples read.
struct SampleFiles {
  TempDirectory folder;

  SampleFiles() {
    const auto model = [&](const char* name, const char* keys) {
      folder.write(name, std::string(R"({"layers": 1, "width": 64, "ffn": 128, "vocab": 256, "heads": 2, )") +
                             keys + "}");
    };
    model("latent.json", R"("head_dim": 48, "kv_lora_rank": 32, "qk_rope_head_dim": 16, "v_head_dim": 32)");
    model("odd_latent.json",
          R"("head_dim": 48, "kv_lora_rank": 36, "qk_rope_head_dim": 16, "v_head_dim": 32)");
    model("sinks.json", R"("head_dim": 32, "attention_sinks": true)");
    model("softcap.json", R"("head_dim": 64, "attention_softcap": 50)");
    model("wide_softcap.json", R"("head_dim": 264, "attention_softcap": 50)");
    model("large_softcap.json", R"("head_dim": 64, "attention_softcap": 2000)");
    model("learned.json", R"("head_dim": 32, "learned_positions": 64)");
    model("tempered.json", R"("head_dim": 32, "layers_without_rope": [0], "temperature": 0.1,
                         "temperature_positions": 64)");
    model("window.json", R"("head_dim": 64, "sliding_window": 64)");
    folder.write("blocks.json",
                 R"({"layers": 1, "width": 256, "ffn": 192, "vocab": 256, "heads": 8, "kv_heads": 4,
                                  "head_dim": 64})");
    model("wide.json", R"("head_dim": 264)");
    model("heads_of_96.json", R"("head_dim": 96)");
    model("heads_of_128.json", R"("head_dim": 128)");
    model("heads_of_24.json", R"("head_dim": 24)");
    folder.write("no_groups.json",
                 R"({"layers": 1, "width": 24, "ffn": 52, "heads": 2, "kv_heads": 1, "head_dim": 8,
                                  "vocab": 101})");
    nlohmann::json apart = recipe_to_json(find_recipe("tensorwise_delayed"));
    for (const char* gemm : {"fprop", "dgrad", "wgrad"})
      for (const char* operand : {"a", "b"}) apart[gemm][operand]["history"]["reduce"] = false;
    apart["name"] = "apart";
    folder.write("apart.json", apart.dump());
    nlohmann::json narrow = recipe_to_json(find_recipe("tensorwise"));
    for (const char* gemm : {"fprop", "dgrad"}) narrow[gemm]["b"]["format"] = "e3m4";
    narrow["name"] = "narrow";
    folder.write("narrow.json", narrow.dump());
    nlohmann::json again = recipe_to_json(find_recipe("tensorwise"));
    again["name"] = "again";
    again["fprop"]["a"]["scale"] = again["wgrad"]["b"]["scale"] = "f32_pow2";
    again["wgrad"]["b"]["source"] = "fprop";
    folder.write("again.json", again.dump());
    folder.write("held.txt", std::string(64, 'a'));
    folder.write("chat.jsonl", "{\"prompt\": [1, 2], \"answer\": [3]}\n");
  }

  Case case_of(std::string flags) const {
    for (std::size_t at = 0; (at = flags.find(" @")) != flags.npos;) flags.replace(at + 1, 1, folder / "");
    return case_of_flags(flags);
  }
};

/// Checks the reason that each sample is given, and that each rule with this verdict is broken by a sample and kept by
/// another one that sets its field. `plan_of`: plan of a case. `told`: reason of a plan; empty if it breaks no rule.
template <class PlanOf, class Told>
void check_samples(Verdict verdict, const std::vector<Sample>& samples, PlanOf&& plan_of, Told&& told) {
  const SampleFiles files;
  std::set<const Rule*> broken, kept;
  for (const Sample& sample : samples) {
    INFO(sample.flags);
    const Plan plan = plan_of(files.case_of(sample.flags));
    const std::string said = told(plan);
    if (*sample.reason)
      CHECK_THAT(said, Catch::Matchers::StartsWith(sample.reason));
    else
      CHECK(said.empty());
    for (const Rule& rule : case_rules(verdict)) {
      if (reason_of(rule, plan)) {
        broken.insert(&rule);
        break;  // the rules after it need not make sense of such a case
      }
      if (!rule.field || is_set(plan.fields, *rule.field)) kept.insert(&rule);
    }
  }
  for (const Rule& rule : case_rules(verdict)) {
    INFO("rule " << &rule - case_rules(verdict).data() << ": " << (rule.why ? rule.why : "(a function)"));
    CHECK(broken.contains(&rule));
    CHECK(kept.contains(&rule));
  }
}

}  // namespace precbench::testing

"""Tables that only README.md shows, for readme_tables.py."""
import statistics

from committed import gib, lines, measured, rate, table


def front_scaling():
    cases = measured("h200x4/scaling.jsonl", "model", "seq", "parallel", "recipe", "gather", "gpus")
    of = lambda recipe, gather, gpus: cases["llama3.1-8b", 4096, "fsdp", recipe, gather, gpus]
    rows = []
    for recipe, gather in [("bf16", "bf16"), ("tensorwise", "bf16"), ("tensorwise", "fp8"), ("blockwise", "fp8")]:
        four, one = of(recipe, gather, 4), of(recipe, "bf16", 1)
        rows.append([recipe, gather, f"{rate(four):,.0f}", f"{rate(four) / rate(of('bf16', 'bf16', 4)):.2f}x",
                     f"{100 * rate(four) / 4 / rate(one):.0f}%", f"{gib(four):.1f}"])
    return table(["recipe", "weights gathered in", "tokens/s", "over bf16", "efficiency", "peak GiB per GPU"], rows)


def front_plateau():
    final, recipes = {}, ["bf16", "tensorwise", "rowwise"]
    for record in lines("h200/one-gpu-plateau.jsonl"):
        case = record["case"]
        if (case["model"], case["gpus"], case["batch"]) == ("llama3.2-1b", 1, 1):
            final.setdefault((case["master"], case["recipe"]), []).append(statistics.mean(record["training"]["loss"][-30:]))
    return table(["weights are kept in", *recipes],
                 [[words, *(f"{statistics.mean(final[master, recipe]):.3f}" for recipe in recipes)] for master, words in
                  (("fp32", "FP32"), ("bf16", "BF16"), ("bf16_sr", "BF16, stochastic rounding"))])


TABLES = {"front-scaling": front_scaling, "front-plateau": front_plateau}

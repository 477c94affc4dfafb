#!/usr/bin/env python3
"""Asks `precbench advise` the questions of situations.toml and compares its answers with those of a careful engineer.

  tools/advise/situations.py                 # exit status 1 if an answer is wrong that is not listed as a disagreement, or right although listed
  tools/advise/situations.py --table         # every question with both answers
  tools/advise/situations.py --show NAME     # the program's whole answer to the questions whose names contain NAME

Needs build/precbench, or PRECBENCH=the program."""
import concurrent.futures, json, os, pathlib, re, shlex, subprocess, sys, time, tomllib

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAM = os.environ.get("PRECBENCH", str(ROOT / "build/precbench"))
KEYS = {"name", "ask", "recipes", "training", "status", "reason", "source", "disagrees"}


def read_situations(path=ROOT / "tools/advise/situations.toml"):
    """Returns the situations. Exits with a message about a malformed one."""
    situations = tomllib.loads(path.read_text())["situation"]
    for one in situations:
        name = one.get("name", "a situation without a name")
        if wrong := set(one) - KEYS | {"name", "ask", "recipes", "reason", "source"} - set(one):
            sys.exit(f"{path.name}: {name}: unknown or missing {', '.join(sorted(wrong))}")
        if one.get("training", "full") not in ("full", "lora", "none"):
            sys.exit(f"{path.name}: {name}: training is full, lora or none")
    names = [one["name"] for one in situations]
    if len(set(names)) < len(names):
        sys.exit(f"{path.name}: two situations have one name")
    return situations


def asked(situation):
    """Returns the program's answer: exit status, recipe, training, headline, and the seconds that it took."""
    start = time.monotonic()
    done = subprocess.run([PROGRAM, "advise", *shlex.split(situation["ask"]), "--json"], capture_output=True, text=True)
    seconds = time.monotonic() - start
    if done.returncode not in (0, 1, 3):
        return {"status": done.returncode, "recipe": "", "training": "none", "words": done.stderr.strip(), "seconds": seconds}
    answer = json.loads(done.stdout)
    pick = answer["recommended"]
    return {"status": done.returncode, "recipe": pick["recipe"] if pick else "", "training": answer["training"] if pick else "none",
            "words": " ".join(answer["headline"]), "seconds": seconds}


def is_right(situation, answer):
    """Returns true if a careful engineer would sign the answer."""
    return (answer["status"] == situation.get("status", 0) and answer["training"] == situation.get("training", "full")
            and (answer["recipe"] in situation["recipes"] or not situation["recipes"] and not answer["recipe"]))


def words_of(answer):
    """Returns the answer in a few words."""
    if answer["status"] == 2:
        return "refused"
    if not answer["recipe"]:
        return "nothing fits" if answer["status"] == 1 else "no recommendation"
    return answer["recipe"] + (" (LoRA)" if answer["training"] == "lora" else "")


def show(part):
    """Prints the program's answers to the questions whose names contain a text."""
    for one in read_situations():
        if part in one["name"]:
            print(f"== {one['name']}: {one['ask']}\n   right: {', '.join(one['recipes'])}, because {one['reason']} ({one['source']})", flush=True)
            subprocess.run([PROGRAM, "advise", *shlex.split(one["ask"])])


def main():
    if sys.argv[1:2] == ["--show"]:
        return show(sys.argv[2])
    situations = read_situations()
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        answers = list(pool.map(asked, situations))
    wrong, right = [], 0
    for one, answer in zip(situations, answers):
        agrees = is_right(one, answer)
        right += agrees
        if "--table" in sys.argv:
            mark = "" if agrees else "  <- listed" if "disagrees" in one else "  <- WRONG"
            print(f"{one['name']:34} {' '.join(one['recipes']):50.50} {words_of(answer):22} {answer['seconds']:5.2f} s{mark}")
        if not agrees and "disagrees" not in one:
            wrong.append(f"{one['name']}: {words_of(answer)}; right: {', '.join(one['recipes']) or 'nothing fits'}, because {one['reason']}\n"
                         f"  precbench advise {one['ask']}\n  {answer['words']}")
        if agrees and "disagrees" in one:
            wrong.append(f"{one['name']}: answered rightly; remove its \"disagrees\"")
    listed = [one for one in situations if "disagrees" in one]
    print(f"advise: {right} of {len(situations)} situations are answered as a careful engineer would; {len(listed)} known disagreements")
    for one in listed:
        print(f"  {one['name']}: {one['disagrees']}")
    for line in wrong:
        print(line, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Fills the tables of measurements in the pages from the committed records, so that a page cannot contradict them. A page is any
Markdown file that git tracks. Two lines mark the place of a table, which is what `precbench report` prints for these arguments, from
paths under results/, what `precbench law --table` prints, or one of the tables of page_tables.py, prediction_tables.py and memory_tables.py, each of which
must be on at least one page:

  <!-- report h200/single.jsonl.xz --columns tokens/s,speed-up --pivot recipe -->
  <!-- end -->
  <!-- law left-out -->
  <!-- end -->
  <!-- table fsdp2 -->
  <!-- end -->

  tools/ci/readme_tables.py            # writes the tables into the pages; needs build/precbench, or PRECBENCH=the program
  tools/ci/readme_tables.py --check    # exit status 1 and a list of the tables that differ from the records
  tools/ci/readme_tables.py --beside-pytorch out/beside-pytorch     # prints the table of what tools/pytorch_baseline/bench_gpu_pytorch.sh left there
"""
import functools, pathlib, re, shlex, subprocess, sys

import memory_tables
import prediction_tables
from page_tables import RESULTS, ROOT, TABLES as PAGE_TABLES, beside_pytorch, printed

TABLES = {**PAGE_TABLES, **prediction_tables.TABLES, **memory_tables.TABLES}
MARK = re.compile(r"^<!-- (table|report|law) (\S[^\n]*) -->\n(.*?)^<!-- end -->$", re.S | re.M)


@functools.cache
def report(arguments):
    """Returns a table of precbench report."""
    return printed(["report", *shlex.split(arguments)])


@functools.cache
def law(arguments):
    """Returns a table of precbench law: its name, then further flags."""
    return printed(["law", "--table", *shlex.split(arguments)])


def pages():
    """Returns every Markdown file that git tracks or would track."""
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "*.md"], cwd=ROOT, check=True,
                            capture_output=True, text=True).stdout
    return [ROOT / name for name in sorted(set(listed.splitlines())) if (ROOT / name).exists()]


def filled(page, text, found, wrong):
    """Returns the page with its tables filled; adds the names of all tables to `found` and those that differed to `wrong`."""
    def fill(match):
        kind, name = match[1], match[2]
        if kind == "table" and name not in TABLES:
            sys.exit(f"{page.relative_to(ROOT)}: no table is called {name}; one of {', '.join(TABLES)}")
        found.add(name)
        table = {"report": report, "law": law}.get(kind, lambda name: TABLES[name]())(name)
        new = f"<!-- {kind} {name} -->\n{table}\n<!-- end -->"
        if new != match[0]:
            wrong.append(f"{page.relative_to(ROOT)}: {kind} {name}")
        return new
    parts = re.split(r"(^```.*?^```$)", text, flags=re.S | re.M)  # code blocks show marks without meaning them
    for i in range(0, len(parts), 2):
        if len(re.findall("<!-- (?:table|report|law) ", parts[i])) != len(MARK.findall(parts[i])):
            sys.exit(f"{page.relative_to(ROOT)}: a table has no <!-- end --> on a line of its own")
        parts[i] = MARK.sub(fill, parts[i])
    return "".join(parts)


def main():
    if sys.argv[1:2] == ["--beside-pytorch"]:
        return print(beside_pytorch(pathlib.Path(sys.argv[2]).resolve()))
    found, wrong = set(), []
    for page in pages():
        old = page.read_text()
        new = filled(page, old, found, wrong)
        if new != old and "--check" not in sys.argv[1:]:
            page.write_text(new)
    if unused := [name for name in TABLES if name not in found]:
        sys.exit(f"on no page: {', '.join(unused)}")
    if wrong and "--check" in sys.argv[1:]:
        sys.exit("\n".join(wrong) + "\ndiffer from the records; tools/ci/readme_tables.py writes them")


if __name__ == "__main__":
    main()

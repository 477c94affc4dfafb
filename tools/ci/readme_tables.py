#!/usr/bin/env python3
"""Fills the tables of measurements in the pages from the committed records, so that a page cannot contradict them. A page is any
Markdown file that git tracks. It marks the place of a table with two lines, of a number inside a line with two comments:

  <!-- table single -->                  <!-- figure host-clock -->0.6%<!-- end -->
  <!-- end -->

  tools/ci/readme_tables.py            # writes the tables into the pages
  tools/ci/readme_tables.py --check    # exit status 1 and a list of the tables that differ from the records
  tools/ci/readme_tables.py --beside-peer out/beside-peer     # prints the tables for what tools/peer/bench_gpu_peer.sh left there
"""
import pathlib, re, subprocess, sys

import bench_tables, front_tables, page_tables
from committed import ROOT

TABLES = {**page_tables.TABLES, **bench_tables.TABLES, **front_tables.TABLES}
FIGURES = front_tables.FIGURES
TABLE = re.compile(r"^<!-- table (\S+) -->\n(.*?)^<!-- end -->$", re.S | re.M)
MARK = re.compile(r"<!-- (?:table|figure) ")
FIGURE = re.compile(r"<!-- figure (\S+) -->(.*?)<!-- end -->", re.S)


def pages():
    """Returns every Markdown file that git tracks or would track."""
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "*.md"], cwd=ROOT, check=True,
                            capture_output=True, text=True).stdout
    return [ROOT / name for name in sorted(set(listed.splitlines())) if (ROOT / name).exists()]


def filled(page, text, found, wrong):
    """Returns the page with its tables filled; adds the names of all tables to `found` and those that differed to `wrong`."""
    def place(kind, makers, before, after):
        def fill(match):
            name = match[1]
            if name not in makers:
                sys.exit(f"{page.relative_to(ROOT)}: no {kind} is called {name}; one of {', '.join(makers)}")
            found.add(name)
            new = before.format(name) + makers[name]() + after
            if new != match[0]:
                wrong.append(f"{page.relative_to(ROOT)}: {kind} {name}")
            return new
        return fill
    fenced = re.split(r"(^```.*?^```$)", text, flags=re.S | re.M)  # code blocks show marks without meaning them
    for i in range(0, len(fenced), 2):
        if re.search(r"^\W*<!-- figure ", fenced[i], re.M):
            sys.exit(f"{page.relative_to(ROOT)}: a figure begins a line, and Markdown takes such a line for HTML")
        if len(MARK.findall(fenced[i])) != len(TABLE.findall(fenced[i])) + len(FIGURE.findall(fenced[i])):
            sys.exit(f"{page.relative_to(ROOT)}: a mark has no <!-- end -->, which for a table stands on a line of its own")
        fenced[i] = TABLE.sub(place("table", TABLES, "<!-- table {} -->\n", "\n<!-- end -->"), fenced[i])
        fenced[i] = FIGURE.sub(place("figure", FIGURES, "<!-- figure {} -->", "<!-- end -->"), fenced[i])
    return "".join(fenced)


def main():
    if sys.argv[1:2] == ["--beside-peer"]:
        folder = pathlib.Path(sys.argv[2]).resolve()
        return print("\n\n".join(filter(None, [page_tables.beside_peer(folder), page_tables.blocks_beside_peer(folder)])))
    found, wrong = set(), []
    for page in pages():
        old = page.read_text()
        new = filled(page, old, found, wrong)
        if new != old and "--check" not in sys.argv[1:]:
            page.write_text(new)
    if unused := [name for name in [*page_tables.TABLES, *bench_tables.TABLES] if name not in found]:
        sys.exit(f"on no page: {', '.join(unused)}")
    if wrong and "--check" in sys.argv[1:]:
        sys.exit("\n".join(wrong) + "\ndiffer from the records; tools/ci/readme_tables.py writes them")


if __name__ == "__main__":
    main()

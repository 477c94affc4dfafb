#!/usr/bin/env python3
"""The tables and figures of measurements in the pages, made from the committed records, so that neither can drift from the
other. A page is any Markdown file that git knows. It has a place for a table between two lines, or for a figure within a
line; the same one may stand on several pages, and each must stand on one at least:

  <!-- table single -->                  <!-- figure repeats -->1.1%<!-- end -->
  <!-- end -->

  tools/ci/readme_tables.py            # writes them into the pages
  tools/ci/readme_tables.py --check    # exit status 1, and where which, where a page says something else
  tools/ci/readme_tables.py --beside-peer out/beside-peer     # prints those tables of what tools/peer/bench_gpu_peer.sh left there
"""
import pathlib, re, subprocess, sys

import bench_tables, first_tables, speed_tables, study_tables
from committed import ROOT

TABLES = {**speed_tables.TABLES, **study_tables.TABLES, **first_tables.TABLES, **bench_tables.TABLES}
FIGURES = {**speed_tables.FIGURES, **study_tables.FIGURES, **first_tables.FIGURES}
TABLE = re.compile(r"^<!-- table (\S+) -->\n(.*?)^<!-- end -->$", re.S | re.M)
MARK = re.compile(r"<!-- (?:table|figure) ")
FIGURE = re.compile(r"<!-- figure (\S+) -->(.*?)<!-- end -->", re.S)


def pages():
    """Every Markdown file that git knows, or would."""
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard", "*.md"], cwd=ROOT, check=True,
                            capture_output=True, text=True).stdout
    return [ROOT / name for name in sorted(set(listed.splitlines())) if (ROOT / name).exists()]


def filled(page, text, found, wrong):
    """The page with its places filled; adds the names of all to `found`, and where one was wrong to `wrong`."""
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
    fenced = re.split(r"(^```.*?^```$)", text, flags=re.S | re.M)  # what shows how to write one is none
    for i in range(0, len(fenced), 2):
        if re.search(r"^\W*<!-- figure ", fenced[i], re.M):
            sys.exit(f"{page.relative_to(ROOT)}: a figure begins a line, and Markdown takes such a line for HTML")
        if len(MARK.findall(fenced[i])) != len(TABLE.findall(fenced[i])) + len(FIGURE.findall(fenced[i])):
            sys.exit(f"{page.relative_to(ROOT)}: a table or a figure has no <!-- end -->, of a table on a line of its own")
        fenced[i] = TABLE.sub(place("table", TABLES, "<!-- table {} -->\n", "\n<!-- end -->"), fenced[i])
        fenced[i] = FIGURE.sub(place("figure", FIGURES, "<!-- figure {} -->", "<!-- end -->"), fenced[i])
    return "".join(fenced)


def main():
    if sys.argv[1:2] == ["--beside-peer"]:
        folder = pathlib.Path(sys.argv[2]).resolve()
        return print("\n\n".join(filter(None, [speed_tables.beside_peer(folder), speed_tables.blocks_beside_peer(folder)])))
    found, wrong = set(), []
    for page in pages():
        old = page.read_text()
        new = filled(page, old, found, wrong)
        if new != old and "--check" not in sys.argv[1:]:
            page.write_text(new)
    if lost := [name for name in [*TABLES, *FIGURES] if name not in found]:
        sys.exit(f"on no page: {', '.join(lost)}")
    if wrong and "--check" in sys.argv[1:]:
        sys.exit("\n".join(wrong) + "\nnot what the records say; tools/ci/readme_tables.py writes them")


if __name__ == "__main__":
    main()

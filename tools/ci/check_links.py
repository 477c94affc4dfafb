#!/usr/bin/env python3
"""Checks the links of every page (Markdown file in git).

A relative link must lead to a file or folder, and its #part to a heading there. If the link's text is a name
in code, as in [`run_sweep`](bench/sweep/sweep.cpp), the file must contain that name, so that pages about the
code stay true.

Usage: tools/ci/check_links.py     prints each broken link; exit status 1 if there is one.
"""
import pathlib
import re
import sys
import urllib.parse

from readme_tables import ROOT, pages

LINK = re.compile(r"\[([^\]]*)\]\(([^)\s]+)\)")
SOURCES = {".h", ".cpp", ".cu", ".cuh", ".py", ".sh", ".toml", ".json"}


def anchors(page):
    """Returns the anchors of the page's headings as GitHub makes them: lower case, spaces to dashes,
    other signs removed."""
    prose = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.S | re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
            for heading in re.findall(r"^#+ +(.*)$", prose, re.M)}


def fault(page, text, link):
    """Returns why the link is broken; None if it is fine or leads out of the repository."""
    if re.match(r"[a-z]+:", link):
        return None
    path, _, part = urllib.parse.unquote(link).partition("#")
    target = (page.parent / path).resolve() if path else page
    if not target.is_relative_to(ROOT) or not target.exists():
        return "there is no such file"
    if part and (target.suffix != ".md" or part not in anchors(target)):
        return "there is no such heading"
    name = re.fullmatch(r"`(?:\w+::)*(\w+)(?:\(.*\))?`", text)
    if name and target.suffix in SOURCES and not re.search(rf"\b{name[1]}\b", target.read_text()):
        return f"the file has no {name[1]}"
    return None


def main():
    faults, count = [], 0
    for page in pages():
        prose = re.sub(r"^```.*?^```$", lambda m: "\n" * m[0].count("\n"), page.read_text(), flags=re.S | re.M)
        for number, line in enumerate(prose.splitlines(), 1):
            for text, link in LINK.findall(line):
                count += 1
                if why := fault(page, text, link):
                    faults.append(f"{page.relative_to(ROOT)}:{number}: [{text}]({link}): {why}")
    print("\n".join(faults) or f"{count} links of the pages lead somewhere")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())

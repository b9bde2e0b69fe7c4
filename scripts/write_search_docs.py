"""Writes what the program computes into docs/search.md, and docs/search.svg; ``--check`` compares.

A block of the page is what stands between ``<!-- begin NAME -->`` and ``<!-- end NAME -->``.
"""

import re
import sys
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT / "tests" / "support")]

from goldens import golden  # noqa: E402
from search_programs import PROGRAMS  # noqa: E402
from search_spellings import HeavySpellings  # noqa: E402
from small_models import prover  # noqa: E402

from mirage_onnx.inspection.svg import to_svg  # noqa: E402
from mirage_onnx.superopt.axioms import AXIOMS  # noqa: E402
from mirage_onnx.superopt.canonical import canonical_kernel  # noqa: E402
from mirage_onnx.superopt.result import default_bound  # noqa: E402
from mirage_onnx.superopt.search import search  # noqa: E402
from mirage_onnx.superopt.space import ALL  # noqa: E402
from mirage_onnx.superopt.units import Units  # noqa: E402
from mirage_onnx.target import H200  # noqa: E402

PAGE = ROOT / "docs" / "search.md"
FIGURE = ROOT / "docs" / "search.svg"
EXAMPLE, SPLIT = "attention", "attention_split_kv"
#: Rows of the table of units.
UNITS = 8
#: What the page calls the axes and tensors of its examples.
NAMES = {
    EXAMPLE: {
        "a0": "h", "a1": "l", "a2": "d", "a3": "m", "a4": "e",
        "i0": "K", "i1": "Q", "i2": "V", "o0": "O",
    },
    SPLIT: {
        "a0": "h", "a3": "l", "a2": "d", "a1": "m", "a4": "e",
        "i0": "Q", "i1": "K", "i2": "V", "o0": "O",
    },
}  # fmt: skip


def named(text, example):
    """``text`` with the names of the page."""
    return re.sub(r"\b[aio]\d\b", lambda m: NAMES[example][m[0]], text)


@cache
def example():
    """The program that is found for the example."""
    region = PROGRAMS[EXAMPLE]()
    result = search(region, H200, prover(), space=ALL, budget_s=600.0)
    return result.candidates[0].candidate


@cache
def units():
    return Units(PROGRAMS[EXAMPLE](), H200, default_bound(ALL), AXIOMS, ALL)


def axiom_table():
    yield "| axiom | | | where |"
    yield "| --- | --- | --- | --- |"
    for a in AXIOMS:
        where = "; ".join(filter(None, (a.condition, _space(a))))
        yield f"| {a.name} | `{a.lhs}` | `{a.rhs}` | {where} |"


def _space(a):
    """The narrowest part of the space that it belongs to."""
    for name in ("split", "shifted", "tiled"):
        if getattr(a.needs, name):
            return f"*{name}*"
    return ""


@cache
def spellings():
    return HeavySpellings(units().graph, units().outputs)


def spelling_lines():
    yield from (named(line, EXAMPLE) for line in spellings().lines())


def unit_table():
    """The units of the outputs with the lowest floors, each built."""
    found, group = units(), units().outputs
    outline, name = found.outline(group), spellings().name
    yield "| reads | floor of the kernel | floor of the rest | derivations | cheapest kernel |"
    yield "| --- | --- | --- | --- | --- |"
    rest_us = {reads: found.floors.rest_us(frozenset(reads)) for reads in outline.derivations}
    ranked = sorted(rest_us, key=lambda r: (outline.floor_us[r] + rest_us[r], r))
    for reads in ranked[:UNITS]:
        kernels = found.run(group, reads).kernels
        cells = [
            named(", ".join(map(name, reads)), EXAMPLE) or "inputs only",
            f"{outline.floor_us[reads]:.1f}",
            f"{rest_us[reads]:.1f}",
            str(len(outline.derivations[reads])),
            f"{kernels[0].cost_us:.1f}" if kernels else "none",
        ]
        yield f"| {' | '.join(cells)} |"
    yield f"\n{len(ranked)} units in all, {outline.counts.states} states."


def kernel_lines(graph, of):
    text = "".join(canonical_kernel(k, graph.tensors) for k in graph.kernels)
    yield from (named(line, of) for line in text.splitlines())


def best_lines():
    found = example()
    for params in found.params:
        yield f"# predicted {found.predicted_us:.2f} us on {H200.name}: {params.to_text()}"
    yield from kernel_lines(found.ugraph, EXAMPLE)


def figure():
    found = example()
    return named(to_svg(found.ugraph, found.params), EXAMPLE)


def _code(lines):
    return lambda: iter(["```text", *lines(), "```"])


BLOCKS = {
    "axioms": axiom_table,
    "spellings": _code(spelling_lines),
    "units": unit_table,
    "kernel": _code(best_lines),
    "split": _code(lambda: kernel_lines(golden(SPLIT).ugraph, SPLIT)),
}


def page(text):
    """The page with all blocks made anew.

    Raises:
        ValueError: a block is missing.
    """
    for name, lines in BLOCKS.items():
        begin, end = f"<!-- begin {name} -->\n", f"<!-- end {name} -->"
        start, stop = text.index(begin) + len(begin), text.index(end)
        text = f"{text[:start]}{chr(10).join(lines())}\n{text[stop:]}"
    return text


def main():
    """Write or check the page and the figure."""
    old = PAGE.read_text(encoding="utf-8")
    text, drawing = page(old), figure()
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(text, encoding="utf-8")
        FIGURE.write_text(drawing, encoding="utf-8")
        return 0
    if old == text and FIGURE.exists() and FIGURE.read_text(encoding="utf-8") == drawing:
        return 0
    print("docs/search.md is out of date: run python scripts/write_search_docs.py", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())

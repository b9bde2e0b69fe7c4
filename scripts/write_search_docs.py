"""Writes what the program computes into docs/search.md, and docs/search.svg; ``--check`` compares.

A block of the page is what stands between ``<!-- begin NAME -->`` and ``<!-- end NAME -->``.
"""

import re
import sys
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))

from goldens import golden  # noqa: E402
from search_programs import PROGRAMS  # noqa: E402
from small_models import prover  # noqa: E402

from mirage_onnx.inspection.svg import to_svg  # noqa: E402
from mirage_onnx.superopt.axioms import AXIOMS  # noqa: E402
from mirage_onnx.superopt.canonical import canonical_kernel  # noqa: E402
from mirage_onnx.superopt.search import search  # noqa: E402
from mirage_onnx.superopt.space import ALL  # noqa: E402
from mirage_onnx.target import H200  # noqa: E402

PAGE = ROOT / "docs" / "search.md"
FIGURE = ROOT / "docs" / "search.svg"
EXAMPLE, SPLIT = "attention", "attention_split_kv"
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
  """The program of one kernel that is found for the example."""
  region = PROGRAMS[EXAMPLE]()
  result = search(region, H200, prover(), space=ALL, budget_s=600.0)
  return next(c for v in result.candidates if len((c := v.candidate).ugraph.kernels) == 1)


def axiom_table():
  yield "| axiom | | | where |"
  yield "| --- | --- | --- | --- |"
  for a in AXIOMS:
    where = "; ".join(filter(None, (a.condition, _space(a)))).replace("[", r"\[")  # no link
    yield f"| {a.name} | `{a.lhs}` | `{a.rhs}` | {where} |"


def _space(a):
  """The narrowest part of the space that it belongs to."""
  for name in ("split", "general"):
    if getattr(a.needs, name):
      return f"*{name}*"
  return ""


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
  for path, text in ((PAGE, page(PAGE.read_text(encoding="utf-8"))), (FIGURE, figure())):
    if "--check" not in sys.argv[1:]:
      path.write_text(text, encoding="utf-8")
    elif not path.exists() or path.read_text(encoding="utf-8") != text:
      print(
        f"docs/{path.name} is out of date: run python scripts/write_search_docs.py",
        file=sys.stderr,
      )
      return 1
  return 0


if __name__ == "__main__":
  sys.exit(main())

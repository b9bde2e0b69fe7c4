"""Writes what the program makes, and what every file is for, into docs/tour.md; ``--check`` compares.

The page follows the region of ``models/rmsnorm_linear.onnx`` from its nodes to the launch of its kernel. A
block is what stands between ``<!-- begin NAME -->`` and ``<!-- end NAME -->``; the files of a block named
``files PATTERN ...`` are those that the patterns match, each with the first sentence of its own docstring
or comment, so that the page says what the files say.
"""

import ast
import re
import sys
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MODEL = ROOT / "models" / "rmsnorm_linear.onnx"
PAGE = ROOT / "docs" / "tour.md"
#: Of what the page has to name every file: the package and the library.
SOURCES = ("mirage_onnx/**/*.py", "mirage_onnx/**/*.cuh", "mirage_onnx/**/*.h", "mirage_onnx/**/*.cc",
           "cpp/ort_custom_ops/*.h", "cpp/ort_custom_ops/*.cc")  # fmt: skip
BLOCK = re.compile(r"<!-- begin ([^>]*?) -->\n(.*?)<!-- end -->", re.S)


@cache
def run():
  """The run of ``optimize`` for an H200 that the page tells of."""
  from mirage_onnx.importer import load_model
  from mirage_onnx.pipeline import Options
  from mirage_onnx.pipeline import run as optimize
  from mirage_onnx.target import H200

  return optimize(load_model(MODEL), Options(H200, workers=1))


def compiled():
  ((_, outcome),) = run().chosen
  return outcome


def node_lines():
  from onnx.printer import to_text

  for node in _loaded().graph.node:
    yield re.sub(r"^\[[^]]*\] ", "", to_text(node)).strip()


@cache
def _loaded():
  import onnx

  return onnx.load(MODEL)


def step_lines():
  for node in run().program.nodes:
    for step in node.steps:
      attr = "" if step.attr is None else f" [{getattr(step.attr, 'value', step.attr)}]"
      shape = ",".join(map(str, step.output.shape))
      made = f"{step.output.name}: {step.output.dtype.value}[{shape}]"
      yield f"{made} = {step.op}({', '.join(map(_argument, step.inputs))}){attr}"


def _argument(value):
  if isinstance(value, str):
    return value
  return str(value.base) + ("" if value.exponent == 1 else f"^{value.exponent}")


def region_lines():
  yield from compiled().region.text.splitlines()


def search_lines():
  result = compiled().result
  first = result.candidates[0]
  yield f"{len(result.candidates)} programs proven, the search ended with: {result.report.stop.value}"
  yield f"# predicted {first.candidate.predicted_us:.2f} us: {first.candidate.params[0].to_text()}"
  from mirage_onnx.ir.text import print_ugraph

  yield from print_ugraph(first.candidate.ugraph).splitlines()


def proof_lines():
  proof = compiled().result.candidates[0].proof
  yield f"{proof.draws} draws, a false accept has probability <= {float(proof.bound):.1e}"


def cuda_lines():
  (source,) = compiled().compiled.sources
  yield from source.text.partition("// extents")[2].join(("// extents", "")).splitlines()


def plan_lines():
  from mirage_onnx.custom_op.model_nodes import ModelFile

  (plan,) = ModelFile(run().model, None).bundle().plans
  yield from plan.splitlines()


def _first_sentence(path):
  text = path.read_text(encoding="utf-8")
  if path.suffix == ".py":
    said = ast.get_docstring(ast.parse(text)) or "(marks a package)"
  else:
    lines = text.splitlines()
    said = "\n".join(
      line[2:].strip() for line in lines[: next(i for i, x in enumerate(lines) if x[:2] != "//")]
    )
    said = said or f"The definitions of {path.stem}.h."
  return " ".join(said.split("\n\n")[0].split()).replace("|", r"\|").replace("<", r"\<")


def file_lines(patterns):
  yield "| file | |"
  yield "| --- | --- |"
  for path in sorted(p for pattern in patterns for p in ROOT.glob(pattern)):
    yield f"| `{path.relative_to(ROOT)}` | {_first_sentence(path)} |"


def sources():
  """Every file that the page has to name."""
  return sorted(str(p.relative_to(ROOT)) for pattern in SOURCES for p in ROOT.glob(pattern))


def named_files(text):
  return re.findall(r"^\| `([^`]+)` \|", text, re.M)


TEXTS = {
  "nodes": node_lines,
  "steps": step_lines,
  "region": region_lines,
  "search": search_lines,
  "proof": proof_lines,
  "cuda": cuda_lines,
  "plan": plan_lines,
}


def page(text):
  """The page with all blocks made anew.

  Raises:
      KeyError: a block that nothing makes.
  """

  def made(match):
    kind, *patterns = match[1].split()
    lines = file_lines(patterns) if kind == "files" else ["```text", *TEXTS[kind](), "```"]
    return f"<!-- begin {match[1]} -->\n{chr(10).join(lines)}\n<!-- end -->"

  return BLOCK.sub(made, text)


def main():
  """Write or check the page."""
  old = PAGE.read_text(encoding="utf-8")
  new = page(old)
  if "--check" not in sys.argv[1:]:
    PAGE.write_text(new, encoding="utf-8")
  elif old != new:
    print("docs/tour.md is out of date: run python scripts/write_tour.py", file=sys.stderr)
    return 1
  return 0


if __name__ == "__main__":
  sys.exit(main())

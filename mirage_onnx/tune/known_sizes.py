"""What a prediction may stand on: sizes at which both sides were measured on the target.

``tables/<target>_known.json`` says how many rows the product with a weight may have (kernels of more
were never measured, or not ahead of ONNX Runtime), and of which element types. Everything else is known
as far as the table of ONNX Runtime's own kernels reaches (``baseline.py``). A region with a node beyond
is left as it is: extrapolated, products of 4096 rows seemed to take 28 us for 69, and BERT became slower.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources

from mirage_onnx.errors import Rejection
from mirage_onnx.ir.program import Node, Program
from mirage_onnx.target import Target
from mirage_onnx.tune.baseline import Table, largest_elements, weight_product


@dataclass(frozen=True, slots=True)
class Known:
  """``rows`` of products with a weight, and the element types of their operands."""

  rows: int
  types: frozenset[str]
  source: str


@cache
def load_known(target: Target) -> Known | None:
  """What is known of ``target``, or None where nobody has measured it."""
  path = resources.files("mirage_onnx.tune").joinpath("tables", f"{target.name}_known.json")
  if not path.is_file():
    return None
  data = json.loads(path.read_text())
  return Known(int(data["rows"]), frozenset(data["types"]), data["source"])


def unpredicted(
  programs: Iterable[tuple[str, Program]], target: Target, table: Table | None
) -> dict[str, str]:
  """Node -> why no prediction of it counts, at any of ``programs``: the same one, by its sizes as text."""
  known = load_known(target)
  found: dict[str, str] = {}
  for sizes, program in programs:
    for node in program.nodes:
      if node.barrier is None and node.name not in found:
        why = _beyond(node, program, known, table)
        if why:
          found[node.name] = f"at {sizes}: {why}" if sizes else why
  return found


def refuse_unknown(why: Mapping[str, str], nodes: tuple[str, ...], target: Target) -> Rejection | None:
  """Why a region cannot be replaced on a prediction, if one of its nodes is in ``why``."""
  first = next((n for n in nodes if n in why), None)
  if first is None:
    return None
  reason = f"{first}: {why[first]} on {target.name}; --target local measures it"
  return Rejection("NOT_PREDICTED", reason, nodes)


def _beyond(node: Node, program: Program, known: Known | None, table: Table | None) -> str | None:
  product = weight_product(node, program)
  if product is None:
    if table is None or any(s.op == "matmul" for s in node.steps):
      return None
    elements, most = largest_elements(node, program), table.most_elements
    if elements > most:
      return f"it has {elements} elements, and nothing of more than {most} was measured"
    return None
  if known is None:
    return "no kernel was measured"
  if product[0] > known.rows:
    return f"its product has {product[0]} rows, and kernels of more than {known.rows} were not measured ahead"
  types = {str(t.dtype) for i in node.inputs if i and (t := program.tensors.get(i)) and t.dtype}
  if other := sorted(types - known.types):
    return f"products of {', '.join(other)} were not measured"
  return None

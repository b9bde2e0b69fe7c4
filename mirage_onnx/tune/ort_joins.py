"""Nodes that ONNX Runtime's optimizer computes in the kernel of another one: guests, and their hosts.

Which pairs (``targets/tables/ort_fusions.json``) was read off its optimized graphs, and as which operator the
pair is computed: what a guest takes is what that takes more than its host alone. A bias costs a product
more than an addition of its own (a kernel writes it over the whole result first), a scale or a transpose
before a product nothing at all.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from math import prod

from mirage_onnx.ir.program import Node, Program
from mirage_onnx.targets import table_path

#: Operators that move no data in ORT (or are folded away), whatever their size.
FREE = frozenset({"Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten", "Dropout"})
#: What ONNX Runtime does not fold, whatever it reads: chance, subgraphs, and weights of few bits.
_NOT_FOLDED = frozenset(
  "If Loop Scan Bernoulli Multinomial RandomNormalLike RandomUniformLike DequantizeLinear".split()
)
#: What it folds of 16-bit floats, which its CPU provider only moves: others run in every run.
_MOVES = FREE | {"Cast", "Concat", "Expand", "Gather", "Slice", "Split", "Transpose"}


def folded(program: Program) -> frozenset[str]:
  """The nodes that are made of constants only: ONNX Runtime computes them when a session is made."""
  known, found = set(program.weights), set[str]()

  def is_half(name: str) -> bool:
    dtype = program.tensors[name].dtype if name in program.tensors else None
    return dtype is not None and dtype.is_half

  for node in program.nodes:
    shape = node.op_type == "Shape" and program.numbers(node.inputs[0]) is not None
    made = node.op_type not in _NOT_FOLDED and node.inputs and known.issuperset(node.inputs)
    runs = node.op_type not in _MOVES and any(map(is_half, (*node.inputs, *node.outputs)))
    if shape or (made and not runs):
      known.update(node.outputs)
      found.add(node.name)
  return frozenset(found)


@dataclass(frozen=True, slots=True)
class Guest:
  """A node is computed in the kernel of ``host``; ``joint``: the operator of both, if it is another one."""

  host: str
  joint: str = ""


@cache
def _pairs() -> dict[tuple[str, str], tuple[str, str]]:
  """(producer, consumer) -> which of them is the guest, and the operator of both."""
  pairs = json.loads(table_path("ort_fusions").read_text())["pairs"]
  return {(a, b): (which, joint) for a, b, which, joint in pairs}


def joined(program: Program) -> dict[str, Guest]:
  """Guests by name."""
  producer = {o: n for n in program.nodes for o in n.outputs if o}
  readers = program.consumers()
  found: dict[str, Guest] = {}

  def is_alone(name: str) -> bool:
    return len(readers.get(name, ())) == 1 and name not in program.outputs

  def before(name: str) -> Node | None:
    """What makes a value, through nodes that move nothing."""
    node = producer.get(name)
    while node is not None and node.op_type in FREE and is_alone(name):
      name = node.inputs[0]
      node = producer.get(name)
    return node if node is not None and is_alone(name) else None

  for node in program.nodes:
    todo = [*node.inputs]
    while todo:
      source = before(todo.pop(0))
      if source is None or source.name in found:
        continue
      for pair in ((a, b) for a in _kinds(source, program) for b in _kinds(node, program)):
        which, joint = _pairs().get(pair, ("", ""))
        if pair[0] == "Sigmoid" and source.inputs[0] not in node.inputs:
          continue
        if which == "producer":
          found[source.name] = Guest(node.name, joint)
          todo += [] if joint else source.inputs  # a transpose before a scale, and the other way round
          break
        if which == "consumer" and node.name not in found and not _is_host(source, found):
          found[node.name] = Guest(source.name, joint)
          break
  return found


def _is_host(node: Node, found: Mapping[str, Guest]) -> bool:
  """Whether a node has a guest already of which both are another operator."""
  return any(g.host == node.name and g.joint for g in found.values())


def _kinds(node: Node, program: Program) -> tuple[str, ...]:
  """The names of a node in the table: its operator, and what it is a case of."""
  shapes = [program.numbers(i) or () for i in node.inputs if i]
  kinds = [node.op_type]
  if node.op_type in ("Add", "Mul", "Div") and len(shapes) == 2:
    out = program.numbers(node.outputs[0])
    weights = [s for i, s in zip(node.inputs, shapes, strict=True) if i in program.weights]
    if any(sum(d != 1 for d in s) <= 1 for s in weights):
      number = any(i in program.constants for i in node.inputs)
      kinds = ["bias" if node.op_type == "Add" else "scale" if number else node.op_type]
    elif node.op_type == "Add" and shapes[0] == shapes[1]:
      kinds.append("residual")
    elif node.op_type == "Add" and out is not None:
      small = min(shapes, key=prod)
      whole = (1,) * (len(out) - len(small)) + small
      first = next((i for i, d in enumerate(whole) if d != 1), len(out))
      if whole[first:] == out[first:]:
        kinds.append("mask of the first dimensions")
  if node.op_type == "Transpose":
    attr = next((s.attr for s in node.steps if s.op == "transpose"), None)
    if isinstance(attr, tuple) and attr == (*range(len(attr) - 2), len(attr) - 1, len(attr) - 2):
      kinds.append("turned")
  return tuple(kinds)

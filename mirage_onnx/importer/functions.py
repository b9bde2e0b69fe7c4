"""What a model asks of onnx's inference, which walks into every call and makes what nodes count.

Functions that each call the one before twice are 2**n nodes in n lines, so they are counted before
anything looks at them.
"""

import re
from collections import Counter

from onnx import AttributeProto, ModelProto

from mirage_onnx.errors import MirageError
from mirage_onnx.importer.external import MAX_RANK
from mirage_onnx.importer.graph import nodes_of

#: Nodes of all calls together. A layer of a large model in functions has some thousands, and
#: inference takes a second for ten thousands.
MOST_NODES = 1 << 17
_TERM = rb"[A-Za-z ]*(?:\.\.\.[A-Za-z ]*)?"
_EQUATION = re.compile(_TERM + rb"(?:," + _TERM + rb")*(?:->" + _TERM + rb")?")
#: A function, as calls name it.
Name = tuple[str, str]


def check_attributes(model: ModelProto) -> None:
  """What inference takes as it stands: counts of outputs, axes, and equations of Einsum.

  onnx makes as many outputs as an attribute says and writes as many as there are, it counts up to an
  axis of 64 bits in 32, and it never ends at a character that no equation has.

  Raises:
      MirageError: MODEL_INVALID.
  """
  for node in nodes_of(model.graph, *model.functions):
    if node.domain not in ("", "ai.onnx"):
      continue
    for a in node.attribute:
      if (
        node.op_type == "Split"
        and a.name == "num_outputs"
        and not a.ref_attr_name
        and a.i != len(node.output)
      ):
        what = f"counts {a.i} outputs and has {len(node.output)}"
        raise MirageError("MODEL_INVALID", f"node {node.name or node.op_type!r} {what}")
      if a.name == "axis" and a.type == AttributeProto.INT and abs(a.i) > MAX_RANK:
        what = f"the axis {a.i} is of no tensor"
        raise MirageError("MODEL_INVALID", f"node {node.name or node.op_type!r}: {what}")
      if node.op_type == "Einsum" and a.name == "equation" and _EQUATION.fullmatch(a.s) is None:
        what = f"the equation {a.s[:80].decode(errors='replace')!r} is none"
        raise MirageError("MODEL_INVALID", f"node {node.name or node.op_type!r}: {what}")


def check_functions(model: ModelProto) -> None:
  """All calls of functions together stand for at most ``MOST_NODES`` nodes.

  Functions that call themselves are left to onnx, which names them.

  Raises:
      MirageError: MODEL_LIMIT.
  """
  if not model.functions:
    return
  bodies: dict[Name, Counter[Name]] = {}
  own: dict[Name, int] = {}
  known = {(f.domain, f.name) for f in model.functions}
  for f in model.functions:  # of overloads together, which is no less
    calls = bodies.setdefault((f.domain, f.name), Counter())
    nodes = list(nodes_of(f))
    calls.update(name for n in nodes if (name := (n.domain, n.op_type)) in known)
    own[f.domain, f.name] = own.get((f.domain, f.name), 0) + len(nodes)
  size = _sizes(bodies, own)
  called = Counter((n.domain, n.op_type) for n in nodes_of(model.graph))
  total = sum(count * size[name] for name, count in called.items() if name in known)
  total = max(total, *size.values())  # onnx looks at functions that nobody calls, too
  if total > MOST_NODES:
    shown = total if total < 10**12 else "more than 10^12"
    raise MirageError(
      "MODEL_LIMIT", f"the calls of its functions stand for {shown} nodes, at most {MOST_NODES} are followed"
    )


def _sizes(bodies: dict[Name, Counter[Name]], own: dict[Name, int]) -> dict[Name, int]:
  """The nodes that a call of each function stands for; those of a call inside of itself count once."""
  size: dict[Name, int] = {}
  for start in bodies:
    path, open_ = [(start, iter(bodies[start]))], {start}
    while path:
      name, calls = path[-1]
      inner = next((c for c in calls if c not in size and c not in open_), None)
      if inner is not None:
        path.append((inner, iter(bodies[inner])))
        open_.add(inner)
        continue
      size[name] = own[name] + sum(k * size.get(c, 1) for c, k in bodies[name].items())
      open_.discard(name)
      path.pop()
  return size

"""How far an input matters: what is made of it where another input says that it ends.

Where all that is made of a cache is chosen by "its place is below the length", nothing behind the length
matters, whatever is there. A program that is equal to the region for all inputs is so for a cache of
zeros behind it, so any kernel may take zeros there and read nothing (``KTensor.limit``).
"""

from dataclasses import replace
from enum import Enum

from mirage_onnx.ir import DType, Region, UGraph
from mirage_onnx.ir import term as t
from mirage_onnx.ir.program import is_places
from mirage_onnx.ir.term import INPUT, MUL, REDUCTIONS, Term
from mirage_onnx.ir.ugraph import KTensor

#: (axis, tensor, more): behind so many elements more than the tensor says nothing matters.
Limit = tuple[str, str, int]
_MORE = {"less": 0, "less_equal": 1}


class _Use(Enum):
  """What a value has of the elements that may not matter: none, its own place only, or more."""

  NONE, OWN, MORE = range(3)


def limits(region: Region) -> dict[str, Limit]:
  """Input -> its limit, of those that have one."""
  found = {}
  conditions = {c for u in t.walk(region.terms) if u.op == "select" for c in _limiting(region, u.args[0])}
  for x in region.inputs:
    for condition in sorted(conditions):
      place, length = condition.args
      (axis,) = place.axes
      if axis in x.axes and str(length.attr) != x.name and _ends(region, x.name, axis, condition):
        found[x.name] = (axis, str(length.attr), _MORE[condition.op])
        break
  return found


def places_of(region: Region) -> dict[str, int]:
  """Input of integers -> how many places there are that it is compared with: it is one of them."""
  inputs, found = {x.name: x for x in region.inputs}, dict[str, int]()
  for u in t.walk(region.terms):
    if u.op in (*_MORE, "equal") and all(a.op == INPUT for a in u.args):
      for place, other in (u.args, u.args[::-1]):
        if is_places(inputs[str(place.attr)].tensor.name):
          found[str(other.attr)] = region.extents[place.axes[0]] if place.axes else 1
  return found


def with_limits(region: Region, graph: UGraph) -> UGraph:
  """``graph``, whose inputs have the limits of the region where it has what says them; which are places."""
  names = {x.name for x in graph.tensors}
  known = {n: own for n, own in limits(region).items() if own[1] in names}
  places = {x.name for x in region.inputs if is_places(x.tensor.name) and x.view is None}
  return replace(
    graph,
    tensors=tuple(
      replace(x, limit=known.get(x.name), places=x.name in places and _is_line(x)) for x in graph.tensors
    ),
  )


def _is_line(x: KTensor) -> bool:
  """Whether a constant has one axis, and its elements lie one behind the other."""
  return x.role == "weight" and len(x.axes) == 1 and not x.windows and x.dtype is DType.I32


def _limiting(region: Region, c: Term) -> list[Term]:
  """The comparisons of which all hold where ``c`` does and each says that a place is before an end."""
  parts = c.args if c.op == MUL else (c,)
  inputs = {x.name: x for x in region.inputs}
  return [
    p for p in parts
    if p.op in _MORE and all(a.op == INPUT for a in p.args)
    and len(p.args[0].axes) == 1 and is_places(inputs[str(p.args[0].attr)].tensor.name)
    and inputs[str(p.args[0].attr)].view is None
    and not inputs[str(p.args[1].attr)].dtype.is_float and not set(p.args[0].axes) & set(p.args[1].axes)
  ]  # fmt: skip


def _ends(region: Region, name: str, axis: str, condition: Term) -> bool:
  """Whether no output has anything of the elements of ``name`` for which the condition is false."""
  uses: dict[Term, _Use] = {}
  for u in t.walk(region.terms):
    own = [uses[a] for a in u.args]
    if u.op == INPUT:
      uses[u] = _Use.OWN if u.attr == name else _Use.NONE
    elif _Use.MORE in own:
      uses[u] = _Use.MORE
    elif u.op == "select" and condition in _limiting(region, u.args[0]) and own[0] is own[2] is _Use.NONE:
      uses[u] = _Use.NONE
    elif u.op in REDUCTIONS and _Use.OWN in own and axis in u.attr:  # type: ignore[operator]
      uses[u] = _Use.MORE
    else:
      uses[u] = _Use.OWN if _Use.OWN in own else _Use.NONE
  return all(uses[u] is _Use.NONE for u in region.terms)

"""Results that have other shapes in ONNX Runtime than onnx infers: nothing is told of them.

Kernels for such a shape would refuse what a run brings. Each row is a form that both take, and that onnx
1.23's inference reads otherwise.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest

from onnx import GraphProto, NodeProto, helper

from mirage_onnx.importer.graph import domain_of
from mirage_onnx.importer.stand_ins import MICROSOFT
from mirage_onnx.ir import Dim, Tensor

Shape = tuple[Dim, ...]


def shaped_otherwise(graph: GraphProto, tensors: Mapping[str, Tensor]) -> frozenset[str]:
  """Results of such nodes, as far as the shapes of their inputs are known."""
  found = set[str]()
  for node in graph.node:
    rule = RULES.get((domain_of(node), node.op_type))
    if rule is not None and rule(node, [_shape(tensors, i) for i in node.input]):
      found |= {o for o in node.output if o}
  return frozenset(found)


def _shape(tensors: Mapping[str, Tensor], name: str) -> Shape | None:
  return tensors[name].shape if name in tensors else None


def _joins_nothing(node: NodeProto, shapes: Sequence[Shape | None]) -> bool:
  """Concat: a part of no elements, and of other dimensions, is left out."""
  known = [s for s in shapes if s]
  axis = next((a.i for a in node.attribute if a.name == "axis"), 0)
  others = {tuple(d for k, d in enumerate(s) if k != axis % len(s)) for s in known}
  return any(0 in s for s in known) and len(others) > 1


def _spreads_its_input(node: NodeProto, shapes: Sequence[Shape | None]) -> bool:
  """PRelu: the input is spread to a larger slope, too, which ONNX does not allow."""
  x, slope = (*shapes, None, None)[:2]
  if x is None or slope is None:
    return False
  return any(s not in (1, d) for d, s in zip_longest(x[::-1], slope[::-1], fillvalue=1)) or len(slope) > len(
    x
  )


def _spreads_a_label(node: NodeProto, shapes: Sequence[Shape | None]) -> bool:
  """Einsum: a label that is 1 somewhere has the size that it has elsewhere; onnx takes the first."""
  equation = next((a.s.decode(errors="replace") for a in node.attribute if a.name == "equation"), "")
  sizes: dict[str, Dim] = {}
  for term, shape in zip(equation.replace(" ", "").partition("->")[0].split(","), shapes, strict=False):
    front, _, back = term.partition("...")
    dims = [*zip(front, shape or (), strict=False), *zip(back[::-1], (shape or ())[::-1], strict=False)]
    if any(sizes.setdefault(label, d) != d for label, d in dims):
      return True
  return False


def _takes_a_default_otherwise(node: NodeProto, _: Sequence[Shape | None]) -> bool:
  """STFT: one side of the spectrum where nothing is said; onnx infers both."""
  return all(a.name != "onesided" for a in node.attribute)


def _pads_what_is_spread(node: NodeProto, _: Sequence[Shape | None]) -> bool:
  """Pooling with dilations and SAME_UPPER or SAME_LOWER: ONNX Runtime pads for the kernel without them."""
  given = {a.name: helper.get_attribute_value(a) for a in node.attribute}
  dilations = given.get("dilations") or [1]
  return given.get("auto_pad", b"NOTSET") in (b"SAME_UPPER", b"SAME_LOWER") and any(d != 1 for d in dilations)


def _has_other_values(node: NodeProto, shapes: Sequence[Shape | None]) -> bool:
  """MultiHeadAttention: the result is as wide as the values, which may be others than the queries are.

  The stand-in says: as queries are.
  """
  q, _, v = (*shapes, None, None, None)[:3]
  if len(node.input) < 3 or not node.input[2] or q is None or v is None or len(q) != 3:
    return False
  if len(v) == 3:
    return v[2] != q[2]
  whole = all(isinstance(d, int) for d in (*v[1::2], q[2]))
  return len(v) == 4 and whole and int(v[1]) * int(v[3]) != q[2]


#: (domain, operator) -> whether the shapes of a node's results are others.
RULES: dict[tuple[str, str], Callable[[NodeProto, Sequence[Shape | None]], bool]] = {
  ("", "Concat"): _joins_nothing,
  ("", "PRelu"): _spreads_its_input,
  ("", "Einsum"): _spreads_a_label,
  ("", "STFT"): _takes_a_default_otherwise,
  ("", "MaxPool"): _pads_what_is_spread,
  ("", "AveragePool"): _pads_what_is_spread,
  ("", "LpPool"): _pads_what_is_spread,
  (MICROSOFT, "MultiHeadAttention"): _has_other_values,
}

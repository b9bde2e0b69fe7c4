"""Comparisons that are meant to find equal numbers: both of their operands are one tensor's elements.

``heat == MaxPool(heat)``, ``x < kth of TopK(x)``, ``x == ReduceMax(x)``: true or false at ties, which are
equal to the last bit only while both sides read one and the same result. A kernel that computes it again
for one side rounds it in another way, and no test of that region alone shows it.
"""

from mirage_onnx.errors import RejectionError
from mirage_onnx.ir.program import Node, Program
from mirage_onnx.match.graph import LAYOUT

_COMPARING = frozenset({"Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"})
#: Steps that round nothing, but as both sides do.
_EXACT = frozenset({*LAYOUT, "cast", "max", "min", "rmax", "relu", "abs", "neg", "select"}) - {"stored"}
#: Operators left to ONNX Runtime whose results are elements of what they read.
_CHOOSING = frozenset(
  """Abs Cast Clip Compress Concat CumMax DepthToSpace Expand Flatten Gather GatherElements GatherND
  GlobalMaxPool Identity Max MaxPool Min Neg Pad ReduceMax ReduceMin Relu Reshape ScatterElements ScatterND
  Slice SpaceToDepth Split Squeeze Tile TopK Transpose Unique Unsqueeze Where""".split()
)


class Ties:
  """Of a program, what such comparisons compare, and the nodes between."""

  def __init__(self, program: Program) -> None:
    self._program = program
    self._producer = {o: n for n in program.nodes for o in n.outputs if o}
    self._consumers = program.consumers()
    self._node = {n.name: n for n in program.nodes}
    #: By the name of a node that rounds: the nodes behind it, up to the comparison.
    self._between: dict[str, set[str]] = {}
    for node in program.nodes:
      operands = node.inputs[:2]
      if node.op_type in _COMPARING and len(set(operands)) > 1:
        (left, through), (right, also) = map(self._sources, operands)
        for source in left & right:
          self._between.setdefault(source, set()).update(through, also, (node.name,))

  def _sources(self, tensor: str) -> tuple[set[str], set[str]]:
    """The nodes that computed the elements of a tensor, by name, and those that chose and moved them."""
    sources, through, todo = set[str](), set[str](), [tensor]
    while todo:
      node = self._producer.get(name := todo.pop())
      if node is None or node.name in through:
        continue
      if _is_exact(node):
        through.add(node.name)
        todo += node.inputs
      elif (made := self._program.tensors.get(name)) and made.dtype and made.dtype.is_float:
        sources.add(node.name)
    return sources, through

  def check(self, covered: frozenset[str], yielded: frozenset[str]) -> None:
    """Nothing, where no node outside compares what the region computes with what it computes for itself.

    Raises:
        RejectionError: TIED.
    """
    for name in covered & self._between.keys():
      between = self._between[name]
      for n in {name, *between} & covered:
        for o in self._node[n].outputs:
          others = between.intersection(self._consumers.get(o, ())) - covered
          if o not in yielded and others:
            reason = f"{min(others)} compares what {name} yields, which would be computed twice"
            raise RejectionError("TIED", reason, (name,))


def _is_exact(node: Node) -> bool:
  if node.barrier is not None or not node.steps:
    return node.op_type in _CHOOSING
  return all(s.op in _EXACT for s in node.steps)

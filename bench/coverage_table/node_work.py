"""FLOPs and bytes of a node, from the shapes of a Program.

FLOPs of what has a lowering are those of ``cost.region_work``; of other operators those of a
contraction (2 per multiplication and addition), none of what only moves data, and 1 per element of
the result of anything else (an attention operator is counted too low by that). Bytes: every
operand is read once and every result written once, as if no two nodes were fused; what moves no
data in ONNX Runtime has none, an operator that picks elements reads only as many as it yields, and
one that scatters into a value of its own writes only what it scatters.
"""

from dataclasses import dataclass
from math import prod

from mirage_onnx.cost.region_work import count_flops, elements, tensor_bytes
from mirage_onnx.tune.baseline import FREE

#: Operators without a lowering that compute nothing.
_MOVERS = frozenset(
  "Cast CastLike Concat ConstantOfShape DepthToSpace Expand Gather GatherElements GatherND Pad "
  "Range Reshape ScatterElements ScatterND Shape Size Slice SpaceToDepth Split Squeeze Tile "
  "Transpose Unsqueeze".split()
) | FREE  # fmt: skip
#: They read as many elements of their first operand as they yield.
_PICKERS = frozenset("Gather GatherElements GatherND Slice".split())
#: Inputs: data, indices, updates.
_SCATTERERS = frozenset({"ScatterElements", "ScatterND"})
#: They know the shape of their operand without reading it.
_SHAPES = frozenset({"Shape", "Size"})


@dataclass(frozen=True, slots=True)
class Work:
  """Floating-point (or integer) operations and bytes of memory traffic."""

  flops: int = 0
  bytes: int = 0

  def __add__(self, other):
    return Work(self.flops + other.flops, self.bytes + other.bytes)


def node_work(node, program):
  """Work of one node, or None where a shape or an element type is not known."""
  read = _operands(node)
  names = dict.fromkeys(n for n in (*read, *node.outputs) if n)
  tensors = {n: program.tensors.get(n) for n in names}
  known = {n: t for n, t in tensors.items() if t is not None and _is_sized(t)}
  if len(known) < len(tensors):
    return None
  return Work(_flops(node, program, known), _bytes(node, program, read, known))


def rows(node, program):
  """M of a matrix product or convolution that reads a weight: all dims of Y but the channels."""
  if node.op_type not in _CHANNELS or not any(i in program.weights for i in node.inputs[:2]):
    return None
  y = program.tensors.get(node.outputs[0])
  if y is None or not _is_sized(y) or not y.shape:
    return None
  return elements(y) // int(y.shape[_CHANNELS[node.op_type]])


def _is_sized(t):
  return t.is_static and t.dtype is not None


def _operands(node):
  """What the node reads."""
  if node.barrier is not None:
    return tuple(dict.fromkeys(i for i in node.inputs if i))
  return node.operands


def _bytes(node, program, read, known):
  if node.op_type in FREE:
    return 0
  made = sum(tensor_bytes(known[o]) for o in node.outputs)
  if node.op_type in _SHAPES:
    return made
  if node.op_type in _SCATTERERS and _is_last_use(node, program, node.inputs[0]):
    indices, updates = (tensor_bytes(program.tensors[i]) for i in node.inputs[1:3])
    return indices + 2 * updates
  inputs = [tensor_bytes(known[i]) for i in read]
  if node.op_type in _PICKERS or node.op_type == "Split":
    inputs[0] = made
  return made + sum(inputs)


def _is_last_use(node, program, name):
  """Whether ONNX Runtime may write the result over this operand: nobody else has or reads it."""
  computed = any(name in n.outputs for n in program.nodes)
  readers = [n.name for n in program.nodes if name in n.inputs]
  return computed and readers == [node.name] and name not in program.outputs


def _flops(node, program, known):
  if node.barrier is None:
    return count_flops(node.steps, program.tensors).total
  y = known[node.outputs[0]]
  contraction = _CONTRACTIONS.get(node.op_type)
  if contraction is not None:
    return contraction(known[node.inputs[0]], known[node.inputs[1]], y)
  return 0 if node.op_type in _MOVERS else elements(y)


def _matmul_flops(a, b, y):
  return 2 * elements(y) * int((a.shape or (1,))[-1])


def _gemm_flops(a, b, y):
  """2 M K N, whether A is stored as M K or as K M."""
  return 2 * elements(a) * int((y.shape or (1,))[-1])


def _conv_flops(x, w, y):
  """W is (output channels, input channels / groups, *kernel)."""
  return 2 * elements(y) * prod(int(d) for d in (w.shape or ())[1:])


def _conv_transpose_flops(x, w, y):
  """W is (input channels, output channels / groups, *kernel)."""
  return 2 * elements(x) * prod(int(d) for d in (w.shape or ())[1:])


#: Contractions that have no lowering (in that form).
_CONTRACTIONS = {
  "MatMul": _matmul_flops,
  "MatMulInteger": _matmul_flops,
  "FusedMatMul": _matmul_flops,
  "Gemm": _gemm_flops,
  "Conv": _conv_flops,
  "ConvInteger": _conv_flops,
  "ConvTranspose": _conv_transpose_flops,
}
#: Library contractions -> which dimension of the result holds the channels.
_CHANNELS = {"MatMul": -1, "Gemm": -1, "FusedMatMul": -1, "Conv": 1}

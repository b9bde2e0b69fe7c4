"""Readers that stand in, inside a function body, for those that a value has elsewhere.

What ONNX Runtime makes of a node depends on who reads its result, and so do the result's bits:

- On the CPU it computes most operators in fp32 only, with casts around them. An operator that it
  has in fp16, such as a Slice, is cast along where all it reads and all who read it are; then its
  result is never rounded to fp16 (``IsIsolatedFp16NodeOnCpu`` in its insert_cast_transformer.cc).
- A MatMul and the Add behind it become one Gemm where that Add is the only reader, between two
  Reshapes, which it has in fp16.

- Of a Split it asks who reads the first part only. Where these have gone into bodies and the Split stays
  for those of another part, it is rounded, be it or not in the original: nothing stands in for readers of
  the main graph (one seed of 60 of ``tests/rewrite/test_random_regions.py``).

A copy of the node in a body has only the readers in that body. It gets one more, a Flatten (in
fp16) or a Size (in fp32 only), which nobody reads: neither takes any time.
"""

from collections.abc import Iterator, Sequence, Set

import onnx

from mirage_onnx.importer.graph import reads

_DEFAULT = ("", "ai.onnx")
#: Operators of which onnxruntime 1.31 has fp16 kernels on the CPU, as far as they stay what they
#: are until types are looked at: an Identity is gone by then, and so is a known Shape.
HALF = frozenset(
  "Attention BitCast Cast Clip Compress Concat Expand Flatten Gather GatherElements GatherND "
  "If IsInf IsNaN LayerNormalization Loop Max Min Mod QuantizeLinear RMSNormalization "
  "ReverseSequence Reshape RotaryEmbedding Round Scan Scatter ScatterElements ScatterND Shrink "
  "Sign SimplifiedLayerNormalization Slice Split Squeeze TensorScatter Transpose "
  "Unsqueeze".split()
)
#: The same of the domain com.microsoft.
MICROSOFT_HALF = frozenset(
  "BranchwiseRMSNorm EngramGate GatedAdd GatedRMSNorm GroupQueryAttention HyperConnectionPostMix "
  "HyperConnectionPreMix Inverse LinearAttentionGate MRotaryEmbedding MatMulNBits QMoE "
  "RotaryEmbedding ScaledSiLU SkipLayerNormalization SkipSimplifiedLayerNormalization "
  "SparseAttention UnfoldTensor".split()
)


class Readers:
  """Who reads what in a model's main graph; ``half``: its fp16 values."""

  def __init__(self, model: onnx.ModelProto, half: Set[str]) -> None:
    self.half = half
    self.outputs = {value.name for value in model.graph.output}
    self.maker = {v: node for node in model.graph.node for v in node.output if v}
    self.nodes: dict[str, list[onnx.NodeProto]] = {}
    for node in model.graph.node:
      for name in reads(node):
        self.nodes.setdefault(name, []).append(node)

  def missing(self, nodes: Sequence[onnx.NodeProto], outputs: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """Values of a body of ``nodes`` that need one more reader, and its operator.

    ``outputs``: of the body. The values are made, or added to something, by ``nodes``.
    """
    made = {v for node in nodes for v in node.output if v}
    added = (x for n in nodes if _is(n, "Add") for x in n.input if x not in made)
    makers = {x: self.maker[x] for x in added if x in self.maker}
    found = []
    for node in (*(m for m in makers.values() if _is(m, "MatMul")), *nodes):
      value = node.output[0]  # of a Split, onnxruntime asks for the readers of this one only
      readers = list(self._of(value))
      if not self.outputs.isdisjoint(node.output):
        readers.append(None)
      own = [r for r in readers if r is not None and r.output[0] in made]
      if len(own) == len(readers) or (len(readers) == 1 and value in outputs):
        continue
      if _is(node, "Transpose"):
        continue  # onnxruntime moves it by rules of its own, which one more reader disturbs
      fused = _is(node, "MatMul") and [r.op_type for r in own] == ["Add"]
      if value in made and self._is_rounded_elsewhere(node, readers, own):
        found.append((value, "Flatten"))
      elif fused:
        found.append((value, "Size"))
    return tuple(found)

  def _is_rounded_elsewhere(
    self,
    node: onnx.NodeProto,
    readers: Sequence[onnx.NodeProto | None],
    own: Sequence[onnx.NodeProto],
  ) -> bool:
    """Whether the result is rounded in the graph, but would not be for ``own`` alone."""
    inside = max(map(_takes_half, own), default=0)
    before = max(_is_read(r) for r in readers)
    depends = inside or _takes_half(node) or _is(node, "Add")
    return node.output[0] in self.half and bool(depends) and inside < before

  def _of(self, value: str) -> Iterator[onnx.NodeProto | None]:
    """The readers of a value; None for the graph's outputs."""
    if value in self.outputs:
      yield None
    maker = self.maker[value]
    for node in self.nodes.get(value, ()):
      two = _is(node, "Transpose") and _is(maker, "Transpose")  # become one, or none
      if two or _is(node, "Identity") or _is(node, "Dropout"):
        yield from self._of(node.output[0])
      else:
        yield node


def _is(node: onnx.NodeProto, operator: str) -> bool:
  return node.op_type == operator and node.domain in _DEFAULT


def _takes_half(node: onnx.NodeProto) -> int:
  """0: it is cast; 1: it is a Cast itself, and gone where all others are cast; 2: it is not."""
  if _is(node, "Cast"):
    return 1
  known = HALF if node.domain in _DEFAULT else MICROSOFT_HALF
  return 2 if node.op_type in known else 0


def _is_read(node: onnx.NodeProto | None) -> int:
  """``_takes_half`` in the whole graph: its outputs are fp16, and a Transpose moves on."""
  if node is None:
    return 2
  if _is(node, "Transpose"):
    return 0
  # This function begins with an Identity, which is gone in a model that has functions.
  begins = node.op_type == "FastGelu" and len(node.input) == 1
  return 2 if begins else _takes_half(node)

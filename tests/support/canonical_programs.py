"""A canonical program spelled out as a kernel, so that the verifier can judge it."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from mirage_onnx.ir import BlockOp, DType, Kernel, KTensor, Layout, Phase, Save, UGraph
from mirage_onnx.ir import term as t
from mirage_onnx.ir.term import Term
from mirage_onnx.superopt.canonical import Heavy


@dataclass
class _Speller:
  heavies: Mapping[Term, Heavy]
  ops: list[BlockOp] = field(default_factory=list)
  memo: dict[tuple[Term, Phase], int] = field(default_factory=dict)

  def put(self, name, args, phase, **more):
    axes = tuple(sorted({a for i in args for a in self.ops[i].axes}))
    fields = {"axes": axes, "dtype": DType.F32, **more}
    self.ops.append(BlockOp(name, args, phase=phase, layout=Layout.ELEMENT, **fields))
    return len(self.ops) - 1

  def chain(self, x, phase):
    if (x, phase) not in self.memo:
      self.memo[x, phase] = self._chain(x, phase)
    return self.memo[x, phase]

  def _chain(self, x, phase):
    if x.op == t.INPUT:
      return self._heavy(self.heavies[x])
    if x.op == t.CONST:
      return self.put("const", (), phase, value=x.attr)
    if x.op == t.EXTENT:
      return self.put("extent", (), phase, reduced=x.attr)
    args = [self.chain(a, phase) for a in x.args]
    if x.op in (t.ADD, t.MUL):
      total = args[0]
      for a in args[1:]:
        total = self.put(x.op, (total, a), phase)
      return total
    if x.op == t.POW:
      return self.put("powr", (args[0],), phase, value=x.attr)
    return self.put(x.op, tuple(args), phase)

  def _heavy(self, made):
    """Loads are 16-bit, and so are the operands of contractions; all else is fp32."""
    op = made.op
    if op.op == "load":
      self.ops.append(op)
      return self.put("cast", (len(self.ops) - 1,), op.phase)
    inner = Phase.LOOP if op.op.startswith("acc_") else op.phase
    args = tuple(self.chain(a, inner) for a in made.args)
    if op.op == "matmul":
      args = tuple(self.put("cast", (a,), inner, dtype=DType.F16) for a in args)
    self.ops.append(replace(op, args=args))
    return len(self.ops) - 1


def graph_of(x, heavies, region, grid, loop):
  speller = _Speller(heavies)
  last = speller.put("cast", (speller.chain(x, Phase.POST),), Phase.POST, dtype=DType.F16)
  (out,) = region.outputs
  read = {o.tensor for o in speller.ops if o.op == "load"}
  tensors = [KTensor(i.name, i.dtype, i.axes, "input") for i in region.inputs if i.name in read]
  save = Save(out.name, last, tuple(a if a in out.axes else None for a in grid))
  kernel = Kernel("k", grid, None, loop, tuple(speller.ops), (save,))
  return UGraph((*tensors, KTensor(out.name, out.dtype, out.axes, "output")), (kernel,))

"""A region as a µGraph of one kernel that cuts nothing: a block value per ONNX step.

So that what is analysed of a candidate can be analysed of the original by the same code. Every step
is kept, with its ONNX element type; axes are those of the steps, before the matcher joined any.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mirage_onnx.ir import (
  BlockOp,
  Constant,
  DType,
  Kernel,
  KTensor,
  Layout,
  Operand,
  Phase,
  Region,
  RegionTensor,
  Save,
  Step,
  UGraph,
)
from mirage_onnx.match.axes import NamedSteps as StepNames
from mirage_onnx.verify.named import NamedArray
from mirage_onnx.verify.step_axes import StepAxes, step_axes

KERNEL = "original"


@dataclass(frozen=True, slots=True)
class RegionGraph:
  """``axes``: what the axes of ``ugraph`` are in the region."""

  ugraph: UGraph
  axes: StepAxes

  def extents_at(self, sizes: Mapping[str, int]) -> dict[str, int]:
    """The extents of these axes where those of the region's are ``sizes``."""
    return self.axes.extents_at(sizes)

  def named(self, x: RegionTensor, data: np.ndarray) -> NamedArray:
    """An array [row, *axes of the region] over the axes of this graph."""
    extents = self.axes.extents_at(dict(zip(x.axes, data.shape[1:], strict=True)), [x])
    axes = self.ugraph.tensor(x.name).axes
    return NamedArray(data.reshape(data.shape[0], *(extents[a] for a in axes)), axes)


@dataclass
class _Builder:
  region: Region
  named: StepNames
  ops: list[BlockOp] = field(default_factory=list)
  values: dict[str, int] = field(default_factory=dict)

  def add(self, op: str, args: tuple[int, ...], axes: tuple[str, ...], dtype: DType, **more: Any) -> int:
    self.ops.append(BlockOp(op, args, axes, dtype, Phase.POST, Layout.ELEMENT, **more))
    return len(self.ops) - 1

  def operand(self, x: Operand) -> int:
    if isinstance(x, str) and x in self.values:
      return self.values[x]
    c = x if isinstance(x, Constant) else self.region.constants[x]
    value = self.add("const", (), (), DType.F64, value=c.base)
    if c.exponent == 1:
      return value
    return self.add("powr", (value,), (), DType.F64, value=c.exponent)

  def step(self, step: Step) -> None:
    dtype = step.attr if isinstance(step.attr, DType) else step.output.dtype
    assert dtype is not None
    name = step.output.name
    if step.op == "pow":
      exponent = step.inputs[1]
      assert isinstance(exponent, Constant)
      base = self.operand(step.inputs[0])
      axes = self.ops[base].axes
      self.values[name] = self.add("powr", (base,), axes, dtype, value=exponent.base)
      return
    args = tuple(map(self.operand, step.inputs))
    match step.op:
      case "cast" | "transpose" | "reshape" | "expand":
        # What is repeated does not vary over the new axes.
        found = self.add("cast", args, self.ops[args[0]].axes, dtype)
      case "matmul":
        found = self._matmul(args, self.named.axes[str(step.inputs[0])][-1], dtype)
      case "sum" | "rmax" | "mean":
        found = self._reduce(step, args[0], dtype)
      case op:
        found = self.add(op, args, self._union(args), dtype)
    self.values[name] = found

  def _union(self, args: Iterable[int]) -> tuple[str, ...]:
    return tuple(sorted({a for i in args for a in self.ops[i].axes}))

  def _matmul(self, args: tuple[int, ...], over: tuple[str, ...], dtype: DType) -> int:
    """Over the axes of one dimension, of which a block operation contracts one."""
    union = self._union(args)
    shared = tuple(a for a in over if all(a in self.ops[i].axes for i in args))
    if not shared:
      return self._total(self.add("mul", args, union, DType.F64), over, dtype)
    rest = tuple(a for a in over if a != shared[-1])
    left = tuple(a for a in union if a != shared[-1])
    found = self.add("matmul", args, left, DType.F64 if rest else dtype, reduced=shared[-1:])
    return self._total(found, rest, dtype) if rest else found

  def _total(self, x: int, over: tuple[str, ...], dtype: DType) -> int:
    """The sum over these axes, of which x need not vary over all."""
    have = self.ops[x].axes
    gone = tuple(a for a in over if a in have)
    if gone:
      x = self.add("sum", (x,), tuple(a for a in have if a not in gone), dtype, reduced=gone)
    if len(gone) == len(over):
      return x if over else self.add("cast", (x,), have, dtype)
    repeated = tuple(a for a in over if a not in gone)
    count = self.add("extent", (), (), DType.F64, reduced=repeated)
    return self.add("mul", (x, count), self.ops[x].axes, dtype)

  def _reduce(self, step: Step, x: int, dtype: DType) -> int:
    source = self.named.axes[str(step.inputs[0])]
    assert isinstance(step.attr, tuple)
    over = tuple(a for n in step.attr for a in source[n])
    have = self.ops[x].axes
    gone = tuple(a for a in over if a in have)
    if not over or (step.op != "sum" and not gone):
      return self.add("cast", (x,), have, dtype)
    left = tuple(a for a in have if a not in gone)
    if step.op == "sum":
      return self._total(x, over, dtype)
    if step.op == "rmax":
      return self.add("rmax", (x,), left, dtype, reduced=gone)
    total = self.add("sum", (x,), left, DType.F64, reduced=gone)
    count = self.add("extent", (), (), DType.F64, reduced=gone)
    return self.add("div", (total, count), left, dtype)


def region_graph(region: Region) -> RegionGraph:
  """The graph of the steps of ``region``; its tensors have the region's canonical names.

  Raises:
      RejectionError: the steps have no axes (never for a region that the matcher made).
  """
  axes = step_axes(region)
  builder = _Builder(region, axes.named)
  tensors = []
  for i in region.inputs:
    over = axes.named.memory(i.tensor.name)
    role = "weight" if i.is_weight else "input"
    tensors.append(KTensor(i.name, i.dtype, over, role))
    builder.values[i.tensor.name] = builder.add("load", (), over, i.dtype, tensor=i.name)
  for step in region.steps:
    builder.step(step)
  saves = []
  for o in region.outputs:
    tensors.append(KTensor(o.name, o.dtype, axes.named.memory(o.tensor.name), "output"))
    saves.append(Save(o.name, builder.values[o.tensor.name], ()))
  kernel = Kernel(KERNEL, (), None, None, tuple(builder.ops), tuple(saves))
  return RegionGraph(UGraph(tuple(tensors), (kernel,)), axes)

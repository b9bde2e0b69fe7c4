"""What the steps of a region do, without names: instances with equal forms compute alike.

Regions with one key have equal terms. Their ONNX steps may still differ: a square is ``Pow`` in one
layer and ``Mul`` in the next, a norm is computed in fp32 here and in fp16 there. What is found out of
steps (do the terms say what they do, where do they overflow) holds for all regions of one form, and
with equal weights for nothing else.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from mirage_onnx.ir import Constant, Operand, Region, RegionTensor

#: A value that only equal forms share; nothing is read from it.
Form = tuple[object, ...]


def step_form(region: Region) -> Form:
  """The form of a region: its steps, terms and sizes over tensors numbered by their first use."""
  numbers: dict[str, int] = {}

  def number(name: str) -> int:
    return numbers.setdefault(name, len(numbers))

  def operand(x: Operand) -> object:
    return (x.base, x.exponent) if isinstance(x, Constant) else number(x)

  def tensor(x: RegionTensor) -> object:
    view = x.view and (number(x.view.source.name), x.view.starts, x.view.fulls, x.view.repeats)
    shape = region.shape(x.tensor)
    return number(x.tensor.name), x.name, x.dtype, x.axes, x.is_weight, x.dims, shape, view, x.picks

  ins = tuple(map(tensor, region.inputs))
  steps = tuple(
    (s.op, s.attr, *map(operand, s.inputs), number(s.output.name), s.output.dtype, s.output.shape)
    for s in region.steps
  )
  outs = tuple(map(tensor, region.outputs))
  constants = sorted((number(k), c.base, c.exponent) for k, c in region.constants.items())
  return ins, steps, outs, tuple(constants), region.terms, tuple(sorted(region.extents.items()))


@dataclass(frozen=True, slots=True)
class Twins:
  """Instances of equal form: ``region`` is the first of them, ``weights`` what each of them reads.

  The weights of an instance are in the order of those of ``region``.
  """

  region: Region
  weights: tuple[tuple[RegionTensor, ...], ...]


def twins(regions: Sequence[Region]) -> tuple[Twins, ...]:
  """All of ``regions``, those of equal form together; what reads the same weights counts once."""
  found: dict[Form, tuple[Region, dict[tuple[str, ...], tuple[RegionTensor, ...]]]] = {}
  for r in regions:
    _, weights = found.setdefault(step_form(r), (r, {}))
    held = r.weights
    weights.setdefault(tuple(i.tensor.name for i in held), held)
  return tuple(Twins(region, tuple(weights.values())) for region, weights in found.values())

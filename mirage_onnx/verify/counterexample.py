"""What a rejected program gets wrong: inputs, a wrong element, and where it leaves the track.

``first`` is said in docs/verification.md ("Verdicts"). Only values after the loop that all ranks
agree on are looked at, whole tensors each; factors of what is right are no constants.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain, combinations_with_replacement

import numpy as np

from mirage_onnx.ir import DType, KTensor, Phase, Region, Save, UGraph
from mirage_onnx.ir.term import CONST, EXTENT, walk
from mirage_onnx.verify.field import VOID, P, mul
from mirage_onnx.verify.interpret_term import interpret_terms
from mirage_onnx.verify.interpret_ugraph import interpret_ugraph
from mirage_onnx.verify.named import NamedArray
from mirage_onnx.verify.random_test import Difference

#: Name of the tensor that a probed block value is saved to.
_PROBE = "probe"


@dataclass(frozen=True, slots=True)
class FirstValue:
  """A block value."""

  kernel: str
  index: int
  op: str
  args: tuple[int, ...]

  def __str__(self) -> str:
    args = (f"%{a}" for a in self.args)
    return f"kernel {self.kernel}, %{self.index} = {' '.join([self.op, *args])}"

  @property
  def sentence(self) -> str:
    return f"the first value that leads to nothing right is {self}"


@dataclass(frozen=True, slots=True)
class Counterexample:
  """An input on which a µGraph and its region differ, in the residues of one draw.

  ``inputs``: region input -> residues over its axes; ``want``, ``got``: residues of ``element``
  of ``output``, by the region and by the µGraph; ``differing`` of ``compared`` values of this
  output differ, in all draws; ``instantiation``: the extents and numbers of the kernels.
  """

  inputs: Mapping[str, np.ndarray]
  output: str
  element: tuple[tuple[str, int], ...]
  want: int
  got: int
  differing: int
  compared: int
  first: FirstValue | None
  instantiation: str


def counterexample(region: Region, graph: UGraph, difference: Difference) -> Counterexample:
  """A difference, with the first value that explains it."""
  domain, output = difference.domain, difference.output
  return Counterexample(
    {k: domain.residues(v.data)[difference.draw] for k, v in difference.inputs.items()},
    output.name,
    tuple(zip(output.axes, difference.element, strict=True)),
    difference.want,
    difference.got,
    difference.differing,
    difference.compared,
    _first(region, graph, difference),
    difference.sizes.to_text(),
  )


def _first(region: Region, graph: UGraph, difference: Difference) -> FirstValue | None:
  known = _Known(region, difference)
  cone = list(_cone(graph, difference.output.name))
  right: dict[tuple[int, int], bool] = {}
  for number, index in cone:
    op = graph.kernels[number].ops[index]
    if op.phase is Phase.POST and op.op not in ("load", "const", "extent"):
      value = _probe(graph, number, index, difference)
      if value is not None:
        right[number, index] = known.has(value)
  # From users to arguments; tensors carry it from one kernel to the ones before.
  vindicated: set[tuple[int, int]] = set()
  tensors: set[str] = set()
  for number, index in reversed(cone):
    kernel = graph.kernels[number]
    saved = any(s.arg == index and s.tensor in tensors for s in kernel.saves)
    if right.get((number, index)) or saved or (number, index) in vindicated:
      vindicated.add((number, index))
      vindicated.update((number, a) for a in kernel.ops[index].args)
      tensors.add(kernel.ops[index].tensor)
  for number, index in cone:
    if (number, index) in right and (number, index) not in vindicated:
      kernel = graph.kernels[number]
      op = kernel.ops[index]
      return FirstValue(kernel.name, index, op.op, op.args)
  return None


class _Known:
  """The values of a region on some inputs, and the products and quotients of two of them."""

  def __init__(self, region: Region, difference: Difference) -> None:
    domain, extents = difference.domain, difference.sizes.extents
    nodes = walk(region.terms)
    values = interpret_terms(domain, nodes, difference.inputs, extents)
    self._values, self._factors = [], []
    for node, value in zip(nodes, values, strict=True):
      residues = NamedArray(domain.residues(value.data), value.axes)
      if (residues.data != VOID).all():
        self._values.append(residues)
        if node.op not in (CONST, EXTENT) and residues.data.all():
          self._factors.append(residues)

  def has(self, value: NamedArray) -> bool:
    axes = value.axes
    inside = [v for v in self._factors if set(v.axes) <= set(axes)]
    if any(_equal(value, v) for v in self._values if set(v.axes) <= set(axes)):
      return True
    products = ((value, x, y) for x, y in combinations_with_replacement(inside, 2))
    quotients = ((v, value, x) for v in self._values for x in inside if set(v.axes) == set(axes))
    return any(_is_product(*triple, axes) for triple in chain(products, quotients))


def _equal(x: NamedArray, y: NamedArray) -> bool:
  aligned = y.aligned(x.axes)
  return np.array_equal(x.data, np.broadcast_to(aligned, x.data.shape))


def _is_product(x: NamedArray, y: NamedArray, z: NamedArray, axes: tuple[str, ...]) -> bool:
  """x = y z, by the first element before all."""
  if int(x.data.flat[0]) != int(y.data.flat[0]) * int(z.data.flat[0]) % P:
    return False
  product = mul(y.aligned(axes), z.aligned(axes))
  wanted = x.aligned(axes)
  return np.array_equal(wanted, np.broadcast_to(product, wanted.shape))


def _cone(graph: UGraph, tensor: str) -> Iterator[tuple[int, int]]:
  """(kernel, block value), in program order, of all that ``tensor`` is computed from."""
  wanted, found = {tensor}, []
  for number in range(len(graph.kernels) - 1, -1, -1):
    kernel = graph.kernels[number]
    needed = {s.arg for s in kernel.saves if s.tensor in wanted}
    for index in range(len(kernel.ops) - 1, -1, -1):
      if index in needed:
        needed.update(kernel.ops[index].args)
        wanted.add(kernel.ops[index].tensor)
        found.append((number, index))
  return reversed(found)


def _probe(graph: UGraph, number: int, index: int, difference: Difference) -> NamedArray | None:
  """The whole tensor that a block value is the tiles of, in residues; None if of none."""
  kernel = graph.kernels[number]
  axes = tuple(sorted(kernel.ops[index].axes))
  omap = tuple(a if a in axes else None for a in kernel.grid)
  tensor = KTensor(_PROBE, DType.F32, axes, "temp")
  probed = replace(kernel, saves=(Save(_PROBE, index, omap),))
  short = UGraph((*graph.tensors, tensor), (*graph.kernels[:number], probed))
  sizes, domain = difference.sizes, difference.domain
  params = sizes.params[: number + 1]
  try:
    values = interpret_ugraph(domain, short, params, sizes.extents, difference.inputs)
  except ValueError:  # blocks or ranks have different values, or an axis is cut otherwise
    return None
  return NamedArray(domain.residues(values[_PROBE].data), values[_PROBE].axes)

"""Brute force and the search, at the same region, roles of the dimensions and bound.

``CASES`` are in ``completeness_cases.py``.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from block_values import Tiles
from brute_force import Enumeration, Setting
from canonical_programs import graph_of

from mirage_onnx.errors import Rejection
from mirage_onnx.ir import BlockOp, DType, Layout, Phase, Region, RegionTensor, Tensor
from mirage_onnx.ir.term import Term
from mirage_onnx.superopt.canonical import canonical_kernel
from mirage_onnx.verify.domain import Float64
from mirage_onnx.verify.equivalence import verify
from mirage_onnx.verify.interpret_term import interpret_terms
from mirage_onnx.verify.named import NamedArray
from mirage_onnx.verify.random_test import whole


@dataclass(frozen=True)
class Case:
  """One output ``out`` over its axes. ``inputs``: name -> axes, one letter each. ``size``: the
  bound on all operations together; ``ops``, ``reduced``, ``most_axes``: see ``Setting``."""

  name: str
  inputs: Mapping[str, str]
  out: str
  term: Term
  ops: str
  reduced: str
  loop: str | None
  grid: tuple[str, ...]
  size: int
  most_axes: int = 3

  @property
  def region(self):
    inputs = tuple(_tensor(n, tuple(a)) for n, a in self.inputs.items())
    axes = {a for x in self.inputs.values() for a in x}
    extents = dict.fromkeys(axes, 64)
    outputs = (_tensor("o", tuple(self.out)),)
    return Region(("node",), (), {}, inputs, outputs, (self.term,), extents)


def _tensor(name, axes):
  tensor = Tensor(f"onnx_{name}", DType.F16, (64,) * len(axes))
  return RegionTensor(name, DType.F16, axes, tensor)


def loads(case):
  found = []
  for phase in (Phase.LOOP, Phase.POST):
    for name, axes in case.inputs.items():
      has_loop = case.loop is not None and case.loop in axes
      if (case.loop is None) if phase is Phase.LOOP else has_loop:
        continue
      cut = case.loop if has_loop else None
      imap = tuple(g if g in axes else None for g in case.grid)
      found.append(
        BlockOp("load", (), tuple(axes), DType.F16, phase, Layout.ELEMENT,
                tensor=name, imap=imap, fmap=cut)
      )  # fmt: skip
  return tuple(found)


#: Extents at which values are compared: all different, and what is cut has several tiles.
EXTENTS = {"k": 6, "l": 6, "m": 4, "n": 3, "d": 5}


def setting_of(case, rng):
  axes = sorted({a for x in case.inputs.values() for a in x})
  extents = {a: EXTENTS[a] for a in axes}
  counts = {a: 3 for a in axes if a == case.loop} | dict.fromkeys(case.grid, 2)
  data = {n: rng.uniform(0.5, 1.5, [extents[a] for a in x]) for n, x in case.inputs.items()}
  inputs = {n: (tuple(case.inputs[n]), v) for n, v in data.items()}
  tiles = Tiles(extents, counts, case.loop, inputs)
  region = case.region
  named = {n: NamedArray(v[None], axes) for n, (axes, v) in inputs.items()}
  value = interpret_terms(Float64(), region.terms, named, extents)[0]
  target = tiles.tiled(tuple(case.out), whole(value, region.outputs[0], extents)[0])
  ops, reduced = frozenset(case.ops.split()), frozenset(case.reduced)
  return Setting(loads(case), ops, reduced, tiles, case.most_axes), target


def brute_force(case, rng):
  """Canonical text -> kernel of every program that the verifier proves equal to the target."""
  setting, target = setting_of(case, rng)
  found = Enumeration(setting)
  programs = {}
  for hit in found.equal_to(target, tuple(sorted(case.out)), case.size):
    graph = graph_of(hit.term, found.heavies, case.region, case.grid, case.loop)
    if not isinstance(verify(case.region, graph), Rejection):
      programs[canonical_kernel(graph.kernels[0], graph.tensors)] = graph.kernels[0]
  return programs, found

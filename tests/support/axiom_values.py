"""The value of a formula of the axiom table, by plain loops over blocks and iterations.

Written from ``ir/ugraph.py``, without the superoptimizer. A value may be over k and over its part
axis k': it has an element for every element of k and every block, and a reduction of each block
takes those where the element is in the block.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from axiom_formulas import FormulaError, part

from mirage_onnx.verify import named
from mirage_onnx.verify.domain import Domain, Field
from mirage_onnx.verify.named import NamedArray


@dataclass(frozen=True)
class Numbers:
  """Inputs, extents, and how long the blocks and the iterations of an axis are."""

  domain: Domain
  inputs: Mapping[str, NamedArray]
  extents: Mapping[str, int]
  tiles: Mapping[str, int]
  steps: Mapping[str, int]

  def extent(self, axis):
    if axis in self.extents:
      return self.extents[axis]
    whole = axis.removesuffix("'")
    return -(-self.extents[whole] // self.tiles[whole])

  def value(self, f):
    return self._value(f, {}, {})

  def _value(self, f, at, running):
    if f.op == "var":
      found = self.inputs[str(f.value)]
      for a in found.axes:
        if a in at:
          found = named.take(found, a, at[a], ())
      return found
    if f.op == "const":
      return NamedArray(self.domain.constant(f.value), ())
    if f.op in ("psum", "pmax", "pscaled"):
      return self._parts(f, at, running)
    if f.op == "scaled":
      return self._scaled(f, {a: r for a, r in at.items() if a not in f.axes}, running)
    if f.op in ("sum", "rmax"):
      inner = {a: r for a, r in at.items() if a not in f.axes}
      return self._reduced(f.op, f.axes, self._value(f.args[0], inner, running))
    if f.op == "run":
      if f.args[0] not in running:
        raise FormulaError("a running maximum outside of its loop")
      return running[f.args[0]]
    args = [self._value(a, at, running) for a in f.args]
    if f.op in ("add", "mul"):
      return named.fold(self.domain, f.op, args)
    if f.op == "pow":
      assert isinstance(f.value, Fraction), f"the exponent {f.value} is not chosen yet"
      return named.power(self.domain, args[0], f.value)
    return named.elementwise(self.domain, f.op, *args)

  def _parts(self, f, at, running):
    (axis,) = f.axes
    extent, tile = self.extents[axis], self.tiles[axis]
    found = []
    for b in at.get(part(axis), np.arange(self.extent(part(axis)))):
      block = np.arange(b * tile, min((b + 1) * tile, extent))
      here = {**at, axis: block, part(axis): np.array([b])}
      if f.op == "pscaled":
        one = self._scaled(f, here, running)
      else:
        kind = "sum" if f.op == "psum" else "rmax"
        one = self._reduced(kind, f.axes, self._value(f.args[0], here, running))
      # A body over the part axis has one block of it here.
      others = tuple(a for a in one.axes if a != part(axis))
      found.append(one.aligned((part(axis), *others)))
    return NamedArray(np.concatenate(found, axis=1), (part(axis), *others))

  def _scaled(self, f, at, running):
    (axis,), (body, top) = f.axes, f.args
    if top.op != ("pmax" if f.op == "pscaled" else "rmax") or axis not in top.axes:
      raise FormulaError(f"a sum over {axis} cannot be scaled to a {top.op} over {top.axes}")
    elements = at.get(axis, np.arange(self.extent(axis)))
    # A loop over the parts of an axis takes them one by one.
    step = self.steps.get(axis, 1)
    before = result = None
    for start in range(0, len(elements), step):
      seen = {**at, axis: elements[: start + step]}
      now = self._reduced("rmax", top.axes, self._value(top.args[0], seen, running))
      here = {**at, axis: elements[start : start + step]}
      terms = self._value(body, here, {**running, top: now})
      one = self._reduced("sum", f.axes, terms)
      if before is None or result is None:
        before, result = now, one
        continue
      minus = NamedArray(self.domain.constant(Fraction(-1)), ())
      fall = self._fold("add", before, self._fold("mul", minus, now))
      factor = named.elementwise(self.domain, "exp", fall)
      result = self._fold("add", self._fold("mul", result, factor), one)
      before = now
    assert result is not None
    return result

  def _reduced(self, op, axes, x):
    if not set(axes) <= set(x.axes):
      raise FormulaError(f"{op} over {axes} of a value over {x.axes}")
    return named.reduce_(self.domain, op, axes, x)

  def _fold(self, op, *args):
    return named.fold(self.domain, op, args)


def same(domain, x, y):
  if set(x.axes) != set(y.axes):
    return False
  p, q = x.data, y.aligned(x.axes)
  if p.shape != q.shape:
    return False
  if p.dtype == np.uint64:
    return not np.asarray(domain.unequal(p, q)).any()
  scale = float(np.abs(q).max(initial=1e-300))
  return bool(np.allclose(p, q, rtol=1e-9, atol=1e-11 * scale))


def random_numbers(domain, sides, axes, sizes, rng):
  """Inputs over ``axes``; ``sizes``: axis -> its extent, the tile of a block, an iteration's.

  Residues are 0 where a coin says so: what is not defined there must not be so on both sides.
  Real numbers keep away from 0, and are positive under roots and logarithms.
  """
  nodes = [n for f in sides for n in f.walk()]
  positive = any(n.op == "log" or (n.op == "pow" and _is_root(n)) for n in nodes)
  inputs = {}
  for name in sorted({v for n in nodes for v in n.variables}):
    ordered = tuple(sorted(axes[name]))
    shape = tuple(sizes[a][0] for a in ordered)
    if isinstance(domain, Field):
      data = domain.random(rng, shape)
      data[: domain.draws] *= rng.integers(0, 8, (domain.draws, *shape), dtype=np.uint64) > 0
    else:
      data = rng.uniform(0.25, 1.25, (domain.rows, *shape))
      data *= 1 if positive else rng.choice((-1, 1), data.shape)
    inputs[name] = NamedArray(data, ordered)
  extents, tiles, steps = ({a: n[i] for a, n in sizes.items()} for i in range(3))
  return Numbers(domain, inputs, extents, tiles, steps)


def _is_root(n):
  return n.value.denominator != 1

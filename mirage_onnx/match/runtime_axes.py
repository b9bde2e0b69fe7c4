"""Axes that only a run counts: how a run finds their extents, and what stands for them meanwhile.

Names of dimensions are numbers here (``importer/symbols.py``): an axis whose number is a product of
names is one that a run counts. Its extent is read off dimensions of an input that hold nothing
else; every other input must agree with it, which the launch plan checks.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from math import prod

from mirage_onnx.errors import RejectionError
from mirage_onnx.ir import Monomial, Program, Region, RegionTensor, Step, Tensor, symbols_of
from mirage_onnx.ir.program import is_places, resized
from mirage_onnx.match.axes import Dims, axes_of
from mirage_onnx.match.graph import ASSUMED
from mirage_onnx.match.sinking import viewed

Pair = tuple[Monomial, Monomial]


def with_runtime_axes(
  region: Region, program: Program, sizes: Mapping[str, int], named: Mapping[str, Dims] | None = None
) -> Region:
  """``region``, whose sizes are numbers of ``program``, at ``sizes`` and for any.

  ``named``: as of ``at_sizes``.

  Raises:
      RejectionError: DYNAMIC_DIM.
  """
  axes = {a for a, n in region.extents.items() if program.is_symbolic(n)}
  if not axes:
    shapes = (s.output.shape or () for s in region.steps) if program.primes else ()
    if any(program.is_symbolic(int(n)) for shape in shapes for n in shape):
      raise _refusal(region, "inside are elements that only a run counts")
    return region
  made = _Runtime(region, program)
  runtime = {a: made.extent(a) for a in sorted(axes)}
  result = replace(
    region,
    runtime=runtime,
    equal_dims=made.equal(runtime),
    output_dims=tuple(tuple(made.product(n) for n in program.shape(o.tensor) or ()) for o in region.outputs),
    inner_dims=made.moved(),
  )
  return at_sizes(result, program, sizes, region.steps, named)


def at_sizes(
  region: Region,
  program: Program,
  sizes: Mapping[str, int],
  steps: tuple[Step, ...] | None = None,
  named: Mapping[str, Dims] | None = None,
) -> Region:
  """``region``, which has axes that a run counts, as if names had these ``sizes`` (at least 2).

  ``steps``: its own, over numbers of ``program``, where they are known; ``named``: what ``axes_of`` has
  made of these.

  Raises:
      RejectionError: DYNAMIC_DIM where its reshapes would mean something else.
  """
  assumed = {n: max(2, sizes.get(n, ASSUMED)) for n in program.primes.values()}

  def shape(tensor: Tensor) -> tuple[int, ...]:
    return tuple(program.size(n, assumed) for n in program.shape(tensor) or ())

  if steps is None:
    sides = region.given, region.outputs
    inputs, outputs = (tuple(dict.fromkeys(x.source.name for x in side)) for side in sides)
    nodes = {n.name: n for n in program.nodes}
    own = [s for n in region.nodes for s in nodes[n].steps]
    steps = tuple(viewed(program, own, inputs, outputs).steps)
  shapes = [shape(i.tensor) for i in region.given]
  result = replace(
    region,
    steps=tuple(resized(s, lambda n: program.size(n, assumed)) for s in steps),
    extents={**region.extents, **{a: m.value(shapes) for a, m in region.runtime.items()}},
    symbols={
      d: n
      for t in (*region.given, *region.outputs)
      for d, n in zip(t.tensor.shape or (), shape(t.tensor), strict=True)
      if isinstance(d, str)
    },
  )

  read = {i.tensor.name: i.tensor for i in region.inputs}
  read |= {name: program.tensors[name] for name in region.constants}
  if named is None:
    named = axes_of(steps, {name: program.shape(x) or () for name, x in read.items()})[0]
  # Called by the order of their first use, so two that mean the same are equal if that is one order.
  if axes_of(result.steps, {name: shape(read[name]) for name in named if name in read})[0] != named:
    raise _refusal(region, "at the sizes assumed, its reshapes mean something else")
  return result


@dataclass(frozen=True, slots=True)
class _Runtime:
  """``region`` has numbers for sizes."""

  region: Region
  program: Program

  def _shape(self, x: RegionTensor) -> tuple[int, ...]:
    return self.program.shape(x.tensor) or ()

  def _dims(self) -> list[tuple[int, int, int]]:
    """(number, input, dimension) of the dimensions of inputs that a run counts."""
    return [
      (n, i, d)
      for i, x in enumerate(self.region.given)
      for d, n in enumerate(self._shape(x))
      if self.program.is_symbolic(n) and not (x.picks and d == 0) and not is_places(x.source.name)
    ]

  def extent(self, axis: str) -> Monomial:
    """The extent of an axis: the product of the dimensions of an input that hold it alone."""
    found = []
    for i, x in enumerate(self.region.given):
      if is_places(x.source.name):  # there may be more of them
        continue
      held = [d for d, own in enumerate(x.dims) if axis in own]
      if held and not (x.picks and held[0] == 0) and all(x.dims[d] == (axis,) for d in held):
        shape = self._shape(x)
        counted = [d for d in held if self.program.is_symbolic(shape[d])]
        fixed = prod(shape[d] for d in held if d not in counted)
        found.append(Monomial(fixed, tuple((i, d) for d in counted)))
    if found:
      return min(found, key=lambda m: (len(m.dims), m.dims))
    return self.product(self.region.extents[axis])

  def product(self, number: int) -> Monomial:
    """A number as a product of dimensions of inputs."""
    rest, found = symbols_of(number, self.program.primes)
    if not found:
      return Monomial(number)
    dims = self._dims()
    if whole := next(((i, d) for n, i, d in dims if n == number), None):
      return Monomial(1, (whole,))
    used = []
    for prime in found:
      at = next(((i, d) for n, i, d in dims if n == prime), None)
      if at is None:
        name = self.program.primes[prime]
        reason = f"{name} is no dimension of an input, but a part of one (a reshape splits it)"
        raise _refusal(self.region, reason)
      used.append(at)
    return Monomial(rest, tuple(sorted(used)))

  def moved(self) -> dict[str, tuple[Monomial, ...]]:
    """The dimensions of what its nodes move to others, by the names of the model.

    ``region.steps`` may have only parts of that, under names of their own (``sinking.py``). What
    has a dimension that is none of the inputs' is left out.
    """
    found = {}
    nodes = {n.name: n for n in self.program.nodes}
    for s in (s for name in self.region.nodes for s in nodes[name].steps):
      if s.op in ("reshape", "expand") and s.output.name in self.program.tensors:
        with suppress(RejectionError):
          found[s.output.name] = tuple(self.product(int(n)) for n in s.output.shape or ())
    return found

  def equal(self, runtime: Mapping[str, Monomial]) -> tuple[Pair, ...]:
    """What must agree in a run: equal numbers, and every input with the extents of its axes."""
    first: dict[int, tuple[int, int]] = {}
    at: dict[tuple[int, int], tuple[int, int]] = {}
    pairs: list[Pair] = []
    for n, i, d in self._dims():
      at[i, d] = first.setdefault(n, (i, d))
      if at[i, d] != (i, d):
        pairs.append((Monomial(1, (at[i, d],)), Monomial(1, ((i, d),))))

    def product(factor: int, dims: Iterable[tuple[int, int]]) -> Monomial:
      return Monomial(factor, tuple(sorted(at[d] for d in dims)))

    for i, x in enumerate(self.region.given):
      if is_places(x.source.name):
        continue
      for dims, axes in _blocks(x)[bool(x.picks and x.dims[0]) :]:
        shape = self._shape(x)
        counted = [d for d in dims if (i, d) in at]
        parts = [runtime[a] for a in axes if a in runtime]
        factor = prod(self.region.extents[a] for a in axes if a not in runtime)
        factor *= prod(m.coefficient for m in parts)
        want = product(factor, (d for m in parts for d in m.dims))
        have = product(prod(shape[d] for d in dims if d not in counted), [(i, d) for d in counted])
        if have != want and (want, have) not in pairs:
          pairs.append((want, have))
    return tuple(pairs)


def _blocks(x: RegionTensor) -> list[tuple[list[int], list[str]]]:
  """Adjacent dimensions that share axes, and these axes."""
  found: list[tuple[list[int], list[str]]] = []
  for d, own in enumerate(x.dims):
    if found and set(own) & set(found[-1][1]):
      found[-1][0].append(d)
      found[-1][1].extend(a for a in own if a not in found[-1][1])
    elif own:
      found.append(([d], list(own)))
  return found


def _refusal(region: Region, reason: str) -> RejectionError:
  return RejectionError("DYNAMIC_DIM", reason, region.nodes)

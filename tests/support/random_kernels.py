"""Random programs of one block graph (sometimes two), with layouts, numbers and inputs.

``random_kernel(seed)`` is the same everywhere. What a seed draws may be ill-formed, too large for
the emulator, or say too little (all zeros, or nothing but rounding): then it draws again.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace

from random_kernel_block import Block
from random_kernel_forms import FORMS, merge
from random_kernel_numbers import numbers
from random_kernel_oracle import Oracle, oracle, telling
from random_kernel_power import forgets
from random_kernel_steps import pick
from random_kernel_tables import cells
from random_kernel_wishes import CHAINED, wish_of

from mirage_onnx.ir import (
  DType,
  Kernel,
  KernelParams,
  UGraph,
  is_part_axis,
  print_ugraph,
  ugraph_extents,
)
from mirage_onnx.ir.spec import check_ugraph

HALVES = {DType.F16: 0.42, DType.BF16: 0.36, DType.F32: 0.22}
#: How often operations round to 16 bits themselves, and in how many kernels.
NARROW = {0.04: 0.7, 0.5: 0.3}
#: Bounds on the operations of a kernel that compute something. A sum that is rescaled in every
#: iteration is five operations by itself, and the ranks of a cluster five more.
FEWEST, MOST, MOST_RESCALED = 3, 12, 18
#: Not counted.
FREE = ("load", "const", "extent", "cast")


@dataclass(frozen=True)
class RandomKernel:
  seed: int
  form: str
  graph: UGraph
  params: tuple[KernelParams, ...]
  extents: Mapping[str, int]
  oracle: Oracle

  @property
  def text(self):
    sizes = " ".join(f"{a}={n}" for a, n in self.extents.items())
    lines = [f"{k.name}: {p.to_text()}" for k, p in zip(self.graph.kernels, self.params, strict=True)]
    return "\n".join([f"seed {self.seed} ({self.form}) {sizes}", *lines, print_ugraph(self.graph)])


class Again(Exception):  # noqa: N818
  """What was drawn is no use; the reason is a word for statistics."""


def random_kernel(seed):
  for attempt in range(1000):
    try:
      return _drawn(seed, attempt)
    except Again:
      continue
  raise AssertionError(f"seed {seed} draws nothing")


def _drawn(seed, attempt):
  rng = random.Random(f"{seed}/{attempt}")
  # A kind that is seldom accepted is as frequent as it should be.
  form = pick(random.Random(seed), FORMS)
  half = pick(rng, HALVES)
  tensors = []
  kinds = {}
  narrow = pick(rng, NARROW)
  wish = wish_of(seed, attempt)
  if wish is not None:
    form, half = wish.form(rng), wish.half(rng, half)
    narrow = 0.8 if wish.dtype.is_half else narrow
  wished = wish.op if wish is not None and wish.op in CHAINED else ""
  first = Block(rng, "k0", {}, half, tensors, kinds, narrow, wished)
  form(first)
  kernels = [finished(first)]
  temps = any(t.role == "temp" for t in tensors)
  kernel, params = _numbered(rng, kernels[0], tensors, first.extents)
  placed, chosen = [kernel], [params]
  extents = first.extents
  if temps and rng.random() < 0.6:
    graph = UGraph(tuple(tensors), (kernel,))
    extents = ugraph_extents(graph, chosen, extents)
    second = Block(rng, "k1", extents, half, tensors, kinds, narrow)
    merge(second)
    kernel, params = _numbered(rng, finished(second), tensors, extents)
    placed.append(kernel)
    chosen.append(params)
  used = {o.tensor for k in placed for o in k.loads} | {s.tensor for k in placed for s in k.saves}
  graph = UGraph(tuple(t for t in tensors if t.name in used), tuple(placed))
  if (refused := check_ugraph(graph)) is not None:
    raise Again(refused.reason)
  if wish is not None and cells(graph).count(wish.cell) < wish.values:
    raise Again("is not what was wished for")
  named = {a for t in graph.tensors for a in t.axes}
  reduced = {a for k in placed for o in k.ops for a in (*o.reduced, *o.axes)}
  sizes = {a: n for a, n in extents.items() if a in named | reduced and not is_part_axis(a)}
  sizes = ugraph_extents(graph, chosen, sizes)
  shown = {n: k for n, k in kinds.items() if n in used}
  found = oracle(graph, chosen, shown, sizes, seed)
  if not all(telling(w) for w in found.wants.values()):
    raise Again("says nothing")
  if forgets(graph, tuple(chosen), sizes, found):
    raise Again("forgets what it read")
  name = getattr(form, "__name__", "wished")
  return RandomKernel(seed, name, graph, tuple(chosen), sizes, found)


def _numbered(rng, kernel, tensors, extents):
  graph = UGraph(tuple(tensors), (kernel,))
  if kernel.name == "k0" and (refused := check_ugraph(graph)) is not None:
    unused = "is never saved" in refused.reason
    if not unused:
      raise Again(refused.reason)
  found = numbers(rng, kernel, {t.name: t for t in tensors}, extents)
  if found is None:
    raise Again("too large")
  return found


def finished(b):
  if not b.saves:
    raise Again("nothing to save")
  needed = [False] * len(b.ops)
  for save in b.saves:
    needed[save.arg] = True
  for i in range(len(b.ops) - 1, -1, -1):
    if needed[i]:
      for a in b.ops[i].args:
        needed[a] = True
  place = {}
  ops = []
  for i, op in enumerate(b.ops):
    if needed[i]:
      place[i] = len(ops)
      ops.append(replace(op, args=tuple(place[a] for a in op.args)))
  count = sum(op.op not in FREE for op in ops)
  most = MOST_RESCALED if any(op.op == "acc_scaled" for op in ops) else MOST
  if not FEWEST <= count <= most and b.name == "k0":
    raise Again("too small" if count < FEWEST else "too many operations")
  saves = tuple(replace(s, arg=place[s.arg]) for s in b.saves)
  return Kernel(b.name, b.grid, b.cluster, b.loop, tuple(ops), saves)

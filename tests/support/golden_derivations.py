"""Whether the search can derive a golden µGraph at all, whatever it costs, and with which axioms.

A golden kernel is derived if a derivation under its roles does the same heavy work: the same
reductions and accumulators over the same axes, in the same phases, from the same values of earlier
kernels. Elementwise operations, and whether a sum of products is a contraction, are not compared.
"""

from dataclasses import replace
from itertools import product

from mirage_onnx.errors import RejectionError
from mirage_onnx.ir.ugraph import is_part_axis
from mirage_onnx.superopt.axioms import AXIOMS
from mirage_onnx.superopt.build import build_kernel
from mirage_onnx.superopt.choices import Counts, RoleSetting
from mirage_onnx.superopt.derive import derivations
from mirage_onnx.superopt.egraph import part_of
from mirage_onnx.superopt.result import default_bound
from mirage_onnx.superopt.roles import KernelRoles
from mirage_onnx.superopt.space import ALL
from mirage_onnx.superopt.units import Units
from mirage_onnx.target import H200

HEAVY = frozenset({
  "matmul", "sum", "rmax", "acc_sum", "acc_max", "acc_scaled", "red_sum", "red_max", "run_max",
})  # fmt: skip


def skeleton(kernel):
  return tuple(
    sorted(
      (
        "sum" if o.op == "matmul" else o.op,
        _unnamed(o.reduced),
        _unnamed(o.axes),
        o.phase.value,
      )
      for o in kernel.ops
      if o.op in HEAVY
    )
  )


def _unnamed(axes):
  """Part axes without the name of the kernel that makes the parts."""
  return tuple(sorted(part_of(a.partition("/")[0]) if is_part_axis(a) else a for a in axes))


def is_derived(golden, axioms=AXIOMS):
  units = Units(golden.region, H200, replace(default_bound(ALL), states=40_000), axioms, ALL)
  outputs = {o.name: c for o, c in zip(golden.region.outputs, units.outputs, strict=True)}
  return any(
    all(_is_kernel_derived(units, k, {**outputs, **temps}) for k in golden.ugraph.kernels)
    for temps in _temporaries(units, golden)
  )


def _temporaries(units, golden):
  """Every way to say which class a temporary tensor is: one over its axes that can be written."""
  temps = [x for x in golden.ugraph.tensors if x.role == "temp"]
  fitting = [[c for c in sorted(units.readable) if units.graph.axes(c) == _unnamed(x.axes)] for x in temps]
  for classes in product(*fitting):
    if len(set(classes)) == len(classes):
      yield {x.name: c for x, c in zip(temps, classes, strict=True)}


def _is_kernel_derived(units, kernel, classes):
  parts = {a.partition("/")[0] for s in kernel.saves for a in s.omap if a and is_part_axis(a)}
  roles = KernelRoles(kernel.loop, kernel.grid, tuple(sorted(parts)))
  reads = frozenset(classes[o.tensor] for o in kernel.loads if o.tensor in classes)
  counts = Counts(limit=units.bound.states)
  inputs = frozenset(units.inputs)
  setting = RoleSetting(units.graph, roles, ALL, inputs, reads, units.original, units.extents, counts)
  made = tuple(classes[s.tensor] for s in kernel.saves)
  targets = tuple((c, units.tensor(c)) for c in made)
  tensors = {**units.inputs, **{c: units.tensor(c) for c in reads}, **dict(targets)}
  for d in derivations(setting, made, units.bound):
    if {p[0] for p, choice in d.items() if choice.kind == "read"} != reads:
      continue
    try:
      _, found, _ = build_kernel(
        units.graph, "k", targets, roles, d, tensors,
        clusters=kernel.cluster is not None, space=ALL,
      )  # fmt: skip
    except RejectionError:
      continue
    if skeleton(found) == skeleton(kernel):
      return True
  return False


def needed(golden):
  """The axioms without which ``golden`` is not derived, in the order of the table."""
  return tuple(a.name for a in AXIOMS if not is_derived(golden, tuple(b for b in AXIOMS if b is not a)))

"""What the search leaves out of one kernel on purpose, each as a test of a canonical program.

A rule looks at the program alone, never at what the search found, so that the number of programs
it explains can be counted, and a program that no rule explains is a hole in the search.
"""

from fractions import Fraction
from itertools import combinations

from mirage_onnx.ir import term as t
from mirage_onnx.superopt.canonical import block_terms, in_order


def _program(kernel):
  """The heavy values that are used, and all chains."""
  terms, known = block_terms(kernel)
  saved = [terms[s.arg] for s in kernel.saves]
  order = list(in_order(saved, known))
  return order, [*saved, *(a for h in order for a in h.args)]


def _made(kernel, x):
  return block_terms(kernel)[1].get(x)


def accumulates_no_tile(kernel):
  """An accumulator follows the reduction of its tile over the loop's axis at once."""
  for h in _program(kernel)[0]:
    if h.op.op.startswith("acc_") or h.op.op == "run_max":
      tile = _made(kernel, h.args[0])
      if tile is None or kernel.loop not in tile.op.reduced:
        return True
  return False


def _factors(x):
  return x.args if x.op == t.MUL else (x,)


def sums_a_product(kernel):
  """sum[k](x * y) is a contraction where x and y can be over different axes with k."""
  for h in _program(kernel)[0]:
    if h.op.op == "sum" and len(h.op.reduced) == 1:
      (k,) = h.op.reduced
      factors = _factors(h.args[0])
      for count in range(1, len(factors)):
        for side in combinations(factors, count):
          left = {a for f in side for a in f.axes}
          right = {a for f in factors if f not in side for a in f.axes}
          if k in left & right and left != right:
            return True
  return False


def contracts_equal_axes(kernel):
  """The operands of a contraction differ in an axis: else a tile is multiplied and summed."""
  return any(h.op.op == "matmul" and h.args[0].axes == h.args[1].axes for h in _program(kernel)[0])


def shares_a_tile_axis(kernel):
  """Operands share the contracted axis, the loop's and those of the grid only."""
  for h in _program(kernel)[0]:
    if h.op.op == "matmul":
      batch = {*kernel.grid, kernel.loop, *h.op.reduced}
      if not set(h.args[0].axes) & set(h.args[1].axes) <= batch:
        return True
  return False


def _powers(chains):
  for chain in chains:
    for u in t.walk([chain]):
      for x in _factors(u) if u.op in (t.MUL, t.POW, t.INPUT) else ():
        if x.op == t.POW:
          yield x.args[0], x.attr
        elif u is chain or u.op == t.MUL:
          yield x, Fraction(1)


def divides_and_multiplies(kernel):
  """No cancellation: what divides is no factor elsewhere, to whatever power."""
  found = {}
  for base, e in _powers(_program(kernel)[1]):
    found.setdefault(base, set()).add(e)
  return any(len(es) > 1 and min(es) < 0 for es in found.values())


def divides_in_a_divisor(kernel):
  """No cancellation: the terms of a sum that divides are not divided by a constant of the sum."""
  order, chains = _program(kernel)
  made = {h.leaf: h for h in order}
  for base, e in _powers(chains):
    total = made.get(base)
    if e > 0 or total is None or not total.op.reduced:
      continue
    for base2, e2 in _powers(list(total.args)):
      if e2 < 0 and not set(base2.axes) & set(total.op.reduced):
        return True
  return False


def _is_shift(kernel, m, rest):
  top, before = _made(kernel, m), _made(kernel, rest)
  if top is not None and top.op.op == "run_max":
    if before is not None and before.op.op == "prev" and before.args == (m,):
      return True
    top = _made(kernel, top.args[0])
  return top is not None and top.op.op == "rmax" and top.args[0] is rest


def shifts_by_no_maximum(kernel):
  """exp(s - m) takes the maximum m of s, a running one too, or nothing, from s.

  exp(prev(m) - m) is the factor by which a running maximum rescales.
  """
  for chain in _program(kernel)[1]:
    for u in t.walk([chain]):
      if u.op != "exp" or u.args[0].op != t.ADD:
        continue
      minus = [a for a in u.args[0].args if a.op == t.MUL and t.rational(a.args[0]) == -1]
      rest = t.add(*(a for a in u.args[0].args if a not in minus))
      if not all(_is_shift(kernel, t.mul(*a.args[1:]), rest) for a in minus):
        return True
  return False


def adds_before_a_contraction(kernel):
  """The sum of two contractions is not made one of the sum of two operands."""
  return any(h.op.op == "matmul" and any(a.op == t.ADD for a in h.args) for h in _program(kernel)[0])


def leaves_some_factors_inside(kernel):
  """Of the factors that a sum can do without all are pulled out or none: some cost more."""
  order, chains = _program(kernel)
  sums = set()
  for h in order:
    if h.op.op in ("matmul", "sum"):
      inside = [f for a in h.args for f in _factors(a)]
      found = any(not set(f.axes) & set(h.op.reduced) for f in inside)
    else:
      found = h.op.op in ("acc_sum", "red_sum") and h.args[0] in sums
    if found:
      sums.add(h.leaf)
  products = [_factors(u) for chain in chains for u in t.walk([chain])]
  return any(len(fs) > 1 and sums & set(fs) for fs in products)


RULES = (
  accumulates_no_tile,
  sums_a_product,
  contracts_equal_axes,
  shares_a_tile_axis,
  divides_and_multiplies,
  divides_in_a_divisor,
  shifts_by_no_maximum,
  adds_before_a_contraction,
  leaves_some_factors_inside,
)


def left_out(kernel):
  """The first rule by which the search leaves a program out."""
  return next((rule.__name__ for rule in RULES if rule(kernel)), None)

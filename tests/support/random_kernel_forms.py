"""The kinds of random block graphs; each fills a block, and saves nothing that depends on its rank.

What the axes are to the kernel is drawn first (batch, rows, columns, depth; grid, cluster, loop),
then loads, contractions, reductions and elementwise steps.
"""

from random_kernel_block import LEAVES, LOOP, POST
from random_kernel_steps import (
  axis,
  beside,
  both,
  chain,
  computed,
  grid,
  often,
  partner,
  pick,
  some,
  whole_axes,
)  # fmt: skip

from mirage_onnx.ir.ugraph import Layout


def batches(b):
  return tuple(axis(b, "batch") for _ in range(often(b.rng, 0.55, 0.33, 0.12)))


def contract(b):
  """Contractions over the loop, the cluster or a whole axis, side by side; then what follows."""
  rng = b.rng
  batch = batches(b)
  rows = tuple(axis(b, "row") for _ in range(often(rng, 0.1, 0.78, 0.12)))
  depth, column = axis(b, "loop"), axis(b, "column")
  split = rng.random() < 0.1
  tail = (axis(b, "column"),) if not split and rng.random() < 0.3 else ()
  b.loop = depth if rng.random() < 0.75 else None
  b.cluster = depth if rng.random() < 0.45 else None
  second = (axis(b, "depth"),) if b.loop and rng.random() < 0.12 else ()
  grid(b, *(((depth, *batch), rows) if split else (batch, (*rows, *(tail or (column,))))))
  x = chain(b, b.load((*batch, *rows, depth, *second)), 0.5, 0.35, 0.15)
  found = []
  for _ in range(1 + often(rng, 0.5, 0.4, 0.1)):
    w = chain(b, b.load((*some(rng, batch, 0.7), column, depth, *second)), 0.8, 0.2)
    other = b.load((*batch, *rows, depth, *second)) if rng.random() < 0.2 else x
    m = b.matmul(other, w, (second or (depth,))[0])
    found.append(b.total(b.reduce("sum", m, (depth,)) if second else m, "sum"))
  if rng.random() < 0.4:
    found.append(_statistic(b, x, (depth, *second)))
  if split:
    return _save(b, *found)
  y = chain(b, _joined(b, found), 0.25, 0.35, 0.25, 0.15)
  return _save(b, _behind(b, y, column if tail else None, tail))


def _joined(b, found):
  y = found[0]
  for x in found[1:]:
    y = both(b, y, x)
  return y


def _statistic(b, x, axes):
  """A sum or maximum over these axes, of ``x`` or something made of it."""
  name = b.rng.choice(("sum", "rmax"))
  if b.rng.random() < 0.7:
    x = b.unary(b.rng.choice(("square", "abs", "exp")), x)
  return b.total(b.reduce(name, x, axes), name.removeprefix("r"))


def _behind(b, y, contracted, tail):
  """Reductions and a contraction of a value after the loop."""
  rng = b.rng
  if contracted is not None and contracted in whole_axes(b, y):
    shared = some(rng, [a for a in b.ops[y].axes if a in b.grid], 0.2)
    y = chain(b, b.matmul(y, b.load((*shared, *tail, contracted), POST), contracted), 0.5, 0.5)
  free = whole_axes(b, y)
  if free and rng.random() < 0.4:
    z = chain(b, y, 0.5, 0.5)
    gone = some(rng, free, 0.3) or free[:1]
    r = chain(b, b.reduce(rng.choice(("sum", "rmax")), z, gone), 0.6, 0.4)
    y = both(b, y, r) if rng.random() < 0.8 else r
  return y


def _save(b, *wanted):
  for x in wanted:
    if b.can_save(x):
      b.save(x)
  others = [x for x in computed(b, POST) if b.can_save(x) and set(b.grid) <= set(b.by[x])]
  others = [x for x in others if x not in wanted and b.ops[x].op not in LEAVES]
  if others and b.rng.random() < 0.3:
    b.save(b.rng.choice(others))


def chained(b):
  """A contraction of what a contraction leaves, in the loop over its columns or at once."""
  rng = b.rng
  batch = batches(b)
  rows = tuple(axis(b, "row") for _ in range(1 + often(rng, 0.88, 0.12)))
  along, depth, column = axis(b, "loop"), axis(b, "depth"), axis(b, "column")
  b.loop = along if rng.random() < 0.75 else None
  split = rng.random() < 0.18
  b.cluster = along if b.loop and rng.random() < 0.4 else None
  grid(b, *(((along, *batch), rows) if split else (batch, (*rows, column))))
  q = chain(b, b.load((*batch, *rows, depth)), 0.75, 0.25)
  scores = [
    b.matmul(q, b.load((*some(rng, batch, 0.75), along, depth)), depth)
    for _ in range(1 + often(rng, 0.7, 0.3))
  ]
  s = chain(b, _joined(b, scores), 0.4, 0.4, 0.2)
  kind = pick(rng, {"online": 0.5, "plain": 0.35, "norm": 0.15})
  v = b.load((*some(rng, batch, 0.75), along, column))
  if kind == "online" and b.loop:
    found = _online(b, s, along, v)
  else:
    found = _at_once(b, s, along, v, shifted=kind != "plain")
  if split and along in b.grid:
    for x in found:
      b.save(x)
    return
  y = found[0]
  if len(found) > 1:
    y = b.binary("div" if b.sample[found[1]].min() > 0 else "mul", y, found[1])
  y = _behind(b, chain(b, y, 0.6, 0.3, 0.1), None, ())
  _save(b, y, *found[2:] if column not in b.grid else ())


def _online(b, s, along, v):
  """Sums over the loop, shifted by the running maximum; with ``v`` the weighted sum first."""
  s = b.tame(s, 6.0)
  if b.rng.random() < 0.25:  # 0 or -inf per row and column, or per column
    rows = some(b.rng, [a for a in b.ops[s].axes if a != along], 0.5)
    s = b.value("add", s, beside(b, s, f"mask:{along}", (*rows, along)))
  top = b.value("rmax", s, reduced=(along,))
  run = b.value("run_max", top)
  p = b.value("exp", b.value("sub", s, run))
  factor = b.value("exp", b.value("sub", b.value("prev", run), run))
  tiles = [b.matmul(p, v, along)] if v is not None else []
  if v is None or b.rng.random() < 0.75:
    tiles.append(b.reduce("sum", p, (along,)))
  found = [b.total(t, "scaled", factor) for t in tiles]
  if b.cluster is None and b.rng.random() < 0.8 and along not in b.grid:
    return found
  own = b.value("acc_max", top, phase=POST, ranked=b.cluster is not None)
  common = b.agree(own, "max")
  if b.cluster is not None:
    weight = b.value("exp", b.value("sub", own, common))
    found = [b.agree(b.value("mul", x, weight), "sum") for x in found]
  return [*found, common]


def _at_once(b, s, along, v, *, shifted):
  """The contraction of a function of ``s``, without rescaling; maybe a sum over the same axis."""
  rng = b.rng
  if shifted and not b.by[s][along]:
    s = b.tame(s, 6.0)
    p = b.value("exp", b.value("sub", s, b.reduce("rmax", s, (along,))))
  else:
    p = b.unary(rng.choice(("relu", "sigmoid", "exp", "tanh", "square", "abs", "cos")), s)
    p = chain(b, p, 0.6, 0.4)
  found = [b.total(b.matmul(p, v, along), "sum")]
  if rng.random() < 0.5:
    name = rng.choice(("sum", "sum", "rmax"))
    found.append(b.total(b.reduce(name, p, (along,)), name.removeprefix("r")))
  return found


def reduction(b, *, whole=False):
  """No contraction: sums and maxima over the loop and another axis, used on what was read.

  ``whole``: hardly anything is cut by the grid.
  """
  rng = b.rng
  batch = batches(b)
  rows = (axis(b, "row"),) if rng.random() < 0.8 else ()
  along = axis(b, "loop")
  deep = (axis(b, "depth"),) if rng.random() < 0.35 else ()
  b.loop = along
  b.cluster = pick(rng, {None: 0.55, along: 0.25, (deep or (along,))[0]: 0.2})
  split = rng.random() < 0.15
  cut = (*([along] if split else []), *batch, *rows)
  grid(b, *(((), cut[1:]) if whole else (cut,)))
  x = chain(b, b.load((*batch, *rows, *deep, along)), 0.3, 0.4, 0.3)
  if rng.random() < 0.45 and b.cluster in (None, along):
    found = _online(b, b.reduce("rmax", x, deep) if deep else x, along, None)
  else:
    found = [_statistic(b, x, (along, *deep)) for _ in range(rng.randint(1, 2))]
  if split:
    return _save(b, *found)
  y = chain(b, _joined(b, found), 0.3, 0.4, 0.3)
  if rng.random() < 0.55:
    y = chain(b, both(b, b.load((*batch, *rows, along), POST), y), 0.6, 0.4)
  return _save(b, y)


def at_once(b):
  """No loop: elementwise steps and reductions of whole tiles, maybe a contraction of them."""
  rng = b.rng
  batch = batches(b)
  rows = tuple(axis(b, "row") for _ in range(often(rng, 0.15, 0.7, 0.15)))
  inner = tuple(axis(b, "depth") for _ in range(1 + often(rng, 0.7, 0.3)))
  out = (axis(b, "column"),) if rng.random() < 0.35 else ()
  apart = () if out else some(rng, inner[:1], 0.25)
  grid(b, batch, (*rows, *(out or apart)))
  if rng.random() < 0.4 and len(inner) > 1:
    b.cluster = inner[-1]
  x = chain(b, b.load((*batch, *rows, *inner), whole=apart), 0.2, 0.4, 0.4)
  if b.cluster:
    x = _statistic(b, x, inner[-1:])
    inner = inner[:-1]
  for _ in range(often(rng, 0.2, 0.5, 0.3)):
    gone = some(rng, whole_axes(b, x), 0.7) or inner[:1]
    r = b.reduce(rng.choice(("sum", "rmax")), chain(b, x, 0.5, 0.5), gone)
    x = both(b, x, chain(b, r, 0.5, 0.5))
  if apart and not b.by[x].get(inner[0]):
    # The statistics of a whole row, in a block that has a part of it.
    x = b.reduce("sum", x, inner[:1]) if inner[0] in b.by[x] else x
    x = both(b, b.load((*batch, *rows, inner[0])), x)
  if out and inner[0] in b.by[x]:
    x = b.matmul(x, b.load((*some(rng, batch, 0.5), *out, inner[0])), inner[0])
    if rng.random() < 0.4:
      other = b.load((*batch, *rows, inner[0])), b.load((*out, inner[0]))
      x = both(b, x, b.matmul(*other, inner[0]))
  _save(b, chain(b, x, 0.3, 0.5, 0.2))


def decaying(b):
  """Sums that an own factor scales in every iteration: they depend on the loop's tiles."""
  rng = b.rng
  batch = batches(b)
  row, along = axis(b, "row"), axis(b, "loop")
  column = (axis(b, "column"),) if rng.random() < 0.6 else ()
  b.loop = along
  grid(b, batch, (row, *column))
  x = chain(b, b.load((*batch, row, along)), 0.5, 0.5)
  if column:
    x = b.matmul(x, b.load((*some(rng, batch, 0.6), *column, along)), along)
  else:
    x = b.reduce(rng.choice(("sum", "rmax")), x, (along,))
  y = b.load((*some(rng, batch, 0.5), row)) if rng.random() < 0.5 else x
  if rng.random() < 0.5:
    run = b.value("run_max", y)
    factor = b.value("exp", b.value("sub", b.value("prev", run), run))
  else:
    factor = b.unary("sigmoid", y)
  _save(b, chain(b, b.total(x, "scaled", factor), 0.3, 0.4, 0.3))


def stretched(b, place=None, reduced=""):
  """A contraction with a long chain at one place: an operand, a vector, the result, a scalar.

  ``reduced``: with a sum or a maximum over the depth there instead, or one that is rescaled.
  """
  rng = b.rng
  is_placed = place is not None
  rest = place is not None and place.startswith("rest")
  apart = rest or (place == "scalar" and is_placed)
  batch = (axis(b, "batch"),) if apart else batches(b)[:1]
  row, depth, column = axis(b, "row"), axis(b, "depth"), axis(b, "column")
  b.narrow = b.narrow if place else 0.7
  b.loop = depth if rng.random() < 0.6 else None
  b.cluster = depth if rng.random() < 0.2 else None
  grid(b, () if rest else batch, (row, column))
  places = {"A": 2, "B": 2, "depth": 3, "row": 2, "column": 3, "scalar": 2, "result": 2}
  place = place or pick(rng, {**places, "statistic": 1, "tile": 2})
  n = 0 if reduced else rng.randint(2, 5) if is_placed else rng.randint(4, 7)
  x = chain(b, b.load((*batch, row, depth)), steps=n * (place == "A"))
  w = b.load((*batch * apart, column, depth))
  w = chain(b, w, steps=n * (place == "B"))
  if place == "depth" or (place == "row" and rng.random() < 0.5):
    x = both(b, x, chain(b, b.load((depth if place == "depth" else row,)), steps=n))
  if reduced and place == "depth":
    name = "rmax" if reduced == "rmax" else "sum"
    x = both(b, x, b.reduce(name, b.load((row, depth)), (row,)))
  if place == "rest in the loop" and not reduced:
    x = both(b, x, chain(b, b.load(batch), steps=n))
  if place in ("tile", "no contraction"):
    y = chain(b, b.load((*batch, row, column), POST), steps=n)
    return _save(b, both(b, y, _statistic(b, x, (depth,))))
  y = b.total(b.matmul(x, w, depth), "sum")
  if is_placed and rng.random() < 0.6:
    y = both(b, y, b.total(b.matmul(x, b.load((*batch * apart, column, depth)), depth), "sum"))
  if place == "statistic":
    y = both(b, y, chain(b, _statistic(b, x, (depth,)), steps=n - 1))
  vectors = {"row": (row,), "column": (column,), "scalar": batch * apart, "rest": batch}
  if reduced and place is not None:
    vectors |= {"result": (row, column), "rest in the loop": batch}
    y = both(b, y, _reduced(b, reduced, b.load((*vectors.get(place, ()), depth)), depth))
  elif place in vectors:
    y = both(b, y, chain(b, b.load(vectors[place], POST), steps=n))
  return _save(b, chain(b, y, steps=n * (place == "result")))


def _reduced(b, how, x, along):
  if how == "online":
    return _online(b, x, along, None)[0]
  return b.total(b.reduce(how, x, (along,)), how.removeprefix("r"))


def behind(b, how, layout):
  """A contraction behind the loop, of something that the loop has summed up or taken most of."""
  row, along, depth, column = (axis(b, role) for role in ("row", "loop", "depth", "column"))
  b.loop = along
  b.cluster = along if b.rng.random() < 0.5 else None
  grid(b, (), (row, column))
  sides = {Layout.A_FRAG: (row,), Layout.B_FRAG: (column,)}
  own = (*sides.get(layout, ()), depth)
  z = _reduced(b, how, b.load((*own, along)), along)
  first, second = b.load((row, depth), POST), b.load((column, depth), POST)
  if column in own:
    second = both(b, second, z)
  else:
    first = both(b, first, z)
  _save(b, chain(b, b.matmul(first, second, depth), 0.5, 0.5))


def free(b):
  """Loads over any axes, cut or not, and any operation of any values that fit together."""
  rng = b.rng
  roles = ["row", "column", "depth", *["batch"] * rng.randint(0, 1)]
  names = [axis(b, r) for r in roles]
  b.loop = rng.choice([None, *names])
  b.cluster = pick(rng, {None: 0.6, rng.choice(names): 0.4})
  kept = rng.sample(names, rng.randint(1, 2))
  b.grid = tuple(rng.sample(kept, rng.randint(0, len(kept))))
  for axes in (kept, *(rng.sample(names, rng.randint(0, 3)) for _ in range(rng.randint(1, 2)))):
    b.load(tuple(axes), whole=some(rng, axes, 0.1))
  for _ in range(rng.randint(2, 5)):
    _any_step(b, b.body)
  if b.loop:
    for _ in range(rng.randint(1, 2)):
      b.total(_still(b, rng.choice(computed(b, LOOP)), "loop"), rng.choice(("sum", "max")))
    for _ in range(rng.randint(0, 3)):
      _any_step(b, POST)
  found = [_still(b, x, "cluster") for x in reversed(computed(b, POST)[-2:])]
  carrier = b.load(tuple(kept), POST)
  for x in found:
    y = b.agree(x, rng.choice(("sum", "max")))
    if not set(b.grid) <= set(b.by[y]) and b.meets(y, carrier):
      y = both(b, y, carrier)
    if b.can_save(y):
      b.save(y)


def _any_step(b, phase):
  rng = b.rng
  x = rng.choice([i for i, op in enumerate(b.ops) if op.phase is phase][-4:])
  y = partner(b, x)
  common = sorted(set(b.by[x]) & set(b.by[y]))
  kind = pick(rng, {"step": 0.55, "matmul": 0.25, "reduce": 0.2})
  if kind == "matmul" and common:
    b.matmul(x, y, rng.choice(common))
  elif kind == "reduce" and b.by[x]:
    gone = tuple(rng.sample(sorted(b.by[x]), rng.randint(1, len(b.by[x]))))
    b.reduce(rng.choice(("sum", "rmax")), x, gone)
  else:
    chain(b, x, steps=1)


def _still(b, x, level):
  """``x``, or its sum or maximum over what loop or cluster cut."""
  moving = tuple(a for a, c in b.by[x].items() if level in c)
  return b.reduce(b.rng.choice(("sum", "rmax")), x, moving) if moving else x


def merge(b):
  """A second kernel: what the first one saved, combined over its part axes, and steps."""
  rng = b.rng
  temps = [t for t in b.tensors if t.role == "temp"]
  largest = max(temps, key=lambda t: len(t.axes))
  grid(b, [a for a in largest.axes if "/" not in a])
  found = []
  for t in temps:
    if set(b.grid) <= set(t.axes):
      x = chain(b, b.read(t, POST), 0.5, 0.5)
      gone = tuple(a for a in b.ops[x].axes if "/" in a)
      found.append(b.reduce(rng.choice(("sum", "rmax")), x, gone) if gone else x)
  _save(b, chain(b, _joined(b, found), 0.3, 0.4, 0.3))


#: How often a kernel is of each kind.
FORMS = {
  contract: 0.20, chained: 0.31, reduction: 0.12, at_once: 0.08, decaying: 0.03, free: 0.09,
  stretched: 0.17,
}  # fmt: skip

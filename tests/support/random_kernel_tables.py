"""What random programs consist of and what became of them, as tables."""

from mirage_onnx.ir.ugraph import Layout, is_part_axis

#: A cell of the table (operation, element type, layout) is covered if it has so many values.
ENOUGH = 20


def cells(graph):
  """``operation type layout`` of every value."""
  return tuple(f"{o.op} {o.dtype} {o.layout}" for k in graph.kernels for o in k.ops)


def features(case):
  kernels = case.graph.kernels
  ops = [o.op for k in kernels for o in k.ops]
  numbers = list(zip(kernels, case.params, strict=True))
  found = {
    "two matmuls": any(sum(o.op == "matmul" for o in k.ops) > 1 for k in kernels),
    "chained matmuls": any(_is_chained(k) for k in kernels),
    "carried value used after the loop": any(_is_carried(k) for k in kernels),
    "running maximum": "run_max" in ops,
    "rescaled sum": "acc_scaled" in ops,
    "cluster": any(k.cluster and p.cluster > 1 for k, p in numbers),
    "part axes": any(is_part_axis(a) for a in case.extents),
    "two kernels": len(kernels) > 1,
    "several saves": any(len(k.saves) > 1 for k in kernels),
    "no grid": any(not k.grid for k in kernels),
    "grid of three": any(len(k.grid) == 3 for k in kernels),
    "loop": any(k.loop for k in kernels),
    "an extent above 64": any(n > 64 for n in case.extents.values()),
    "a prime extent": any(_is_prime(n) for n in case.extents.values()),
  }
  return tuple(name for name, has in found.items() if has)


def _is_chained(kernel):
  after = []
  chained = False
  for op in kernel.ops:
    before = any(after[a] for a in op.args)
    chained |= op.op == "matmul" and before
    after.append(op.op == "matmul" or before)
  return chained


def _is_carried(kernel):
  """Whether a sum or maximum over the loop is used by more than a cast or a save."""
  carried = {i for i, op in enumerate(kernel.ops) if op.op.startswith("acc_")}
  return any(op.op != "cast" and carried & set(op.args) for op in kernel.ops)


def _is_prime(n):
  return n > 1 and all(n % d for d in range(2, int(n**0.5) + 1))


def cell_table(counts):
  """Operations and types down, layouts across; ``.`` for what never came."""
  layouts = [x.value for x in Layout]
  rows = sorted({key.rpartition(" ")[0] for key in counts})
  lines = [" " * 16 + "".join(f"{x:>9}" for x in layouts)]
  for row in rows:
    numbers = [counts.get(f"{row} {x}", 0) for x in layouts]
    lines.append(f"{row:16}" + "".join(f"{n or '.':>9}" for n in numbers))
  seldom = [f"{key} ({n})" for key, n in sorted(counts.items()) if n < ENOUGH]
  lines.append(f"{len(counts)} cells, {len(counts) - len(seldom)} of them at least {ENOUGH} times")
  if seldom:
    lines.append("seldom: " + ", ".join(seldom))
  return "\n".join(lines)


def share_table(counts, total):
  """A line each: how many, of how many, percent."""
  return "\n".join(
    f"{name:40}{n:8}{100 * n / max(total, 1):7.1f} %"
    for name, n in sorted(counts.items(), key=lambda x: (-x[1], x[0]))
  )

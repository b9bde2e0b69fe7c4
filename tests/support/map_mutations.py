"""Mistakes in where things are: maps, levels, tensors, saves, launch order."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import permutations

from draft import Draft, each, replaced, retyped

from mirage_onnx.ir.ugraph import Phase, UGraph

Graphs = Iterator[UGraph]


def _reordered(items):
  """Every other order, each once."""
  yield from (order for order in dict.fromkeys(permutations(items)) if order != items)


def imap(kernel):
  """One entry of an imap, or the order of its entries."""
  for i, op in each(kernel, "load"):
    for at in range(len(op.imap)):
      for a in (None, *op.axes):
        if a != op.imap[at]:
          changed = (*op.imap[:at], a, *op.imap[at + 1 :])
          yield Draft(kernel).set(i, imap=changed).done()
    for order in _reordered(op.imap):
      yield Draft(kernel).set(i, imap=order).done()


def fmap(kernel):
  """The loop walks another axis of a load, or none."""
  yield from _map_of_loads(kernel, "fmap")


def cmap(kernel):
  """The ranks of the cluster share out another axis of a load, or none."""
  yield from _map_of_loads(kernel, "cmap")


def _map_of_loads(kernel, name):
  for i, op in each(kernel, "load"):
    for a in (None, *op.axes):
      if a != getattr(op, name):
        yield Draft(kernel).set(i, **{name: a}).done()
  # In every load at once: each iteration, or each rank, has the whole axis.
  if any(getattr(o, name) for o in kernel.loads):
    ops = tuple(replace(o, **{name: None}) for o in kernel.ops)
    yield replace(kernel, ops=ops)
    yield replace(kernel, ops=ops, **{{"fmap": "loop", "cmap": "cluster"}[name]: None})
  # In all loads that have the axis but one.
  readers = [i for i, o in each(kernel, "load") if getattr(o, name)]
  for kept in readers:
    draft = Draft(kernel)
    for i in readers:
      if i != kept:
        draft.set(i, **{name: None})
    yield draft.done()


def omap(kernel):
  """One entry of an omap, or the order of its entries."""
  axes = sorted({a for o in kernel.ops for a in o.axes})
  for at, save in enumerate(kernel.saves):
    changed = set(permutations(save.omap))
    for k, old in enumerate(save.omap):
      tile, _, part = (old or "").partition("/")
      others = (None, *axes, tile if part else f"{old}/{kernel.name}")
      changed |= {(*save.omap[:k], a, *save.omap[k + 1 :]) for a in others}
    for new in sorted(changed - {save.omap}, key=str):
      yield replace(kernel, saves=replaced(kernel.saves, at, replace(save, omap=new)))


def loop_axis(kernel):
  """The for-loop walks another axis, or there is none; loads follow, or not."""
  axes = sorted({a for o in kernel.loads for a in o.axes})
  for axis in (None, *axes):
    if axis == kernel.loop:
      continue
    yield replace(kernel, loop=axis)
    ops = [
      replace(o, fmap=axis if axis in o.axes and o.phase is Phase.LOOP else None)
      if o.op == "load" else o
      for o in kernel.ops
    ]  # fmt: skip
    yield retyped(replace(kernel, loop=axis, ops=tuple(ops)))


def grid(kernel):
  """A dimension of the grid splits another axis, is missing, or two change places."""
  if len(kernel.grid) > 1:
    yield replace(kernel, grid=kernel.grid[::-1])
  axes = sorted({a for o in kernel.ops for a in o.axes} - set(kernel.grid))
  for at in range(len(kernel.grid)):
    fewer = (*kernel.grid[:at], *kernel.grid[at + 1 :])
    yield regridded(kernel, fewer)
    for axis in axes:
      yield regridded(kernel, (*kernel.grid[:at], axis, *kernel.grid[at + 1 :]))
  for axis in axes:
    if len(kernel.grid) < 3:
      yield regridded(kernel, (*kernel.grid, axis))


def regridded(kernel, axes):
  ops = tuple(
    replace(o, imap=tuple(a if a in o.axes else None for a in axes)) if o.op == "load" else o
    for o in kernel.ops
  )
  saves = []
  for save in kernel.saves:
    parts = {m.partition("/")[0] for m in save.omap if m and "/" in m}
    omap = tuple(f"{a}/{kernel.name}" if a in parts else a for a in axes)
    saves.append(replace(save, omap=omap))
  return replace(kernel, grid=axes, ops=ops, saves=tuple(saves))


def cluster(kernel):
  """A reduction over the ranks is missing or comes twice, or the ranks were never told."""
  for i, op in each(kernel, "red_sum", "red_max"):
    yield Draft(kernel).redirect(i, op.args[0]).done()
    yield Draft(kernel).then(i, op.op, i).done()
    other = {"red_sum": "red_max", "red_max": "red_sum"}[op.op]
    yield Draft(kernel).then(i, other, i).done()
    for user, inner in enumerate(kernel.ops):
      # The reduction moves behind a function of its result.
      if i in inner.args and inner.phase is Phase.POST:
        draft = Draft(kernel)
        args = tuple(op.args[0] if a == i else a for a in inner.args)
        draft.set(user, args=args)
        late = draft.put(op.op, user)
        yield draft.redirect(user, late).done()
  yield from _unreduced_cluster(kernel)


def _unreduced_cluster(kernel):
  """The ranks share the work out and forget to combine."""
  axes = sorted({a for o in kernel.loads for a in o.axes})
  for axis in axes:
    if axis == kernel.cluster:
      continue
    ops = tuple(
      replace(o, cmap=axis if axis in o.axes else None) if o.op == "load" else o for o in kernel.ops
    )
    yield replace(kernel, cluster=axis, ops=ops)
    looped = tuple(replace(o, cmap=axis if o.fmap == axis else None) for o in kernel.ops)
    yield replace(kernel, cluster=axis, ops=looped)


def phase(kernel):
  """A value is computed in the loop instead of after it, or after it instead of in it."""
  for i, op in enumerate(kernel.ops):
    other = Phase.POST if op.phase is Phase.LOOP else Phase.LOOP
    yield Draft(kernel).set(i, phase=other).done()
    if op.op == "load" and op.fmap:
      yield Draft(kernel).set(i, phase=other, fmap=None).done()


def saved_value(kernel):
  for at, save in enumerate(kernel.saves):
    for i, op in enumerate(kernel.ops):
      if i != save.arg and op.phase is Phase.POST:
        changed = replaced(kernel.saves, at, replace(save, arg=i))
        yield Draft(replace(kernel, saves=changed)).done()


# Of the whole graph:


def loaded_tensor(graph):
  """A load reads another tensor: broadcast along the axes that it has, or cut as it can be."""
  for at, kernel in enumerate(graph.kernels):
    for i, op in each(kernel, "load"):
      for t in graph.tensors:
        if t.name != op.tensor and t.role != "output":
          new = replace(_followed(kernel, op, t.axes), tensor=t.name, dtype=t.dtype)
          ops = (*kernel.ops[:i], new, *kernel.ops[i + 1 :])
          yield _with(graph, at, retyped(replace(kernel, ops=ops)))


def _followed(kernel, op, axes):
  """A load over other axes, cut where kernel and phase say so."""
  looped = kernel.loop in axes and op.phase is Phase.LOOP
  return replace(
    op,
    axes=axes,
    imap=tuple(a if a in axes else None for a in kernel.grid),
    cmap=kernel.cluster if kernel.cluster in axes else None,
    fmap=kernel.loop if looped else None,
  )


def broadcast_axis(graph):
  """A tensor is taken to be over another axis: it is broadcast along the wrong dimension."""
  axes = sorted({a for t in graph.tensors for a in t.axes})
  for at, t in enumerate(graph.tensors):
    for old in t.axes:
      for new in axes:
        if new in t.axes or t.role == "output":
          continue
        names = tuple(new if a == old else a for a in t.axes)
        tensors = (*graph.tensors[:at], replace(t, axes=names), *graph.tensors[at + 1 :])
        kernels = []
        for kernel in graph.kernels:
          ops = tuple(_followed(kernel, o, names) if o.tensor == t.name else o for o in kernel.ops)
          kernels.append(retyped(replace(kernel, ops=ops)))
        yield UGraph(tensors, tuple(kernels))


def memory_order(graph):
  """The axes of a tensor in another order: a transposition that is read as if it were none."""
  for at, t in enumerate(graph.tensors):
    for axes in _reordered(t.axes):
      yield replace(graph, tensors=replaced(graph.tensors, at, replace(t, axes=axes)))


def kernels(graph):
  """Launch order, a missing kernel, a temp of another kernel, two saves exchanged."""
  if len(graph.kernels) > 1:
    for order in _reordered(graph.kernels):
      yield replace(graph, kernels=order)
    for at in range(len(graph.kernels)):
      yield replace(graph, kernels=graph.kernels[:at] + graph.kernels[at + 1 :])
  for at, kernel in enumerate(graph.kernels):
    for i, first in enumerate(kernel.saves):
      yield _with(graph, at, replace(kernel, saves=(*kernel.saves, first)))
      yield _with(graph, at, replace(kernel, saves=kernel.saves[:i] + kernel.saves[i + 1 :]))
      for j, second in enumerate(kernel.saves[:i]):
        saves = replaced(kernel.saves, i, replace(second, arg=first.arg))
        saves = replaced(saves, j, replace(first, arg=second.arg))
        yield _with(graph, at, replace(kernel, saves=saves))
  outputs = [t for t in graph.tensors if t.role == "output"]
  temps = [t for t in graph.tensors if t.role == "temp"]
  for t in (*outputs, *temps):
    for other in (*outputs, *temps):
      if other.name != t.name:
        yield _with_save_into(graph, t.name, other.name)


def _with_save_into(graph, old, new):
  kernels = tuple(
    replace(k, saves=tuple(replace(s, tensor=new) if s.tensor == old else s for s in k.saves))
    for k in graph.kernels
  )
  return replace(graph, kernels=kernels)


def _with(graph, at, kernel):
  return replace(graph, kernels=replaced(graph.kernels, at, kernel))

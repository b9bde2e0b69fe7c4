"""In which order of its dims the model has to store what kernels read."""

from mirage_onnx.errors import MirageError
from mirage_onnx.ir.program import is_places
from mirage_onnx.ir.region import Region, RegionTensor
from mirage_onnx.ir.ugraph import KTensor, UGraph
from mirage_onnx.ir.view import in_order


def dim_permutation(x: RegionTensor, axes: tuple[str, ...]) -> tuple[int, ...]:
  """The order of the dims of ``x.source`` that makes its memory order ``axes``.

  Dims that are one axis move together; dims of extent 1 stay where they are if all can.

  Raises:
      MirageError: INTERNAL where one dimension holds several axes: no order of dims does it.
  """
  if axes == x.axes:
    return tuple(range(len(x.source.shape or ())))
  if x.splits_dims:
    raise MirageError("INTERNAL", f"no order of the dims of {x.source.name!r} gives {axes}")
  if x.view is not None:
    return _of_boxes(x, axes)
  groups: dict[str, list[int]] = {}
  for i, held in enumerate(x.dims):
    for axis in held:
      groups.setdefault(axis, []).append(i)
  moved = iter(i for a in axes for i in groups[a])
  return tuple(next(moved) if held else i for i, held in enumerate(x.dims))


def _of_boxes(x: RegionTensor, axes: tuple[str, ...]) -> tuple[int, ...]:
  """As ``in_order`` says of windows: those that hold axes trade places."""
  assert x.view is not None
  groups: list[tuple[tuple[str, ...], list[int]]] = []
  for d, (held, full) in enumerate(zip(x.dims, x.view.fulls, strict=True)):
    if groups and (full == 1 or (held and held == groups[-1][0])):
      groups[-1][1].append(d)
    else:
      groups.append((held, [d]))
  first = {held[0]: dims for held, dims in groups if held}
  rest = iter(axes)
  return tuple(d for held, dims in groups for d in (first[next(rest)] if held else dims))


def stored_orders(region: Region, graph: UGraph) -> dict[str, tuple[int, ...]]:
  """ONNX name of what inputs are parts of -> the order of its dims that the kernels read.

  Raises:
      MirageError: INTERNAL, the kernels are for other parts or constants, or read one tensor in two orders.
  """
  tensors = {t.name: t for t in graph.tensors}
  found: dict[str, tuple[int, ...]] = {}
  for x in (*region.given, *region.outputs):
    t = tensors.get(x.name)
    axes = t.axes if t else x.axes
    if t and t.windows != in_order(x.windows, axes):
      raise MirageError("INTERNAL", f"kernels take {x.name} to be another part of a tensor")
    if t and not _holds(x, t):
      raise MirageError("INTERNAL", f"kernels take {x.name} to hold other numbers")
    if x in region.outputs:
      continue
    order = dim_permutation(x, axes)
    if found.setdefault(x.source.name, order) != order:
      raise MirageError("INTERNAL", f"kernels read {x.source.name} in two orders")
  return found


def _holds(x: RegionTensor, t: KTensor) -> bool:
  """Whether a constant is what kernels know of it: of such elements they read nothing."""
  return t.band in (None, x.band) and (not t.places or (x.view is None and is_places(x.source.name)))

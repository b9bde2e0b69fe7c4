"""Views: boxes of tensors of the model, which kernels read and write in place.

Slices sink to the inputs of a region and concatenations rise to its outputs (``match/sinking.py``),
so a region computes on boxes of what the model has, and no kernel slices or concatenates.
"""

from dataclasses import dataclass

from mirage_onnx.ir.program import Dim, Tensor


@dataclass(frozen=True, slots=True)
class View:
  """Elements ``starts[d] <= i < starts[d] + shape[d]`` of ``source`` reshaped to ``fulls``.

  ``fulls`` has a number per dimension of the view, whose own shape is its tensor's; it splits
  dimensions of ``source`` and never reorders them. One that a run counts is whole, by its name.
  ``picks``: the tensor of the model that says which rows of ``source``, in which order and how
  often, dimension 0 of the view is; a negative one counts from the end.
  ``repeats``: how many neighbours along each dimension are one element of memory, if not 1
  everywhere (the scale of a block of weights); ``starts`` and ``fulls`` count elements of memory.
  A view of a packed type is of the bytes of ``source``, and ``fulls`` counts what is in them.
  """

  source: Tensor
  starts: tuple[int, ...]
  fulls: tuple[Dim, ...]
  picks: str = ""
  repeats: tuple[int, ...] = ()

  def repeat(self, d: int) -> int:
    return self.repeats[d] if self.repeats else 1

  def source_dim(self, d: int) -> int:
    """The dimension of ``source`` that dimension ``d`` of the view is, or is a part of."""
    at, size = 0, self.fulls[0]
    for n in self.fulls[1 : d + 1]:
      if size == (self.source.shape or ())[at]:
        at, size = at + 1, n
      else:
        size = int(size) * int(n)
    return at


@dataclass(frozen=True, slots=True)
class Window:
  """One dimension of memory, of ``full`` elements (None: as many as ``axes`` have).

  ``axes``, slowest first, hold the elements from ``start`` on; none where it is one element.
  With ``picks`` they hold the elements that this tensor names, in its order. ``repeat``
  neighbours along the axes are one element of memory.
  """

  axes: tuple[str, ...]
  start: int = 0
  full: int | None = None
  picks: str = ""
  repeat: int = 1


def in_order(windows: tuple[Window, ...], axes: tuple[str, ...]) -> tuple[Window, ...]:
  """The windows of a tensor that is stored with its axes in this order.

  Dimensions that hold axes trade places; those of which there is one element stay.

  Raises:
      ValueError: a dimension holds several axes, and not one after the other in this order.
  """
  if not windows:
    return ()
  rest = iter(axes)
  starting = {w.axes[0]: w for w in windows if w.axes}
  found = []
  for w in windows:
    if w.axes:
      w = starting.get(next(rest, ""), w)
      if any(next(rest, "") != a for a in w.axes[1:]):
        raise ValueError(f"no order of {windows} gives {axes}")
    found.append(w)
  if tuple(a for w in found for a in w.axes) != axes:
    raise ValueError(f"no order of {windows} gives {axes}")
  return tuple(found)

"""Conv whose windows fill the image and do not overlap: how it is cut into windows, or why it is not.

The patches of an image (vision transformers), pieces of a signal, steps of a pyramid: each element is in one
window, so windows are the rows of a matrix, and what Conv yields is a product with its weights.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from mirage_onnx.ir.program import Dim


@dataclass(frozen=True, slots=True)
class Windows:
  """``columns``: channels of the result; ``grid``: how many windows there are along each side."""

  channels: int
  columns: int
  grid: tuple[int, ...]
  window: tuple[int, ...]

  @property
  def count(self) -> int:
    """Of an image."""
    return prod(self.grid)

  @property
  def depth(self) -> int:
    """Elements of a window."""
    return self.channels * prod(self.window)


def find_windows(given: Mapping[str, Any], x: Sequence[Dim], weights: Sequence[Dim]) -> Windows | str:
  """The windows of a Conv with attributes ``given``, or why it is no product of windows.

  ``x``, ``weights``: dimensions, of which a run may say how many images there are.
  """
  sizes = [d for d in (*x[1:], *weights) if isinstance(d, int)]
  if len(x) < 3 or len(weights) != len(x) or len(sizes) < len(x) - 1 + len(weights) or 0 in sizes:
    return "the sizes of image and weights are not all known"
  channels, *image = sizes[: len(x) - 1]
  columns, deep, *window = sizes[len(x) - 1 :]
  ones = [1] * len(window)
  if given.get("group", 1) != 1 or deep != channels:
    return "it has groups of channels"
  if prod(window) == 1:
    return "its windows are single elements"
  if list(given.get("dilations", ones)) != ones:
    return "its windows have holes"
  if list(given.get("strides", ones)) != window or list(given.get("kernel_shape", window)) != window:
    return "its windows overlap, or leave elements out"
  if any(d % k for d, k in zip(image, window, strict=True)):
    return "its windows do not fill the image"
  # Of windows that fill the image no automatic padding adds anything.
  if given.get("auto_pad", b"NOTSET") == b"NOTSET" and any(given.get("pads", ())):
    return "it pads the image"
  grid = tuple(d // k for d, k in zip(image, window, strict=True))
  return Windows(channels, columns, grid, tuple(window))

"""The axes of a region's steps at any extents of the region.

Steps have the axes that the matcher found before it joined any, so an axis of the region stands for
one or several of theirs, side by side in memory. At other extents the last of these has all of its
elements and the others have one: a choice at which every step means what it says.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from mirage_onnx.ir.region import Region, RegionTensor
from mirage_onnx.match.axes import NamedSteps, name_axes


@dataclass(frozen=True, slots=True)
class StepAxes:
  """``named``: axes of every tensor of the steps, their extents at the region's own sizes."""

  region: Region
  named: NamedSteps

  def extents_at(self, sizes: Mapping[str, int], of: Sequence[RegionTensor] = ()) -> dict[str, int]:
    """The extents of these axes where those of the region's are ``sizes``.

    ``of``: only for the axes of these tensors; by default for all.

    Raises:
        ValueError: the axes of the steps are not those of the region, cut finer.
    """
    result = dict.fromkeys(self.named.extents, 1)
    for x in of or (*self.region.inputs, *self.region.outputs):
      for axis, group in self.groups(x):
        result[group[-1]] = sizes[axis]
    return result

  def groups(self, x: RegionTensor) -> list[tuple[str, list[str]]]:
    """Each axis of a region tensor with those that it stands for here, slowest first."""
    memory = self.named.memory(x.tensor.name)
    if len(memory) == len(x.axes):
      return [(a, [own]) for a, own in zip(x.axes, memory, strict=True)]
    rest = iter(memory)
    found = []
    for axis in x.axes:
      size, group = 1, list[str]()
      while size < self.region.extents[axis] and (part := next(rest, None)):
        size *= self.named.extents[part]
        group.append(part)
      if size != self.region.extents[axis] or not group:
        raise ValueError(f"the steps do not know the axis {axis} of {x.tensor.name}")
      found.append((axis, group))
    return found

  def shape(self, name: str, extents: Mapping[str, int]) -> tuple[int, ...]:
    """The shape of a tensor of the steps; ``extents`` are of ``extents_at``."""
    return tuple(prod(extents[a] for a in dim) for dim in self.named.axes[name])


def step_axes(region: Region) -> StepAxes:
  """The axes of the steps of ``region``.

  Raises:
      RejectionError: the steps have no axes (never for a region that the matcher made).
  """
  shapes = {i.tensor.name: region.shape(i.tensor) for i in region.inputs}
  for name in region.constants:
    shapes.setdefault(name, ())
  return StepAxes(region, name_axes(region.steps, shapes, region.constants))

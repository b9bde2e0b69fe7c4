"""What a region has to do at least, and how long that takes: the roofline.

Williams, Waterman, Patterson: Roofline (CACM 2009), with the launch of one kernel added.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import prod

from mirage_onnx.ir import Region, Step, Tensor
from mirage_onnx.ir.functions import ELEMENTWISE
from mirage_onnx.target import Target

#: Primitive operations that read every element of their operand once.
REDUCING = ("sum", "mean", "rmax")


@dataclass(frozen=True, slots=True)
class Flops:
  """Operations of a program as ONNX wrote it: of contractions (2 m k n each), and all others.

  An elementwise function counts 1 per element, whatever it costs; moves and casts count 0.
  """

  contraction: int = 0
  other: int = 0

  @property
  def total(self) -> int:
    return self.contraction + self.other

  def __add__(self, more: Flops) -> Flops:
    return Flops(self.contraction + more.contraction, self.other + more.other)


@dataclass(frozen=True, slots=True)
class Work:
  """Operations of a region, and bytes it must move: every input and output once."""

  flops: Flops
  weight_bytes: int
  activation_bytes: int

  @property
  def total_bytes(self) -> int:
    return self.weight_bytes + self.activation_bytes

  def floor_us(self, target: Target) -> float:
    """No kernel is faster: one launch, and the slower of memory and tensor cores.

    Operations outside contractions are left out, as other units do them at the same time.
    """
    memory_us = self.total_bytes / (target.stream_tbps * 1e6)
    tensor_core_us = self.flops.contraction / (target.mma_tflops * 1e6)
    return target.launch_us + max(memory_us, tensor_core_us)


def count_flops(steps: Iterable[Step], tensors: Mapping[str, Tensor]) -> Flops:
  """The operations of ``steps``; ``tensors``: what they read. Dynamic shapes count 0."""
  known = dict(tensors)
  total = Flops()
  for step in steps:
    known[step.output.name] = step.output
    total += _step_flops(step, known)
  return total


def _step_flops(step: Step, tensors: Mapping[str, Tensor]) -> Flops:
  operand = tensors.get(str(step.inputs[0]))
  if step.op == "matmul":
    if operand is None or not operand.shape or not isinstance(operand.shape[-1], int):
      return Flops()
    return Flops(contraction=2 * elements(step.output) * operand.shape[-1])
  if step.op in REDUCING:
    return Flops(other=elements(operand) if operand else 0)
  if step.op in ELEMENTWISE or step.op == "pow":
    return Flops(other=elements(step.output))
  return Flops()


def elements(tensor: Tensor) -> int:
  """Number of elements; 0 where the shape is not known before a run."""
  return prod(int(d) for d in tensor.shape or ()) if tensor.is_static else 0


def tensor_bytes(tensor: Tensor) -> int:
  """Bytes of a tensor; 0 where its type or shape is not known."""
  return tensor.dtype.bytes_of(elements(tensor)) if tensor.dtype else 0


def region_work(region: Region) -> Work:
  """The work of one region by itself."""
  tensors = {x.tensor.name: _sized(x.tensor, region) for x in (*region.inputs, *region.outputs)}
  weights = sum(tensor_bytes(tensors[i.tensor.name]) // i.repeat for i in region.inputs if i.is_weight)
  moved = [i.tensor.name for i in region.inputs if not i.is_weight]
  moved += [o.tensor.name for o in region.outputs]
  return Work(count_flops(region.steps, tensors), weights, sum(tensor_bytes(tensors[n]) for n in moved))


def _sized(tensor: Tensor, region: Region) -> Tensor:
  """At the sizes that the search assumes; a name that no axis of the region has stays one."""
  if tensor.shape is None:
    return replace(tensor, shape=())
  return replace(tensor, shape=tuple(region.symbols.get(str(d), d) for d in tensor.shape))

"""A test program of some functions of ``ptx.cuh``: text, data and what the PTX document says.

The same text and the same data run in the emulator and on a GPU.
"""

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from mirage_onnx.codegen.source import KernelSource
from tests.support.golden_texts import texts_of

Arrays = Mapping[str, np.ndarray]
#: Makes the inputs, and the outputs of inputs.
Draw = Callable[[np.random.Generator], dict[str, np.ndarray]]
Reference = Callable[[Arrays], dict[str, np.ndarray]]
#: Of an output: its shape and element type.
Spec = tuple[tuple[int, ...], type]

#: What a kernel does, by its name: ``primitives/NAME`` of the packed texts.
TEXTS = texts_of("primitives")
U16, U32, F32 = np.uint16, np.uint32, np.float32
_C_TYPES = {np.dtype(U16): "unsigned short", np.dtype(U32): "unsigned", np.dtype(F32): "float"}


@dataclass(frozen=True)
class Case:
  """``draw`` makes the inputs; an output that is among them starts so, others as poison.

  ``reference``: what the PTX ISA says the outputs are, in numpy, independent of the emulator.
  ``ulps``: None compares bits; otherwise outputs are f32 and may differ by that many units in the
  last place, NaN being equal to NaN, as for functions that CUDA C++ calls approximate.
  """

  name: str
  covers: tuple[str, ...]
  kernels: tuple[KernelSource, ...]
  draw: Draw
  outputs: Mapping[str, Spec]
  reference: Reference
  ulps: int | None = None

  def __str__(self):
    return self.name

  def inputs(self):
    return self.draw(np.random.default_rng(zlib.crc32(self.name.encode())))

  def tensors(self):
    found = {name: x.copy() for name, x in self.inputs().items()}
    for name, (shape, dtype) in self.outputs.items():
      if name not in found:
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        found[name] = np.full(size, 0xFF, np.uint8).view(dtype).reshape(shape)
    return found


def random_words(*shape):
  return lambda rng: {"x": rng.integers(0, 2**32, shape, dtype=U32)}


def case(
  name,
  covers,
  body=None,
  *,
  draw,
  outputs,
  reference,
  grid=(1, 1, 1),
  block=32,
  cluster=1,
  smem=0,
  ulps=None,
  kernels=1,
):
  """A case of one kernel, or of several that run one after the other on the same tensors.

  A body (by default that of ``TEXTS``, NAME or NAME_0, NAME_1, ...) sees a pointer for every
  input and output by its name, in the order inputs, outputs. A kernel that calls ``grid_wait`` is
  launched as programmatically dependent on the one before.
  """
  shown = draw(np.random.default_rng(0))
  dtypes = {n: x.dtype for n, x in shown.items()}
  dtypes |= {n: np.dtype(dtype) for n, (_, dtype) in outputs.items()}
  parameters = ", ".join(f"{'' if n in outputs else 'const '}{_C_TYPES[d]}* {n}" for n, d in dtypes.items())
  sources = []
  for symbol in [name] if kernels == 1 else [f"{name}_{i}" for i in range(kernels)]:
    text = TEXTS[symbol] if body is None else body
    head = f"PTX_CLUSTER_KERNEL({block}, {cluster})" if cluster > 1 else f"PTX_KERNEL({block})"
    whole = f'#include "ptx.cuh"\n{head} {symbol}({parameters}) {{\n{text}}}\n'
    pdl = "grid_wait" in text
    sources.append(KernelSource(symbol, whole, grid, block, cluster, smem, tuple(dtypes), pdl))
  return Case(name, tuple(covers.split()), tuple(sources), draw, outputs, reference, ulps)


def ulps_apart(got, want):
  steps = []
  for x in (got, want):
    bits = np.ascontiguousarray(x).view(np.int32).astype(np.int64)
    steps.append(np.where(bits < 0, -(bits & 0x7FFFFFFF), bits))
  apart = np.abs(steps[0] - steps[1])
  nan = np.isnan(got).astype(int) + np.isnan(want)
  return np.where(nan == 2, 0, np.where(nan == 1, 2**32, apart))


def differences(case, got, want):
  """Output -> what is wrong with it, for every output that is."""
  found = {}
  for name in case.outputs:
    a, b = np.ascontiguousarray(got[name]), np.ascontiguousarray(want[name])
    if a.dtype != b.dtype or a.shape != b.shape:
      found[name] = f"{a.dtype}{a.shape} instead of {b.dtype}{b.shape}"
      continue
    if case.ulps is not None:
      wrong = ulps_apart(a, b) > case.ulps
    else:
      bits = f"u{a.dtype.itemsize}"
      wrong = a.view(bits) != b.view(bits)
    if wrong.any():
      at = tuple(int(i) for i in np.argwhere(wrong)[0])
      found[name] = (
        f"{int(wrong.sum())} of {wrong.size} differ, first at {at}: "
        f"{a[at]!r} ({_hex(a[at])}) instead of {b[at]!r} ({_hex(b[at])})"
      )
  return found


def _hex(value):
  return "0x" + value.tobytes()[::-1].hex()

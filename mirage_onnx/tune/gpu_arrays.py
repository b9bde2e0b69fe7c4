"""Where the float64 values of a region are worked out: by cupy on the GPU that measures, else by numpy.

25 million scores take 20 seconds in float64 on two cores, and some hundredths on a GPU.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np

from mirage_onnx import deadline
from mirage_onnx.ir import Region
from mirage_onnx.tune.machine import gpu_alone
from mirage_onnx.verify.interpret_steps import interpret_steps

_LOG = logging.getLogger(__name__)
#: Types that are copied to the GPU as they are, and become float64 there.
SENT = (np.float16, np.float32, ml_dtypes.bfloat16)
#: Bytes in float64 of what stays on the GPU from one draw of a region to the next.
MOST_HELD = 8 << 30


@cache
def gpu_arrays() -> ModuleType | None:
  """cupy, where it is installed and finds a GPU that it can compute on."""
  try:
    import cupy

    found = float((cupy.ones(2) + 1.0).sum())
  except Exception as error:  # what is missing is not needed
    _LOG.debug("no cupy: %s", error)
    return None
  return cupy if found == 4.0 else None


def as_given(x: np.ndarray, xp: Any = np) -> np.ndarray:
  """``x`` as ``interpreted`` takes it: in float64, but what the GPU makes so itself is as it is.

  In float64 the weights of a LLaMA layer are 1.4 GB, and were copied to the GPU six times.
  """
  return x if xp is not np and x.dtype in SENT else x.astype(np.float64)


@contextmanager
def held(known: Mapping[str, np.ndarray], xp: Any = np) -> Iterator[Mapping[str, Any]]:
  """What several draws have in common, by ``as_given``, as all of them take it: in float64 on the GPU.

  As it is where there is none, or no room.
  """
  wide: dict[str, Any] = {}
  if xp is not np and known and sum(x.size for x in known.values()) * 8 <= MOST_HELD:
    try:
      with gpu_alone():
        wide = {n: _wide(x, xp) for n, x in known.items()}
    except deadline.OverdueError:
      raise
    except Exception as error:
      _LOG.debug("not held on the GPU: %s", error)
      wide = {}
  try:
    yield wide or known
  finally:
    if wide:
      wide.clear()
      xp.get_default_memory_pool().free_all_blocks()


def _wide(x: Any, xp: Any) -> Any:
  """``x`` in float64 on the GPU, where it may be already."""
  if not isinstance(x, np.ndarray):
    return x
  if x.dtype != ml_dtypes.bfloat16:
    return xp.asarray(x).astype(np.float64)
  # Numbers that cupy does not know are the upper halves of fp32.
  bits = xp.asarray(np.ascontiguousarray(x).view(np.uint16)).astype(np.uint32) << 16
  return bits.view(np.float32).astype(np.float64)


def interpreted(
  region: Region, inputs: Mapping[str, np.ndarray], names: Sequence[str], *, xp: Any = np
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
  """The values of ``names`` in the memory of the host, exact and with every step rounded.

  ``inputs``: by ``as_given``; the values are those of ``interpret_steps``. What the GPU has no memory for, or
  its library no function, numpy computes.
  """
  if xp is not np:
    try:
      with gpu_alone():  # another thread may be timing a kernel
        wide = {n: _wide(x, xp) for n, x in inputs.items()}
        both = []
        for rounded in (False, True):
          found = interpret_steps(region, wide, rounded=rounded, xp=xp)
          both.append({n: np.asarray(xp.asnumpy(found[n])) for n in names})
          found = {}
        return both[0], both[1]
    except deadline.OverdueError:
      raise
    except Exception as error:
      _LOG.debug("%s is interpreted by numpy: %s", region.nodes[:1], error)
    finally:
      wide, found = {}, {}  # else their memory would not be free
      xp.get_default_memory_pool().free_all_blocks()
  plain = {
    n: np.asarray(x if isinstance(x, np.ndarray) else xp.asnumpy(x), np.float64) for n, x in inputs.items()
  }
  exact, rounded_too = (interpret_steps(region, plain, rounded=rounded) for rounded in (False, True))
  return {n: exact[n] for n in names}, {n: rounded_too[n] for n in names}

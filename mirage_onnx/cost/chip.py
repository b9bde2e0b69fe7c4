"""What every kind of kernel has of a chip: how its blocks fill it, and what its bytes take.

Of numbers, or of arrays of them: one formula (``Arithmetic``). A cold kernel streams its bytes at
1 / (1/peak^3 + 1/r^3)^(1/3) with r = bytes in flight / latency.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import cbrt, ceil, floor
from typing import Any

import numpy as np

from mirage_onnx.target import Target

#: One trip to memory under load.
LOADED_LATENCY_US = 0.65
#: Share of the multiprocessors that clusters of a size can fill.
CLUSTER_FILL = {1: 1.0, 2: 0.95, 4: 0.9}
LARGE_CLUSTER_FILL = 0.85
#: The same by the size of a cluster.
FILL = tuple(CLUSTER_FILL.get(size, LARGE_CLUSTER_FILL) for size in range(17))
#: How much of what is read from L2 is not hidden behind other reads. ``Target.l2_tbps``: of 857 kernels in
#: ``sweep.csv.xz`` (as above) the fastest reader loaded 104.9 MB, of them 33.8 from memory, in 20.05 us:
#: 5.5 TB/s without its launch. So no kernel takes less than all its loads at that.
L2_SHARE = 0.25
#: What memory moves at least.
SECTOR_BYTES = 32
#: Bytes in flight that limit nothing.
UNLIMITED = 1e30


@dataclass(frozen=True, slots=True)
class Arithmetic:
  """What the formula needs beside operators: of numbers, or of arrays of them."""

  ceil: Callable[[Any], Any]
  floor: Callable[[Any], Any]
  least: Callable[[Any, Any], Any]
  most: Callable[[Any, Any], Any]
  where: Callable[[Any, Any, Any], Any]
  cbrt: Callable[[Any], Any]
  fill: Any


NUMBERS = Arithmetic(ceil, floor, min, max, lambda test, a, b: a if test else b, cbrt, FILL)
ARRAYS = Arithmetic(np.ceil, np.floor, np.minimum, np.maximum, np.where, np.cbrt, np.array(FILL))


@dataclass(frozen=True, slots=True)
class Fill:
  """How blocks fill the chip.

  ``share``: blocks for each multiprocessor, ``busy``: the share of these that have one, ``active``: blocks of
  one multiprocessor at a time (a share, if there are fewer blocks than multiprocessors), ``rounds``: blocks
  that the fullest one has in all, ``waves`` of them.
  """

  share: Any
  busy: Any
  active: Any
  rounds: Any
  waves: Any


def fill_of(
  ctas: Any, cluster: Any, warps: Any, registers: Any, smem: Any, target: Target, n: Arithmetic = ARRAYS
) -> Fill:
  """``ctas`` blocks, those of clusters of this size included, with so many registers per thread."""
  threads = 32 * warps
  by_registers = n.floor(target.registers_per_sm / (threads * n.most(n.ceil(registers / 8) * 8, 24)))
  by_smem = n.floor(target.smem_per_sm_bytes / (smem + target.reserved_smem_bytes))
  by_threads = n.least(target.sm_threads // threads, target.sm_blocks)
  resident = n.most(1, n.least(n.least(by_registers, by_smem), by_threads))
  # Clusters leave multiprocessors of a GPC over, so fewer blocks are resident at once.
  sms = target.multiprocessors * n.fill[cluster]
  share = ctas / target.multiprocessors
  return Fill(
    share,
    busy=n.least(1.0, share),
    active=n.least(share, resident),
    rounds=n.most(1, n.ceil(ctas / sms - 0.05)),
    waves=n.most(1, n.ceil(ctas / (sms * resident) - 0.05)),
  )


def memory_time_us(
  dram: Any, l2: Any, in_flight: Any, fill: Fill, target: Target, n: Arithmetic = ARRAYS
) -> Any:
  """Time that bytes take: ``l2`` loaded in all, ``dram`` of them from memory; L2 has a rate of its own too.

  ``in_flight``: of a multiprocessor, not 0.
  """
  peak = target.stream_tbps * 1e6 * fill.busy
  slow = peak / (in_flight * target.multiprocessors / LOADED_LATENCY_US)
  rate = peak / n.cbrt(1 + slow * slow * slow)
  l2_rate = target.l2_tbps * 1e6 * fill.busy
  again = n.most(0.0, l2 - dram)
  return n.most(dram / rate + L2_SHARE * again / l2_rate, l2 / l2_rate)

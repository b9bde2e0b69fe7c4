"""What a profile says of a GPU: the columns of ``targets/rows.py`` and ``targets/architectures.py``.

A profile is data, so a model can be optimized for a GPU that is not there. What a chip can do is a
column like what it holds: no stage asks for a compute capability.
"""

from dataclasses import dataclass
from enum import StrEnum


class Rated(StrEnum):
  """Where the rates of a profile come from."""

  MEASURED = "measured"
  DATASHEET = "datasheet"


@dataclass(frozen=True, slots=True)
class Target:
  """One GPU model: of those that the driver calls ``gpu``, the ones with so many ``multiprocessors``.

  ``arch`` is NVRTC's name of it, ``suffix`` the last part of the custom-op domain. ``capability``:
  which images run on it.

  Limits. ``sm_threads``, ``sm_blocks``: of a multiprocessor at once; ``reserved_smem_bytes``: of its
  shared memory, per block (CUDA C++ Programming Guide, technical specifications). ``smem_bytes``: the
  most dynamic shared memory of a block. Features. ``has_clusters``, with at most ``max_cluster``
  blocks. ``has_pdl``: a kernel can start before the one that it depends on has ended.
  ``instructions``: of tensor cores, by their names in ``instructions``, beside those of every newer GPU.

  Rates. ``launch_us``: one more empty kernel in a CUDA graph. A kernel in a graph that reads B bytes
  from memory takes launch_us + ramp_us + B / stream_tbps (a fit of measured times, >= 16 MB).
  ``mma_tflops``: of a library's large fp16 product. ``l2_tbps``: what a kernel's loads reach from L2.
  ``lanes`` operations of a multiprocessor in each of ``cycles_per_us``. ``rated``: where they are from.
  ``published_tbps``, ``published_tflops``: the bandwidth of the memory and the dense fp16 products that
  the manufacturer names, which no rate exceeds.
  ``ranked_by``: the profile whose table of ONNX Runtime's times says which regions are timed first,
  where there is none of its own; scaled, it predicts where the rates are a data sheet's. ``table``: ONNX
  Runtime's times that ``calibrate`` measured, as JSON; empty: those of ``tables``. ``barrier_us``: a barrier
  of a block with its way through shared memory.
  """

  name: str
  gpu: str
  arch: str
  suffix: str
  capability: tuple[int, int]
  multiprocessors: int
  sm_threads: int
  sm_blocks: int
  reserved_smem_bytes: int
  smem_bytes: int
  smem_per_sm_bytes: int
  registers_per_sm: int
  l2_bytes: int
  has_clusters: bool
  max_cluster: int
  has_pdl: bool
  instructions: tuple[str, ...]
  launch_us: float
  ramp_us: float
  stream_tbps: float
  mma_tflops: float
  l2_tbps: float
  lanes: int
  cycles_per_us: float
  published_tbps: float
  published_tflops: float
  rated: Rated = Rated.MEASURED
  ranked_by: str = ""
  table: str = ""
  barrier_us: float = 0.05

  def resident(self, threads: int, smem_bytes: int, registers: float = 1) -> int:
    """How many blocks a multiprocessor holds at once; ``registers``: of a thread."""
    by_smem = self.smem_per_sm_bytes // (smem_bytes + self.reserved_smem_bytes)
    return int(min(by_smem, self.registers_per_sm // (threads * registers), self.sm_threads // threads))

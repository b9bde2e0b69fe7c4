"""What a profile says of a GPU: the columns of ``targets/rows.py``.

A profile is data, so a model can be optimized for a GPU that is not there. What a chip can do is a
column like what it holds: no stage asks for a compute capability.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Target:
  """One GPU model: of those that the driver calls ``gpu``, the ones with so many ``multiprocessors``.

  ``arch`` is NVRTC's name of it, ``suffix`` the last part of the custom-op domain. ``capability``:
  which images run on it.

  Limits. ``sm_threads``, ``sm_blocks``: of a multiprocessor at once; ``reserved_smem_bytes``: of its
  shared memory, per block (CUDA C++ Programming Guide, technical specifications). ``smem_bytes``: the
  most dynamic shared memory of a block. Features. ``has_clusters``, with at most ``max_cluster``
  blocks. ``has_pdl``: a kernel can start before the one that it depends on has ended.
  ``instructions``: of tensor cores, by their names in ``instructions``.

  Rates. ``launch_us``: one more empty kernel in a CUDA graph. A kernel in a graph that reads B bytes
  from memory takes launch_us + ramp_us + B / stream_tbps (a fit of measured times, >= 16 MB).
  ``ranked_by``: the profile whose table of ONNX Runtime's times says which regions are timed first,
  where there is none of its own.
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
  ranked_by: str = ""

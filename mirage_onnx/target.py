"""Device profiles: the facts about a GPU that code generation and the cost model need.

A profile is data, so a model can be optimized for a GPU that is not there. Figures of the H200 were
measured on one (``bench/results/h200``), those of the H100 too (``bench/results/h100``); those of other
chips are not guessed. A profile is one GPU: an H100, GH200, H20 or a part of an H200 has the same
instructions, but other memory and other times.
"""

from dataclasses import dataclass

from mirage_onnx.errors import MirageError

#: What a multiprocessor holds at once, and the shared memory that it keeps per block, in bytes
#: (compute capability 8.0 and 9.0; CUDA C++ Programming Guide, technical specifications).
SM_THREADS, SM_BLOCKS, RESERVED_SMEM = 2048, 32, 1024


@dataclass(frozen=True, slots=True)
class Target:
  """One GPU model: of those that the driver calls ``gpu``, the ones with so many ``multiprocessors``.

  ``arch`` is NVRTC's name of it, ``suffix`` the last part of the custom-op domain.
  ``smem_bytes``: the most dynamic shared memory of a block. ``launch_us``: one more empty
  kernel in a CUDA graph. A kernel in a graph that reads B bytes from memory takes
  launch_us + ramp_us + B / stream_tbps (a fit of measured times, >= 16 MB). ``ranked_by``: the profile
  whose table of ONNX Runtime's times says which regions are timed first, where there is none of its own.
  """

  name: str
  gpu: str
  arch: str
  suffix: str
  capability: tuple[int, int]
  multiprocessors: int
  smem_bytes: int
  smem_per_sm_bytes: int
  registers_per_sm: int
  l2_bytes: int
  max_cluster: int
  has_clusters: bool
  launch_us: float
  ramp_us: float
  stream_tbps: float
  mma_tflops: float
  ranked_by: str = ""

  @property
  def has_pdl(self) -> bool:
    """Whether a kernel can start before the one that it depends on has ended."""
    return self.capability >= (9, 0)


H200 = Target(
  name="h200",
  gpu="NVIDIA H200",
  arch="sm_90a",
  suffix="sm90a",
  capability=(9, 0),
  multiprocessors=132,
  smem_bytes=232448,
  smem_per_sm_bytes=233472,
  registers_per_sm=65536,
  l2_bytes=60 * 2**20,
  max_cluster=8,
  has_clusters=True,
  launch_us=0.95,
  ramp_us=1.75,
  stream_tbps=4.6,
  mma_tflops=780.0,
)

#: The SXM module of 80 GB. There is no table of ONNX Runtime's times on it, so nothing is predicted for it:
#: ``local`` times it, beginning with the regions that would gain most on an H200.
H100 = Target(
  name="h100",
  gpu="NVIDIA H100 80GB HBM3",
  arch="sm_90a",
  suffix="sm90a",
  capability=(9, 0),
  multiprocessors=132,
  smem_bytes=232448,
  smem_per_sm_bytes=233472,
  registers_per_sm=65536,
  l2_bytes=50 * 2**20,
  max_cluster=8,
  has_clusters=True,
  launch_us=0.9,
  ramp_us=3.5,
  stream_tbps=3.17,
  mma_tflops=748.0,
  ranked_by="h200",
)

TARGETS: dict[str, Target] = {t.name: t for t in (H200, H100)}


def get_target(name: str) -> Target:
  """The profile called ``name``, in upper or lower case.

  Raises:
      MirageError: TARGET_UNKNOWN.
  """
  if name.lower() not in TARGETS:
    known = ", ".join(sorted(TARGETS))
    raise MirageError("TARGET_UNKNOWN", f"no target {name!r}; known: {known}, local")
  return TARGETS[name.lower()]

"""Device profiles: one row a GPU. What was measured on it besides is in ``tables``, by its name.

Figures of the H200 were measured on one (``bench/results/h200``), those of the H100 too
(``bench/results/h100``); those of other chips are not guessed: a chip has a profile when it has been
measured (``bench/rates.py``). A profile is one GPU: a GH200, H20 or a part of an H200 has the same
instructions, but other memory and other times.
"""

from mirage_onnx.errors import MirageError
from mirage_onnx.targets.profile import Target

_ROWS = (
  Target(
    name="h200",
    gpu="NVIDIA H200",
    arch="sm_90a",
    suffix="sm90a",
    capability=(9, 0),
    multiprocessors=132,
    sm_threads=2048,
    sm_blocks=32,
    reserved_smem_bytes=1024,
    smem_bytes=232448,
    smem_per_sm_bytes=233472,
    registers_per_sm=65536,
    l2_bytes=60 * 2**20,
    has_clusters=True,
    max_cluster=8,
    has_pdl=True,
    instructions=("mma", "wgmma"),
    launch_us=0.95,
    ramp_us=1.75,
    stream_tbps=4.6,
    mma_tflops=780.0,
  ),
  # The SXM module of 80 GB. There is no table of ONNX Runtime's times on it, so nothing is predicted for it:
  # ``local`` times it, beginning with the regions that would gain most on an H200.
  Target(
    name="h100",
    gpu="NVIDIA H100 80GB HBM3",
    arch="sm_90a",
    suffix="sm90a",
    capability=(9, 0),
    multiprocessors=132,
    sm_threads=2048,
    sm_blocks=32,
    reserved_smem_bytes=1024,
    smem_bytes=232448,
    smem_per_sm_bytes=233472,
    registers_per_sm=65536,
    l2_bytes=50 * 2**20,
    has_clusters=True,
    max_cluster=8,
    has_pdl=True,
    instructions=("mma", "wgmma"),
    launch_us=0.9,
    ramp_us=3.5,
    stream_tbps=3.17,
    mma_tflops=748.0,
    ranked_by="h200",
  ),
)

TARGETS: dict[str, Target] = {t.name: t for t in _ROWS}
H200, H100 = TARGETS["h200"], TARGETS["h100"]


def get_target(name: str) -> Target:
  """The profile called ``name``, in upper or lower case.

  Raises:
      MirageError: TARGET_UNKNOWN.
  """
  if name.lower() not in TARGETS:
    known = ", ".join(sorted(TARGETS))
    raise MirageError("TARGET_UNKNOWN", f"no target {name!r}; known: {known}, local")
  return TARGETS[name.lower()]

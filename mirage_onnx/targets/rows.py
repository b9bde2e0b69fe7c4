"""Device profiles: one row a GPU. What was measured on it besides is in ``tables``, by its name.

Figures of the H200 were measured on one (``bench/results/h200``); those of other chips are not
guessed: a chip has a profile when it has been measured. A profile is one GPU: an H100, GH200, H20
or a part of an H200 has the same instructions, but other memory and other times.
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
    launch_us=0.95,
    ramp_us=1.75,
    stream_tbps=4.6,
    mma_tflops=780.0,
  ),
)

TARGETS: dict[str, Target] = {t.name: t for t in _ROWS}
H200 = TARGETS["h200"]


def get_target(name: str) -> Target:
  """The profile called ``name``, in upper or lower case.

  Raises:
      MirageError: TARGET_UNKNOWN.
  """
  if name.lower() not in TARGETS:
    known = ", ".join(sorted(TARGETS))
    raise MirageError("TARGET_UNKNOWN", f"no target {name!r}; known: {known}, local")
  return TARGETS[name.lower()]

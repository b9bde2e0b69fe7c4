"""Architectures: what every GPU of a compute capability has, one row each.

Limits: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability". ``arch`` is NVRTC's
name of it: with an ``a`` kernels may use what only this capability has, and run on nothing else.
"""

from dataclasses import dataclass

KB = 1024


@dataclass(frozen=True, slots=True)
class Architecture:
  """The columns that ``Target`` takes over.

  ``instructions``: of tensor cores, those that no other has; ``lanes``: fp32 operations of a multiprocessor
  per cycle.
  """

  arch: str
  suffix: str
  capability: tuple[int, int]
  sm_threads: int
  sm_blocks: int
  smem_bytes: int
  smem_per_sm_bytes: int
  has_clusters: bool
  has_pdl: bool
  instructions: tuple[str, ...]
  lanes: int
  reserved_smem_bytes: int = 1024
  registers_per_sm: int = 65536

  @property
  def max_cluster(self) -> int:
    """Blocks of a cluster that every GPU with clusters takes."""
    return 8 if self.has_clusters else 1


def _row(
  arch: str, threads: int, blocks: int, smem_kb: int, instructions: tuple[str, ...], lanes: int,
  *, clusters: bool = False, pdl: bool = False, suffix: str = "",
) -> Architecture:  # fmt: skip
  """``smem_kb``: of a multiprocessor, of which a block can have all but what is reserved."""
  number = arch.removeprefix("sm_").rstrip("a")
  return Architecture(
    arch, suffix or arch.replace("_", ""), (int(number[:-1]), int(number[-1])), threads, blocks,
    (smem_kb - 1) * KB, smem_kb * KB, clusters, pdl, instructions, lanes,
  )  # fmt: skip


_ROWS = (
  # arch, threads and blocks of a multiprocessor, its shared memory in KB, instructions of its own, lanes
  _row("sm_80", 2048, 32, 164, (), 64),
  _row("sm_86", 1536, 16, 100, (), 128),
  _row("sm_87", 1536, 16, 164, (), 128),
  _row("sm_89", 1536, 24, 100, (), 128),
  _row("sm_90a", 2048, 32, 228, ("wgmma",), 128, clusters=True, pdl=True),
  # Runs on what sm_90a runs on, under the same name of custom ops, without its own instructions.
  _row("sm_90", 2048, 32, 228, (), 128, clusters=True, pdl=True, suffix="sm90a"),
  _row("sm_100a", 2048, 32, 228, (), 128, clusters=True, pdl=True),
  _row("sm_103a", 2048, 32, 228, (), 128, clusters=True, pdl=True),
  # Whether clusters help where there is no multicast was not measured on any: none are used.
  _row("sm_120a", 1536, 24, 100, (), 128, pdl=True),
  _row("sm_121a", 1536, 24, 100, (), 128, pdl=True),
)
ARCHITECTURES: dict[str, Architecture] = {a.arch: a for a in _ROWS}
#: Without cp.async, bfloat16 and m16n8k16: a second way of everything that streams.
TOO_OLD = "kernels need sm_80 (Ampere) or newer: its asynchronous copies, bfloat16 and m16n8k16"


def architecture_of(capability: tuple[int, int]) -> Architecture | None:
  """The row whose kernels use most of a GPU of this compute capability; None where there is none."""
  return next((a for a in _ROWS if a.capability == capability), None)

"""A compiled kernel."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Cubin:
  """A compiled kernel; ``smem_bytes`` is static shared memory (dynamic: ``KernelSource``)."""

  image: bytes
  registers: int
  smem_bytes: int
  stack_bytes: int
  spill_bytes: int
  log: str
  seconds: float

"""Whether warps that take registers can get as many as they wait for.

A block is launched with as many registers a thread as its kernel was compiled for, and that is all there
is. A warpgroup that gives some back, and others that take them (``setmaxnreg``), share it out; one that waits
for more than there can be waits for good. ptxas may compile for fewer registers than a launch could have.
"""

import re

#: Threads that give back: one warpgroup.
_GROUP = 128
_THREADS = re.compile(r"^\.maxntid (\d+)", re.MULTILINE)
_CHANGE = re.compile(r"\bsetmaxnreg\.(inc|dec)\.\S+\s+(\d+)")


def short_of_registers(ptx: str, registers: int) -> str | None:
  """What is missing in a block of a kernel that was compiled for so many registers a thread, or None."""
  changes = [(way, int(count)) for way, count in _CHANGE.findall(ptx)]
  if not changes:
    return None
  threads = _THREADS.search(ptx)
  if threads is None:
    return "it shares out registers among nobody knows how many threads"
  most = max((n for way, n in changes if way == "inc"), default=registers)
  least = min((n for way, n in changes if way == "dec"), default=registers)
  wanted, there = (int(threads[1]) - _GROUP) * most + _GROUP * least, int(threads[1]) * registers
  return f"its warps wait for {wanted} registers of {there}" if wanted > there else None

"""What an emulated kernel did wrong, and where: thread, line of its text, op of its µGraph."""

import functools
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from mirage_onnx.codegen.source import KernelSource

KINDS = (
  "race",  # conflicting accesses that nothing orders
  "out_of_bounds",  # of a tensor, of shared memory, of the cluster
  "read_only",  # a write through a pointer to const, or to a read-only array
  "misaligned",
  "uninitialised",  # a read of bytes that nobody wrote
  "in_flight",  # bytes of an asynchronous copy that was not waited for
  "diverged",  # lanes of a warp in different collectives
  "deadlock",
  "exit",  # a block's shared memory is used while it may have exited
  "pdl",  # an access that grid_wait must precede
  "barrier",  # a barrier or mbarrier used against its rules
  "proxy",  # a bulk copy that may not see what plain accesses wrote
  "misuse",  # operands that PTX does not allow
  "fault",  # trap, division by zero, wild address, stack overflow
  "timeout",
  "compile",  # the text does not compile, or its launch does not fit it
)
"""What ``EmulationError.kind`` says; up to "timeout" in the order of ``Kind`` in host/api.h."""


@dataclass(frozen=True, slots=True)
class SourceLine:
  """A line of a kernel's text, from 1, and the op of its µGraph that the text says it is of."""

  line: int
  text: str
  op: str | None


class EmulationError(Exception):
  """The kernel did something that the device would not define, or its text does not compile.

  ``kind`` is one of ``KINDS``. ``kernel`` is its name, ``block`` and ``thread`` (in the block)
  who did it, ``line`` the line of the kernel's text, ``op`` the last ``// %N`` comment at or
  above it with what the text says ``%N`` is; each None where it is not known. Of a race, they
  are those of the second access; of a deadlock, those of a stuck thread.
  """

  def __init__(
    self,
    message: str,
    *,
    kind: str = "compile",
    kernel: str | None = None,
    block: tuple[int, int, int] | None = None,
    thread: int | None = None,
    line: int | None = None,
    op: str | None = None,
  ) -> None:
    super().__init__(message)
    self.kind = kind
    self.kernel = kernel
    self.block = block
    self.thread = thread
    self.line = line
    self.op = op


def describe(
  library: Path,
  kernel: KernelSource,
  kind: str,
  message: str,
  block: tuple[int, int, int] | None,
  thread: int | None,
  offset: int,
) -> EmulationError:
  """The error for what the runtime of ``library`` reported.

  ``offset`` is that of the failing instruction's successor in the library, 0 if unknown; in
  ``message`` (which may be cut off), an offset between the characters 1 and 2 stands for a line.
  """

  def named(match: re.Match[str]) -> str:
    found = find_place(library, kernel, int(match[1], 16))
    return f", line {found.line} `{found.text}`" if found else ""

  place = find_place(library, kernel, offset) if offset else None
  where = f"kernel {kernel.name}"
  if kind != "deadlock" and block is not None and thread is not None:
    where += f", block ({block[0]},{block[1]},{block[2]}), thread {thread}"
    if place:
      where += f", line {place.line} `{place.text}`" + (f" ({place.op})" if place.op else "")
  return EmulationError(
    f"{where}: " + re.sub("\x01([0-9a-f]+)\x02", named, message).partition("\x01")[0],
    kind=kind,
    kernel=kernel.name,
    block=block,
    thread=thread,
    line=place.line if place else None,
    op=place.op if place else None,
  )


@functools.lru_cache(1024)
def find_place(library: Path, kernel: KernelSource, offset: int) -> SourceLine | None:
  """The line whose code ends at ``offset``, the innermost of the kernel's text itself."""
  command = ["addr2line", "--inlines", f"--exe={library}", hex(offset - 1)]
  try:
    shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
  except (OSError, subprocess.CalledProcessError):  # without binutils: no line
    return None
  lines = kernel.text.splitlines()
  for frame in shown.splitlines():
    file, _, number = frame.partition(" (")[0].rpartition(":")
    if Path(file).name == f"{kernel.name}.cu" and number.isdigit() and int(number) > 0:
      line = min(int(number), len(lines))
      return SourceLine(line, lines[line - 1].strip(), op_at(kernel, line))
  return None


_MARKER = re.compile(r"//\s*(%\d+)(?: = (.*?)(?: : .*)?)?\s*$")


def op_at(kernel: KernelSource, line: int) -> str | None:
  """The last op marker at or above a line, not above the kernel's head."""
  lines = kernel.text.splitlines()
  head = re.compile(rf"PTX_(?:CLUSTER_)?KERNEL\b.*\b{re.escape(kernel.name)}\b")
  for text in reversed(lines[:line]):
    found = _MARKER.search(text)
    if found:
      name = found[1]
      defined = (m[2] for m in map(_MARKER.search, lines) if m and m[1] == name and m[2])
      meaning = found[2] or next(defined, None)
      return f"{name} = {meaning}" if meaning else name
    if head.search(text):
      return None
  return None

"""The lock of an output: all that it takes to write the same bytes again, as canonical JSON.

Of every custom node which nodes it replaces; of every region the µGraph with its numbers, the hashes of
its kernels, and what was measured or predicted; and what the run was told and made with. What is read
here is only well-formed. Nothing in it is believed: ``replay.py`` proves every µGraph again.
"""

import hashlib
import json
from pathlib import Path
from typing import Literal

import msgspec

from mirage_onnx.bounded_file import read_bounded
from mirage_onnx.errors import MirageError
from mirage_onnx.ir import Candidate, KernelParams, parse_ugraph, print_ugraph
from mirage_onnx.superopt.atomic import replace_file
from mirage_onnx.superopt.journal_lines import UNREADABLE


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
  """Base of all objects of a lock."""


class LockedKernel(Part, frozen=True):
  """A kernel: hashes of its CUDA text and of what NVRTC makes of it."""

  name: str
  text_sha256: str
  image_sha256: str


class LockedTimes(Part, frozen=True):
  """Medians side by side, in microseconds, and how many candidates were timed."""

  kernel_us: float
  ort_us: float
  tried: int


class LockedRegion(Part, frozen=True):
  """A distinct region and its program. ``weights``: a hash of those of all its custom nodes."""

  key: str
  ugraph: list[str]
  params: list[str]
  predicted_us: float
  baseline_us: float
  measured: LockedTimes | None
  kernels: list[LockedKernel]
  weights: str

  @property
  def candidate(self) -> Candidate:
    """The program.

    Raises:
        ValueError: the text is not the canonical one of a program.
    """
    text = "\n".join(self.ugraph) + "\n"
    graph = parse_ugraph(text)
    if print_ugraph(graph) != text:
      raise ValueError("its text is not canonical")
    params = tuple(map(KernelParams.from_text, self.params))
    if len(params) != len(graph.kernels):
      raise ValueError("its numbers are of other kernels")
    return Candidate(graph, params, self.predicted_us)


class LockedNode(Part, frozen=True):
  """A custom node: the place of its region in the list, nodes it replaces, tensors it yields."""

  region: int
  nodes: list[str]
  outputs: list[str]


class LockedOptions(Part, frozen=True):
  """What the run was told that decides about the bytes. ``measured``: kernels were timed.

  ``steps``: of a decoder, which have a branch; a number: for caches of so many rows.
  """

  target: str
  measured: bool
  margin: float
  shapes: dict[str, list[int]]
  external: str | None
  steps: bool | int = False


class LockedVersions(Part, frozen=True):
  """What made the output. ``machine``: what it was measured on, if it was."""

  mirage_onnx: str
  nvrtc: str
  onnxruntime: str
  machine: dict[str, str] | None


class LockedOther(Part, frozen=True):
  """What the file has for one more target."""

  target: str
  regions: list[LockedRegion]
  nodes: list[LockedNode]


class Lock(Part, frozen=True):
  """``input``, ``output``: SHA-256 of the model files. ``nodes``: in the order of their numbers.

  ``before_us``, ``after_us``: of the whole model, where they are known: measured where ``measured`` is there,
  else predicted. ``record``: what the model keeps of its run (``report/run_record.py``), as it is written
  there, and ``measured``: how it was timed. ``regions`` and ``nodes`` are of the target that chose the
  regions, ``target``, where it is not the only one; ``others`` of the rest, in the order of the file.
  """

  format: Literal["mirage-onnx lock"]
  version: Literal[1]
  input: str
  output: str
  options: LockedOptions
  versions: LockedVersions
  before_us: float | None
  after_us: float | None
  regions: list[LockedRegion]
  nodes: list[LockedNode]
  record: str = ""
  measured: str = ""
  target: str = ""
  others: list[LockedOther] = msgspec.field(default_factory=list)

  def for_target(self, name: str) -> "Lock":
    """As if it were of this target alone; without nodes, if it has none for it."""
    if name == (self.target or self.options.target):
      return self
    own = next((o for o in self.others if o.target == name), None)
    if own is None:
      return msgspec.structs.replace(self, regions=[], nodes=[], others=[])
    return msgspec.structs.replace(self, regions=own.regions, nodes=own.nodes, others=[])


def write_lock(path: Path, lock: Lock) -> None:
  """Write ``lock`` atomically; equal ones give equal bytes.

  Raises:
      MirageError: OUTPUT_UNWRITABLE; what was at ``path`` is there still.
  """
  text = json.dumps(msgspec.to_builtins(lock), indent=1, ensure_ascii=False, allow_nan=False)
  try:
    replace_file(path, f"{text}\n".encode())
  except OSError as error:
    raise MirageError("OUTPUT_UNWRITABLE", f"{path}: {error.strerror or error}") from error


def read_lock(path: Path) -> Lock:
  """The lock in a file, whose programs can be read.

  Raises:
      MirageError: LOCK_MISSING, LOCK_INVALID.
  """
  try:
    data = read_bounded(path)
  except FileNotFoundError:
    raise MirageError("LOCK_MISSING", f"there is no {path}") from None
  except OSError as error:
    raise MirageError("LOCK_INVALID", f"{path}: {error.strerror or error}") from error
  try:
    lock = msgspec.json.decode(data, type=Lock)
    for regions, nodes in ((lock.regions, lock.nodes), *((o.regions, o.nodes) for o in lock.others)):
      for region in regions:
        region.candidate  # noqa: B018 (raises)
      for n in nodes:
        if not 0 <= n.region < len(regions) or not n.nodes or not n.outputs:
          raise ValueError("a node of no region, without nodes or without outputs")
  except (msgspec.DecodeError, RecursionError, *UNREADABLE) as error:
    raise MirageError("LOCK_INVALID", f"{path}: {' '.join(str(error).split())[:200]}") from error
  return lock


def file_hash(path: Path) -> str:
  """SHA-256 of a file."""
  with path.open("rb") as stream:
    return hashlib.file_digest(stream, "sha256").hexdigest()

"""``reduce_model``: fewer nodes, then fewer outputs, then weights that need not be in the file.

Every candidate is a valid model that is written and given to the command; one on which that still fails is
the new model. The same command and model give the same result.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import onnx
from onnx.external_data_helper import load_external_data_for_model

from mirage_onnx.custom_op.model_nodes import ModelFile
from mirage_onnx.errors import MirageError
from mirage_onnx.importer.external import check_stored, stored_tensors
from mirage_onnx.importer.graph import reads
from mirage_onnx.reduction.command import Command, CommandOutcome
from mirage_onnx.reduction.pieces import ModelParts
from mirage_onnx.reduction.shrink import shrink

#: Weights of more bytes together are written to a file beside each candidate.
INLINE_BYTES = 1 << 30
#: Initializers of this size or more may become inputs.
LARGE_BYTES = 1 << 10


@dataclass(frozen=True, slots=True)
class ReductionStep:
  """How far a reduction is: what it looks at, the nodes of the smallest model so far, and the runs."""

  stage: str
  nodes_before: int
  nodes: int
  runs: int
  seconds: float


@dataclass(frozen=True, slots=True)
class Reduced:
  """The smallest model on which the command ends with ``code``, and what that took.

  ``is_whole``: the time ended it, or an interruption, before nothing smaller was left to try.
  """

  model: onnx.ModelProto
  nodes_before: int
  nodes: int
  bytes_before: int
  bytes: int
  runs: int
  seconds: float
  code: int | None
  is_whole: bool


class _OverError(Exception):
  """The time is over, or somebody asks for the end."""


def reduce_model(
  path: Path,
  command: Command,
  *,
  budget_s: float = float("inf"),
  stop: Callable[[], bool] = lambda: False,
  tell: Callable[[ReductionStep], None] = lambda step: None,
) -> Reduced:
  """The smallest model that is found; ``path`` stays as it is.

  Raises:
      MirageError: FILE_MISSING, NOT_ONNX, EXTERNAL_DATA_MISSING, NOT_FAILING, OPTION_INVALID.
  """
  run = _Run(path, command, budget_s, stop, tell)
  try:
    return run.result()
  finally:
    run.close()


class _Run:
  def __init__(
    self,
    path: Path,
    command: Command,
    budget_s: float,
    stop: Callable[[], bool],
    tell: Callable[[ReductionStep], None],
  ) -> None:
    self._whole = _loaded(path)
    self._path, self._command, self._stop, self._tell = path, command, stop, tell
    self._start = time.monotonic()
    self._end = self._start + budget_s
    self._runs = 0
    self._stage = ""
    self._pieces = ModelParts(self._whole)
    self._best = self._whole
    self._folder = Path(tempfile.mkdtemp(prefix="mirage-reduce-"))
    self._must_check = _is_valid(self._whole, path)
    self._first: CommandOutcome | None = None

  def close(self) -> None:
    shutil.rmtree(self._folder, ignore_errors=True)

  def result(self) -> Reduced:
    self._first = self._command.first(str(self._path))
    self._runs = 1
    done = True
    try:
      self._all()
    except _OverError:
      done = False
    whole = self._whole
    return Reduced(
      model=self._best, nodes_before=len(whole.graph.node), nodes=len(self._best.graph.node),
      bytes_before=whole.ByteSize(), bytes=self._best.ByteSize(), runs=self._runs,
      seconds=time.monotonic() - self._start, code=self._first.code, is_whole=done,
    )  # fmt: skip

  def _all(self) -> None:
    pieces, nodes = self._pieces, self._pieces.order
    # As a part the model has no metadata; where that alone makes it pass, nothing can be taken away.
    self._stage = "the whole model"
    outputs: tuple[str, ...] | None = None
    if len(nodes) and not self._fails(nodes, None, ()):
      return
    while True:
      before = (nodes, outputs)
      self._stage = "nodes"
      nodes = shrink(nodes, lambda some: self._fails(some, None, ()))
      self._stage = "outputs"
      every = pieces.yields(nodes)
      outputs = shrink(every, lambda some: self._fails(pieces.needed(nodes, some), some, ()))  # noqa: B023
      nodes = pieces.needed(nodes, outputs)
      if (nodes, outputs) == before or len(pieces.yields(nodes)) == len(outputs):
        break
    self._stage = "weights"
    large = self._large(nodes)
    # Kept are those that must be weights; the others become inputs.
    shrink(
      large,
      lambda some: self._fails(nodes, outputs, [n for n in large if n not in set(some)]),
      least=0,
    )

  def _large(self, nodes: tuple[int, ...]) -> list[str]:
    """Initializers that parts read, the largest last, so that they are tried first."""
    graph, stored = self._whole.graph, self._pieces.stored
    read = dict.fromkeys(r for i in nodes for r in reads(graph.node[i]) if r in stored)
    size = {n: stored[n].ByteSize() for n in read}
    return sorted((n for n in read if size[n] >= LARGE_BYTES), key=lambda n: (size[n], n))

  def _fails(
    self, nodes: tuple[int, ...], outputs: tuple[str, ...] | None, given: list[str] | tuple[()]
  ) -> bool:
    """Whether the command fails on this part; the smallest such part is kept."""
    if self._stop() or time.monotonic() > self._end:
      raise _OverError
    model = self._pieces.part(nodes, outputs, given)
    if model is None or (self._must_check and not _is_valid(model)):
      return False
    assert self._first is not None
    path = self._folder / "model.onnx"
    write_model(model, path)
    self._runs += 1
    failed = self._command.fails_as(self._first, str(path))
    if failed:
      self._best = model
    self._tell(
      ReductionStep(
        self._stage, len(self._whole.graph.node), len(self._best.graph.node), self._runs,
        time.monotonic() - self._start,
      )
    )  # fmt: skip
    return failed


def _loaded(path: Path) -> onnx.ModelProto:
  """The model with all its weights."""
  file = ModelFile.read(path)
  for t in stored_tensors(file.proto.graph):
    check_stored(t, file.folder)
  if file.folder is not None:
    load_external_data_for_model(file.proto, str(file.folder))
  return file.proto


def write_model(model: onnx.ModelProto, path: Path) -> None:
  """With large weights in a file of their own, which protobuf could not hold.

  Raises:
      MirageError: OUTPUT_UNWRITABLE.
  """
  try:
    if sum(t.ByteSize() for t in model.graph.initializer) <= INLINE_BYTES:
      path.write_bytes(model.SerializeToString(deterministic=True))
      return
    data = path.with_name(f"{path.name}.data")
    data.unlink(missing_ok=True)
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    onnx.save_model(copy, path, save_as_external_data=True, location=data.name)
  except OSError as error:
    raise MirageError("OUTPUT_UNWRITABLE", f"{path}: {error.strerror or error}") from error


def _is_valid(model: onnx.ModelProto, path: Path | None = None) -> bool:
  try:
    if path is not None:
      onnx.checker.check_model(str(path))
    elif sum(t.ByteSize() for t in model.graph.initializer) <= INLINE_BYTES:
      onnx.checker.check_model(model)
  except Exception:  # whatever it says, it is not valid
    return False
  return True

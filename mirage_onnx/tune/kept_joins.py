"""What became of regions beside each other in an earlier run (``beside.py``): a repeat times none again.

All looks are kept, but to ask for them again takes the texts of up to 64 combinations: 2.5 to 3.1 of 15
seconds of a repeat of BERT-base on an H100. So the end is kept, with all that it is made of: the region of
them all with its weights, the programs of the parts, what each part took by itself, the target and the
machine. The program is put together and proven as ever, and its verdict of right results is asked for.
"""

import json
from collections.abc import Sequence
from typing import Any

from mirage_onnx.compiler.candidates import Compiled
from mirage_onnx.errors import Rejection
from mirage_onnx.importer import LoadedModel
from mirage_onnx.ir import Candidate, Region, print_ugraph
from mirage_onnx.superopt.journal_lines import UNREADABLE
from mirage_onnx.superopt.kept_folder import KeptFolder
from mirage_onnx.target import Target
from mirage_onnx.tune.kept_bench import region_place
from mirage_onnx.tune.kept_tuning import Complaints, right_again, target_text, timed_program, timed_value
from mirage_onnx.tune.race import Measured
from mirage_onnx.verify.weights import ModelWeights

#: The refusals that say what was measured.
MEASURED = frozenset({"NOT_FASTER", "KERNEL_WRONG"})


class KeptJoins:
  """The ends of regions beside each other on this machine; nothing is kept where ``store`` is None."""

  def __init__(
    self, loaded: LoadedModel, weights: ModelWeights, target: Target, store: KeptFolder | None
  ) -> None:
    self.loaded, self.weights, self._target, self._store = loaded, weights, target, store

  def key(self, region: Region, options: Sequence[Sequence[Candidate]], apart_us: Sequence[float]) -> str:
    """Of a region, the programs of its parts, and what each part took."""
    if self._store is None:
      return ""
    programs = [
      [[print_ugraph(c.ugraph), [p.to_text() for p in c.params], c.predicted_us] for c in own]
      for own in options
    ]
    place, weights = region_place(self.loaded, region), self.weights.digest(region)
    what = json.dumps([programs, list(apart_us), target_text(self._target), weights])
    return self._store.key("joined", place, what)

  def keep(self, key: str, found: tuple[tuple[int, ...], Compiled, Measured] | Rejection) -> None:
    """The fastest, and which program of each part it is made of; or why they stay nodes of their own."""
    if self._store is None:
      return
    if isinstance(found, Rejection):
      if found.code in MEASURED:
        self._store.put(key, {"refused": [found.code, found.reason]})
      return
    point, best, measured = found
    value = {"point": list(point), **timed_value(best.candidate, measured)}
    self._store.put(key, value)

  def known(self, key: str) -> tuple[tuple[int, ...], dict[str, Any]] | Rejection | None:
    """Which program of each part was the fastest, and what ``made`` reads; or why none; None: not known."""
    value = self._store.get(key) if self._store is not None else None
    try:
      if value is None:
        return None
      if "refused" in value:
        code, reason = map(str, value["refused"])
        return Rejection(code, reason) if code in MEASURED else None
      return tuple(map(int, value["point"])), value
    except UNREADABLE:
      return None

  def made(
    self, region: Region, apart: Candidate, value: dict[str, Any], complaints: Complaints
  ) -> tuple[Compiled, Measured] | None:
    """The program with its times of then; ``apart``: its kernels with other numbers. None: to be timed."""
    try:
      candidate, measured = timed_program(apart.ugraph, value)
    except UNREADABLE:
      return None
    compiled = right_again(region, candidate, self._target, complaints)
    return None if compiled is None else (compiled, measured)

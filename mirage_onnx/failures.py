"""What fails at one region costs that region: its error becomes a typed refusal, and the run goes on.

Errors of the whole run (no compiler, no GPU, a full disk, Ctrl-C) still end it. The traceback of
what was turned into a refusal goes to the logger ``mirage_onnx``, which the command line writes to
its log file.
"""

import errno
import logging
from collections.abc import Callable, Sequence
from typing import TypeVar

from mirage_onnx.errors import MirageError, Rejection, RejectionError

LOG = logging.getLogger("mirage_onnx")
LOG.addHandler(logging.NullHandler())  # else Python prints what nobody listens to
#: Errors that can be those of one region; all others are of the run.
REGIONAL = frozenset(
  "INTERNAL GRAPH_OPERAND PLAN_INVALID BUNDLE_INVALID SESSION_FAILED NOT_EMULATED EMULATION_FAILED "
  "SOURCE_MISMATCH CHECKPOINT".split()
)
#: Nothing can be written, whatever the region.
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EROFS})
T = TypeVar("T")


def ends_run(error: BaseException) -> bool:
  """Whether an error is none of one region."""
  if isinstance(error, MirageError):
    return error.code not in REGIONAL
  if isinstance(error, OSError) and error.errno in _NO_ROOM:
    return True
  return not isinstance(error, Exception)


def refusal(error: Exception, stage: str, nodes: Sequence[str]) -> Rejection:
  """Why a region with these nodes stays as it was, after an error in ``stage``.

  Raises:
      Exception: the error, where it ends the run.
  """
  if isinstance(error, RejectionError):
    return error.rejection
  if ends_run(error):
    raise error
  LOG.error("%s failed at the region of %s", stage, ", ".join(nodes), exc_info=error)
  line = " ".join(str(error).split())[:400]
  return Rejection("REGION_FAILED", f"{stage}: {type(error).__name__}: {line}", tuple(nodes))


def guarded(stage: str, nodes: Sequence[str], call: Callable[[], T]) -> T | Rejection:
  """What ``call`` returns, or why the region stays as it was."""
  try:
    return call()
  except Exception as error:
    return refusal(error, stage, nodes)


def largest_valid(
  count: int, attempt: Callable[[Sequence[int]], Rejection | None]
) -> tuple[tuple[int, ...], dict[int, Rejection]]:
  """Indices below ``count`` that pass ``attempt`` together, and why each of the others does not.

  Halves are tried, so that one bad region among n costs about 2 log n attempts; the order stays.
  What is returned was the last attempt that passed, or nothing was tried for it is empty.
  """
  good: tuple[int, ...] = ()
  bad: dict[int, Rejection] = {}
  todo = [tuple(range(count))] if count else []
  while todo:
    part = todo.pop()
    why = attempt(tuple(sorted((*good, *part))))
    if why is None:
      good = tuple(sorted((*good, *part)))
    elif len(part) == 1:
      bad[part[0]] = why
    else:
      half = len(part) // 2
      todo += [part[half:], part[:half]]
  return good, bad

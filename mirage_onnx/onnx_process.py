"""onnx's own C++ (checks of nodes, shape inference) on a model that nobody trusts: it may end its process.

One child for all models of this process is started with the first and again when it has ended
(``onnx_worker``, the other end). What one model may take of it is by the size of what is inferred:
real models take 0.2 s a MB.
"""

import atexit
import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from math import inf

from google.protobuf.message import DecodeError
from onnx import ModelProto, NodeProto

from mirage_onnx.errors import MirageError
from mirage_onnx.worker_process import WorkerProcess

WORKER = "mirage_onnx.onnx_worker"
#: Seconds of processor time that a model may take of onnx, and more for each byte.
SECONDS, SECONDS_PER_BYTE = 0.7, 4e-6
#: By the clock, a request that takes so many times as long does nothing at all.
ASLEEP, ASLEEP_S = 20.0, 60.0


class _Watch:
  """Does something at a time, unless told to forget it. One thread: one a request takes a millisecond."""

  def __init__(self) -> None:
    self._changed = threading.Condition()
    self._at, self._act, self._owner = inf, _nothing, 0

  def until(self, at: float, act: Callable[[], None]) -> None:
    with self._changed:
      waiting, self._at, self._act = self._at, at, act
      if self._owner != os.getpid():  # a fork has no thread
        self._owner = os.getpid()
        threading.Thread(target=self._run, daemon=True).start()
      elif at < waiting:
        self._changed.notify()

  def forget(self) -> None:
    """The thread wakes when it would have, and waits for what there is then."""
    with self._changed:
      self._act = _nothing

  def _run(self) -> None:
    with self._changed:
      while True:
        left = self._at - time.monotonic()
        if left > 0:
          self._changed.wait(None if left == inf else left)
          continue
        act, self._at, self._act = self._act, inf, _nothing
        act()


def _nothing() -> None:
  pass


class _Shared:
  """The child, which all threads of a process use in turn; a fork of the process has none."""

  def __init__(self) -> None:
    self._lock = threading.RLock()
    self._worker: WorkerProcess | None = None
    self._owner = 0
    self._watch = _Watch()

  def started(self) -> WorkerProcess:
    """The child, which need not be ready.

    Raises:
        MirageError: INTERNAL where no process can be started.
    """
    with self._lock:
      if self._worker is None or self._owner != os.getpid():
        try:
          self._worker, self._owner = WorkerProcess(WORKER, quiet=True), os.getpid()
        except OSError as error:
          raise MirageError("INTERNAL", f"no process for onnx could be started: {error}") from None
      return self._worker

  def ask(self, request: Sequence[bytes], seconds: float) -> list[bytes] | int:
    """The answer, or the status with which the child has ended."""
    with self._lock:
      worker = self.started()
      self._watch.until(time.monotonic() + ASLEEP * seconds + ASLEEP_S, worker.kill)
      try:
        worker.send_parts(request)
        return worker.receive_parts()
      except (EOFError, BrokenPipeError):
        worker.end_input()
        status = worker.wait()
        self.end()
        return status
      except BaseException:  # in the middle of a message
        self.end()
        raise
      finally:
        self._watch.forget()

  def end(self) -> None:
    with self._lock:
      worker, self._worker = self._worker, None
      if worker is not None and self._owner == os.getpid():
        worker.kill()
        worker.close()


_SHARED = _Shared()
atexit.register(_SHARED.end)


def start_early() -> None:
  """Start the child, which is ready some 0.2 s later: while others read and check the model."""
  _SHARED.started()


class Onnx:
  """What onnx says of one model, within the time that it may take."""

  def __init__(self) -> None:
    self.seconds = 0.0  # of processor time, of all answers

  def first_invalid(self, nodes: Sequence[NodeProto], opset: int, ir_version: int) -> tuple[int, str] | None:
    """Place and fault of the first node that its operator does not allow, by onnx's checker.

    Raises:
        MirageError: MODEL_INVALID, MODEL_LIMIT.
    """
    data = [n.SerializeToString() for n in nodes]
    said, *told = self._ask("check", [str(opset).encode(), str(ir_version).encode(), *data])
    if said == b"ok":
      return None
    return int(told[1] if len(told) > 1 else 0), told[0].decode(errors="replace")

  def inferred(self, model: ModelProto, *, strict: bool, followed: bool) -> tuple[ModelProto | None, str]:
    """The model with what onnx infers, or why it infers nothing.

    ``strict``: contradictions are errors. ``followed``: the values of shapes, through the graph.

    Raises:
        MirageError: MODEL_INVALID where a model contradicts what it says of itself, or the process ends;
            MODEL_LIMIT where the time is over.
    """
    try:
      data = model.SerializeToString()
    except (ValueError, DecodeError) as error:  # beyond what protobuf holds
      return None, str(error)
    said, *told = self._ask("infer", [str(int(strict)).encode(), str(int(followed)).encode(), data])
    if said == b"ok":
      with suppress(DecodeError):
        return ModelProto.FromString(told[0]), ""
      return None, "what onnx infers is no model"
    reason = told[0].decode(errors="replace") if told else ""
    if said == b"refused":
      raise MirageError("MODEL_INVALID", sentence(reason))
    return None, reason

  def _ask(self, kind: str, parts: Sequence[bytes]) -> list[bytes]:
    what = {"check": "check of nodes", "infer": "shape inference"}[kind]
    most = SECONDS + SECONDS_PER_BYTE * sum(map(len, parts))
    left = most - self.seconds
    if left <= 0:
      raise _too_long(what, most)
    answer = _SHARED.ask([kind.encode(), repr(left).encode(), *parts], left)
    if isinstance(answer, list):
      self.seconds += _seconds(answer.pop())
      return answer
    self.seconds += left
    if -answer == signal.SIGPROF:
      raise _too_long(what, most)
    if answer >= 0:
      raise MirageError("INTERNAL", f"the process of onnx's {what} ended with status {answer}")
    name = _signal_name(-answer)
    if -answer == signal.SIGKILL:
      raise MirageError("MODEL_LIMIT", f"onnx's {what} of it was ended by {name} (out of memory?)")
    raise MirageError("MODEL_INVALID", f"onnx's {what} of it ends the process by {name}")


def _too_long(what: str, seconds: float) -> MirageError:
  return MirageError("MODEL_LIMIT", f"onnx's {what} of it takes more than {seconds:.1f} s")


def _seconds(told: bytes) -> float:
  try:
    return float(told)
  except ValueError:
    return 0.0


def _signal_name(number: int) -> str:
  try:
    return signal.Signals(number).name
  except ValueError:
    return f"signal {number}"


def sentence(problem: str) -> str:
  """The first line of a message of onnx, without its tags."""
  line = next((s for s in problem.splitlines() if s.strip()), "ill-typed graph")
  for tag in ("[ShapeInferenceError]", "[TypeInferenceError]", "Inference error(s):"):
    line = line.replace(tag, "")
  return " ".join(line.split()).rstrip(".")

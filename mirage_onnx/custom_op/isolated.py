"""``compare_models`` in a child process: what kills onnxruntime does not end the check.

onnxruntime is known to crash on valid models (docs/decisions.md), and a check that is killed says
nothing. The child says what it is about to do. If that kills it, another one begins again without
it, and the result says what is missing: it is not passed then.
"""

import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, BinaryIO

from mirage_onnx.custom_op.compare import compare_models
from mirage_onnx.custom_op.comparison import Comparison
from mirage_onnx.custom_op.emulated import EmulatedModel
from mirage_onnx.custom_op.model_nodes import Model
from mirage_onnx.custom_op.steps import OPTIMIZED, LeftOut, SessionStep, Tell, tell_nobody
from mirage_onnx.errors import MirageError

#: Children that are killed before the check is given up.
MOST_KILLED = 16
#: What the child runs.
CHILD = "from mirage_onnx.custom_op.isolated import serve; serve()"


def compare_isolated(a: Model, b: Model, *, tell: Tell = tell_nobody, **options: Any) -> Comparison:
  """``compare_models``, with what it could not check as ``failures``; ``tell`` hears what it is at.

  Raises:
      MirageError: those of ``compare_models``; SESSION_FAILED, with the signal, where a model cannot
          even be opened.
  """
  left, failures, note = LeftOut(), list[str](), ""
  for _ in range(MOST_KILLED):
    step, result, how = _ask(a, b, {**options, "left_out": left}, tell)
    if isinstance(result, MirageError):
      raise result
    if isinstance(result, Comparison):
      lost = (*result.failures, *failures)
      notes = "; ".join(x for x in (result.note, note) if x)
      return replace(result, failures=lost, passed=result.passed and not lost, note=notes)
    name = f"{step[0]} {step[1]}".strip()
    line = f"onnxruntime was ended by {how}: {name}"
    if step[0] is SessionStep.OPEN:
      # Emulated, custom nodes stand in the CPU provider, and onnxruntime's layout optimizations have more
      # models to die of; no user opens that one, and what is compared is the same without them.
      if left.optimizations or step[1] != OPTIMIZED or not options.get("emulate"):
        raise MirageError("SESSION_FAILED", line)
      note = f"{line}; both models ran with its basic optimizations only"
      left = replace(left, optimizations=True)
      continue
    if step[0] is not SessionStep.NODES:  # all together: they are tried one by one
      failures.append(f"SESSION_FAILED: {line}: not checked")
    left = _without(left, *step)
  raise MirageError("SESSION_FAILED", f"onnxruntime was ended {MOST_KILLED} times, the last time by {how}")


def _without(left: LeftOut, step: SessionStep, name: str) -> LeftOut:
  match step:
    case SessionStep.RUN:
      return replace(left, kinds=left.kinds | {name})
    case SessionStep.BODIES:
      return replace(left, bodies=True)
    case SessionStep.EDGES:
      return replace(left, edges=True)
    case SessionStep.NODES:
      return replace(left, apart=True)
    case SessionStep.NODE:
      return replace(left, nodes=left.nodes | {name})
    case _:
      return replace(left, regions=True)


def _ask(
  a: Model, b: Model, options: Mapping[str, Any], tell: Tell
) -> tuple[tuple[SessionStep, str], Comparison | MirageError | None, str]:
  """The child's last step, its result (None: it was killed), and how it ended."""
  step, result = (SessionStep.OPEN, "the models"), None
  reads, writes = os.pipe()
  environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
  child = subprocess.Popen(
    [sys.executable, "-c", CHILD, str(writes)], stdin=subprocess.PIPE, pass_fds=(writes,), env=environment
  )
  try:
    os.close(writes)
    assert child.stdin is not None
    try:
      pickle.dump((a, b, dict(options)), child.stdin)
      child.stdin.close()
    except BrokenPipeError:
      pass  # it ended before it had read all
    with os.fdopen(reads, "rb") as answers:
      while (message := _read(answers)) is not None:
        if isinstance(message, tuple):
          tell(*message)
          step = step if message[0] is SessionStep.LAUNCH else message
        else:
          result = message
    return step, result, _ended(child.wait())
  finally:
    child.kill()
    child.wait()


def _read(answers: BinaryIO) -> Any:
  """None at the end, also in the middle of a message."""
  try:
    return pickle.load(answers)
  except (EOFError, pickle.UnpicklingError):
    return None


def _ended(code: int) -> str:
  if code >= 0:
    return f"exit code {code}"
  try:
    name = signal.Signals(-code).name
  except ValueError:
    name = f"signal {-code}"
  return f"{name} (out of memory?)" if -code == signal.SIGKILL else name


def serve() -> None:
  """The child: one comparison, from standard input to the file descriptor that it is given."""
  os.dup2(2, 1)  # what a library prints is no result
  with os.fdopen(int(sys.argv[1]), "wb") as answers:
    lock = threading.Lock()

    def tell(step: SessionStep, name: str) -> None:
      with lock:
        pickle.dump((step, name), answers)
        answers.flush()

    EmulatedModel.launched = staticmethod(partial(tell, SessionStep.LAUNCH, ""))

    a, b, options = pickle.load(sys.stdin.buffer)
    try:
      pickle.dump(compare_models(a, b, tell=tell, **options), answers)
    except MirageError as error:
      pickle.dump(error, answers)

"""Whether a rewritten model is right where nobody knows our library: before it replaces a file.

onnx's checker, bodies of the model's own versions of operators, a plain onnxruntime session on the
CPU, and equal outputs of the original and of the rewritten model, whose function bodies run, on one
input. An original that onnxruntime has no kernels for there (bfloat16) is compared in fp32, as is the result.
onnxruntime runs in a child process: what crashes it ends no ``optimize``. What cannot be checked (weights
beyond ``MOST_BYTES``, an original that onnxruntime cannot run, no time) is said, and is no failure.
"""

import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from mirage_onnx.custom_op.child import At, Ended, in_child, serve

if TYPE_CHECKING:
  import numpy as np
  import onnx
  from onnxruntime import InferenceSession

  from mirage_onnx.custom_op.model_run import Signature

#: Weights of a model that is run: a session of 16-bit weights on the CPU holds them several times.
MOST_BYTES = 1 << 29
#: Weights of a model that is run in fp32, which takes twice the bytes.
MOST_WIDENED_BYTES = MOST_BYTES // 2
#: A result that takes so many times as long as the original, and so many seconds more, hangs.
HANGS, HANGS_S = 20.0, 20.0
#: Of the run of an original beside a search.
NICE = 10
_RESULT = "the result"


@dataclass(frozen=True, slots=True)
class Question:
  """``original``: a path, or the model in memory. ``runs``: else only what onnx's checker says.

  ``written``: None to run the original only, which the process then knows.
  """

  original: Path | bytes
  written: Path | None
  runs: bool


#: What answers a question in so many seconds, or says how it ended without an answer.
Ask = Callable[[Question, float], "Ended | tuple[str, str, bool]"]


@dataclass(frozen=True, slots=True)
class Found:
  """``problem``: why the written model must not replace anything. ``said``: what was checked.

  ``ran``: whether that was in onnxruntime.
  """

  problem: str = ""
  said: str = ""
  ran: bool = False


def check_written(
  original: Path | bytes, written: Path, weight_bytes: int, seconds: float, ask: Ask | None = None
) -> Found:
  """Check a model file against the model that it was made of, in ``seconds`` at most.

  ``ask``: a process that may have run the original before (``check_process.py``).
  """
  question = Question(original, written, weight_bytes <= MOST_BYTES)
  found = ask(question, seconds) if ask else in_child(__name__, question, seconds)
  if isinstance(found, tuple):
    return Found(*found)
  assert isinstance(found, Ended)
  if _RESULT in found.at and not found.late:
    return Found(problem=str(found))
  if _RESULT in found.at and (took := found.at.rpartition("took ")[2].removesuffix(" s")):
    limit = HANGS * float(took) + HANGS_S if took.replace(".", "", 1).isdigit() else float("inf")
    if seconds > limit:
      return Found(problem=str(found))
  return Found(said=f"not checked in onnxruntime: {found}")


def _check(question: Question, at: At) -> Found:
  import onnx

  assert question.written is not None
  at(f"onnx's checker on {_RESULT}")
  try:
    onnx.checker.check_model(str(question.written))
  except onnx.checker.ValidationError as error:
    at("onnx's checker on the original")
    own = question.original
    try:
      onnx.checker.check_model(own if isinstance(own, bytes) else str(own))
    except onnx.checker.ValidationError:
      pass  # it is not our doing
    else:
      return Found(problem=f"onnx's checker: {' '.join(str(error).split())[:400]}")
  if problem := _other_version(_light(question.written)):
    return Found(problem=problem)
  if not question.runs:
    return Found(said=f"onnx's checker passes; not run, for its weights are more than {MOST_BYTES >> 20} MiB")
  return _compare(question, at)


def _other_version(model: "onnx.ModelProto") -> str:
  """Which body has other versions of operators than its model: onnxruntimes differ in what that means."""
  own = {i.domain: i.version for i in model.opset_import}
  for f in model.functions:
    for i in f.opset_import:
      if i.version != own.get(i.domain, i.version):
        return f"the body {f.name!r} is of opset {i.version}, the model of {own[i.domain]}"
  return ""


@dataclass(frozen=True, slots=True)
class _Original:
  """A run of it: what it was given, what it yields, and the seconds. ``wide``: of it in fp32."""

  feeds: "Mapping[str, np.ndarray]"
  want: "Mapping[str, np.ndarray]"
  signature: "Signature"
  seconds: float
  wide: bool


#: Of the process's last question.
_known: dict[Path | bytes, _Original] = {}


def _session(model: Path | bytes, *, wide: bool = False) -> "InferenceSession":
  """Of a model, or of the same graph in fp32."""
  from mirage_onnx.custom_op.model_run import EXTERNAL_FOLDER_KEY
  from mirage_onnx.custom_op.runtime import import_onnxruntime
  from mirage_onnx.custom_op.widen import widened

  ort = import_onnxruntime()
  options = ort.SessionOptions()
  options.log_severity_level = 4
  options.enable_cpu_mem_arena = False  # which keeps the most of every step of a run for the next
  source: str | bytes = model if isinstance(model, bytes) else str(model)
  if wide:
    folder = None if isinstance(model, bytes) else model.parent
    source = widened(_proto(model), folder).SerializeToString()
    if folder is not None:
      options.add_session_config_entry(EXTERNAL_FOLDER_KEY, str(folder))
  return ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])


def _opened(model: Path | bytes) -> "tuple[InferenceSession, bool]":
  """A session of the original, and whether it is of it in fp32."""
  from mirage_onnx.custom_op.widen import has_halves
  from mirage_onnx.importer.external import weight_bytes

  try:
    return _session(model), False
  except Exception as error:  # onnxruntime has a class per status code and no common base
    proto = _proto(model)
    if not has_halves(proto) or weight_bytes(proto) > MOST_WIDENED_BYTES:
      raise
    try:
      return _session(model, wide=True), True
    except Exception:
      raise error from None


def _original(model: Path | bytes, at: At) -> _Original:
  """The original's run, the first time that it is asked for."""
  from mirage_onnx.custom_op.input_facts import input_facts
  from mirage_onnx.custom_op.model_run import Signature, run_session
  from mirage_onnx.custom_op.running_sizes import first_run

  if (known := _known.get(model)) is not None:
    return known
  at("onnxruntime on the original")
  start = time.monotonic()
  plain, wide = _opened(model)
  facts = input_facts(_proto(model))
  _, feeds, want = first_run(plain.get_inputs(), {}, {}, facts, partial(run_session, plain))
  signature = Signature.of(plain)
  del plain  # one session at a time: its weights are in memory more than once
  _known.clear()
  _known[model] = found = _Original(feeds, want, signature, time.monotonic() - start, wide)
  return found


def _ahead(model: Path | bytes, at: At) -> None:
  """The original's run beside others' work: by threads that make way for theirs."""
  error: list[BaseException] = []

  def run() -> None:
    try:
      nice = max(NICE, os.getpriority(os.PRIO_PROCESS, 0))
      os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), nice)  # those of a session have it, too
      _original(model, at)
    except Exception as raised:
      error.append(raised)

  thread = threading.Thread(target=run)
  thread.start()
  thread.join()
  if error:
    raise error[0]


def _compare(question: Question, at: At) -> Found:
  from mirage_onnx.custom_op.difference import FLOOR, RTOL, difference
  from mirage_onnx.custom_op.measure import KnownOriginal, Tolerances
  from mirage_onnx.custom_op.model_run import check_signatures, run_session

  original, written = question.original, question.written
  assert written is not None
  known = _original(original, at)
  want = known.want
  at(f"onnxruntime on {_RESULT}, of whose original it took {known.seconds:.1f} s")
  ours = _session(written, wide=known.wide)
  check_signatures(known.signature, ours)
  got = run_session(ours, known.feeds)
  at(f"comparing {_RESULT}")
  own = original if isinstance(original, bytes) else str(original)
  tolerances = Tolerances.of(own, str(written), None)
  others = 0
  for name, x in want.items():
    if _same(x, got[name]):
      continue
    others += 1
    if known.wide:
      found = difference(name, x, got[name], RTOL["float32"], FLOOR, "normal 0")
    else:
      found = tolerances(name, x, got[name], KnownOriginal("normal 0"))
    if not found.passed:
      why = found.reason or f"its error is {found.needed_rtol:.2g}, not {found.rtol:.2g}"
      return Found(problem=f"output {name!r} differs in onnxruntime without the library: {why}")
  bits = "the same bits" if not others else f"{others} of {len(want)} outputs equal up to rounding"
  how = ", both in fp32 (it has no kernels for the original)" if known.wide else ""
  return Found(said=f"onnxruntime without the library{how}: {bits} on one input", ran=True)


def _proto(model: Path | bytes) -> "onnx.ModelProto":
  """Without external data."""
  import onnx

  return onnx.load_from_string(model) if isinstance(model, bytes) else _light(model)


def _light(path: Path) -> "onnx.ModelProto":
  import onnx

  return onnx.load(str(path), load_external_data=False)


def _same(a: "np.ndarray", b: "np.ndarray") -> bool:
  return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def _work(question: Question, at: At) -> tuple[str, str, bool]:
  if question.written is None:
    _ahead(question.original, at)
    return "", "", True
  found = _check(question, at)
  # Classes of a process's main module are not those of its parent.
  return found.problem, found.said, found.ran


if __name__ == "__main__":
  serve(_work)

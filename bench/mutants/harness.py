"""One fault: optimize with it, then ``verify`` what was written. Each in a process of its own.

Outcomes: ``caught`` (a stage and what it said), ``survived``, or ``nothing``: the written graph, its
plans and the images of its kernels are the same, byte for byte, as without the fault, so it was none.
Where ``optimize`` refuses regions or programs that it does not refuse without the fault, and what it
writes instead passes ``verify``, the fault is caught by the stage that refused; but where only the time
was over, it is ``late``, and shows nothing. What passes ``verify`` and is right for a judge who shares no
code with it (``tests/support/plain_interpreter.py``) is another right program, and no fault: ``right``.
"""

import functools
import hashlib
import importlib
import json
import os
import pickle
import time
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, redirect_stderr
from dataclasses import asdict, dataclass
from pathlib import Path

import onnx

from mirage_onnx import api, pipeline
from mirage_onnx.custom_op.model_nodes import ModelFile
from mirage_onnx.errors import MirageError
from mutants.hooks import patched, production, watching
from mutants.subjects import subject

#: Results of what was no fault, or of which nothing is known.
NO_FAULT = ("nothing", "late", "right")
#: Imported late by what runs in every child: here, once.
LATE = ("cuda.bindings.nvrtc", "cuda.core", "onnx_graphsurgeon", "onnxruntime", "scipy.optimize")
BUDGET_S = 30.0
LIMIT_S = 400


@dataclass(frozen=True)
class Fault:
  """One thing that is wrong.

  ``plant``: a context in which production code is. ``searches``: the search runs with it; else what
  the search finds without it is used. ``holds``: whether the wrong thing is in what was written, where
  something right may have come in its place. ``is_right``: asked about what passes ``verify``.
  """

  stage: str
  subject: str
  name: str
  plant: Callable[[], AbstractContextManager[object]]
  searches: bool = False
  holds: Callable[[Path], bool] = lambda _: True
  is_right: Callable[[], bool] = lambda: False

  @property
  def id(self):
    return f"{self.stage}/{self.subject}/{self.name}"


@dataclass(frozen=True)
class Outcome:
  """``by``: the stage and its words (a code where it has one); ``seconds`` of both commands."""

  id: str
  result: str
  by: str = ""
  seconds: float = 0.0


@functools.cache
def options():
  """As the command's, but that every region is replaced that verifies: the models are small."""
  return functools.partial(pipeline.Options, every=True)


def optimize(path, out):
  """Write the result; how many refusals there were of every code, of regions and of programs.

  With those of the check of what is written.
  """
  with patched(options(), "mirage_onnx.api:Options"), watching("mirage_onnx.api:write") as runs:
    api.optimize(path, out, target="h200", budget_s=BUDGET_S, workers=1)
  found = Counter()
  run, _ = runs[0]
  for outcome in run.outcomes.values():
    if outcome.rejection is not None:
      found[outcome.rejection.code] += 1
    found.update(f"{r.code} of an instance" for _, r in outcome.left_alone)
    if outcome.result is not None:
      found.update(f"{r.code} of a program" for r in outcome.result.report.refused)
  return found


class Searches:
  """What the search found for each region, kept and given again."""

  def __init__(self, path):
    self._path = path

  def keep(self):
    """Record the results of a run."""
    found = {}
    original = production("mirage_onnx.judging:search_all")

    def kept(loaded, regions, setting, *, done, **more):
      def told(i, result):
        found[regions[i].key] = result
        done(i, result)

      original(loaded, regions, setting, done=told, **more)
      self._path.write_bytes(pickle.dumps(found))

    return patched(kept, "mirage_onnx.judging:search_all")

  def give(self):
    """Results as recorded; regions of which there is none are searched."""
    found = pickle.loads(self._path.read_bytes())
    original = production("mirage_onnx.judging:search_all")

    def given(loaded, regions, setting, *, done, **more):
      left = [i for i, r in enumerate(regions) if r.key not in found]
      for i, region in enumerate(regions):
        if region.key in found:
          done(i, found[region.key])
      original(loaded, [regions[i] for i in left], setting, done=lambda j, r: done(left[j], r), **more)

    return patched(given, "mirage_onnx.judging:search_all")


def custom_nodes(path):
  return sum(n.domain.startswith("ai.mirage") for n in onnx.load(path).graph.node)


def digest(path):
  """Of all that a run computes with: the graph, the plans and the images of the kernels.

  What the bundle says of the origin of an image is left out: other words for the same machine code.
  """
  file = ModelFile.read(str(path))
  parts = [b""]
  if names := {node.bundle for node in file.custom_nodes()}:
    bundle = file.bundle()
    parts = [*bundle.cubins, *(plan.encode() for plan in bundle.plans)]
    for tensor in file.proto.graph.initializer:
      if tensor.name in names:
        tensor.ClearField("raw_data")
        tensor.ClearField("dims")
  for value in (v for v in file.proto.graph.value_info if v.name in names):
    value.ClearField("type")
  parts.append(file.proto.SerializeToString(deterministic=True))
  return hashlib.sha256(b"".join(hashlib.sha256(x).digest() for x in parts)).hexdigest()


class Bench:
  """A folder with every subject, what is written of it without a fault, and its searches."""

  def __init__(self, folder):
    self.folder = folder

  def original(self, name):
    return self.folder / f"{name}.onnx"

  def good(self, name):
    return self.folder / f"{name}.good.onnx"

  def refusals(self, name):
    return self.folder / f"{name}.refusals.json"

  def searches(self, name):
    return Searches(self.folder / f"{name}.searches")

  def prepare(self, name):
    """Write the subject and its result; what is written twice must be the same."""
    onnx.save(subject(name), self.original(name))
    os.environ["MIRAGE_ONNX_CACHE"] = "searches-off"
    with self.searches(name).keep():
      refusals = optimize(self.original(name), self.good(name))
    self.refusals(name).write_text(json.dumps(refusals))
    again = self.folder / f"{name}.again.onnx"
    with self.searches(name).give():
      optimize(self.original(name), again)
    assert digest(again) == digest(self.good(name)), f"{name}: two runs write different files"
    found = api.verify(self.original(name), self.good(name))
    assert found.passed, f"{name}: {found}"
    assert custom_nodes(self.good(name)), f"{name} has no kernel"

  def run(self, fault):
    """The outcome of one fault, in this process."""
    start = time.monotonic()
    out = self.folder / f"{os.getpid()}.onnx"
    out.unlink(missing_ok=True)
    given = nullcontext() if fault.searches else self.searches(fault.subject).give()
    os.environ["MIRAGE_ONNX_CACHE"] = "searches-off"  # what other searches have learned

    def outcome(result, by=""):
      return Outcome(fault.id, result, by, round(time.monotonic() - start, 1))

    try:
      with given, fault.plant():
        try:
          refusals = optimize(self.original(fault.subject), out)
        except MirageError as error:
          return outcome("caught", f"optimize: {error.line()[:160]}")
        except Exception as error:
          return outcome("caught", f"optimize: {_place(error)}")
        if digest(out) == digest(self.good(fault.subject)):
          return outcome("nothing")
        new = refusals - Counter(json.loads(self.refusals(fault.subject).read_text()))
        try:
          found = api.verify(self.original(fault.subject), out)
        except MirageError as error:
          return outcome("caught", f"verify: {error.line()[:160]}")
        except Exception as error:
          return outcome("caught", f"verify: {_place(error)}")
      if not found.passed:
        wrong = [o for o in (*found.outputs, *(r.output for r in found.regions)) if not o.passed]
        said = [f"{o.name} {o.reason or o.needed_rtol}" for o in wrong] + [*found.failures, found.unverified]
        return outcome("caught", f"verify: {said[0]}"[:160])
      if new and set(new) == {"BUDGET"}:
        return outcome("late")
      if new:
        return outcome("caught", "optimize: " + ", ".join(f"{code} ({n})" for code, n in sorted(new.items())))
      if not fault.holds(out):
        return outcome("caught", "optimize: it is refused, and another program taken")
      return outcome("right" if fault.is_right() else "survived")
    finally:
      out.unlink(missing_ok=True)


def _place(error):
  """An exception that is no ``MirageError``: where it was raised."""
  frame = traceback.extract_tb(error.__traceback__)[-1]
  return f"{type(error).__name__} in {Path(frame.filename).stem}.{frame.name}: {error}"[:160]


class Forked:
  """A fault that runs in a child; one that hangs or dies is no outcome of ``verify``."""

  def __init__(self, bench, fault, limit_s=None):
    self.fault, self._limit_s = fault, LIMIT_S if limit_s is None else limit_s
    self._start = time.monotonic()
    self._reading, writing = os.pipe()
    self._child = os.fork()
    if self._child == 0:
      os.close(self._reading)
      self._run(bench, writing)
    os.close(writing)

  def _run(self, bench, writing):
    with open(os.devnull, "w") as silent, redirect_stderr(silent):
      try:
        found = bench.run(self.fault)
      except BaseException as error:  # the parent must hear of it
        found = Outcome(self.fault.id, "broken", _place(error))
    os.write(writing, json.dumps(asdict(found)).encode())
    os._exit(0)

  def poll(self):
    """The outcome, or None as long as there is none."""
    done, status = os.waitpid(self._child, os.WNOHANG)
    seconds = round(time.monotonic() - self._start, 1)
    if not done and seconds < self._limit_s:
      return None
    if not done:
      os.kill(self._child, 9)
      os.waitpid(self._child, 0)
    with os.fdopen(self._reading) as pipe:
      text = pipe.read() if done else ""
    if text:
      return Outcome(**json.loads(text))
    return Outcome(self.fault.id, "died" if done else "hung", f"status {status}", seconds)


def forked(bench, faults, jobs=1):
  """The outcomes of faults as they come, ``jobs`` at a time.

  ``faults`` is asked for each in turn, also again when it had none (or None).
  """
  for name in LATE:
    importlib.import_module(name)
  running = []
  while True:
    while len(running) < jobs and (fault := next(faults, None)) is not None:
      running.append(Forked(bench, fault))
    if not running:
      return
    time.sleep(0.02)
    for one in list(running):
      if (outcome := one.poll()) is not None:
        running.remove(one)
        yield outcome

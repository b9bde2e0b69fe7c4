"""What becomes of random programs: emitted, compiled together, run, compared with their oracle."""

import hashlib
from dataclasses import astuple, dataclass, replace
from functools import cache
from math import prod
from pathlib import Path

import numpy as np
from random_kernel_oracle import difference, oracle_of
from random_kernel_tables import cells, features
from random_kernels import RandomKernel, random_kernel

import mirage_onnx
from mirage_onnx.codegen.source import KernelSource
from mirage_onnx.compiler.candidates import emit_candidate
from mirage_onnx.emulator import compile_kernels
from mirage_onnx.emulator.failure import EmulationError
from mirage_onnx.errors import RejectionError
from mirage_onnx.ir import Candidate, Window, print_ugraph, ugraph_extents
from mirage_onnx.ir.ugraph import is_part_axis
from mirage_onnx.target import H200

#: Programs compiled as one translation unit: the headers' share of its time is small then.
TOGETHER = 20
#: Seconds of processor time that a kernel may run in the emulator.
LIMIT_S = 60


@dataclass(frozen=True)
class Outcome:
  """``kind``: ok, refused (``code`` of the rejection), wrong, fault (``code`` of the emulator),
  or crash (an exception of ours). ``cells``, ``features``: see ``random_kernel_tables``. ``of``: what the
  outcome is a function of (``fingerprint``).
  """

  seed: int
  form: str
  kind: str
  code: str = ""
  detail: str = ""
  cells: tuple[str, ...] = ()
  features: tuple[str, ...] = ()
  of: str = ""

  @property
  def is_bad(self):
    return self.kind not in ("ok", "refused")

  def __str__(self):
    what = " ".join(x for x in (self.kind, self.code, self.detail) if x)
    again = f"python bench/kernel_fuzz.py --seeds {self.seed}:{self.seed + 1} --show"
    return f"seed {self.seed} ({self.form}): {what}\n    again: {again}"


@dataclass(slots=True)
class Subject:
  case: RandomKernel
  sources: tuple[KernelSource, ...] = ()
  outcome: Outcome | None = None

  def ends(self, kind, code="", detail=""):
    case = self.case
    shown = " ".join(detail.split())[:600]
    of = fingerprint(case, self.sources)
    self.outcome = Outcome(case.seed, case.form, kind, code, shown, cells(case.graph), features(case), of)


@cache
def judges():
  """The hash of what compiles, runs and judges texts: device headers, the emulator, the oracles."""
  package, own = Path(mirage_onnx.__file__).parent, Path(__file__).parent
  files = [p for part in ("codegen/device", "emulator") for p in (package / part).rglob("*.*")]
  files = [p for p in files if p.suffix in (".cuh", ".h", ".cc", ".py")]
  files += own.glob("random_kernel_oracle.py")
  digest = hashlib.sha256()
  for path in sorted(files):
    digest.update(path.read_bytes())
  return digest.hexdigest()


def fingerprint(case, sources):
  """Program, numbers, sizes, texts with their launches, and who judges them: all that an outcome hangs on."""
  program = print_ugraph(case.graph), [p.to_text() for p in case.params], sorted(case.extents.items())
  told = repr((program, [astuple(s) for s in sources], judges()))
  return hashlib.sha256(told.encode()).hexdigest()[:16]


def fingerprint_of(seed, target=H200):
  """That of a seed in this tree."""
  case = for_target(random_kernel(seed), target)
  return fingerprint(case, emitted(case, target).sources)


def for_target(case, target):
  """The program with numbers that a GPU without clusters takes, and what it then computes."""
  if target.has_clusters or all(p.cluster == 1 for p in case.params):
    return case
  params = tuple(replace(p, cluster=1) for p in case.params)
  extents = ugraph_extents(case.graph, params, {a: n for a, n in case.extents.items() if not is_part_axis(a)})
  rng = np.random.default_rng(case.seed)
  wants = oracle_of(case.graph, params, case.oracle.inputs, extents, rng)
  return replace(case, params=params, extents=extents, oracle=wants)


def emitted(case, target=H200):
  """The program with the text of its kernels, or the outcome that there is none."""
  subject = Subject(case)
  candidate = Candidate(case.graph, case.params)
  try:
    subject.sources = emit_candidate(candidate, case.extents, target, f"seed{case.seed}")
  except RejectionError as error:
    subject.ends("refused", error.rejection.code, error.rejection.reason)
  except Exception as error:
    subject.ends("crash", type(error).__name__, str(error))
  return subject


def boxed(t, memory, extents, rows=None, value=None):
  """The part of its memory that a tensor has, dimension by dimension; where there is a ``value``, set to it.

  ``rows``: arrays by what picks rows.
  """
  windows = t.windows or (Window(t.axes),)
  sizes = [prod(extents[a] for a in w.axes) for w in windows]
  fulls = [w.full or n for w, n in zip(windows, sizes, strict=True)]
  spans = zip(windows, sizes, strict=True)
  at = tuple(rows[w.picks] if w.picks else slice(w.start, w.start + n) for w, n in spans)
  if value is not None:
    memory.reshape(fulls)[at] = value.reshape(sizes)
  return memory.reshape(fulls)[at]


def tensors(case):
  """Inputs that cannot be written, all else in memory full of NaN."""
  found = {}
  for t in case.graph.tensors:
    empty = np.nan if t.dtype.is_float else -1
    found[t.name] = np.full(t.elements(case.extents), empty).astype(t.dtype.numpy)
    if t.name in case.oracle.inputs:
      boxed(t, found[t.name], case.extents, case.oracle.inputs, case.oracle.inputs[t.name])
      found[t.name].flags.writeable = False
  return found


def judged(case, got):
  for name, want in case.oracle.wants.items():
    memory = got[name].copy()
    part = boxed(case.graph.tensor(name), memory, case.extents)
    if wrong := difference(want, part.reshape(want.exact.shape)):
      return f"{name}: {wrong}"
    part[...] = np.nan
    if not np.isnan(memory).all():
      return f"{name}: something is written beside it"
  return ""


def emulate(subject, module, at):
  """Runs kernels ``at`` of a module in both orders of threads, which must give the same bits."""
  case = subject.case
  orders = ("ascending", "descending")
  results = []
  roles = ("temp",), ("input", "rows")
  temps, inputs = ([t.name for t in case.graph.tensors if t.role in r] for r in roles)
  checks = {"uninitialised": temps, "written_before": inputs, "timeout_s": LIMIT_S}
  try:
    for order in orders:
      got = tensors(case)
      module.run(got, at, order=order, **checks)
      results.append(got)
      if wrong := judged(case, got):
        return subject.ends("wrong", "", wrong)
  except EmulationError as error:
    return subject.ends("fault", error.kind, str(error))
  for name, x in results[0].items():
    if any(x.tobytes() != other[name].tobytes() for other in results[1:]):
      return subject.ends("wrong", "", f"{name} depends on the order of threads")
  return subject.ends("ok")


def compiled(subjects):
  """Subjects in one module; where the text does not compile, in smaller ones."""
  if not subjects:
    return
  try:
    module = compile_kernels([s for subject in subjects for s in subject.sources])
  except EmulationError as error:
    if len(subjects) == 1:
      subjects[0].ends("fault", error.kind, str(error))
      return
    half = len(subjects) // 2
    yield from compiled(subjects[:half])
    yield from compiled(subjects[half:])
    return
  first = 0
  for subject in subjects:
    yield subject, module, list(range(first, first + len(subject.sources)))
    first += len(subject.sources)


def run_seeds(seeds, together=TOGETHER, target=H200):
  todo = list(seeds)
  for start in range(0, len(todo), together):
    cases = [for_target(random_kernel(seed), target) for seed in todo[start : start + together]]
    subjects = [emitted(case, target) for case in cases]
    open_ = [s for s in subjects if s.outcome is None]
    for subject, module, at in compiled(open_):
      emulate(subject, module, at)
    for subject in subjects:
      assert subject.outcome is not None
      yield subject.outcome

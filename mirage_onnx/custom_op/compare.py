"""Compare two models in onnxruntime: same inputs, output by output, and which path each node ran.

Inputs: given ones, or ``draws`` standard normal ones and one of each kind of ``compare_inputs`` and
``edge_inputs``. When an output passes is told in ``difference``. Where kernels ran, the bodies that were not
run are checked on the same inputs (``body_check``), and each custom node by itself (``model_check``): on the
first input and the hard ones, or on all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import TYPE_CHECKING

import numpy as np

from mirage_onnx.custom_op.body_check import BodyCheck
from mirage_onnx.custom_op.boundary import Boundary
from mirage_onnx.custom_op.compare_inputs import FIRST, MASKED, check_inputs, combinations, draw_inputs
from mirage_onnx.custom_op.comparison import (
  ALONE,
  ERRORS_ADD_UP,
  IN_FP32,
  NO_KERNEL,
  Comparison,
  NodePath,
)
from mirage_onnx.custom_op.defined import Defined
from mirage_onnx.custom_op.difference import OutputDifference, worse
from mirage_onnx.custom_op.edge_inputs import EDGES, IsFinite, edge_inputs
from mirage_onnx.custom_op.first_runs import custom_names, custom_paths, first_runs
from mirage_onnx.custom_op.in_double import run_in_double
from mirage_onnx.custom_op.input_facts import InputFacts, input_facts
from mirage_onnx.custom_op.loose_rows import caches, loose_rows, measured
from mirage_onnx.custom_op.measure import KnownOriginal, Tolerances
from mirage_onnx.custom_op.model_check import RegionCheck
from mirage_onnx.custom_op.model_nodes import Model, ModelFile
from mirage_onnx.custom_op.model_run import How, check_declared, check_signatures, open_session, run_session
from mirage_onnx.custom_op.ran_checks import RanChecks
from mirage_onnx.custom_op.running_sizes import batch_sizes, first_run, free_sizes
from mirage_onnx.custom_op.session import launches
from mirage_onnx.custom_op.shaken import NARROW, Shaken
from mirage_onnx.custom_op.steps import EVERYTHING, OPTIMIZED, LeftOut, SessionStep, Tell, tell_nobody
from mirage_onnx.custom_op.wide_check import Input, WideCheck
from mirage_onnx.custom_op.widen import has_halves, run_widened
from mirage_onnx.errors import MirageError
from mirage_onnx.importer.old_inputs import without_old_inputs
from mirage_onnx.importer.steps_apart import apart_as_in

if TYPE_CHECKING:
  import onnxruntime as ort


def compare_models(
  a: Model,
  b: Model,
  *,
  seed: int = 0,
  provider: str = "cpu",
  draws: int = 4,
  dims: Mapping[str, int | Sequence[int]] | None = None,
  int_limits: Mapping[str, int] | None = None,
  rtol: float | None = None,
  ep: str | None = None,
  driver: str | None = None,
  emulate: bool = False,
  inputs: Mapping[str, np.ndarray] | None = None,
  bisect: bool = False,
  tell: Tell = tell_nobody,
  left_out: LeftOut = EVERYTHING,
) -> Comparison:
  """Run ``a`` (the reference) and ``b`` on the same inputs.

  Emulated, an ``a`` that onnxruntime's CPU provider does not run is compared in fp32 (``wide_check``):
  the outputs, by the function bodies, and custom node by custom node.

  Args:
      a: the original model, a path or bytes.
      b: the optimized model.
      seed: of the inputs.
      provider: ``cpu`` or ``cuda``, for both.
      draws: how many standard normal inputs.
      dims: sizes of dynamic dimensions by name (default: ``compare_inputs.DEFAULT_DIM``, or more where
          the original does not run at it: ``running_sizes``); of several, all combinations.
      int_limits: exclusive upper ends of integer inputs by name (``DEFAULT_INT_LIMIT``).
      rtol: tolerance of every float output, instead of the default of its type.
      ep: for ``b``, as in ``mirage_onnx.InferenceSession``.
      driver: likewise; with ``ep="host"`` a stand-in.
      emulate: run the kernels of ``b`` in the CPU emulator.
      inputs: arrays by name, the only input then.
      bisect: check the custom nodes on every input, not only on the first and the hard ones.
      tell: told before every step that may kill the process.
      left_out: what is not checked.

  Raises:
      MirageError: FILE_MISSING, SHAPES_DIFFER, INPUTS_INVALID, SESSION_FAILED,
          EMULATION_FAILED, OPTION_INVALID, and those of ``InferenceSession``.
  """
  if provider not in ("cpu", "cuda") or draws < 1 or (emulate and provider != "cpu"):
    wrong = f"provider={provider!r}, draws={draws}, emulate={emulate}"
    raise MirageError("OPTION_INVALID", wrong)
  basic = left_out.optimizations
  reference, candidate = How(provider, ep="none", basic=basic), How(provider, emulate, ep, driver, basic)
  drawn = _Inputs(a, seed, draws, dict(dims or {}), int_limits or {}, inputs, tell, left_out)
  tell(SessionStep.OPEN, "the original")
  try:
    left = open_session(a, reference)
  except MirageError as error:
    wide = _wide_check(a, b) if emulate and error.code == "SESSION_FAILED" else None
    if wide is None:
      raise
    return _alone(wide, drawn.of(wide.inputs, Defined(a)), Tolerances.of(a, b, rtol), tell)
  if inputs is None and FIRST not in left_out.kinds:
    tell(SessionStep.RUN, FIRST)
    drawn.sizes |= _more_sizes(left, drawn.facts(), drawn.sizes, drawn.int_limits)
  tell(SessionStep.OPEN, OPTIMIZED)
  right = open_session(b, candidate)
  check_signatures(left, right)
  checks = RanChecks(a, b, partial(_region_check, reference, candidate, tell, left_out))
  both = _Both(
    ModelFile.read(a), left, right, Defined(a, left), Tolerances.of(a, b, rtol), checks,
    BodyCheck(b, left, reference, tell), left_out, bisect,
  )  # fmt: skip
  for kind, feeds in drawn.of(left.get_inputs(), both.defined):
    tell(SessionStep.RUN, kind)
    both.run(kind, feeds)
    if kind in EDGES:
      tell(SessionStep.EDGES, "")
  return both.result(provider)


@dataclass(slots=True)
class _Inputs:
  """The inputs of both models: those that were ``given``, or drawn ones; ``model``: the original."""

  model: Model
  seed: int
  draws: int
  sizes: dict[str, int | Sequence[int]]
  int_limits: Mapping[str, int]
  given: Mapping[str, np.ndarray] | None
  tell: Tell
  left_out: LeftOut
  _facts: InputFacts | None = None

  def facts(self) -> InputFacts:
    """Of the original, read once."""
    self._facts = self._facts or input_facts(ModelFile.read(self.model).proto)
    return self._facts

  def of(
    self, arguments: Sequence[ort.NodeArg | Input], is_finite: IsFinite
  ) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
    """With their kinds, but for those that are left out."""
    for kind, feeds in self._every(arguments, is_finite):
      if kind not in self.left_out.kinds:
        yield kind, feeds

  def _every(
    self, arguments: Sequence[ort.NodeArg | Input], is_finite: IsFinite
  ) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
    if self.given is not None:
      yield "given", check_inputs(arguments, self.given)
      return
    facts, sizes, limits = self.facts(), self.sizes, self.int_limits
    yield from draw_inputs(arguments, self.seed, self.draws, sizes, limits, facts)
    if self.left_out.edges:
      return
    self.tell(SessionStep.EDGES, "")
    yield from edge_inputs(arguments, self.seed, sizes, limits, facts, is_finite)


@dataclass(slots=True)
class _Both:
  """The original (``left``) and the other one, run on one input after the other."""

  file: ModelFile
  left: ort.InferenceSession
  right: ort.InferenceSession
  defined: Defined
  measure: Tolerances
  checks: RanChecks
  bodies: BodyCheck
  left_out: LeftOut
  bisect: bool
  worst: dict[str, OutputDifference] = field(default_factory=dict)
  kinds: list[str] = field(default_factory=list)
  last: dict[str, np.ndarray] = field(default_factory=dict)
  shaken: tuple[Shaken, Shaken] = field(init=False)
  caches: Mapping[str, str] = field(init=False)

  def __post_init__(self) -> None:
    proto, folder = self.file.proto, self.file.folder
    self.shaken, self.caches = (Shaken(proto, folder), Shaken(proto, folder, NARROW)), caches(proto.graph)

  def run(self, kind: str, feeds: dict[str, np.ndarray]) -> None:
    """On an input of this kind."""
    left, right, (shaken, nearby) = self.left, self.right, self.shaken
    before = launches(right)
    wanted, found = run_session(left, feeds), run_session(right, feeds)
    check_declared(left, right, found)
    ran = {name for name, count in launches(right).items() if count > before[name]}
    known = KnownOriginal(
      kind,
      in_fp32=cache(partial(_in_fp32, self.file, feeds)),
      as_defined=cache(partial(self.defined.run, feeds)),
      whole=True,
      shaken=partial(shaken.runs, feeds),
      nearby=partial(nearby.runs, feeds),
      hangs=shaken.hangs,
    )
    counted = measured(self.measure, loose_rows(left, self.caches, feeds, wanted))
    for name, want in wanted.items():
      now = counted(name, want, found[name], known)
      self.worst[name] = worse(self.worst[name], now) if name in self.worst else now
    if ran and not self.left_out.bodies:
      self.bodies.run(feeds, wanted, counted, known)
    if not self.left_out.regions and (self.bisect or not self.kinds or kind in (*EDGES, *MASKED)):
      self.checks.run(ran, feeds, kind, self.measure)
    self.kinds.append(kind)
    self.last = feeds

  def result(self, provider: str) -> Comparison:
    """What was found, when all inputs were run."""
    checks = self.checks
    if not self.left_out.regions and self.kinds:
      checks.finish(self.last, self.kinds[-1], self.measure)
    paths = _paths(self.right, provider, checks.inner)
    found = _result(tuple(self.worst.values()), paths, tuple(self.kinds), checks)
    failures = checks.failures + self.bodies.failures
    return replace(found, failures=failures, passed=found.passed and not failures)


def _wide_check(a: Model, b: Model) -> WideCheck | None:
  """None where the original does not run in fp32 either, or nothing of the other can be compared.

  With subgraphs unrolled, where the original runs so too.
  """
  original, rewritten = (replace(f, proto=without_old_inputs(f.proto)) for f in map(ModelFile.read, (a, b)))
  original = replace(original, proto=apart_as_in(original.proto, rewritten.proto))
  paths = custom_paths(rewritten.proto, custom_names(rewritten.proto))
  for these in (paths, frozenset[str]()) if paths else (paths,):
    try:
      check = WideCheck(
        replace(original, proto=first_runs(original.proto, these)),
        replace(rewritten, proto=first_runs(rewritten.proto, these)),
      )
    except MirageError as error:
      if error.code != "SESSION_FAILED":
        raise
    else:
      return check if check.nodes or check.compares_outputs else None
  return None


def _alone(
  check: WideCheck,
  feeds_of: Iterable[tuple[str, dict[str, np.ndarray]]],
  measure: Tolerances,
  tell: Tell,
) -> Comparison:
  kinds: list[str] = []
  for kind, feeds in feeds_of:
    tell(SessionStep.RUN, kind)
    check.run(feeds, kind, measure)
    kinds.append(kind)
  paths = tuple(NodePath(n, "emulated" if k else "body", k) for n, k in check.launches.items())
  good = all(o.passed for o in check.outputs)
  alone = all(r.output.passed for r in check.differences)
  note = IN_FP32 if check.compares_outputs else ALONE
  if not any(check.launches.values()):
    note = "; ".join((*([note] if check.compares_outputs else ()), NO_KERNEL))
  return Comparison(good and alone, check.outputs, paths, tuple(kinds), note, check.differences)


def _more_sizes(
  session: ort.InferenceSession,
  facts: InputFacts,
  dims: Mapping[str, int | Sequence[int]],
  int_limits: Mapping[str, int],
) -> dict[str, int]:
  """Of dimensions that nobody has given a size, where the original does not run at the default one."""
  arguments = session.get_inputs()
  if not (free_sizes(arguments, facts) | batch_sizes(arguments, facts)) - dims.keys():
    return {}
  given, *_ = combinations(dims)
  try:
    found, _, _ = first_run(arguments, given, int_limits, facts, partial(run_session, session))
  except MirageError:
    return {}  # the run of the first inputs says why
  return {k: n for k, n in found.items() if k not in given}


def _in_fp32(file: ModelFile, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
  """In float64 what has no 16-bit float."""
  run = run_widened if has_halves(file.proto) else run_in_double
  return run(file.proto, file.folder, feeds)


def _region_check(
  reference: How,
  candidate: How,
  tell: Tell,
  left_out: LeftOut,
  original: ModelFile,
  rewritten: ModelFile,
  cuts: tuple[Boundary, ...],
) -> RegionCheck:
  """The check of some custom nodes.

  The reference is the CPU provider, which computes fp16 in fp32: the CUDA provider rounds every
  intermediate, and on hard inputs its error would be laid to a better kernel. Where the CPU
  provider lacks an operator (bfloat16), it is the CUDA provider after all.
  """
  try:
    exact = replace(reference, provider="cpu")
    return RegionCheck(original, rewritten, cuts, exact, candidate, tell=tell, left_out=left_out)
  except MirageError as error:
    if error.code != "SESSION_FAILED" or reference.provider == "cpu":
      raise
    return RegionCheck(original, rewritten, cuts, reference, candidate, tell=tell, left_out=left_out)


def _paths(right: ort.InferenceSession, provider: str, inner: Set[str]) -> tuple[NodePath, ...]:
  """``inner``: nodes in subgraphs, which no input may have reached."""
  counts = launches(right)
  ran = "kernel" if provider == "cuda" else "emulated"

  def path(name: str, count: int) -> str:
    if count:
      return ran
    return "not run" if name in inner and any(counts.values()) else "body"

  return tuple(NodePath(name, path(name, count), count) for name, count in counts.items())


def _result(
  outputs: tuple[OutputDifference, ...],
  nodes: tuple[NodePath, ...],
  kinds: tuple[str, ...],
  checks: RanChecks,
) -> Comparison:
  regions = checks.differences
  good, alone = all(o.passed for o in outputs), all(r.output.passed for r in regions)
  note = "" if any(node.launches for node in nodes) else NO_KERNEL
  if regions and alone and not good:
    note = ERRORS_ADD_UP
  notes = "; ".join(text for text in (note, checks.note) if text)
  return Comparison(good and alone, outputs, nodes, kinds, notes, regions)

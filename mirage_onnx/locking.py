"""What a run has written as a lock (``tune/lock.py``), and whether a later run is the same one."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mirage_onnx import __version__, events, pipeline
from mirage_onnx.errors import MirageError
from mirage_onnx.importer import LoadedModel
from mirage_onnx.ir.text import print_ugraph
from mirage_onnx.pipeline import Options, Run
from mirage_onnx.target import Target, get_target, get_targets, joined
from mirage_onnx.tune.lock import (
  Lock,
  LockedKernel,
  LockedNode,
  LockedOptions,
  LockedOther,
  LockedRegion,
  LockedTimes,
  LockedVersions,
  file_hash,
  read_lock,
)
from mirage_onnx.tune.other_gpu import least_margin
from mirage_onnx.tune.outcome import CUT_OFF, Outcome

if TYPE_CHECKING:
  from mirage_onnx.tune.realise import Chosen

#: The margin that counts as not given.
DEFAULT_MARGIN = 0.2
#: A model that takes so many times as long as another is worse.
WORSE = 1.0 + 1e-9


def lock_of(
  run: Run,
  loaded: LoadedModel,
  options: Options,
  external: str | None,
  output: Path,
  record: str = "",
  measured: str = "",
  times_us: tuple[float, float] | None = None,
  targets: str = "",
  margin: float | None = None,
) -> Lock:
  """The lock of what ``run`` has written to ``output``.

  ``targets``: all of them, where there are several, with the ``margin`` that was asked for.
  ``times_us``: of the whole model before and after as it was measured; left out: as predicted.
  """
  if times_us is None and run.times:
    times_us = run.times.before_us, run.times.after_us
  regions, nodes = _chosen(loaded, run.chosen)
  return Lock(
    format="mirage-onnx lock",
    version=1,
    input=input_hash(loaded),
    output=file_hash(output),
    options=LockedOptions(
      targets or options.target.name, options.measure, options.margin if margin is None else margin,
      {name: list(sizes) for name, sizes in sorted(options.shapes.items())}, external, options.steps,
    ),
    versions=here(_machine() if options.measure else None),
    before_us=times_us[0] if times_us else None,
    after_us=times_us[1] if times_us else None,
    regions=regions,
    nodes=nodes,
    record=record,
    measured=measured,
    target=options.target.name if targets else "",
    others=[LockedOther(o.target.name, *_chosen(loaded, o.chosen)) for o in run.others],
  )  # fmt: skip


def _chosen(loaded: LoadedModel, chosen: Sequence[Chosen]) -> tuple[list[LockedRegion], list[LockedNode]]:
  """The distinct regions of instances, and their nodes."""
  places: dict[str, int] = {}
  nodes, own = list[LockedNode](), list[tuple[Outcome, list[Any]]]()
  for c, o in chosen:
    at = places.setdefault(o.region.key, len(places))
    if at == len(own):
      own.append((o, []))
    own[at][1].append(c)
    nodes.append(LockedNode(at, sorted(c.nodes), sorted(c.outputs)))
  return _regions(loaded, own) if own else [], nodes


def _regions(loaded: LoadedModel, own: Sequence[tuple[Outcome, list[Any]]]) -> list[LockedRegion]:
  # Here: where nothing was replaced, it would be a second for nothing.
  from mirage_onnx.tune.replay import weights_of
  from mirage_onnx.verify.weights import ModelWeights

  weights = ModelWeights(loaded)
  return [_region(o, weights_of(same, weights)) for o, same in own]


def _region(o: Outcome, weights: str) -> LockedRegion:
  assert o.compiled is not None
  program, m = o.compiled.candidate, o.measured
  return LockedRegion(
    key=o.region.key,
    ugraph=print_ugraph(program.ugraph).splitlines(),
    params=[p.to_text() for p in program.params],
    predicted_us=float(program.predicted_us),
    baseline_us=float(o.baseline_us),
    measured=LockedTimes(m.kernel_us, m.ort_us, m.tried) if m else None,
    kernels=[
      LockedKernel(s.name, _sha256(s.text.encode()), _sha256(c.image))
      for s, c in zip(o.compiled.sources, o.compiled.cubins, strict=True)
    ],
    weights=weights,
  )


def here(machine: Mapping[str, str] | None = None) -> LockedVersions:
  """The versions of this process."""
  found = [_version(name) for name in ("onnxruntime-gpu", "onnxruntime")]
  runtime = next((v for v in found if v), "none")
  return LockedVersions(__version__, _nvrtc(), runtime, dict(machine) if machine else None)


def _name(target: str) -> str:
  return "local" if target.lower() == "local" else joined(get_targets(target))


def check_same(
  lock: Lock,
  loaded: LoadedModel,
  *,
  target: str | None,
  margin: float,
  shapes: Mapping[str, Sequence[int]],
  external: str | None,
  steps: bool | int = False,
) -> tuple[Target, ...]:
  """The targets of ``lock``, which is of this model, these options and these versions.

  What is left out (None, no sizes, the default margin) is as in the lock.

  Raises:
      MirageError: LOCK_DIFFERS with all that differs; TARGET_UNKNOWN.
  """
  o, v, now = lock.options, lock.versions, here()
  wanted = "local" if o.measured else o.target
  given = wanted if target is None else _name(target)
  of = (get_target(o.target),) if o.measured else get_targets(o.target)
  least = margin if o.measured or len(of) > 1 else least_margin(of[0], margin)
  pairs: list[tuple[str, object, object]] = [
    ("the model", input_hash(loaded), lock.input),
    ("--target", given, wanted),
    ("--margin", o.margin if margin == DEFAULT_MARGIN else least, o.margin),
    ("--shapes", {n: list(s) for n, s in shapes.items()} or o.shapes, o.shapes),
    ("--external", external or o.external, o.external),
    ("--steps", steps, o.steps),
    ("mirage-onnx", now.mirage_onnx, v.mirage_onnx),
    ("NVRTC", now.nvrtc, v.nvrtc),
  ]
  differ = [f"{what} is {_short(a)}, {_short(b)} in the lock" for what, a, b in pairs if a != b]
  if differ:
    raise MirageError("LOCK_DIFFERS", "; ".join(differ))
  return of


def better_of(
  run: Run, path: Path, loaded: LoadedModel, options: Options, external: str | None, emit: events.Emit
) -> tuple[Run, Lock | None]:
  """``run``; or, if time or the user has cut it off, what the lock at ``path`` says, and that lock.

  It counts if the same command has written it, and what it is of is better, both as predicted. What was
  measured is compared by measuring (``earlier_of``).
  """
  lock = _same_command(path, loaded, options, external) if is_cut_off(run) else None
  if lock is None or lock.measured or lock.after_us is None or run.times is None:
    return run, None
  if run.times.after_us <= lock.after_us * WORSE:
    return run, None
  now, before = f"{run.times.after_us:.1f} µs", f"{lock.after_us:.1f} µs"
  again = replayed_lock(lock, loaded, options, f"this run ends at {now}, an earlier one at {before}", emit)
  return (run, None) if again is None else (again, lock)


def earlier_of(
  run: Run, path: Path, loaded: LoadedModel, options: Options, external: str | None, output: Path
) -> Lock | None:
  """The lock at ``path`` of what is at ``output``, against which the result of ``run`` has to be timed.

  That is, if time or the user has cut ``run`` off, and the same command has written and measured both.
  """
  lock = _same_command(path, loaded, options, external) if is_cut_off(run) else None
  if lock is None or not lock.measured:
    return None
  try:
    return lock if file_hash(output) == lock.output else None
  except OSError:
    return None


def replayed_lock(
  lock: Lock, loaded: LoadedModel, options: Options, why: str, emit: events.Emit
) -> Run | None:
  """What ``lock`` says, as a run; None where it is of no use any more."""
  try:
    again = pipeline.run(loaded, replace(options, lock=lock, journal=None, emulate=True), emit)
  except MirageError as error:  # somebody has changed it
    emit(events.Warned(f"the lock of an earlier run, which was better, is of no use: {error.detail}"))
    return None
  emit(events.Warned(f"there was no time for all: {why}, which stays"))
  return again


def _same_command(path: Path, loaded: LoadedModel, options: Options, external: str | None) -> Lock | None:
  try:
    lock = read_lock(path)
    check_same(
      lock, loaded, target="local" if options.measure else options.target.name, margin=options.margin,
      shapes=options.shapes, external=external, steps=options.steps,
    )  # fmt: skip
  except MirageError:
    return None
  # What check_same takes for not given is the default here.
  o, shapes = lock.options, {n: list(sizes) for n, sizes in options.shapes.items()}
  return lock if (o.margin, o.shapes, o.external) == (options.margin, shapes, external) else None


def is_cut_off(run: Run) -> bool:
  """Whether there was no time, or no patience, for something."""
  return any(
    (o.rejection and o.rejection.code in CUT_OFF) or (o.result and str(o.result.report.stop) in CUT_OFF)
    for o in run.outcomes.values()
  )


def input_hash(loaded: LoadedModel) -> str:
  """SHA-256 of the model file, without weights outside of it; of a model in memory, of its bytes."""
  if loaded.path is not None:
    return file_hash(loaded.path)
  return _sha256(loaded.given.SerializeToString(deterministic=True))


def _machine() -> Mapping[str, str] | None:
  from mirage_onnx.tune.machine import present_machine

  machine = present_machine()
  return machine.text if machine else None


def _nvrtc() -> str:
  from mirage_onnx.nvrtc_choice import chosen_version

  return chosen_version()


def _version(package: str) -> str:
  try:
    return metadata.version(package)
  except metadata.PackageNotFoundError:
    return ""


def _short(value: object) -> str:
  text = str(value)
  return text[:12] if len(text) == 64 else text


def _sha256(data: bytes) -> str:
  return hashlib.sha256(data).hexdigest()

"""The promise kept on the whole model: what is about to be written against what it was made of.

``tune/gate.py`` decides, ``custom_op/race.py`` times; here is what both are asked, and what is said of it.
What could not be timed is not written either: a race that fails is run once more, with one session open at a
time, and after that every region goes, with the reason.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any, Self

from mirage_onnx import events
from mirage_onnx.custom_op.arm_session import Arm
from mirage_onnx.custom_op.race import Failed, Race, Raced, Racer, Times, sizes_text
from mirage_onnx.errors import MirageError
from mirage_onnx.importer import LoadedModel
from mirage_onnx.importer.steps_apart import is_apart, is_step, prompt_of
from mirage_onnx.pipeline import Run
from mirage_onnx.superopt.cache_folders import cache_folder
from mirage_onnx.tune.gate import EarlierStaysError, Gain, is_faster, to_drop
from mirage_onnx.tune.paired import ALPHA, LOOKS, PairedVerdict, spent

#: Groups that are left out side by side, beside the result itself: so many sessions are open at a time.
BATCH = 3
#: A question is given this much time whatever is left, and at most so much.
LEAST_S, MOST_S = 3.0, 30.0
#: What decides whether anything is written has this much, or this part of what is left, where that is more:
#: openings of models of gigabytes take long, and so do slow runs at many sizes.
WHOLE_S, WHOLE = 60.0, 0.5
#: Beyond its time, a question may take this long until its first look.
FIRST_S = 10.0
#: Of a result that is faster already, what is left out in turn: for so much of the time that the run took
#: before, and so long at least (46 of 292 s of a LLaMA and 31 of 224 s of Qwen3 went into that, for nothing).
LEFT_OUT, LEFT_OUT_S = 0.06, 10.0
#: Of the chance of a wrong answer, what leaving out a group may have: a harmless region would go.
DROP_ALPHA = 0.05
#: What was so many times as fast alone is not doubted where the whole is faster: a question takes ten
#: seconds, and of nine groups of two BERTs that were left out in turn on an H100 none was harmful.
SURE = 1.4


#: What could not be timed: a session did not start, or the process ended.
UNTIMED = "MODEL_UNTIMED"
#: Steps behind a prompt that have to make up for what it takes longer with a branch for them, and how much
#: longer it may take then; of a prompt that is declared, how much is not told apart from luck of a session.
STEPS, LONGER, DECLARED_LONGER = 16, 1.02, 1.01


@dataclass
class Gate:
  """Asked about each file that is about to be written; remembers what it has seen.

  ``earlier``: what an earlier run has written, which must not become slower. ``points``: the declared
  sizes. ``end``, ``began``: of ``time.monotonic``, of the run; ``timer``: times a race (replaced in tests).
  ``rows``: the last comparison of the original with the result. ``note``: why there is none. ``skipped``:
  sizes at which the original does not run. ``bodies``: outputs of custom nodes that run their bodies in
  ``original``, where that is an optimized model itself. ``code``: why the last ones had to go, UNTIMED of
  what failed. ``prompt``: sizes at which the result is the original behind a condition; ``STEPS`` steps must
  make up for that. ``others``: such sizes among ``points``. ``folder``: of an original that was in no file.
  """

  original: str
  points: tuple[Mapping[str, int], ...]
  end: float
  timer: Callable[[Race], Times | Failed] = field(default_factory=Racer)
  rows: tuple[Raced, ...] = ()
  note: str = ""
  skipped: tuple[str, ...] = ()
  bodies: frozenset[str] = frozenset()
  earlier: Path | None = None
  began: float = field(default_factory=time.monotonic)
  code: str = "MODEL_SLOWER"
  prompt: Mapping[str, int] | None = None
  others: tuple[Mapping[str, int], ...] = ()
  folder: TemporaryDirectory[str] | None = None
  _patient_until: float | None = None
  _questions: int = 0
  _looked: set[str] = field(default_factory=set)
  _apart: bool = False
  _opening_s: float = 0.0

  def begin(self) -> None:
    """Let what times get ready."""
    if isinstance(self.timer, Racer):
      self.timer.begin(self.original)

  def close(self) -> None:
    """End what times; it would begin again."""
    if isinstance(self.timer, Racer):
      self.timer.close()
    if self.folder is not None:
      self.folder.cleanup()

  def _over(self, question: Race, faster: bool) -> bool:
    """Whether nothing more is left out to see what it does: sooner where the result may stay as it is.

    Then a question is not begun either whose first look, by the openings so far, would come too late.
    """
    now, racer = time.monotonic(), self.timer if isinstance(self.timer, Racer) else None
    if not faster or (racer and racer.knows(question)):
      return not faster and now > self.end
    budget_s, look_s = self.end - self.began, LOOKS[0] * len(question.arms) * self._opening_s
    left = now + look_s > min(self.end, self._patient_until or self.end)
    if racer and left:
      racer.leave(question, budget_s)
    return left or (racer is not None and racer.has_left(question, budget_s))

  def drops(self, new: Path, run: Run) -> dict[str, str]:
    """Region keys that have to go before ``new`` may be written, each with the reason; none: it may.

    Raises:
        EarlierStaysError: ``earlier`` is faster.
    """
    dropped = self.losers(Arm(str(new)), _groups(run), _sure(run))
    if not dropped and self.earlier is not None:
      found = self._ask((Arm(str(self.earlier)), Arm(str(new))), ((0, 1),), DROP_ALPHA)
      if isinstance(found, Times) and min((r.speedups[0].mean for r in found.rows), default=1.0) < 1:
        raise EarlierStaysError
    return dropped

  def prefers(self, other: Path, new: Path, name: str = "") -> bool:
    """Whether ``other`` is faster than ``new``: somewhere with confidence, and on the whole.

    ``name``: of all that it is made with; a later run asks by it, before it makes the file again.
    """
    if time.monotonic() > self.end:
      return False
    asked = self._question((Arm(str(new)), Arm(str(other))), ((0, 1),), DROP_ALPHA, time.monotonic())
    found = self._asked(replace(asked, brief=True))
    if not isinstance(found, Times):
      return False
    better = Gain(tuple(r.speedups[0] for r in found.rows)).is_harmful
    if name and isinstance(self.timer, Racer):
      self.timer.prefer(Arm(self.original), Arm(str(new)), name, better)
    return better

  def preferred(self, new: Path, name: str) -> bool | None:
    """What ``prefers`` has said in an earlier run, if it did."""
    if not isinstance(self.timer, Racer):
      return None
    return self.timer.preferred(Arm(self.original), Arm(str(new)), name)

  def losers(
    self, result: Arm, groups: Mapping[str, frozenset[str]], sure: Container[str] = ()
  ) -> dict[str, str]:
    """Keys of ``groups`` that have to go from ``result``, each with the reason; none: it may stay as it is.

    ``groups``: key -> outputs of its custom nodes, in which ``result`` has kernels; what should save the
    least first. ``sure``: those that won by much alone; of a result that is faster they are not left out in
    turn.
    """
    original = Arm(self.original, self.bodies)
    prompts = () if self.prompt is None else (self.prompt,)
    steps = tuple(p for p in self.points if p not in self.others)
    alpha, points = spent(ALPHA, self._questions), (*self.points, *prompts)
    most_s = max(WHOLE_S, WHOLE * (self.end - time.monotonic()))
    captured = self.prompt is None and not self.others  # else the result has a branch, which none can
    found = self._ask((original, result), ((0, 1),), alpha, most_s=most_s, points=points, captured=captured)
    self._questions += 1
    self.note = ""
    if isinstance(found, Failed):
      self.code, self.rows = UNTIMED, ()
      if found.arm == 1:
        return dict.fromkeys(groups, f"onnxruntime could not run the model with it: {found.reason}")
      self.note = f"not timed: {found.reason}"
      return dict.fromkeys(groups, f"the whole model could not be timed: {found.reason}")
    self.rows, self.skipped = found.rows, found.skipped
    longer, rows = _behind_a_branch(found.rows, self.prompt, self.others)
    self.code = "MODEL_UNSURE" if _is_unsure(rows) and not longer else "MODEL_SLOWER"
    if longer:
      return dict.fromkeys(groups, longer)
    faster, now = is_faster(rows), time.monotonic()
    if self._patient_until is None:
      self._patient_until = now + max(LEFT_OUT_S, LEFT_OUT * (now - self.began))

    def question(some: Sequence[str]) -> Race:
      arms = (result, *(Arm(result.path, result.bodies | groups[key]) for key in some))
      pairs = tuple((0, k + 1) for k in range(len(some)))
      until = self._patient_until if faster else None
      return replace(self._question(arms, pairs, DROP_ALPHA, until, points=steps), brief=faster)

    def without(some: Sequence[str]) -> dict[str, Gain]:
      seen = self._asked(question(some))
      rows = () if isinstance(seen, Failed) else seen.rows
      self._looked.update(some)
      return {key: Gain(tuple(r.speedups[k] for r in rows)) for k, key in enumerate(some)}

    # What was worth its place in a larger result is not asked about again.
    asked = tuple(key for key in groups if not faster or (key not in self._looked and key not in sure))
    over = lambda some: self._over(question(some), faster)  # noqa: E731
    keys = to_drop(asked, without, batch=BATCH, over=over, faster=faster)
    how = "the whole model was measured faster without it" if faster else _why(rows)
    return dict.fromkeys(keys, how)

  def said(self) -> tuple[str, ...]:
    """What was measured, in words."""
    if self.note:
      return (self.note,)
    timed = (
      f"{r.us[0]:.1f} to {r.us[1]:.1f} us ({r.speedups[0].mean:.3f}x, {r.speedups[0].low:.3f} at least) "
      f"as a {r.how}{' at ' + r.sizes if r.sizes else ''}"
      for r in self.rows
    )
    return (*timed, *(f"not at {sizes}, where the original does not run" for sizes in self.skipped))

  def _ask(
    self, arms: tuple[Arm, ...], pairs: tuple[tuple[int, int], ...], alpha: float, **more: Any
  ) -> Times | Failed:
    """As ``_question``, answered."""
    return self._asked(self._question(arms, pairs, alpha, **more))

  def _question(
    self,
    arms: tuple[Arm, ...],
    pairs: tuple[tuple[int, int], ...],
    alpha: float,
    until: float | None = None,
    most_s: float = MOST_S,
    points: tuple[Mapping[str, int], ...] = (),
    captured: bool = False,
  ) -> Race:
    end = self.end if until is None else min(self.end, until)
    seconds = min(most_s, max(LEAST_S, end - time.monotonic()))
    return Race(
      arms, pairs, seconds, alpha, points or self.points, more_s=FIRST_S, apart=self._apart, captured=captured
    )

  def _asked(self, race: Race) -> Times | Failed:
    begun, found = time.monotonic(), self.timer(race)
    took_s = time.monotonic() - begun
    hangs = took_s > race.seconds + FIRST_S
    if isinstance(found, Failed) and not self._apart and not hangs:  # as for want of memory for all sessions
      left_s = max(LEAST_S, race.seconds - took_s)
      alone = self.timer(replace(race, apart=True, seconds=left_s))
      self._apart = isinstance(alone, Times)
      return alone
    if isinstance(found, Times) and found.rows:
      openings = max(1, found.rows[0].speedups[0].openings)
      self._opening_s = max(self._opening_s, took_s / openings / len(race.arms))
    return found


class RacerAhead:
  """What times the races of a run, begun beside its last regions; entered and left, its process has ended."""

  def __init__(self) -> None:
    self._racer: Racer | None = None
    self._thread: threading.Thread | None = None

  def __enter__(self) -> Self:
    return self

  def __exit__(
    self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
  ) -> None:
    if self._racer is not None:
      self.racer.close()

  @property
  def racer(self) -> Racer:
    """With the user's measurements in front of it."""
    if self._thread is not None:
      self._thread.join()
    if self._racer is None:
      from mirage_onnx.rewrite.kept_races import KeptRacer

      self._racer = KeptRacer.of_user()
    return self._racer

  def beginning(self, original: Path, emit: events.Emit) -> events.Emit:
    """``emit``, which lets it begin where all is searched, if it waits then for times of regions."""

    def begin() -> None:
      if cache_folder("locks"):
        racer = self.racer
        self._thread = threading.Thread(target=racer.begin, args=[str(original)], daemon=True, name="racer")
        self._thread.start()

    return events.at_stage("tune", begin, emit)

  def gate_of(self, run: Run, loaded: LoadedModel, end: float, began: float) -> Gate | None:
    """The gate of a run that replaces something; an original in memory is in a file of its own meanwhile."""
    if not run.chosen:
      return None
    original, folder = loaded.path, None
    if original is None:
      try:
        folder = TemporaryDirectory(prefix="mirage-onnx-")
        original = Path(folder.name) / "original.onnx"
        original.write_bytes(loaded.given.SerializeToString())
      except OSError as error:
        raise MirageError("OUTPUT_UNWRITABLE", f"a copy of the original, to time it: {error}") from error
    prompt: Mapping[str, int] | None = None
    others: tuple[Mapping[str, int], ...] = ()
    if loaded.nested and is_apart(loaded.nested):
      others = tuple(p for p in run.points if not is_step(loaded.nested, p))
      prompt = None if others else prompt_of(loaded.given, run.points[0])
    return Gate(
      str(original),
      run.points,
      end,
      timer=self.racer,
      began=began,
      prompt=prompt,
      others=others,
      folder=folder,
    )


def _behind_a_branch(
  rows: Sequence[Raced], prompt: Mapping[str, int] | None, declared: Sequence[Mapping[str, int]]
) -> tuple[str, tuple[Raced, ...]]:
  """Why what is no step takes too long behind the branch for steps, or nothing, and the rows of steps."""
  asked, texts = None if prompt is None else sizes_text(prompt), {*map(sizes_text, declared)}
  steps = tuple(r for r in rows if r.sizes not in texts | {asked})
  saved_us = min((r.us[0] - r.us[1] for r in steps if r.how == "run"), default=0.0)
  for r in rows:
    slower, more_us = r.speedups[0].verdict is PairedVerdict.SLOWER, r.us[1] - r.us[0]
    most = DECLARED_LONGER if r.sizes in texts else LONGER
    if not slower or r.sizes not in texts | {asked}:
      continue
    said = f"with a branch for steps a prompt ({r.sizes}) takes {r.us[1]:.1f} us for {r.us[0]:.1f}, which "
    if r.us[0] * most < r.us[1]:
      return f"{said}is more than {most - 1:.0%} longer", steps
    if r.sizes not in texts and more_us > STEPS * saved_us:
      return f"{said}{STEPS} steps of {saved_us:.1f} us less do not make up", steps
  return "", steps


def _is_unsure(rows: Sequence[Raced]) -> bool:
  """Whether the time was over before enough openings could say anything, and none says that it is slower."""
  verdicts = [r.speedups[0] for r in rows]
  open_ = [s for s in verdicts if s.verdict is PairedVerdict.UNDECIDED]
  return bool(open_) and all(s.mean > 1 and s.openings < LOOKS[-1] for s in open_) and not any(
    s.verdict is PairedVerdict.SLOWER for s in verdicts
  )  # fmt: skip


def _why(rows: Sequence[Raced]) -> str:
  worst = min(rows, key=lambda r: r.speedups[0].low)
  s, at = worst.speedups[0], f" at {worst.sizes}" if worst.sizes else ""
  known = "the time was over before it was sure that the whole model is faster with it"
  slow = "with it the whole model was not faster with confidence"
  return (
    f"{known if _is_unsure(rows) else slow}: {s.mean:.3f}x ({s.low:.3f} to {s.high:.3f}, "
    f"{s.openings} openings, {worst.how}{at})"
  )


def _sure(run: Run) -> frozenset[str]:
  """The keys of regions whose kernels were measured ``SURE`` times as fast as ONNX Runtime's."""
  measured = {o.region.key: o.measured for _, o in run.chosen}
  return frozenset(key for key, m in measured.items() if m and m.ort_us >= SURE * m.kernel_us)


def _groups(run: Run) -> dict[str, frozenset[str]]:
  """Region key -> the outputs of its custom nodes; what should save the least comes first."""
  outputs: dict[str, set[str]] = {}
  saved: dict[str, float] = {}
  for c, o in run.chosen:
    key = o.region.key
    outputs.setdefault(key, set()).update(t.source.name for t in c.region.outputs)
    saved[key] = saved.get(key, 0.0) + o.baseline_us - o.price_us(0.0)
  return {key: frozenset(outputs[key]) for key in sorted(outputs, key=lambda k: (saved[k], k))}

"""The gate before a file is replaced: what makes the whole model slower goes, and the report says it."""

import hashlib
import time
from dataclasses import replace

import onnx
import pytest
from rewritten import chain
from timed_arms import Timer, costs
from written_runs import OPTIONS, a_run

from mirage_onnx import racing, writing
from mirage_onnx.custom_op import race
from mirage_onnx.custom_op.race import Failed, Raced
from mirage_onnx.errors import MirageError
from mirage_onnx.events import StageStarted
from mirage_onnx.importer import import_model, load_model
from mirage_onnx.pipeline import with_these
from mirage_onnx.racing import Gate
from mirage_onnx.report.notes import Notes
from mirage_onnx.report.optimize_report import measured_report
from mirage_onnx.report.run_record import kept_record, read
from mirage_onnx.rewrite.kept_races import KeptRacer
from mirage_onnx.rewrite.save import save_model
from mirage_onnx.superopt.kept_folder import KeptFolder
from mirage_onnx.target import H200
from mirage_onnx.tune.gate import EarlierStaysError
from mirage_onnx.tune.paired import speedup
from mirage_onnx.tune.race import Measured


@pytest.fixture(scope="module")
def three():
  return chain()


def written(three, folder, timer, seconds=300.0):
  onnx.save(three.original, folder / "in.onnx")
  loaded = load_model(folder / "in.onnx")
  end = time.monotonic() + seconds
  place = writing.Destination(folder / "out.onnx", folder / "in.onnx", None, end)
  gate = Gate(str(folder / "in.onnx"), ({},), end, timer=timer)
  run, _ = writing.write(a_run(three, loaded), loaded, OPTIONS, place, check=False, gate=gate)
  assert sorted(p.name for p in folder.iterdir()) == ["in.onnx", "out.onnx"]
  assert onnx.load(folder / "out.onnx") == run.model
  return run, gate


def reasons(run):
  return [o.rejection.code if o.rejection else None for o in run.outcomes.values()]


def test_what_is_faster_is_written(three, tmp_path):
  run, gate = written(three, tmp_path, Timer(costs(three, 1, 2, 3), noise=0.01))
  assert len(run.chosen) == 3 and reasons(run) == [None] * 3
  (row,) = measured_report(gate)["rows"]
  assert (row["before_us"], row["after_us"]) == (130.0, 106.0) and row["low"] > 1.1 and row["openings"] == 4


@pytest.mark.parametrize("first", [1.0, 8.0])
def test_a_harmful_region_goes(three, tmp_path, first):
  """Whether the result is slower with it (8 + 40 of 30), or only less fast."""
  timer = Timer(costs(three, first, 40.0 if first == 8 else 14.0, 3), noise=0.005)
  run, gate = written(three, tmp_path, timer)
  assert len(run.chosen) == 2 and reasons(run) == [None, "MODEL_SLOWER", None]
  assert measured_report(gate)["rows"][0]["speedup"] > 1
  assert {len(q.arms) for q in timer.asked} == {2, 4}
  assert len({q.alpha for q in timer.asked if len(q.arms) == 2}) == 2  # the chance of an error is shared


def test_nothing_helps(three, tmp_path):
  """Every region wins a little, the whole does not: the original is written, byte for byte."""
  run, _ = written(three, tmp_path, Timer(costs(three, 9, 9, 9), original_us=120.0))
  assert not run.chosen and set(reasons(run)) == {"MODEL_SLOWER"}
  assert onnx.load(tmp_path / "out.onnx") == onnx.load(tmp_path / "in.onnx")
  text = next(iter(run.outcomes.values())).rejection.reason
  assert "0.9" in text and "openings" in text


def test_no_time_is_no_gain(three, tmp_path):
  run, _ = written(three, tmp_path, Timer(costs(three, 50, 1, 1)), seconds=-1.0)
  assert not run.chosen


def test_too_few_openings(three, tmp_path):
  """What seems faster after two of them is not known to be; that is said, not that it is slower."""
  timer = Timer(costs(three, 1.0, 1.0, 1.0))
  first = timer.__call__

  def few(race):
    found = first(race)
    rows = tuple(
      replace(r, speedups=tuple(speedup([1.4, 1.2], race.alpha) for _ in race.pairs)) for r in found.rows
    )
    return replace(found, rows=rows)

  run, _ = written(three, tmp_path, few, seconds=0.0)
  assert not run.chosen and set(reasons(run)) == {"MODEL_UNSURE"}
  reason = next(o.rejection.reason for o in run.outcomes.values())
  assert reason.startswith("the time was over before it was sure") and "2 openings" in reason


@pytest.mark.parametrize("arm", [0, 1, None])
def test_what_cannot_be_timed_is_not_written(three, tmp_path, arm):
  """Neither where the original does not run, nor the result, nor where nobody knows which it was."""
  asked = []

  def fails(race):
    asked.append(race.apart)
    return Failed(arm, "running: no memory")

  run, gate = written(three, tmp_path, fails)
  assert not run.chosen and set(reasons(run)) == {"MODEL_UNTIMED"} and asked == [False, True]
  assert (tmp_path / "out.onnx").read_bytes() == (tmp_path / "in.onnx").read_bytes()
  reason = next(iter(run.outcomes.values())).rejection.reason
  assert "no memory" in reason and ("could not run the model with it" in reason) == (arm == 1)
  noted = {"rows": [], "note": "not timed: running: no memory"}
  assert measured_report(gate) == (None if arm == 1 else noted)


def test_a_race_of_too_little_memory_is_run_with_one_session_at_a_time(three, tmp_path):
  timer, asked = Timer(costs(three, 1, 14, 3), noise=0.002), []

  def crowded(race):
    asked.append(race.apart)
    return timer(race) if race.apart else Failed(0, "0 running: Failed to allocate memory")

  run, _ = written(three, tmp_path, crowded)
  assert len(run.chosen) == 2 and reasons(run) == [None, "MODEL_SLOWER", None]
  assert asked[:2] == [False, True] and all(asked[2:])  # it is not tried again


def test_what_hangs_is_not_run_again(three, tmp_path, monkeypatch):
  now, asked = [1000.0], []
  monkeypatch.setattr(racing.time, "monotonic", lambda: now[0])

  def hangs(race):
    asked.append(race)
    now[0] += race.seconds + 120
    return Failed(None, "timing: no end after 180 s")

  onnx.save(three.original, tmp_path / "in.onnx")
  loaded = load_model(tmp_path / "in.onnx")
  gate = Gate(str(tmp_path / "in.onnx"), ({},), 1300.0, timer=hangs)
  run = a_run(three, loaded)
  assert gate.losers(racing.Arm(str(tmp_path / "in.onnx")), racing._groups(run))
  assert len(asked) == 1


def test_sizes_that_the_original_does_not_run_at_are_told(three, tmp_path):
  timer = Timer(costs(three, 1, 2, 3))
  _, gate = written(three, tmp_path, lambda race: replace(timer(race), skipped=("rows=256",)))
  assert gate.said()[-1] == "not at rows=256, where the original does not run"


@pytest.mark.parametrize("better", [True, False])
def test_what_an_earlier_run_has_written_does_not_become_slower(three, tmp_path, better):
  """Both are faster than the original; the new one is written if it is not slower than the old one."""
  timer = Timer(costs(three, 1, 2, 3), noise=0.002)
  onnx.save(three.original, tmp_path / "in.onnx")
  loaded = load_model(tmp_path / "in.onnx")
  whole = a_run(three, loaded)
  part = with_these(whole, loaded, OPTIONS, [0])  # of a run that was cut off
  old, new = (part, whole) if better else (whole, part)
  place = writing.Destination(tmp_path / "out.onnx", tmp_path / "in.onnx", None, time.monotonic() + 300)
  first = Gate(str(tmp_path / "in.onnx"), ({},), place.end, timer=timer)
  writing.write(old, loaded, OPTIONS, place, check=False, gate=first)
  before = (tmp_path / "out.onnx").read_bytes()
  gate = Gate(str(tmp_path / "in.onnx"), ({},), place.end, timer=timer, earlier=tmp_path / "out.onnx")
  if better:
    run, _ = writing.write(new, loaded, OPTIONS, place, check=False, gate=gate)
    assert len(run.chosen) == 3 and (tmp_path / "out.onnx").read_bytes() != before
    return
  with pytest.raises(EarlierStaysError):
    writing.write(new, loaded, OPTIONS, place, check=False, gate=gate)
  assert (tmp_path / "out.onnx").read_bytes() == before
  assert sorted(p.name for p in tmp_path.iterdir()) == ["in.onnx", "out.onnx"]


@pytest.mark.parametrize(("us", "left"), [((1, 2, 3), 3), ((1, 2, 40), 2), ((1, 2, 9.9), 2)])
def test_the_predicted_choice_is_written_where_it_is_faster(three, tmp_path, us, left):
  """The measured choice has two regions, the predicted one three: of both the faster one."""
  timer = Timer(costs(three, *us), noise=0.002)
  onnx.save(three.original, tmp_path / "in.onnx")
  loaded = load_model(tmp_path / "in.onnx")
  whole = a_run(three, loaded)
  run = replace(with_these(whole, loaded, OPTIONS, [0, 1]), rival=whole.chosen)
  place = writing.Destination(tmp_path / "out.onnx", tmp_path / "in.onnx", None, time.monotonic() + 300)
  gate = Gate(str(tmp_path / "in.onnx"), ({},), place.end, timer=timer)
  run, _ = writing.write(run, loaded, OPTIONS, place, check=False, gate=gate)
  assert len(run.chosen) == left and onnx.load(tmp_path / "out.onnx") == run.model
  assert sorted(p.name for p in tmp_path.iterdir()) == ["in.onnx", "out.onnx"]
  asked = [len({a.path for a in race.arms}) for race in timer.asked[:1]]
  assert asked == [2] and timer.asked[0].arms[0].path != gate.original  # first of all these two


@pytest.mark.parametrize("us", [40, 3])
def test_a_repeat_does_not_write_what_was_not_preferred(three, tmp_path, monkeypatch, us):
  """What is written is preferred again, the rival is not made: where it won, its choice is written."""
  timer, store = Timer(costs(three, 1, 2, us), noise=0.002), KeptFolder(tmp_path / "kept", {})
  onnx.save(three.original, tmp_path / "in.onnx")
  loaded = load_model(tmp_path / "in.onnx")
  whole = a_run(three, loaded)
  run = replace(with_these(whole, loaded, OPTIONS, [0, 1]), rival=whole.chosen)
  place = writing.Destination(tmp_path / "out.onnx", tmp_path / "in.onnx", None, time.monotonic() + 300)
  made, bytes_of = [], []
  monkeypatch.setattr(
    writing, "save_model", lambda *a, **how: made.append(a[1].name) or save_model(*a, **how)
  )
  for _ in range(2):
    gate = Gate(str(tmp_path / "in.onnx"), ({},), place.end, timer=KeptRacer(store, timer))
    writing.write(run, loaded, OPTIONS, place, check=False, gate=gate)
    bytes_of.append((tmp_path / "out.onnx").read_bytes())
  assert bytes_of[0] == bytes_of[1] and made.count("out.onnx.rival") == 1


def test_a_lock_repeats_what_was_measured_too(three, tmp_path):
  """The same bytes from what a lock keeps, with the times in them, and without a race."""
  onnx.save(three.original, tmp_path / "in.onnx")
  loaded = load_model(tmp_path / "in.onnx")
  run = replace(a_run(three, loaded), program=import_model(loaded))
  timed = [(c, replace(o, measured=Measured(3.0, 20.0, 1))) for c, o in run.chosen]
  run = replace(run, chosen=tuple(timed), outcomes={o.region.key: o for _, o in timed})
  notes = Notes(tmp_path / "in.onnx", H200)
  place = writing.Destination(tmp_path / "out.onnx", tmp_path / "in.onnx", None, time.monotonic() + 300)
  gate = notes.gate = Gate(str(tmp_path / "in.onnx"), ({},), place.end, timer=Timer(costs(three, 1, 2, 3)))
  how = {"check": False, "noted": notes.noted, "timed": notes.timed}
  writing.write(run, loaded, OPTIONS, place, gate=gate, **how)
  first = (tmp_path / "out.onnx").read_bytes()
  model = onnx.load(tmp_path / "out.onnx")
  assert notes.times_us == (130.0, 106.0) and read(model).measured.rows[0].after_us == 106.0
  kept = Notes(tmp_path / "in.onnx", H200, record=kept_record(model), measured=notes.measured)
  how = {"check": False, "noted": kept.noted, "timed": kept.timed}
  again = replace(place, sha256=hashlib.sha256(first).hexdigest())
  writing.write(run, loaded, OPTIONS, again, **how)
  assert (tmp_path / "out.onnx").read_bytes() == first
  other = replace(place, sha256="0" * 64)
  with pytest.raises(MirageError, match="LOCK_DIFFERS"):
    writing.write(run, loaded, OPTIONS, other, **how)
  assert (tmp_path / "out.onnx").read_bytes() == first


#: us of a prompt before and after, and regions that stay; 16 steps save 16 x 24 us.
PROMPTS = {
  "no longer": (1000.0, 1001.0, 3, ""),
  "a little longer": (10000.0, 10150.0, 3, ""),
  "too much longer": (660.3, 709.4, 0, "takes 709.4 us for 660.3, which is more than 2% longer"),
  "too long": (100000.0, 101500.0, 0, "takes 101500.0 us for 100000.0, which 16 steps of 24.0 us less"),
}
DECLARED = {
  "no longer": (1000.0, 1001.0, 3, ""),
  "as luck has it": (1000.0, 1007.0, 3, ""),
  "a little longer": (10000.0, 10150.0, 0, "takes 10150.0 us for 10000.0, which is more than 1% longer"),
  "steps make up, but it is asked for": (660.3, 709.4, 0, "takes 709.4 us for 660.3"),
  "faster": (1000.0, 900.0, 3, ""),
}


def with_prompt(three, folder, before, after, **how):
  """What is written, and by what gate, where steps are faster and a prompt goes through a condition."""
  steps = Timer(costs(three, 1, 2, 3))

  def timer(race):
    found = steps(replace(race, points=({"new": 1},)))
    rows = tuple(replace(r, sizes="new=1") for r in found.rows)
    if {"new": 256} in race.points:
      us = (before, after)
      noisy = tuple(before / after * (1 + 0.0004 * x) for x in (-1, 1, -1, 1, -1, 1))
      rows += (Raced("new=256", "run", us, (speedup(noisy, race.alpha),)),)
    return replace(found, rows=rows)

  onnx.save(three.original, folder / "in.onnx")
  loaded, end = load_model(folder / "in.onnx"), time.monotonic() + 300.0
  place = writing.Destination(folder / "out.onnx", folder / "in.onnx", None, end)
  points = ({"new": 1}, *how.get("others", ()))
  gate = Gate(str(folder / "in.onnx"), points, end, timer=timer, **how)
  run, _ = writing.write(a_run(three, loaded), loaded, OPTIONS, place, check=False, gate=gate)
  assert steps.asked and {r.sizes for r in gate.rows} == {"new=1", "new=256"}
  return run


@pytest.mark.parametrize(
  ("case", "how"),
  [*((c, {"prompt": {"new": 256}}) for c in PROMPTS.values()),
   *((c, {"others": ({"new": 256},)}) for c in DECLARED.values())],
  ids=[*(f"made {n}" for n in PROMPTS), *(f"declared {n}" for n in DECLARED)],
)  # fmt: skip
def test_a_prompt_beside_steps(three, tmp_path, case, how):
  """Steps have to make up for one of which nothing was said; one that is declared is not slower at all."""
  before, after, kept, why = case
  run = with_prompt(three, tmp_path, before, after, **how)
  assert len(run.chosen) == kept
  if not kept:
    assert run.model == three.original
    (said,) = {o.rejection.reason for o in run.outcomes.values()}
    assert f"a prompt (new=256) {why}" in said


def test_an_original_in_memory_is_timed_too(three, tmp_path):
  loaded = load_model(three.original)
  gate = racing.RacerAhead().gate_of(a_run(three, loaded), loaded, time.monotonic() + 60, time.monotonic())
  assert onnx.load(gate.original) == three.original
  gate.close()
  assert not racing.Path(gate.original).exists()


def test_what_times_is_ready_when_regions_are(three, tmp_path, monkeypatch):
  """It begins where all is searched, once, and it is what the gate asks."""
  begun, closed = [], []
  monkeypatch.setattr(race.Racer, "begin", lambda self, original="": begun.append(original))
  monkeypatch.setattr(race.Racer, "close", lambda self: closed.append(1))
  monkeypatch.setattr(racing, "cache_folder", lambda kind: tmp_path)
  onnx.save(three.original, tmp_path / "in.onnx")
  loaded, told = load_model(tmp_path / "in.onnx"), []
  with racing.RacerAhead() as ahead:
    emit = ahead.beginning(loaded.path, told.append)
    events_ = [StageStarted(s) for s in ("superopt", "tune", "write")]
    for event in events_:
      emit(event)
      assert not (begun and event.stage == "superopt")
    gate = ahead.gate_of(a_run(three, loaded), loaded, time.monotonic() + 60, time.monotonic())
    assert gate.timer is ahead.racer and told == events_
    assert begun == [str(loaded.path)] and not closed
  assert closed == [1]
  with racing.RacerAhead():
    pass
  assert closed == [1]  # it has begun nothing

"""A run that is known: only where nothing that it is made of, or has written, has changed."""

import os
from dataclasses import replace
from types import SimpleNamespace

import onnx
import pytest
from small_models import Net

from mirage_onnx import kept_runs
from mirage_onnx.importer import load_model
from mirage_onnx.kept_runs import EARLIER, KeptRun
from mirage_onnx.pipeline import Options
from mirage_onnx.superopt.kept_folder import KeptFolder
from mirage_onnx.target import H200
from mirage_onnx.tune.machine import Machine

RUN = SimpleNamespace(ended=True, chosen=("a region",))
REPORT = {"found": {"by_result": {"REPLACED": {}, "BUDGET": {}}}, "checked": "the same bits", "regions": []}


@pytest.fixture
def files(tmp_path):
  """A model with weights in a file, and what stands for its result, with a lock."""
  for name in ("in", "out"):
    net = Net()
    model = net.model(net.Relu(net.MatMul(net.input(4, 64), net.weight(64, 64))))
    path = tmp_path / f"{name}.onnx"
    onnx.save(model, path, save_as_external_data=True, location=f"{name}.data", size_threshold=0)
  (tmp_path / "out.lock").write_text("{}")
  return tmp_path


def asked(files, budget_s=300.0, machine="one", **more):
  loaded = load_model(files / "in.onnx")
  options = replace(Options(H200, budget_s=budget_s, measure=True), **more)
  store = KeptFolder(files / "runs", {"machine": machine})
  return KeptRun(store, loaded, options, files / "out.onnx", files / "out.lock", {"check": True})


def known(kept):
  told = []
  found = kept.known(told.append)
  assert len(told) == (2 if found else 0)
  return found


def test_it_is_known_where_nothing_has_changed(files):
  assert known(asked(files)) is None
  asked(files).keep(RUN, REPORT)
  for _ in range(2):
    model, report = known(asked(files))
    assert report == {**REPORT, "checked": REPORT["checked"] + EARLIER}
    assert model == onnx.load(files / "out.onnx", load_external_data=False)
  assert known(asked(files, budget_s=100.0)) and not known(asked(files, budget_s=400.0))


def grown(path):
  path.write_bytes(path.read_bytes() + b" ")


@pytest.mark.parametrize(
  ("name", "how"),
  [(n, h) for n in ("in.onnx", "in.data", "out.onnx", "out.data", "out.lock") for h in (grown, os.utime)]
  + [(n, os.unlink) for n in ("out.onnx", "out.data", "out.lock")],
)
def test_a_file_that_has_changed(files, name, how):
  """A model's file by its bytes, which are read; a file of weights by what says that it is the same."""
  asked(files).keep(RUN, REPORT)
  if how is grown and name.endswith(".onnx"):
    model = onnx.load(files / name, load_external_data=False)
    model.doc_string = "another"
    (files / name).write_bytes(model.SerializeToString())
  else:
    how(files / name)
  same = how is os.utime and not name.endswith(".data")
  assert bool(known(asked(files))) == same


@pytest.mark.parametrize("change", [{"margin": 0.5}, {"shapes": {"n": (4,)}}, {"steps": 8}])
def test_another_question(files, change):
  asked(files).keep(RUN, REPORT)
  assert known(asked(files)) and not known(asked(files, **change))
  assert not known(asked(files, machine="two"))


@pytest.mark.parametrize(
  ("run", "report"),
  [
    ({"ended": False}, {}),
    ({"chosen": ()}, {}),
    ({}, {"checked": "not checked in onnxruntime: 60 s"}),
    ({}, {"found": {"by_result": {"REPLACED": {}, "MODEL_UNSURE": {}}}}),
  ],
)
def test_what_another_run_could_change_is_not_kept(files, run, report):
  asked(files).keep(SimpleNamespace(**{**vars(RUN), **run}), {**REPORT, **report})
  assert not known(asked(files))


def test_an_entry_that_says_nothing(files):
  kept = asked(files)
  kept.keep(RUN, REPORT)
  (path,) = (files / "runs").iterdir()
  store = KeptFolder(files / "runs", {"machine": "one"})
  for change in ({"report": 3}, {"written": None}, {"budget_s": "long"}):
    store.put(path.stem, {**store.get(path.stem), **change})
    assert not known(asked(files))
    kept.keep(RUN, REPORT)


def test_which_runs_are_kept(files, monkeypatch):
  monkeypatch.setenv("MIRAGE_ONNX_CACHE", "on")
  monkeypatch.setenv("MIRAGE_CACHE_DIR", str(files / "cache"))
  monkeypatch.setattr(kept_runs, "present_machine", lambda: Machine("g", "d", "o", "p"))
  loaded, options = load_model(files / "in.onnx"), Options(H200, measure=True)

  def of_user(**change):
    return KeptRun.of_user(loaded, replace(options, **change), files / "out.onnx", None, check=True)

  of_user().keep(RUN, REPORT)
  assert known(of_user())
  assert of_user(measure=False) is None and known(of_user(journal=files / "journal"))
  (files / "journal").write_text("of a run that was cut off")
  assert of_user(journal=files / "journal") is None
  assert KeptRun.of_user(loaded, options, None, None) is None
  monkeypatch.setattr(kept_runs, "present_machine", lambda: None)
  assert of_user() is None

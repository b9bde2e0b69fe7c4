"""``tune``: an optimized model is timed beside its bodies, and what loses is gone from the file."""

from dataclasses import replace

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from rewritten import chain
from written_runs import OPTIONS, a_run

from mirage_onnx import api, model_tuning, writing
from mirage_onnx.cli import main
from mirage_onnx.custom_op.bodies import inlined
from mirage_onnx.custom_op.race import Failed, Raced, Times
from mirage_onnx.errors import MirageError
from mirage_onnx.importer import import_model, load_model
from mirage_onnx.report.notes import Notes
from mirage_onnx.report.run_record import kept_record, read
from mirage_onnx.report.tune_report import tune_lines
from mirage_onnx.target import H200
from mirage_onnx.tune.paired import speedup
from mirage_onnx.tune.race import Measured


@pytest.fixture(scope="module")
def three():
  return chain()


@pytest.fixture
def optimized(three, tmp_path):
  """A model of three kernels with its record, as ``optimize`` writes it."""
  onnx.save(three.original, tmp_path / "in.onnx")
  loaded = load_model(tmp_path / "in.onnx")
  run = replace(a_run(three, loaded), program=import_model(loaded))
  timed = [(c, replace(o, measured=Measured(3.0, 20.0, 1))) for c, o in run.chosen]
  run = replace(run, chosen=tuple(timed), outcomes={o.region.key: o for _, o in timed})
  place = writing.Destination(tmp_path / "out.onnx", tmp_path / "in.onnx", None, float("inf"))
  writing.write(run, loaded, OPTIONS, place, check=False, noted=Notes(tmp_path / "in.onnx", H200).noted)
  return tmp_path / "out.onnx"


def custom(model):
  return [n for n in model.graph.node if n.op_type.startswith("MuGraph_")]


class Timer:
  """Whole models of 100 us and their kernels of ``us`` by place; a body takes 10."""

  def __init__(self, *us):
    self.kernels, self.asked = us, []

  def __call__(self, race):
    self.asked.append(race)
    us = [self.us(arm) for arm in race.arms]
    pairs = tuple(speedup([us[a] / us[b]] * 4, race.alpha) for a, b in race.pairs)
    return Times((Raced("", "graph", tuple(us), pairs),), (1,) * len(us))

  def us(self, arm):
    nodes = custom(onnx.load(arm.path))
    return 100.0 + sum(
      10.0 if set(n.output) & arm.bodies else us for n, us in zip(nodes, self.kernels, strict=True)
    )


def outputs(path, seed=0):
  session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
  rng = np.random.default_rng(seed)
  feeds = {i.name: rng.standard_normal(i.shape).astype(np.float16) for i in session.get_inputs()}
  return [x.tobytes() for x in session.run(None, feeds)]


def test_what_loses_goes(optimized):
  before, want = onnx.load(optimized), outputs(optimized)
  timer = Timer(2.0, 30.0, 3.0)
  report = api.tune(optimized, timer=timer)
  after = onnx.load(optimized)
  lost = custom(before)[1]
  assert [n.output[0] for n in custom(after)] == [n.output[0] for n in custom(before) if n != lost]
  assert [k.status for k in report.kernels] == ["kept", "dropped", "kept"] and report.kernels[1].reason
  assert lost.op_type not in {f.name for f in after.functions} and len(after.functions) == 2
  assert outputs(optimized) == want and "the same bits" in report.checked
  onnx.checker.check_model(after, full_check=True)
  # The last comparison is of what was written: 130 us before, 115 after.
  (row,) = report.measured.rows
  assert (row.before_us, row.after_us) == (130.0, 115.0) and row.low > 1.05
  record = read(after)
  assert record.measured == report.measured and len(record.places) == len(record.regions) == 2
  assert [k.code for k in record.kept] == ["MODEL_SLOWER"]
  assert {i for n in record.nodes for i in n.places} == {0, 1}
  whole, regions, file = tune_lines(report).splitlines()
  assert whole.startswith("whole model: 130.0 → 115.0 µs (1.13x")
  assert regions == "regions: 2 of 3 stay in 2 of 3 places, 1 dropped"
  assert file.startswith(f"wrote {optimized} in ") and "checked: " in file
  # All arms are of the one file: bodies are what it was made of.
  assert {a.path for q in timer.asked for a in q.arms} == {str(optimized)}
  assert len(timer.asked[0].arms[0].bodies) == 3 and not timer.asked[0].arms[1].bodies


def test_again_it_stays(optimized):
  api.tune(optimized, timer=Timer(2.0, 30.0, 3.0))
  graph = onnx.load(optimized).graph
  report = api.tune(optimized, timer=Timer(2.0, 3.0))
  again = optimized.read_bytes()
  assert [k.status for k in report.kernels] == ["kept", "kept"] and onnx.load(optimized).graph == graph
  api.tune(optimized, timer=Timer(2.0, 3.0))
  assert optimized.read_bytes() == again


def test_nothing_is_faster(optimized):
  want, lock = outputs(optimized), optimized.with_name("out.onnx.lock")
  lock.write_text("{}")
  report = api.tune(optimized, timer=Timer(12.0, 11.0, 13.0))
  after = onnx.load(optimized)
  assert not custom(after) and not after.functions and outputs(optimized) == want
  assert not any(t.name == "mirage.bundle" for t in after.graph.initializer)
  assert {i.domain for i in after.opset_import} == {""}
  assert "not faster, measured" in tune_lines(report) and not lock.exists() and "lock" in report.note
  assert kept_record(after)
  with pytest.raises(MirageError) as error:
    api.tune(optimized, timer=Timer())
  assert error.value.code == "REPORT_MISSING"


def test_what_cannot_be_timed_stays_as_it_is(optimized):
  before = optimized.read_bytes()
  with pytest.raises(MirageError, match="no memory") as error:
    api.tune(optimized, timer=lambda race: Failed(0, "0 opening out.onnx: no memory"))
  assert error.value.code == "SESSION_FAILED" and optimized.read_bytes() == before


def test_a_crash_of_the_kernels_is_no_gain(optimized):
  report = api.tune(optimized, timer=lambda race: Failed(1, "1 running: SIGSEGV"))
  assert all(k.status == "dropped" and "SIGSEGV" in k.reason for k in report.kernels)
  assert not custom(onnx.load(optimized)) and report.measured.rows == [] and report.measured.note


def test_a_new_file_that_fails_its_check_replaces_nothing(optimized, monkeypatch):
  before = optimized.read_bytes()
  real = inlined

  def broken(model, some):
    made = real(model, some)
    made.graph.output[0].name = "elsewhere"
    return made

  monkeypatch.setattr("mirage_onnx.retuning.inlined", broken)
  with pytest.raises(MirageError) as error:
    api.tune(optimized, timer=Timer(2.0, 30.0, 3.0))
  assert error.value.code == "TUNE_FAILED"
  assert optimized.read_bytes() == before and len(list(optimized.parent.iterdir())) == 2


def test_without_a_gpu(optimized, capsys, monkeypatch):
  monkeypatch.setattr("mirage_onnx.tune.device.present_gpu", lambda: None)
  before = optimized.read_bytes()
  assert main(["tune", str(optimized)]) == 2
  (line,) = capsys.readouterr().err.splitlines()
  assert line.startswith("error: GPU_NEEDED: there is no usable GPU here; ") and "Traceback" not in line
  assert optimized.read_bytes() == before


def test_another_gpu(optimized, monkeypatch):
  other = replace(H200, suffix="sm_80")
  monkeypatch.setattr("mirage_onnx.tune.device.present_target", lambda: other)
  monkeypatch.setattr("mirage_onnx.tune.device.present_gpu", lambda: "A100")
  with pytest.raises(MirageError, match="A100") as error:
    api.tune(optimized)
  assert error.value.code == "GPU_NEEDED"


def test_bad_input(optimized, tmp_path, three):
  def code(*args, **options):
    with pytest.raises(MirageError) as error:
      api.tune(*args, timer=Timer(1.0, 1.0, 1.0), **options)
    return error.value.code

  assert code(tmp_path / "none.onnx") == "FILE_MISSING"
  assert code(tmp_path / "in.onnx") == "REPORT_MISSING"
  assert code(tmp_path) == "FILE_UNREADABLE"
  (tmp_path / "text.onnx").write_text("no model")
  assert code(tmp_path / "text.onnx") == "NOT_ONNX"
  assert code(optimized, shapes={"batch": [1]}) == "OPTION_INVALID"
  assert code(optimized, budget_s=-1.0) == "OPTION_INVALID"
  model = onnx.load(optimized)
  for node in custom(model):
    del node.metadata_props[:]
  onnx.save(model, optimized)
  assert code(optimized) == "REPORT_MISSING"


def test_sizes_of_dynamic_dimensions():
  value = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["batch", "tokens"])
  model = onnx.helper.make_model(onnx.helper.make_graph([], "g", [value], []))
  points, others = model_tuning.points_of(model, {"tokens": (8, 128)})
  assert others == ()
  assert points == ({"batch": 1, "tokens": 8}, {"batch": 16, "tokens": 128}, {"batch": 256, "tokens": 128})

"""The lock of an output: the same bytes without a search, or one line that says what differs."""

import json
import re
from pathlib import Path

import onnx
import pytest
from onnx import numpy_helper

from mirage_onnx import api, cli, judging, locking
from mirage_onnx.errors import Exit, MirageError
from mirage_onnx.tune import measure

MODEL = Path(__file__).parents[1] / "models" / "rmsnorm_linear.onnx"


@pytest.fixture(scope="module")
def written(tmp_path_factory, kept_searches):
  """A folder with a model, what a run has made of it, and its lock."""
  folder = tmp_path_factory.mktemp("locked")
  (folder / "in.onnx").write_bytes(MODEL.read_bytes())
  with kept_searches("lock"):
    api.optimize(folder / "in.onnx", folder / "out.onnx", target="h200", lock=folder / "out.onnx.lock")
  return folder


@pytest.fixture
def folder(written, tmp_path):
  for path in written.iterdir():
    (tmp_path / path.name).write_bytes(path.read_bytes())
  return tmp_path


@pytest.fixture
def no_search(monkeypatch):
  def fails(*args, **more):
    raise AssertionError("nothing is searched or timed")

  monkeypatch.setattr(judging, "search_all", fails)
  monkeypatch.setattr(measure, "gpu_of", fails)


def again(folder, **options):
  return api.optimize(
    folder / "in.onnx", folder / "out.onnx", lock=folder / "out.onnx.lock", locked=True, **options
  )


def edited(folder, change):
  """The lock with a change to its object, written as it is always written."""
  path = folder / "out.onnx.lock"
  value = json.loads(path.read_text())
  change(value)
  path.write_text(json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def refused(folder, code, said, **options):
  """It is refused with this code and words, and nothing in the folder changes."""
  before = {p.name: p.read_bytes() for p in folder.iterdir()}
  with pytest.raises(MirageError) as error:
    again(folder, **options)
  assert error.value.code == code and said in error.value.detail, error.value.line()
  assert {p.name: p.read_bytes() for p in folder.iterdir()} == before


def test_the_same_bytes_without_a_search_or_a_cache(folder, no_search):
  want, lock = (folder / "out.onnx").read_bytes(), (folder / "out.onnx.lock").read_bytes()
  (folder / "out.onnx").unlink()
  result = again(folder)
  assert (folder / "out.onnx").read_bytes() == want
  assert (folder / "out.onnx.lock").read_bytes() == lock
  assert sorted(p.name for p in folder.iterdir()) == ["in.onnx", "out.onnx", "out.onnx.lock"]
  (row,) = [r for r in result.report["regions"] if r["status"] == "replaced"]
  assert row["proof"]["draws"] > 0 and row["ran"] == "emulated" and row["choice"] == "predicted"
  assert result.report["found"]["by_result"]["NOT_LOCKED"]["regions"] > 0
  assert result.report["model"]["after_us"] < result.report["model"]["before_us"]


def test_the_lock_says_what_it_is_of(folder):
  lock = json.loads((folder / "out.onnx.lock").read_text())
  assert lock["output"] == locking.file_hash(folder / "out.onnx")
  assert lock["input"] == locking.file_hash(folder / "in.onnx")
  assert lock["options"]["target"] == "h200" and lock["versions"]["machine"] is None
  (region,) = lock["regions"]
  assert region["ugraph"][0].startswith("ugraph ") and region["kernels"][0]["name"].startswith("mugraph_")


def test_two_runs_write_the_same_lock(folder, kept_searches):
  with kept_searches("lock"):
    api.optimize(folder / "in.onnx", folder / "out.onnx", target="h200", lock=folder / "second.lock")
  assert (folder / "second.lock").read_bytes() == (folder / "out.onnx.lock").read_bytes()


def test_a_model_in_which_nothing_was_replaced(tmp_path, net, no_search):
  onnx.save(net.model(net.Tanh(net.input(4, 8))), tmp_path / "in.onnx")
  api.optimize(tmp_path / "in.onnx", tmp_path / "out.onnx", target="h200", lock=tmp_path / "out.onnx.lock")
  want = (tmp_path / "out.onnx").read_bytes()
  (tmp_path / "out.onnx").unlink()
  again(tmp_path)
  assert (tmp_path / "out.onnx").read_bytes() == want
  edited(tmp_path, lambda lock: lock.update(output="0" * 64))
  refused(tmp_path, "LOCK_DIFFERS", "another hash")


def test_another_model(folder):
  model = onnx.load(folder / "in.onnx")
  model.doc_string = "another"
  onnx.save(model, folder / "in.onnx")
  refused(folder, "LOCK_DIFFERS", "the model is ")


@pytest.mark.parametrize(
  ("options", "said"),
  [
    ({"margin": 0.3}, "--margin is 0.3, 0.2 in the lock"),
    ({"target": "local"}, "--target is local, h200 in the lock"),
    ({"shapes": {"batch": (1,)}}, "--shapes is {'batch': [1]}, {} in the lock"),
    ({"external": "inline"}, "--external is inline, None in the lock"),
    ({"margin": 0.3, "external": "copy"}, "--margin is 0.3, 0.2 in the lock; --external is copy"),
  ],
)
def test_other_options(folder, options, said):
  refused(folder, "LOCK_DIFFERS", said, **options)


@pytest.mark.parametrize(
  ("part", "said"),
  [
    ("mirage_onnx", "mirage-onnx is 0.1.0, 9.9 in the lock"),
    ("nvrtc", "NVRTC is "),
  ],
)
def test_other_versions(folder, part, said):
  edited(folder, lambda lock: lock["versions"].update({part: "9.9"}))
  refused(folder, "LOCK_DIFFERS", said)


def test_onnxruntime_may_be_another(folder, no_search):
  edited(folder, lambda lock: lock["versions"].update(onnxruntime="9.9"))
  again(folder)


def test_a_measured_lock_needs_no_gpu(folder, no_search):
  def measured(lock):
    lock["options"]["measured"] = True
    lock["versions"]["machine"] = {"gpu": "NVIDIA H200"}
    lock["regions"][0]["measured"] = {"kernel_us": 3.0, "ort_us": 9.0, "tried": 5}

  edited(folder, measured)
  refused(folder, "LOCK_DIFFERS", "--target is h200, local in the lock", target="h200")
  for options in ({}, {"target": "local"}):
    (row,) = [r for r in again(folder, **options).report["regions"] if r["status"] == "replaced"]
    assert (row["choice"], row["measured_us"], row["baseline_us"]) == ("measured", 3.0, 9.0)


def replace_line(lock, pattern, by):
  lines = lock["regions"][0]["ugraph"]
  at = next(n for n, line in enumerate(lines) if re.search(pattern, line))
  lines[at] = re.sub(pattern, by, lines[at], count=1)


@pytest.mark.parametrize(
  ("change", "code", "said"),
  [
    (lambda k: replace_line(k, r"= mul ", "= add "), "LOCK_INVALID", "NOT_EQUIVALENT"),
    (lambda k: replace_line(k, r"const\[879", "const[979"), "LOCK_INVALID", "NOT_EQUIVALENT"),
    (lambda k: k["regions"][0]["ugraph"].pop(), "LOCK_INVALID", ""),
    (lambda k: k["regions"][0]["ugraph"].append("nonsense"), "LOCK_INVALID", "nonsense"),
    (lambda k: k["regions"][0]["ugraph"].insert(0, ""), "LOCK_INVALID", ""),
    (lambda k: k["regions"][0]["params"].clear(), "LOCK_INVALID", "numbers"),
    (lambda k: k["regions"][0].update(key="0" * 16), "LOCK_DIFFERS", "the region of "),
    (lambda k: k["regions"][0].update(weights="0" * 64), "LOCK_DIFFERS", "the weights of "),
    (lambda k: k["regions"][0]["kernels"].clear(), "LOCK_DIFFERS", "number of kernels"),
    (lambda k: k["regions"][0]["kernels"][0].update(text_sha256=""), "LOCK_DIFFERS", "the text of kernel"),
    (lambda k: k["regions"][0]["kernels"][0].update(image_sha256=""), "LOCK_DIFFERS", "the image of"),
    (lambda k: k["nodes"][0].update(region=7), "LOCK_INVALID", "a node of no region"),
    (lambda k: k["nodes"][0]["nodes"].append("nobody"), "LOCK_DIFFERS", "no node 'nobody'"),
    (lambda k: k["nodes"][0].update(outputs=["nothing"]), "LOCK_DIFFERS", "the region of "),
    (lambda k: k["nodes"][0].update(outputs=[]), "LOCK_INVALID", "without outputs"),
    (lambda k: k["nodes"][0]["nodes"].pop(), "LOCK_DIFFERS", "the region of "),
    (lambda k: k["nodes"][0].update(nodes=[]), "LOCK_INVALID", "without nodes"),
    (lambda k: k["nodes"].append(k["nodes"][0]), "LOCK_DIFFERS", ""),
    (lambda k: k["nodes"].clear(), "LOCK_DIFFERS", "another hash"),
    (lambda k: k.update(output="0" * 64), "LOCK_DIFFERS", "another hash"),
    (lambda k: k.update(version=2), "LOCK_INVALID", "2"),
    (lambda k: k.update(more=1), "LOCK_INVALID", "more"),
    (lambda k: k.pop("nodes"), "LOCK_INVALID", "nodes"),
    (lambda k: k["options"].update(target="h99"), "TARGET_UNKNOWN", "h99"),
  ],
)
def test_what_was_changed_is_not_believed(folder, change, code, said):
  edited(folder, change)
  refused(folder, code, said)


def test_other_numbers_are_another_text(folder):
  """They are as right, so nothing refuses them, but what comes out is not what was locked."""

  def change(lock):
    lock["regions"][0]["params"] = [re.sub(r"warps=\d+", "warps=2", p) for p in lock["regions"][0]["params"]]

  before = (folder / "out.onnx.lock").read_text()
  edited(folder, change)
  assert (folder / "out.onnx.lock").read_text() != before
  with pytest.raises(MirageError) as error:
    again(folder)
  assert error.value.code in ("LOCK_DIFFERS", "LOCK_INVALID")


def test_other_weights_of_the_same_model_are_noticed(folder):
  """Though nobody changed the lock's hash of the model."""
  model = onnx.load(folder / "in.onnx")
  weight = max(model.graph.initializer, key=lambda t: len(t.raw_data))
  weight.CopyFrom(numpy_helper.from_array(2 * numpy_helper.to_array(weight), weight.name))
  onnx.save(model, folder / "in.onnx")
  edited(folder, lambda lock: lock.update(input=locking.file_hash(folder / "in.onnx")))
  refused(folder, "LOCK_DIFFERS", "the weights of ")


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"\xff", b"null", b"[" * 9999, b"1e999"])
def test_what_is_no_lock(folder, data):
  (folder / "out.onnx.lock").write_bytes(data)
  refused(folder, "LOCK_INVALID", "out.onnx.lock")


def test_every_cut_is_refused_or_as_before(folder, rng):
  """A lock that was cut off, or lost a byte, never writes anything else."""
  whole, want = (folder / "out.onnx.lock").read_bytes(), (folder / "out.onnx").read_bytes()
  for _ in range(40):
    data = bytearray(whole[: rng.integers(len(whole))])
    if rng.random() < 0.5:
      data = bytearray(whole)
      data[rng.integers(len(data))] ^= 1 << rng.integers(8)
    (folder / "out.onnx.lock").write_bytes(data)
    try:
      again(folder)
    except MirageError as error:
      assert error.code in ("LOCK_INVALID", "LOCK_DIFFERS", "TARGET_UNKNOWN")
    assert (folder / "out.onnx").read_bytes() == want


def test_no_lock(folder):
  (folder / "out.onnx.lock").unlink()
  refused(folder, "LOCK_MISSING", "out.onnx.lock")
  with pytest.raises(MirageError, match="needs an output"):
    api.optimize(folder / "in.onnx", locked=True)
  (folder / "out.onnx.lock").mkdir()
  with pytest.raises(MirageError) as error:
    again(folder)
  assert error.value.code == "LOCK_INVALID"


def test_the_command_line(folder, monkeypatch, no_search, capsys):
  monkeypatch.chdir(folder)
  want = (folder / "out.onnx").read_bytes()
  (folder / "out.onnx").unlink()
  command = ["optimize", "in.onnx", "-o", "out.onnx"]
  assert cli.main([*command, "--locked"]) == Exit.DONE
  assert (folder / "out.onnx").read_bytes() == want
  assert cli.main([*command, "--locked", "--margin", "0.5"]) == Exit.CHECK_FAILED
  said = capsys.readouterr().err.splitlines()[-1]
  assert said.startswith("error: LOCK_DIFFERS: --margin is 0.5, 0.2 in the lock")
  assert cli.main([*command, "--locked", "--dry-run"]) == Exit.INPUT


def cut_short(folder, **options):
  """The same command, interrupted at once; what it warned of."""
  events = []
  result = api.optimize(
    folder / "in.onnx", folder / "out.onnx", target="h200", lock=folder / "out.onnx.lock",
    stop=lambda: True, emit=events.append, **options,
  )  # fmt: skip
  return result, [e.text for e in events if hasattr(e, "text")]


def test_an_interrupted_run_does_not_replace_a_better_model(folder):
  want = {name: (folder / name).read_bytes() for name in ("out.onnx", "out.onnx.lock")}
  result, said = cut_short(folder)
  assert any("which stays" in text for text in said)
  assert {name: (folder / name).read_bytes() for name in want} == want
  assert any(r["status"] == "replaced" for r in result.report["regions"])  # what is in the file


def test_a_better_model_that_is_gone_is_written_again(folder):
  want = (folder / "out.onnx").read_bytes()
  (folder / "out.onnx").write_bytes(b"what a process that was killed has left")
  cut_short(folder)
  assert (folder / "out.onnx").read_bytes() == want


def test_a_better_lock_that_is_of_no_use_costs_nothing_but_the_model(folder):
  edited(folder, lambda lock: replace_line(lock, r"= mul ", "= add "))
  _, said = cut_short(folder)
  assert any("is of no use: the program of " in text for text in said)
  assert onnx.load(folder / "out.onnx") == onnx.load(folder / "in.onnx")


@pytest.mark.parametrize("other", ["margin", "model", "shapes", "external", "version", "no lock"])
def test_what_is_not_of_the_same_command_is_replaced(folder, other):
  options = {}
  if other == "margin":
    options["margin"] = 0.15
  elif other == "model":
    model = onnx.load(folder / "in.onnx")
    model.doc_string = "another"
    onnx.save(model, folder / "in.onnx")
  elif other == "shapes":
    edited(folder, lambda lock: lock["options"].update(shapes={"batch": [1]}))
  elif other == "external":
    edited(folder, lambda lock: lock["options"].update(external="copy"))
  elif other == "version":
    edited(folder, lambda lock: lock["versions"].update(mirage_onnx="9.9"))
  else:
    (folder / "out.onnx.lock").unlink()
  _, said = cut_short(folder, **options)
  assert not any("which stays" in text for text in said)
  assert json.loads((folder / "out.onnx.lock").read_text())["nodes"] == []
  assert onnx.load(folder / "out.onnx") == onnx.load(folder / "in.onnx")


def test_a_worse_lock_makes_way(folder, kept_searches):
  """A run that was cut off comes first, then one with time, then one that is cut off again."""
  for name in ("out.onnx", "out.onnx.lock"):
    (folder / name).unlink()
  cut_short(folder)
  first = json.loads((folder / "out.onnx.lock").read_text())
  assert first["nodes"] == [] and first["after_us"] == first["before_us"]
  with kept_searches("lock"):
    api.optimize(folder / "in.onnx", folder / "out.onnx", target="h200", lock=folder / "out.onnx.lock")
  best = (folder / "out.onnx").read_bytes()
  assert json.loads((folder / "out.onnx.lock").read_text())["nodes"]
  for _ in range(2):
    cut_short(folder)
    assert (folder / "out.onnx").read_bytes() == best

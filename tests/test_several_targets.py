"""One file for several GPUs, the whole way: optimized, locked, verified, told."""

import json
import time
from pathlib import Path

import onnx
import pytest

from mirage_onnx import api, judging, several_targets
from mirage_onnx.cli import main
from mirage_onnx.custom_op import target_view
from mirage_onnx.custom_op.race import Raced, Times
from mirage_onnx.custom_op.target_view import seen_by, suffixes_of
from mirage_onnx.errors import MirageError
from mirage_onnx.importer import load_model
from mirage_onnx.pipeline import Options
from mirage_onnx.report.schema import check_report
from mirage_onnx.report.summary import summary
from mirage_onnx.target import H200, get_target, get_targets
from mirage_onnx.tune.paired import speedup

MODEL = Path(__file__).parents[1] / "models" / "rmsnorm_linear.onnx"
BOTH = "h200,a100-80gb"


@pytest.fixture(scope="module")
def written(tmp_path_factory, kept_searches):
  folder = tmp_path_factory.mktemp("several")
  (folder / "in.onnx").write_bytes(MODEL.read_bytes())
  with kept_searches("several"):
    result = optimized(folder, target="H200, a100")
  return folder, result


def optimized(folder, **options):
  out = folder / "out.onnx"
  return api.optimize(
    folder / "in.onnx", out, lock=folder / "out.onnx.lock", page=folder / "p.html", **options
  )


@pytest.fixture
def folder(written, tmp_path):
  for path in written[0].iterdir():
    (tmp_path / path.name).write_bytes(path.read_bytes())
  return tmp_path


def test_both_targets_have_kernels_in_the_file(written):
  folder, result = written
  model = onnx.load(folder / "out.onnx")
  onnx.checker.check_model(model, full_check=True)
  assert suffixes_of(model) == ("sm90a", "sm80")
  report = check_report(result.report)
  assert report.target == BOTH
  assert [(t.name, t.regions, t.custom_nodes) for t in report.targets] == [
    ("h200", 1, 1),
    ("a100-80gb", 1, 1),
  ]
  assert "replaced by target: h200 1 in 1 place, a100-80gb 1 in 1 place;" in summary(report)
  (node,) = model.graph.node
  texts = {f.domain: f.doc_string for f in model.functions}
  assert node.domain == "ai.mirage.v1.sm90a" and "original nodes" in texts["ai.mirage.v1.sm80"]
  assert texts[node.domain] == "MuGraph_0 of ai.mirage.v1.sm80 runs where this kernel cannot."


def test_each_of_them_is_verified(written):
  found = api.verify(MODEL, written[0] / "out.onnx", provider="cpu", emulate=True)
  assert found.passed and not found.failures
  assert [(n.name.rpartition(" ")[2], n.path) for n in found.nodes] == [
    ("(sm90a)", "emulated"),
    ("(sm80)", "emulated"),
  ]
  assert len(found.regions) == 2 and all(n.launches for n in found.nodes)


def test_a_wrong_body_at_the_bottom_is_found(folder):
  """Neither target runs it, but other machines do."""
  model = onnx.load(folder / "out.onnx")
  inner = next(f for f in model.functions if f.domain.endswith("sm80"))
  constant = next(a.t for n in inner.node if n.op_type == "Constant" for a in n.attribute)
  constant.raw_data = bytes(len(constant.raw_data))
  onnx.save(model, folder / "out.onnx")
  found = api.verify(folder / "in.onnx", folder / "out.onnx", provider="cpu", emulate=True)
  assert not found.passed and any("(sm80)" in f for f in found.failures)


def test_the_lock_writes_the_same_bytes(folder, monkeypatch):
  before = (folder / "out.onnx").read_bytes()
  lock = json.loads((folder / "out.onnx.lock").read_text())
  assert (lock["options"]["target"], lock["target"]) == (BOTH, "h200")
  assert [(o["target"], len(o["nodes"])) for o in lock["others"]] == [("a100-80gb", 1)]

  def fails(*args, **more):
    raise AssertionError("nothing is searched")

  monkeypatch.setattr(judging, "search_all", fails)
  (folder / "out.onnx").unlink()
  optimized(folder, locked=True)
  assert (folder / "out.onnx").read_bytes() == before
  optimized(folder, locked=True, target="h200, a100")
  with pytest.raises(MirageError, match="--target is h200, h200,a100-80gb in the lock"):
    optimized(folder, locked=True, target="h200")


def test_a_lock_whose_other_target_was_changed(folder):
  lock = json.loads((folder / "out.onnx.lock").read_text())
  region = lock["others"][0]["regions"][0]
  region["kernels"][0]["image_sha256"] = "0" * 64
  (folder / "out.onnx.lock").write_text(json.dumps(lock))
  with pytest.raises(MirageError) as caught:
    optimized(folder, locked=True)
  assert caught.value.code == "LOCK_DIFFERS"
  lock["others"][0]["nodes"][0]["region"] = 7
  (folder / "out.onnx.lock").write_text(json.dumps(lock))
  with pytest.raises(MirageError, match="a node of no region"):
    optimized(folder, locked=True)


def test_the_same_command_again_gives_the_same_bytes(folder, kept_searches):
  before = (folder / "out.onnx").read_bytes()
  with kept_searches("several"):
    optimized(folder, target=BOTH)
  assert (folder / "out.onnx").read_bytes() == before


def test_what_one_target_sees_is_what_it_alone_would_have(written, kept_searches):
  """The kernels of each are those of a file for it."""
  model = onnx.load(written[0] / "out.onnx")
  for name, suffix in (("h200", "sm90a"), ("a100", "sm80")):
    with kept_searches("several"):
      alone = api.optimize(MODEL, target=name).model
    digests = [
      {a.s for n in m.graph.node for a in n.attribute if a.name == "digest"}
      for m in (seen_by(model, suffix), alone)
    ]
    assert len(digests[0]) == 1
    kernels = [[k["sha256"] for k in _record(m)["kernels"]] for m in (seen_by(model, suffix), alone)]
    assert kernels[0] == kernels[1]


def _record(model):
  from mirage_onnx.custom_op.model_nodes import ModelFile

  file = ModelFile(model, None)
  (node,) = file.custom_nodes()
  return file.bundle().provenance[node.plan]


class Timer:
  """Whole models of 100 us, and of ``us`` where kernels run."""

  def __init__(self, us):
    self.kernels_us = us

  def __call__(self, race):
    us = [100.0 if arm.bodies else self.kernels_us for arm in race.arms]
    pairs = tuple(speedup([us[a] / us[b]] * 4, race.alpha) for a, b in race.pairs)
    return Times((Raced("", "graph", tuple(us), pairs),), (1,) * len(us))


@pytest.mark.parametrize("present", ["sm90a", "sm80"])
@pytest.mark.parametrize("us", [130.0, 50.0])
def test_tune_drops_what_loses_on_the_gpu_that_is_here(folder, monkeypatch, present, us):
  """The other target keeps its kernels, in the nest or not."""
  path = folder / "out.onnx"
  if present == "sm80":
    monkeypatch.setattr(target_view, "suffixes_of", lambda model: suffixes_of(model)[::-1])
  before = onnx.load(path)
  report = api.tune(path, timer=Timer(us))
  after = onnx.load(path)
  onnx.checker.check_model(after, full_check=True)
  lost = us > 100
  (kernel,) = report.kernels
  assert kernel.status == ("dropped" if lost else "kept") and len(kernel.nodes) == 1
  other = {"sm90a": "sm80", "sm80": "sm90a"}[present]
  assert set(suffixes_of(after)) == ({other} if lost else {"sm90a", "sm80"})
  assert (folder / "out.onnx.lock").exists() != lost
  if lost:
    assert "the same bits" in report.checked and len(after.functions) == len(before.functions) - 1
    (node,) = after.graph.node
    assert node.domain.endswith(other) and node.name == before.graph.node[0].name
    found = api.verify(folder / "in.onnx", path, provider="cpu", emulate=True)
    assert found.passed and [n.path for n in found.nodes] == ["emulated"]


def test_the_page_is_of_the_first_target(written):
  assert "h200" in api.report_page(written[0] / "out.onnx")


def test_on_the_command_line(folder, capsys, kept_searches):
  out = folder / "cli.onnx"
  with kept_searches("several"):
    assert main(["optimize", str(folder / "in.onnx"), "-o", str(out), "--target", BOTH]) == 0
  assert "a100-80gb 1 in 1 place;" in capsys.readouterr().err
  assert main(["inspect", str(folder / "in.onnx"), "--target", BOTH]) != 0
  assert "TARGET_UNKNOWN" in capsys.readouterr().err


def test_two_gpus_of_one_architecture(tmp_path, kept_searches):
  """The second is named by its own domain; a lock writes both again, and each is verified."""
  (tmp_path / "in.onnx").write_bytes(MODEL.read_bytes())
  with kept_searches("several"):
    report = optimized(tmp_path, target="h200,gh200").report
  before = (tmp_path / "out.onnx").read_bytes()
  assert [(t["name"], t["custom_nodes"]) for t in report["targets"]] == [("h200", 1), ("gh200", 1)]
  assert set(suffixes_of(onnx.load(tmp_path / "out.onnx"))) == {"sm90a", "sm90a_gh200480gb"}
  optimized(tmp_path, locked=True)
  assert (tmp_path / "out.onnx").read_bytes() == before
  found = api.verify(MODEL, tmp_path / "out.onnx", provider="cpu", emulate=True)
  assert found.passed and not found.failures and all(n.launches for n in found.nodes)
  assert {n.name.rpartition(" ")[2] for n in found.nodes} == {"(sm90a_gh200480gb)", "(sm90a)"}
  assert "h200" in api.report_page(tmp_path / "out.onnx")


def test_the_first_that_replaces_anything_chooses(monkeypatch):
  """And the rest of the time is for the others; regions that overlap in part are left out for them."""
  asked, left_s, began = [], [], time.monotonic()
  right = several_targets.pipeline.run

  def run(loaded, options, emit):
    asked.append(options)
    left_s.append(began + 1000.0 - time.monotonic())
    found = right(loaded, options if options.target is not H200 else options_without(options), emit)
    return found

  def options_without(options):
    from dataclasses import replace

    return replace(options, margin=0.999)

  monkeypatch.setattr(several_targets.pipeline, "run", run)
  targets = get_targets("h200,a100")
  merged, own = several_targets.run_several(
    load_model(MODEL), Options(H200, budget_s=1000.0, began=began), targets
  )
  assert own.target is get_target("a100") and merged.chosen and not merged.others[0].chosen
  assert [o.target.name for o in asked] == ["h200", "a100-80gb"]
  assert left_s[0] / 2 <= asked[0].budget_s <= 500 and left_s[1] <= asked[1].budget_s <= 1000
  assert suffixes_of(merged.model) == ("sm80",)

"""Searches by the processes of a Ray cluster are those of this machine, also where a node goes away."""

from pathlib import Path

import pytest
from ray_nodes import cluster  # noqa: F401  (a fixture)

import mirage_onnx
from mirage_onnx.errors import MirageError
from mirage_onnx.events import RegionDone, WorkStarted
from mirage_onnx.search_workers import Crew, check_workers
from mirage_onnx.worker_process import WorkerProcess

MODEL = Path(__file__).resolve().parents[1] / "models" / "rmsnorm_linear.onnx"


def test_processes_of_this_machine():
  crew = Crew.of(3)
  assert crew.count == 3 and crew.again == 0 and Crew.of(None).count >= 1
  worker = crew.make()
  assert isinstance(worker, WorkerProcess)
  worker.kill()
  worker.close()


@pytest.mark.parametrize("workers", [0, -1, "eight", "http://host"])
def test_what_names_no_workers(workers):
  with pytest.raises(MirageError) as raised:
    check_workers(workers)
  assert raised.value.code == "OPTION_INVALID"


def test_without_ray_it_is_said_what_to_install(monkeypatch):
  monkeypatch.setattr("mirage_onnx.search_workers.find_spec", lambda name: None)
  with pytest.raises(MirageError, match=r"mirage-onnx\[ray\]"):
    mirage_onnx.optimize(MODEL, target="h200", workers="auto")


@pytest.mark.slow
def test_a_cluster_of_which_a_node_is_killed_finds_the_same(cluster, monkeypatch, tmp_path):  # noqa: F811
  """Two nodes search; one is gone after the first region."""
  done, begun = [], []

  def told(event):
    if isinstance(event, WorkStarted) and event.kind == "search":
      begun.append(event.worker)
    if isinstance(event, RegionDone):
      done.append(event)
      if len(done) == 1:
        cluster.remove_node(cluster.second, allow_graceful=False)

  outputs = []
  for n, (workers, emit) in enumerate(((None, None), ("auto", told))):
    monkeypatch.setenv("MIRAGE_CACHE_DIR", str(tmp_path / f"cache{n}"))
    output = tmp_path / f"{n}" / "out.onnx"
    output.parent.mkdir()
    report = mirage_onnx.optimize(MODEL, output, target="h200", workers=workers, emit=emit).report
    outputs.append((output.read_bytes(), report["found"], [r["status"] for r in report["regions"]]))
  assert len(done) > 1 and set(begun) == {0, 1}, "two workers searched"
  assert outputs[0] == outputs[1]

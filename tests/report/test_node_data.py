"""Times of nodes for Model Explorer: those of the record, for every node that the model has."""

import json

import onnx
import pytest
from reported import optimized, record_of

from mirage_onnx.cli import main
from mirage_onnx.custom_op.model_nodes import ModelFile
from mirage_onnx.report.node_data import node_data


def test_the_nodes_of_the_model_and_their_times():
  record, model = record_of(), optimized()[1].model
  ((graph, found),) = node_data(record, ModelFile(model, None)).items()
  assert graph == model.graph.name and [g["stop"] for g in found["gradient"]] == [0, 1]
  times = {name: r["value"] for name, r in found["results"].items()}
  custom = [n.name for n in model.graph.node if n.domain.startswith("ai.mirage")]
  assert custom and set(custom) <= set(times) <= {n.name for n in model.graph.node}
  assert sum(times[n] for n in custom) == pytest.approx(sum(p.us for p in record.places), abs=0.01)
  assert sum(times.values()) == pytest.approx(record.model.after_us, abs=0.05)
  unknown = [n.name for n in record.nodes if n.us is None and not n.places]
  assert unknown and not set(unknown) & set(times)


def test_it_is_written_beside_the_page(tmp_path, capsys):
  path, file = tmp_path / "m.onnx", tmp_path / "m.json"
  onnx.save(optimized(True)[1].model, path)
  assert main(["report", str(path), "--node-data", str(file)]) == 0
  assert (tmp_path / "m.html").is_file()
  assert json.loads(file.read_text())[optimized(True)[1].model.graph.name]["results"]
  assert main(["report", str(path), "--node-data", str(path)]) == 2

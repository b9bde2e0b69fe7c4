"""The drawing of a µGraph: every value with its level, every edge, in text that DOT reads."""

import re

import pytest
from goldens import GOLDENS

from mirage_onnx.inspection.dot import COLOURS, Level, level, to_dot

NAME = r'"((?:[^"\\]|\\.)*)"'


@pytest.mark.parametrize("golden_graph", GOLDENS, ids=lambda g: g.name)
def test_every_value_and_edge_is_drawn(golden_graph):
  graph = golden_graph.ugraph
  text = to_dot(graph, golden_graph.params)
  drawn = {m[1]: m[2] for m in re.finditer(rf"{NAME} \[label=.*fillcolor=(\w+)\];", text)}
  wanted = {t.name: COLOURS[Level.KERNEL] for t in graph.tensors}
  edges = set()
  for k in graph.kernels:
    for i, op in enumerate(k.ops):
      wanted[f"{k.name}%{i}"] = COLOURS[level(op)]
      edges |= {(f"{k.name}%{a}", f"{k.name}%{i}") for a in op.args}
      edges |= {(op.tensor, f"{k.name}%{i}")} if op.tensor else set()
    edges |= {(f"{k.name}%{s.arg}", s.tensor) for s in k.saves}
  assert {k: v for k, v in drawn.items() if not k.startswith("level ")} == wanted
  assert set(re.findall(rf"{NAME} -> {NAME};", text)) == edges
  assert text.count("{") == text.count("}")
  assert all(p.to_text() in text for p in golden_graph.params)


def test_all_levels_occur_in_different_colours():
  ops = [o for g in GOLDENS for k in g.ugraph.kernels for o in k.ops]
  assert {level(o) for o in ops} == set(Level) - {Level.KERNEL}
  assert len(set(COLOURS.values())) == len(Level)


def test_drawing(golden):
  graph = next(g for g in GOLDENS if g.name == "norm_linear_cluster")
  assert to_dot(graph.ugraph, graph.params) == golden

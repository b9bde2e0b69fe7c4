"""The drawing of a µGraph: complete, legible, the same every time."""

import re
from itertools import combinations
from xml.etree import ElementTree

import pytest
from goldens import GOLDENS, golden

from mirage_onnx.inspection.svg import to_svg
from mirage_onnx.superopt.canonical import canonical_kernel

SVG = "{http://www.w3.org/2000/svg}"
each_golden = pytest.mark.parametrize("given", GOLDENS, ids=lambda g: g.name)


def boxes(text):
  found = []
  for e in ElementTree.fromstring(text).iter(f"{SVG}rect"):
    if e.get("rx"):
      x, y = float(e.get("x", 0)), float(e.get("y", 0))
      found.append((x, y, x + float(e.get("width", 0)), y + float(e.get("height", 0))))
  return found


@each_golden
def test_every_line_of_the_canonical_text_is_a_box(given):
  graph = given.ugraph
  drawing = to_svg(graph, given.params)
  lines = [line for k in graph.kernels for line in canonical_kernel(k, graph.tensors).splitlines()[1:]]
  assert len(boxes(drawing)) == len(lines)
  words = "".join(e.text or "" for e in ElementTree.fromstring(drawing).iter(f"{SVG}text"))
  for name in re.findall(r"%\d+", "".join(lines)):
    assert name in words
  for kernel, params in zip(graph.kernels, given.params, strict=True):
    assert f"{kernel.name}: grid {' × '.join(kernel.grid) or '-'}," in words and params.to_text() in words


@each_golden
def test_boxes_do_not_overlap_and_are_inside(given):
  drawing = to_svg(given.ugraph, given.params)
  root = ElementTree.fromstring(drawing)
  width, height = float(root.get("width", 0)), float(root.get("height", 0))
  found = boxes(drawing)
  for left, top, right, bottom in found:
    assert left >= 0 and top >= 0 and right <= width and bottom <= height
  for a, b in combinations(found, 2):
    apart = a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1]
    assert apart, (a, b)


@each_golden
def test_edges_go_down(given):
  """Everything is below what it is computed from."""
  paths = re.findall(r'd="M(-?\d+) (-?\d+)C.* (-?\d+)"', to_svg(given.ugraph, given.params))
  for _, start, end in paths:
    assert int(start) < int(end)


def test_it_is_the_same_every_time():
  given = golden("attention_cluster")
  assert to_svg(given.ugraph, given.params) == to_svg(given.ugraph, given.params)
  assert "red_max" in to_svg(given.ugraph)


def test_without_numbers_there_is_one_title_line():
  graph = golden("norm_linear").ugraph
  assert "warps=" not in to_svg(graph)


def texts(drawing):
  return [e.text or "" for e in ElementTree.fromstring(drawing).iter(f"{SVG}text")]


def test_names_of_the_model_and_extents_stand_in_it():
  given = golden("norm_linear")
  extents = {"a0": 4096, "a1": 512, "a2": 8}
  long = "encoder/layers.11/attention/output/LayerNorm/weight"
  drawing = to_svg(given.ugraph, given.params, extents, {"i0": "<script>]]>\x01", "i1": long})
  words = " ".join(" ".join(texts(drawing)).split())
  assert "load <script>]]>\ufffd" in words and "<script>" not in drawing  # it was read back, and was escaped
  assert f"…{long[-29:]}" in words and long in "".join(ElementTree.fromstring(drawing).itertext())
  assert "/ 4096" in words and "rsqrt(" in words and "pow[" not in words and "|a0|" not in words
  assert "8 × 1 blocks of 64 × 16, 1 rank each, 128 threads" in words
  assert "a0 = 4096, a1 = 512, a2 = 8" in words


def test_in_a_page_there_is_no_legend_and_no_style():
  given = golden("norm_linear_cluster")
  alone, inside = to_svg(given.ugraph, given.params), to_svg(given.ugraph, given.params, in_page=True)
  assert "<style>" in alone and "prefers-color-scheme" in alone and "cluster: combined over ranks" in alone
  assert "<style>" not in inside and "combined over ranks" not in inside

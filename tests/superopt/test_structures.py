"""The store of what is known of structures: what is put comes back, what is damaged does not."""

from functools import cache

import pytest
from search_programs import PROGRAMS
from small_models import prover

from mirage_onnx.superopt import structures
from mirage_onnx.superopt.hooks import Hooks
from mirage_onnx.superopt.journal_lines import entry_line, header_line
from mirage_onnx.superopt.renumber import KnownGraph, renumber
from mirage_onnx.superopt.result import SearchBound
from mirage_onnx.superopt.search_structure import SearchScope, probe, search_proven
from mirage_onnx.superopt.structures import StructureStore, dominant
from mirage_onnx.target import H200

SETTING = {"target": "a", "generator": "1"}
REGION = PROGRAMS["residual_rmsnorm"]()


@cache
def entry():
  scope, hooks = SearchScope(H200), Hooks()
  _, proven = search_proven(REGION, scope, prover(), budget_s=900, hooks=hooks)
  found = probe(REGION, scope, prover(), proven, None, (16, 256), budget_s=900, hooks=hooks)
  assert found is not None and len(found.graphs) > 2 and len(found.shapes) > 2
  return found


def stored(folder):
  store = StructureStore(folder, SETTING)
  store.put(REGION.structure, entry())
  path = store.path(REGION.structure)
  return path


def test_another_process_finds_what_was_put(tmp_path):
  path = stored(tmp_path / "new" / "folder")
  assert StructureStore(path.parent, SETTING).get(REGION.structure) == entry()
  assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_equal_entries_are_equal_bytes(tmp_path):
  first, second = stored(tmp_path / "a"), stored(tmp_path / "b")
  assert first.name == second.name and first.read_bytes() == second.read_bytes()


def test_other_settings_and_structures_have_none(tmp_path):
  stored(tmp_path)
  assert StructureStore(tmp_path, {**SETTING, "generator": "2"}).get(REGION.structure) is None
  other = PROGRAMS["residual_layernorm"]().structure
  assert StructureStore(tmp_path, SETTING).get(other) is None


def test_memory_only():
  store = StructureStore(None, SETTING)
  store.put(REGION.structure, entry())
  assert store.get(REGION.structure) == entry() and store.path(REGION.structure) is None


@pytest.mark.parametrize("damage", ["byte", "end", "start", "version", "empty", "renamed"])
def test_damage_is_as_if_nothing_was_there(tmp_path, damage):
  path = stored(tmp_path)
  data = path.read_bytes()
  structure = REGION.structure
  if damage == "byte":
    for place in range(len(data) // 3, len(data), len(data) // 7):
      path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
      assert StructureStore(tmp_path, SETTING).get(structure) is None
  elif damage == "end":
    path.write_bytes(data[:-40])
  elif damage == "start":
    path.write_bytes(data[40:])
  elif damage == "version":
    path.write_bytes(data.replace(b'"version":1', b'"version":2', 1))
  elif damage == "empty":
    path.write_bytes(b"")
  else:
    structure = PROGRAMS["residual_layernorm"]().structure
    other = StructureStore(tmp_path, SETTING).path(structure)
    assert other is not None
    path.rename(other)
  store = StructureStore(tmp_path, SETTING)
  assert store.get(structure) is None
  store.put(structure, entry())
  assert StructureStore(tmp_path, SETTING).get(structure) == entry()


@pytest.mark.parametrize(
  "edit",
  [
    {"graphs": None},
    {"graphs": [None]},
    {"shapes": [{"a0": "many"}]},
    {"shapes": {"a0": 1}},
    {"graphs": ["ugraph 1\nkernel k0 grid= cluster=- loop=-\n  %0 = const[] : f32[] loop C_frag\n"]},
    {"graphs": ["ugraph 1\nkernel k0 grid= cluster=- loop=-\n  %0 = exp %9 : f32[] loop C_frag\n"]},
    {"graphs": ["ugraph 1\nkernel k0 grid= cluster=- loop=-\n  %0 = const[1/0] : f32[] loop C_frag\n"]},
  ],
)  # fmt: skip
def test_an_edited_entry_with_its_checksum_is_found_again(tmp_path, edit):
  """Once an error in every run until the file was deleted."""
  store = StructureStore(tmp_path, SETTING)
  store.put(REGION.structure, entry())
  path = store.path(REGION.structure)
  value = {**structures._encode(REGION.structure, entry()), **edit}
  path.write_bytes(header_line(SETTING) + entry_line(path.stem, value))
  store = StructureStore(tmp_path, SETTING)
  assert store.get(REGION.structure) is None
  store.put(REGION.structure, entry())
  assert StructureStore(tmp_path, SETTING).get(REGION.structure) == entry()


def test_a_folder_that_cannot_be_written_costs_only_the_file(tmp_path):
  (tmp_path / "file").write_text("")
  store = StructureStore(tmp_path / "file", SETTING)
  store.put(REGION.structure, entry())
  assert store.get(REGION.structure) == entry()


def test_only_canonical_texts_are_known():
  text = entry().graphs[0].text
  assert KnownGraph.of(text) == entry().graphs[0]
  for wrong in ("", text[: len(text) // 2], text.replace("\n", "\n\n", 1), f"{text}x"):
    with pytest.raises(ValueError):
      KnownGraph.of(wrong)


def test_the_best_of_every_shape_are_kept(monkeypatch):
  graphs, shapes = entry().graphs, entry().shapes
  monkeypatch.setattr(structures, "MAX_GRAPHS", len(graphs) - 1)
  kept = dominant(graphs, shapes, H200, SearchBound())
  assert len(kept) == len(graphs) - 1
  assert [g for g in graphs if g in kept] == list(kept)
  for extents in shapes:
    best = renumber(graphs, extents, H200, SearchBound())[0]
    assert best.predicted_us == renumber(kept, extents, H200, SearchBound())[0].predicted_us


def test_what_is_alike_at_all_shapes_comes_last(monkeypatch):
  """A second graph of the same kernels, in other names, takes no place from a different one."""
  graphs, shapes = entry().graphs, entry().shapes
  again = [KnownGraph.of(g.text.replace("kernel k0", "kernel k9").replace("/k0", "/k9")) for g in graphs]
  both = tuple(x for pair in zip(graphs, again, strict=True) for x in pair)
  monkeypatch.setattr(structures, "MAX_GRAPHS", len(graphs))
  monkeypatch.setattr(structures, "ALIKE", 0.0)
  kept = dominant(both, shapes, H200, SearchBound())
  assert len(kept) == len(graphs)
  for extents in shapes:
    best, *_ = renumber(both, extents, H200, SearchBound())
    assert best.predicted_us == renumber(kept, extents, H200, SearchBound())[0].predicted_us
  different = {
    tuple(r.predicted_us for e in shapes for r in renumber([g], e, H200, SearchBound())) for g in kept
  }
  of_all = {
    tuple(r.predicted_us for e in shapes for r in renumber([g], e, H200, SearchBound())) for g in graphs
  }
  assert different == of_all


def test_ties_keep_their_order():
  graphs = entry().graphs
  twice = [g for g in graphs for _ in range(2)]
  ranked = [r.known.text for r in renumber(twice, REGION.extents, H200, SearchBound())]
  assert ranked[::2] == [r.known.text for r in renumber(graphs, REGION.extents, H200, SearchBound())]


def test_what_does_not_fit_is_left_out():
  (axis,) = (a for a, n in REGION.extents.items() if n == 4096)
  assert renumber(entry().graphs, {**REGION.extents, axis: 1 << 24}, H200, SearchBound()) == ()

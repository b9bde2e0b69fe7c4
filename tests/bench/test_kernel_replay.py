"""The code generator makes the recorded kernels, byte for byte; what differs is said by kind."""

import dataclasses

import kernel_replay
import pytest
import replay_corpus
import replay_record
from replay_record import FOLDER, headers, made, read_group, read_record, write_group

from mirage_onnx.codegen import elementwise
from mirage_onnx.cost import model
from mirage_onnx.target import H200, TARGETS

ENTRIES = read_record()
#: Every how many entries one is generated here; all are by ``python bench/kernel_replay.py``.
STRIDE = 4
GROUPS = ("goldens", "graphs", "hopper", "models", "programs", "random", "runtime", "speed")


def differing(entries):
  found = kernel_replay.generated(entries, 1)
  return [
    (e.name, k, kernel_replay.what_differs(was, now))
    for e, k, was, now in kernel_replay.differences(entries, found)
  ]


@pytest.mark.parametrize("group", GROUPS)
def test_the_kernels_are_those_recorded(group):
  assert not differing([e for e in ENTRIES if e.group == group][::STRIDE])


def test_the_device_headers_are_those_recorded():
  assert not kernel_replay.header_differences()


@pytest.mark.parametrize("group", ["goldens", "graphs", "programs"])
def test_the_entries_are_what_the_sources_say(group):
  """Of searched programs also the numbers, best first: those that the cost model likes best.

  Else ``python bench/kernel_replay.py GROUP --collect``.
  """
  found = [(e.graph, e.params, e.extents, e.runtime) for e in replay_corpus.GROUPS[group](None)]
  recorded = [(e.graph, e.params, e.extents, e.runtime) for e in ENTRIES if e.group == group]
  assert recorded == [x for i, x in enumerate(found) if x not in found[:i]]


def test_what_is_recorded():
  """Every form of a kernel, refusals, run-time sizes, launches of clusters; names once."""
  assert tuple(sorted({e.group for e in ENTRIES})) == GROUPS
  lines = [line for e in ENTRIES for line in e.made]
  for part in ("; row, ", "; streaming, ", "; tiled, ", "LAYOUT: ", " cluster=8 ", " pdl=0 ", "tiles=a"):
    assert any(part in line for line in lines), part
  assert any(e.runtime for e in ENTRIES)
  assert len({e.name for e in ENTRIES}) == len(ENTRIES) == len({(e.group, e.key) for e in ENTRIES}) > 500


def some(group, text=""):
  return next(e for e in ENTRIES if e.group == group and text in e.graph)


def test_another_text_is_seen(monkeypatch):
  entry = some("speed", "rsqrt")
  monkeypatch.setitem(elementwise._EXPRESSIONS, "rsqrt", "1.0f / sqrtf({0})")
  assert differing([entry]) == [(entry.name, 0, "text")]


def test_another_prediction_is_seen(monkeypatch):
  entry = some("speed")
  monkeypatch.setitem(TARGETS, "h200", dataclasses.replace(H200, launch_us=3.0))
  assert differing([entry]) == [(entry.name, 0, "cost")]


def test_another_launch_is_seen(monkeypatch):
  entry = some("speed")
  emit = replay_record.emit_kernel
  other = lambda *a: dataclasses.replace(emit(*a), smem_bytes=5)  # noqa: E731
  monkeypatch.setattr(replay_record, "emit_kernel", other)
  assert differing([entry]) == [(entry.name, 0, "launch")]


def test_a_refusal_is_seen(monkeypatch):
  entry = some("speed", "rsqrt")
  monkeypatch.delitem(elementwise._EXPRESSIONS, "rsqrt")
  assert differing([entry]) == [(entry.name, 0, "refusal")]
  (line,) = [m.line for m in made(entry)]
  assert line.startswith("EMIT_UNSUPPORTED: ")


def test_a_kernel_more_or_less_is_seen():
  entry = some("speed")
  more = dataclasses.replace(entry, made=(*entry.made, entry.made[0]))
  assert [k for _, k, _ in differing([more])] == [1]
  assert [k for _, k, _ in differing([dataclasses.replace(entry, made=())])] == [0]


def test_another_header_is_seen(tmp_path):
  lines = [f"{n} {d}" for n, d in headers()]
  (tmp_path / "headers.txt").write_text("\n".join(["gone.cuh 0", f"{lines[0]}0", *lines[2:]]))
  names = [n for n, _ in headers()]
  assert kernel_replay.header_differences(tmp_path) == sorted(
    ["header gone.cuh: is gone", f"header {names[0]}: differs", f"header {names[1]}: is new"]
  )


def test_a_group_is_read_as_it_was_written(tmp_path):
  entries = [e for e in ENTRIES if e.group == "programs"]
  write_group(tmp_path / "programs.jsonl", entries)
  assert read_group(tmp_path / "programs.jsonl") == entries
  assert (tmp_path / "programs.jsonl").read_bytes() == (FOLDER / "programs.jsonl").read_bytes()


def run(monkeypatch, *arguments):
  monkeypatch.setattr("sys.argv", ["kernel_replay.py", "--jobs", "1", *map(str, arguments)])
  return kernel_replay.main()


def test_the_command(monkeypatch, capsys, tmp_path):
  """Texts of before are written, a rule changes, what differs is shown, and is then accepted."""
  record = tmp_path / "record"
  write_group(record / "speed.jsonl", [some("speed", "rsqrt")])
  at = ("--folder", record)
  run(monkeypatch, *at, "--accept")
  assert run(monkeypatch, *at, "--write", tmp_path / "old") == 0
  assert "every kernel is the one recorded" in capsys.readouterr().out
  monkeypatch.setitem(elementwise._EXPRESSIONS, "rsqrt", "1.0f / sqrtf({0})")
  assert run(monkeypatch, *at, "--diff", tmp_path / "old") == 1
  shown = capsys.readouterr().out
  assert "1 kernels differ: 1 in text" in shown
  assert [x for x in shown.splitlines() if x.startswith("+") and "1.0f / sqrtf(" in x]
  assert [x for x in shown.splitlines() if x.startswith("-") and "ptx::rsqrt(" in x]
  run(monkeypatch, *at, "--accept")
  assert run(monkeypatch, *at) == 0


@pytest.mark.slow
def test_all_kernels_are_those_recorded():
  found = kernel_replay.generated(ENTRIES, 2)
  assert [e.name for e, *_ in kernel_replay.differences(ENTRIES, found)] == []


@pytest.mark.slow
def test_the_texts_of_another_commit(tmp_path):
  if not (kernel_replay.ROOT / ".git").exists():
    pytest.skip("not a git checkout")
  texts = kernel_replay.texts_at("HEAD", ("goldens",), tmp_path)
  assert len(list(texts.rglob("*.cu"))) == sum(len(e.made) for e in ENTRIES if e.group == "goldens")


def test_cost_is_of_the_numbers():
  """Not of the best ones: the predictions of one µGraph with other numbers differ."""
  by_graph = {}
  for e in ENTRIES:
    if e.group == "programs":
      by_graph.setdefault(e.graph, set()).add(e.made[0].split("; ")[1])
  assert sum(len(lines) > 1 for lines in by_graph.values()) > 10
  assert model.kernel_cost is replay_record.kernel_cost

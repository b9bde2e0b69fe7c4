"""Counters without a GPU: what ncu writes is read right, and belongs to what was launched."""

import pickle
from contextlib import nullcontext
from dataclasses import replace

import counters
import pytest
from cases import ROWS
from chosen_kernels import chosen_kernels
from counters import Jobs, expected, launch, rows
from kernel_records import counters_table
from ncu_csv import STALL, kernels
from small_cases import SMALL

from mirage_onnx.compiler.cubin import Cubin
from mirage_onnx.target import H200

#: As ncu 2025 writes a raw page with base units: its own lines first, then names, units, kernels.
COLUMNS = {
  "ID": ("", "0"), "Kernel Name": ("", "read_bytes"), "Block Size": ("", "(512, 1, 1)"),
  "Grid Size": ("", "(528, 1, 1)"), "gpu__time_duration.sum": ("ns", "12,512"),
  "dram__bytes_read.sum": ("byte", "33,554,432"), "launch__registers_per_thread": ("", "40"),
  "lts__t_sector_hit_rate.pct": ("%", "1.5"),
  f"{STALL}long_scoreboard_per_issue_active.ratio": ("inst", "30"),
  f"{STALL}wait_per_issue_active.ratio": ("inst", "10"),
  f"{STALL}barrier_not_issued_per_issue_active.ratio": ("inst", "99"),
}  # fmt: skip


def page(*names):
  def line(cells):
    return ",".join(f'"{c}"' for c in cells) + "\n"

  values = [{**{k: v for k, (_, v) in COLUMNS.items()}, "Kernel Name": n} for n in names]
  units = [u for u, _ in COLUMNS.values()]
  found = [line(list(COLUMNS)), line(units), *(line(list(v.values())) for v in values)]
  return ["==PROF== Connected to process 7\n", *found, "==PROF== Disconnected\n"]


def test_page():
  (found,) = kernels(page("read_bytes(const uint4 *)"))
  assert found == {
    "name": "read_bytes", "block": "(512, 1, 1)", "grid": "(528, 1, 1)", "us": 12.512,
    "read_mb": 33.554, "registers": 40.0, "l2_hit_pct": 1.5,
    "stalls": [["long_scoreboard", 75.0], ["wait", 25.0]],
  }  # fmt: skip


@pytest.mark.parametrize("lines", [[], ["==ERROR== none\n"], ['"ID","Name"\n', '"",""\n']])
def test_no_page(lines):
  with pytest.raises(ValueError, match="no raw page"):
    kernels(lines)


class Recorder:
  target = H200

  def __init__(self):
    self.launched = []

  def scope(self):
    return nullcontext()

  def load(self, image, name, *_):
    return name

  def launch(self, name, *_):
    self.launched.append(name)

  def launch_source(self, name, *_):
    self.launched.append(name)

  def capture(self, work):
    return work

  def __getattr__(self, name):
    return lambda *_: 0


@pytest.fixture(scope="module")
def jobs():
  nodes = [
    c
    for row in ("rmsnorm_linear", "attention")
    for c in chosen_kernels(f"{row}/x", ROWS[row].make(**SMALL[row]), H200, None, 30)
  ]
  sizes = {f"{row}/x": 10**6 for row in ("rmsnorm_linear", "attention")}
  made = Jobs(tuple(nodes), sizes, Cubin(b"", 1, 0, 0, 0, "", 0.0))
  return pickle.loads(pickle.dumps(made))


def test_launched_and_counted(jobs):
  gpu = Recorder()
  launch(jobs, gpu)
  names = [name for _, name in expected(jobs)]
  assert gpu.launched == names
  assert names.count("read_bytes") == 2
  found = rows(jobs, kernels(page(*names)))
  assert found[0]["case"] == "rmsnorm_linear/x"
  assert {"params", "smem_bytes"} <= found[1].keys()
  table = counters_table({"rows": found, "date": "d", "command": "c", "commit": "a", "gpu": "g",
                          "versions": {"ncu": "1"}})  # fmt: skip
  assert len(table) == len(names) + 4
  assert all(line.count("|") == table[0].count("|") for line in table[1 : len(names) + 2])
  with pytest.raises(ValueError, match="counted"):
    rows(jobs, kernels(page(*names[1:])))
  less = replace(jobs, nodes=jobs.nodes[:1])
  assert len(expected(less)) < len(names)


def test_every_row_but_the_layer():
  assert {*counters.CASES} == {*ROWS} - {"llama_layer"}

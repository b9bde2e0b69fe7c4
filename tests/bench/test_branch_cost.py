"""``bench/branch_cost.py``: its arms are one decoder, and the condition is timed beside it."""

from dataclasses import replace

import numpy as np
import onnx
from branch_cost import TINY, arms, measured
from genai_graphs import write
from genai_runs import Decoder


def test_arms_are_one_decoder(tmp_path):
  c = replace(TINY, bits=16)
  write(tmp_path, c)
  made, found = arms(tmp_path, 64), {}
  assert [n.op_type for n in onnx.load(made["branch"], load_external_data=False).graph.node][-1] == "If"
  for name, path in made.items():
    d = Decoder(path, c, 1, 64)
    prompt, *_ = d.greedy(np.array([[1, 2, 3]]), lambda: None)
    found[name] = prompt
  assert found["model"] == found["branch"] == found["short"] == found["beside"]


def test_what_is_measured(tmp_path, monkeypatch):
  monkeypatch.setattr("branch_cost.REPEATS", 1)
  row = measured(tmp_path, replace(TINY, bits=4), 64, 3, None, lambda: None)
  assert {*row} == {"step_us", "step_host_us", "prompt_us", "prompt_host_us"}
  assert all({*us} == {"flat", "branch", "short", "beside"} and min(us.values()) > 0 for us in row.values())

"""Altered launches: the library takes what SECURITY.md lists, and ``verify`` nothing."""

import time
from pathlib import Path

import altered
import altered_rules
import pytest

ROOT = Path(__file__).resolve().parents[2]
ROW = {"kind": "plan", "library": "accepted", "library_why": "", "verify": "failed", "fields": ["grid"]}


def test_what_may_be_altered_is_listed():
  text = " ".join((ROOT / "SECURITY.md").read_text().split())
  listed = text.partition("**not authenticated when a session is made**")[2]
  listed = listed.partition("Hashes and digests")[0]
  assert all(words in listed for words in altered_rules.OPEN.values())


@pytest.mark.parametrize(
  ("changed", "said"),
  [
    ({}, ""),
    ({"verify": "PASSED"}, "verify passed"),
    ({"verify": "TRACEBACK", "verify_why": "KeyError"}, "verify ended with KeyError"),
    ({"fields": ["block", "grid"]}, "the library took another block"),
    ({"library": "run", "library_why": "Abort"}, "none of ours"),
    ({"kind": "leaf", "verify": "PASSED"}, ""),
  ],
)
def test_what_is_a_fault(changed, said):
  found = list(altered_rules.faults(ROW | changed))
  assert (len(found) == 1 and said in found[0]) if said else not found


@pytest.mark.slow  # three models are written, some fifty are verified
def test_a_share_of_all_cases(tmp_path):
  state = tmp_path / "state.jsonl"
  rows, there = altered.run(tmp_path, each=2, seconds=3000, jobs=1, seed=1, state=state)
  assert not list(altered.faults(rows))
  launches = [r for r in rows if r["kind"] in ("plan", "both", "image", "swap") and "library" in r]
  assert len(launches) >= 18 and all(r["verify"] != "PASSED" for r in launches)
  assert {r["library"] for r in launches} == {"accepted", "creation", "run"}
  assert all(sum(kinds.values()) > 700 for kinds in there.values())
  again, _ = altered.run(tmp_path, each=2, seconds=0, jobs=1, seed=1, state=state)  # no time to run any
  assert len(again) == len(rows) > 30


def test_a_process_that_dies_is_one_fault_and_the_rest_goes_on(tmp_path, monkeypatch):
  script = tmp_path / "dies.py"
  script.write_text(
    "import json, os, sys\n"
    "for case in sys.argv[5:]:\n"
    "  kind, _, number = case.partition(':')\n"
    "  row = {'model': 'm', 'kind': kind, 'number': int(number), 'what': ''}\n"
    "  print(json.dumps({'asks': 'verify', **row}), flush=True)\n"
    "  if case == 'plan:1': os.abort()\n"
    "  print(json.dumps(row), flush=True)\n"
  )
  monkeypatch.setattr(altered, "ANSWERS", script)
  cases = ["plan:0", "plan:1", "image:1", "plan:2"]
  rows = list(altered.ask(tmp_path, "m", "driver", time.monotonic() + 600, cases))
  assert [f"{r['kind']}:{r['number']}" for r in rows] == cases
  (said,) = altered.faults(rows)
  assert said == "m plan : exit -6 in verify: "

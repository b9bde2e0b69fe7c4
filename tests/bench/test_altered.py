"""Altered launches: the library takes what SECURITY.md lists, and ``verify`` nothing."""

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
  rows, wrong, there = altered.run(tmp_path, each=2, seconds=300, jobs=1, seed=1)
  assert not wrong
  launches = [r for r in rows if r["kind"] in ("plan", "both", "image", "swap") and "library" in r]
  assert len(launches) >= 18 and all(r["verify"] != "PASSED" for r in launches)
  assert {r["library"] for r in launches} == {"accepted", "creation", "run"}
  assert all(sum(kinds.values()) > 700 for kinds in there.values())

"""A record of whole models for every architecture: what another run found stays beside it."""

import every_gpu_models
import pytest
import stand_ins

from mirage_onnx.targets import ARCHITECTURES

GOOD = {"wrong": "", "spills": 0, "within": True, "chosen": "tile=1", "ran": "emulated", "refused": {},
        "smem_bytes": 8, "registers": 9}  # fmt: skip


BAD = {"wrong": "x is off", "spills": 8, "within": False, "small": "x is off", "chosen": None, "crash": ""}


@pytest.mark.parametrize("bad", [{k: v} for k, v in BAD.items()], ids=BAD)
def test_what_is_wrong(bad):
  assert not every_gpu_models.is_wrong(GOOD) and not every_gpu_models.is_wrong(GOOD | {"small": ""})
  assert every_gpu_models.is_wrong(GOOD | bad)


def record(model, rows, command):
  region = stand_ins.region("k")
  found = {("k", a): row for a, row in zip(ARCHITECTURES, rows, strict=True)}
  by_model = every_gpu_models.summary({model: ({"k": region}, {"k": 3})}, found)
  wrong = [r for r in rows if every_gpu_models.is_wrong(r)]
  made = {"date": "", "command": command, "commit": "c", "by_source": {}}
  return made | {"by_model": by_model, "wrong": wrong}


def test_models_of_an_older_run_stay_until_they_are_done_again():
  rows = [GOOD] * len(ARCHITECTURES)
  first = record("a", rows, "first")
  both = every_gpu_models.beside(record("b", [GOOD | {"wrong": "w"}, *rows[1:]], "second"), first)
  assert [*both["by_model"]] == ["a", "b"] and len(both["wrong"]) == 1
  assert [r["command"] for r in both["earlier"]] == ["first"] and both["command"] == "second"
  totals = every_gpu_models.totals(both["by_model"])
  assert (totals["models"], totals["regions"], totals["jobs"]) == (2, 2, 2 * len(ARCHITECTURES))
  assert totals["done"] == totals["reduced"] == totals["jobs"] and totals["wrong_rows"] == 1
  mended = every_gpu_models.beside(record("b", rows, "third"), both)
  assert mended["wrong"] == [] and [r["command"] for r in mended["earlier"]] == ["first", "second"]
  alone = every_gpu_models.beside(record("a", rows, "all"), first)
  assert "earlier" not in alone

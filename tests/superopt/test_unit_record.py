"""What a unit found, through JSON and back; anything else is refused."""

import copy
import json
import math
from dataclasses import replace

import pytest
from goldens import GOLDENS

from mirage_onnx.errors import MirageError, Rejection
from mirage_onnx.ir.text import print_kernel
from mirage_onnx.superopt.unit_record import (
  BuiltRecord,
  UnitRecord,
  decode_built,
  decode_unit,
  encode_built,
  encode_unit,
)


def records(golden):
  pairs = zip(golden.ugraph.kernels, golden.params, strict=True)
  return tuple(
    BuiltRecord(math.pi * (i + 1), print_kernel(k), (p.to_text(),) * 2, (4, i), (7,), ((3, 1),))
    for i, (k, p) in enumerate(pairs)
  )


@pytest.mark.parametrize("golden", GOLDENS, ids=lambda g: g.name)
def test_kernels_come_back(golden):
  found = tuple(decode_built(json.loads(json.dumps(encode_built(r)))) for r in records(golden))
  assert found == records(golden)
  assert tuple(r.kernel() for r in found) == golden.ugraph.kernels
  assert tuple(r.numbers()[0] for r in found) == golden.params


UNIT = UnitRecord(
  records(GOLDENS[0]),
  (("states", 12), ("built", 3)),
  (("registers", 5),),
  (Rejection("LAYOUT", "no layout", ("n",)),),
)


def test_units_come_back():
  for unit in (UNIT, UnitRecord(counts=(("built", 0),))):
    assert decode_unit(json.loads(json.dumps(encode_unit(unit)))) == unit


WRONG = {
  "built": [
    None,
    [{}],
    [{"cost_us": math.inf, "text": "", "params": [], "reads": [], "exponentials": []}],
  ],
  "counts": [None, {"states": "1"}, {"states": -1}, {"states": True}],
  "pruned": [[], {"registers": 0.5}],
  "refused": [{}, [["LAYOUT"]], [["NOTHING", "", []]], [["LAYOUT", 1, []]], [["LAYOUT", "", 1]]],
}


@pytest.mark.parametrize(("part", "value"), [(p, v) for p, vs in WRONG.items() for v in vs])
def test_other_values_are_refused(part, value):
  found = copy.deepcopy(encode_unit(UNIT))
  found[part] = value
  with pytest.raises(MirageError) as caught:
    decode_unit(found)
  assert caught.value.code == "JOURNAL"


@pytest.mark.parametrize(
  ("name", "value"), [("params", [1]), ("params", 1), ("reads", ["1"]), ("exponentials", None)]
)
def test_other_kernels_are_refused(name, value):
  with pytest.raises(MirageError):
    decode_built({**encode_built(UNIT.built[0]), name: value})
  with pytest.raises(MirageError):
    decode_unit([])


def test_texts_are_checked_where_they_are_read():
  good = UNIT.built[0]
  for text in ("", "kernel", good.text * 2, good.text.replace("phase", ""), good.text[:-1]):
    if text != good.text:
      with pytest.raises(MirageError):
        replace(good, text=text).kernel()
  for params in ("", "tile=1", good.params[0] + " "):
    with pytest.raises(MirageError):
      replace(good, params=(params,)).numbers()

"""Records of the origin of kernels with values at their ends: SOURCE_MISMATCH, or the plan that there is."""

import json
import time

import odd_records
from fuzz_answers import faults_of

from mirage_onnx.custom_op.model_nodes import ModelFile
from mirage_onnx.custom_op.plan import parse_plan
from mirage_onnx.custom_op.plan_check import plan_differs
from mirage_onnx.custom_op.provenance import regenerate
from mirage_onnx.errors import MirageError


def test_a_thousand_records(chain):
  bundle = ModelFile.read(chain.model.SerializeToString()).bundle()
  refused = same = 0
  for seed in range(1000):
    k = seed % len(bundle.plans)
    data = odd_records.made(seed, json.dumps(bundle.provenance[k]))
    start = time.process_time()
    try:
      made = regenerate(json.loads(data), "node 'n'")
    except MirageError as error:
      refused += 1
      assert error.code == "SOURCE_MISMATCH" and faults_of(error.code, error.detail) == [], seed
    else:
      same += not plan_differs(parse_plan(bundle.plans[k]), made)
    assert time.process_time() - start < 2, seed
  assert refused > 800 and same > 10

"""A branch for a decoder's steps is not for nothing: what predictions say has to save more."""

from dataclasses import replace

import onnx
import pytest
from rewritten import chain
from written_runs import OPTIONS, a_run

from mirage_onnx.branch_price import BRANCH_US, paying
from mirage_onnx.importer import import_model, load_model
from mirage_onnx.importer.steps_apart import STEPS
from mirage_onnx.tune.model_times import ModelTimes


@pytest.fixture(scope="module")
def three():
  return chain()


def with_a_branch(loaded):
  held = onnx.ModelProto()
  held.graph.node.add(op_type="If").metadata_props.add(key=STEPS, value="then_branch")
  return replace(loaded, nested=held)


def saving(three, loaded, us):
  times = ModelTimes(nodes=3, gone=3, kernels=3, unknown=0, unknown_gone=0, bounded=0, before_us=100.0,
                     after_us=100.0 - us)  # fmt: skip
  return replace(a_run(three, loaded), program=import_model(loaded), times=times)


def test_what_saves_less_than_the_branch_is_left(three):
  loaded = load_model(three.original)
  few = saving(three, loaded, BRANCH_US - 1)
  options = replace(OPTIONS, margin=0.1, measure=False)
  assert paying(few, loaded, options) is few  # it has no branch
  apart = with_a_branch(loaded)
  assert paying(saving(three, loaded, BRANCH_US + 1), apart, options).chosen
  left = paying(few, apart, options)
  assert not left.chosen and left.model == three.original
  assert {str(o.rejection.code) for o in left.outcomes.values()} == {"NOT_FASTER"}
  assert "saves 24.0 us, and their branch takes 25" in next(iter(left.outcomes.values())).rejection.reason


@pytest.mark.parametrize("how", [{"measure": True}, {"every": True}, {"margin": -1.0}])
def test_what_is_timed_or_a_test_stays(three, how):
  loaded = load_model(three.original)
  few = saving(three, loaded, 1.0)
  options = replace(OPTIONS, **{"margin": 0.1, "measure": False, **how})
  assert paying(few, with_a_branch(loaded), options) is few

"""What the op refuses, in onnxruntime: while running and while a session is created."""

import numpy as np
import onnx
import pytest
from protos import typed

from mirage_onnx.custom_op import (
  InputSpec,
  Int32,
  Int64,
  Launch,
  OutputSpec,
  Variant,
  WorkspacePtr,
  const,
  dim,
  launches,
)
from mirage_onnx.custom_op.plan import Equal
from tests.custom_op.host import host_session, hosted, replace_launch, run

# --- refusals while running


@pytest.mark.parametrize(
  ("inputs", "message"),
  [
    ("f32 f16", r"input 2 has element type f32, the plan needs f16"),
    ("f32 f32:64", r"input 2 has shape \[100\], the plan needs \[64\]"),
    ("f32:*,* f32", r"input 1 has rank 1, the plan needs \[\*,\*\]"),
  ],
)
def test_inputs_that_differ_from_the_plan(models, vectors, driver, inputs, message):
  specs = []
  for text in inputs.split():
    dtype, _, dims = text.partition(":")
    sizes = tuple(None if d == "*" else int(d) for d in (dims or "*").split(","))
    specs.append(InputSpec(dtype, sizes))
  session = host_session(models, driver, models.add_plan(inputs=tuple(specs)))
  with pytest.raises(Exception, match=rf"node 'node0' \(MuGraph_0\): {message}"):
    run(session, vectors)
  assert launches(session) == {"node0": 0}


def test_run_time_values_are_checked(models, vectors, driver):
  n, one = dim(0, 0), const(1)
  args = models.add_plan().variants[0].launches[0].args
  cases = {
    "is not a multiple of the cluster size 8": {"grid": (const(9), one, one), "cluster": 8},
    "grid of standin_add: out of range": {"grid": (one, n * 1000, one)},
    "grid of standin_add: divisor below 1": {"grid": (n.mod(n - n), one, one)},
    "argument 3 of standin_add: value does not fit in 32 bits": {"args": (*args[:3], Int32(n * (1 << 40)))},
    "argument 3 of standin_add: overflow": {"args": (*args[:3], Int32(n * (1 << 62)))},
  }
  for message, fields in cases.items():
    session = host_session(models, driver, replace_launch(models, **fields))
    with pytest.raises(Exception, match=message):
      run(session, vectors)
    assert launches(session) == {"node0": 0}, message


def test_sizes_that_the_model_declares_equal_are_compared(models, vectors, driver):
  n = dim(0, 0)
  agree = (Equal(n, dim(1, 0)), Equal(n * 2, const(200)))
  plan = models.add_plan(equal=agree)
  session = host_session(models, driver, plan)
  np.testing.assert_array_equal(run(session, vectors), sum(vectors.values()))
  cases = {
    "dim 0 of input 1 is 100, 99 is 99": (n, const(99)),
    r"dim 0 of input 1 \* dim 0 of input 2 is 10000, dim 0 of input 1 \* 2 is 200":
      (n * dim(1, 0), n * 2),
    "bad size: overflow": (n * (1 << 62), n),
  }  # fmt: skip
  for message, sides in cases.items():
    plan = models.add_plan(equal=(*agree, Equal(*sides)))
    session = host_session(models, driver, plan)
    with pytest.raises(Exception, match=message):
      run(session, vectors)
    assert launches(session) == {"node0": 0}, message


def test_output_and_workspace_sizes_are_checked(models, vectors, driver):
  n = dim(0, 0)
  for size in (n - 101, n * (1 << 50)):
    session = host_session(models, driver, models.add_plan(outputs=(OutputSpec("f32", (size,)),)))
    with pytest.raises(Exception, match="bad dim 0 of output 0: out of range"):
      run(session, vectors)
    session = host_session(models, driver, models.add_plan(workspace=size), workspace=True)
    with pytest.raises(Exception, match="bad workspace size: out of range"):
      run(session, vectors)
  args = (WorkspacePtr(n + 1),)
  launch = Launch(0, "other", (const(1),) * 3, 1, args)
  plan = models.add_plan(workspace=n, variants=(Variant((launch,)),))
  session = host_session(models, driver, plan, workspace=True)
  with pytest.raises(Exception, match="offset outside of the workspace"):
    run(session, vectors)


def test_a_failing_launch_is_an_error_and_not_counted(models, vectors, driver, monkeypatch):
  session = host_session(models, driver, models.add_plan())
  monkeypatch.setenv("STANDIN_FAIL", "cuLaunchKernelEx")
  with pytest.raises(Exception, match=r"launch of standin_add failed: CUDA_ERROR_UNKNOWN \(999\)"):
    run(session, vectors)
  assert launches(session) == {"node0": 0}
  monkeypatch.delenv("STANDIN_FAIL")
  run(session, vectors)
  assert launches(session) == {"node0": 1}


# --- refusals while creating


def test_plans_that_do_not_fit_the_node_or_the_cubin(models, driver):
  args = models.add_plan().variants[0].launches[0].args
  cases = {
    "2 tensor inputs and 1 outputs, the plan 2 and 2": models.add_plan(workspace=const(1)),
    "cubin 0 has no kernel absent": replace_launch(models, kernel="absent"),
    "bundle: it has no cubin 1": replace_launch(models, cubin=1),
    "does not take 3 arguments": replace_launch(models, args=args[:3]),
    "does not take 5 arguments": replace_launch(models, args=(*args, args[0])),
    "argument 3 of kernel standin_add has 4 bytes, the plan passes 8": replace_launch(
      models, args=(*args[:3], Int64(dim(0, 0)))
    ),
    "plan line 1: expected 'plan 1'": "nonsense\n",
  }
  for message, plan in cases.items():
    with pytest.raises(Exception, match=rf"node 'node0' \(MuGraph_0\): .*{message}"):
      host_session(models, driver, plan)
  with pytest.raises(Exception, match="bundle: it has no plan 1"):
    host_session(models, driver, models.add_plan(), number=1)


@pytest.mark.parametrize("name", ["cuKernelSetAttribute", "cuKernelGetFunction"])
def test_driver_refusals_are_told(models, driver, monkeypatch, name):
  plan = replace_launch(models, smem_bytes=64 * 1024)
  monkeypatch.setenv("STANDIN_FAIL", name)
  with pytest.raises(Exception, match=r"CUDA_ERROR_UNKNOWN \(999\)"):
    host_session(models, driver, plan)
  monkeypatch.delenv("STANDIN_FAIL")
  host_session(models, driver, plan)  # what was refused is asked for again


def test_driver_without_parameter_info_still_works(models, vectors, old_driver):
  session = host_session(models, old_driver("STANDIN_OLD"), models.add_plan())
  np.testing.assert_array_equal(run(session, vectors), vectors["a"] + vectors["b"])


def test_the_bundle_must_be_a_constant(models, driver):
  model = onnx.load_from_string(models.add())
  model.graph.input.append(typed("bundle", onnx.TensorProto.UINT8, [None]))
  with pytest.raises(Exception, match="input 0 must be the bundle, a constant"):
    hosted(model.SerializeToString(), driver)
  model.graph.node[0].input[0] = ""
  with pytest.raises(Exception, match="input 0 must be the bundle, a constant"):
    hosted(model.SerializeToString(), driver)

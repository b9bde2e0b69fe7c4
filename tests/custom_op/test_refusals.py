"""What the op refuses, in onnxruntime: while running and while a session is created."""

from dataclasses import replace

import numpy as np
import onnx
import onnxruntime
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


def test_inputs_that_differ_from_the_plan(models, vectors, driver):
  plan = models.add_plan(inputs=(InputSpec("f32", (None,)), InputSpec("f32", (64,))))
  session = host_session(models, driver, plan)
  message = r"node 'node0' \(MuGraph_0\): input 2 has shape \[100\], the plan needs \[64\]"
  with pytest.raises(Exception, match=message):
    run(session, vectors)
  assert launches(session) == {"node0": 0}


def test_a_tensor_that_the_caller_bound_is_compared(models, vectors, driver):
  """onnxruntime takes a bound output of any type, as long as its shape is right."""
  session = host_session(models, driver, models.add_plan())
  small = onnxruntime.OrtValue.ortvalue_from_numpy(np.zeros(100, np.uint8))
  binding = session.io_binding()
  for name, x in vectors.items():
    binding.bind_cpu_input(name, x)
  binding.bind_ortvalue_output("c", small)
  with pytest.raises(Exception, match=r"output 0 was allocated as u8\[100\], the plan makes f32\[100\]|type"):
    session.run_with_iobinding(binding)
  assert not small.numpy().any()
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
  args = (WorkspacePtr(n + 1, const(0)),)
  launch = Launch(0, "other", (const(1),) * 3, 1, args)
  plan = models.add_plan(workspace=n, variants=(Variant((launch,)),))
  session = host_session(models, driver, plan, workspace=True)
  with pytest.raises(Exception, match="offset outside of the workspace"):
    run(session, vectors)


def test_more_memory_than_there_is_is_not_asked_for(models, vectors, driver):
  large = dim(0, 0) * (1 << 31)
  cases = {
    "outputs": {"outputs": (OutputSpec("f32", (large,)),)},
    "workspace": {"workspace": dim(0, 0) * (1 << 33)},
  }
  for what, fields in cases.items():
    session = host_session(models, driver, models.add_plan(**fields), workspace=what == "workspace")
    with pytest.raises(Exception, match=r"outputs and workspace take \d+ bytes of the \d+ that there are"):
      run(session, vectors)
    assert launches(session) == {"node0": 0}


def test_a_buffer_shorter_than_what_a_kernel_touches(models, vectors, driver, driver_log):
  """Every launch of a run is judged before the first: a copy that would do is not launched either."""
  n = dim(0, 0)
  out, a, b, count = models.add_plan().variants[0].launches[0].args
  good = Launch(0, "standin_copy", (const(1),) * 3, 1, (out, a, Int64(n * 4)))
  space = WorkspacePtr(n * 4, n * 4)
  cases = {
    "argument 0 of standin_add: the kernel takes 404 bytes of output 0, there are 400":
      (replace(out, bytes=n * 4 + 4), a, b, count),
    "argument 1 of standin_add: the kernel takes 401 bytes of input 1, there are 400":
      (out, replace(a, bytes=n * 4 + 1), b, count),
    "argument 2 of standin_add: the kernel takes 40000 bytes of input 2, there are 400":
      (out, a, replace(b, bytes=n * n * 4), count),
    "argument 2 of standin_add: the kernel takes 400 bytes of the workspace, there are 399":
      (out, a, replace(space, offset=n * 4 + 1), count),
    "argument 2 of standin_add: the kernel takes -4 bytes of input 2, there are 400":
      (out, a, replace(b, bytes=n - 104), count),
    "argument 2 of standin_add: overflow": (out, a, replace(b, bytes=n * (1 << 62)), count),
  }  # fmt: skip
  for message, args in cases.items():
    bad = Launch(0, "standin_add", (n.ceildiv(32), const(1), const(1)), 32, args)
    plan = models.add_plan(workspace=n * 8, variants=(Variant((good, bad)),))
    session = host_session(models, driver, plan, workspace=True)
    with pytest.raises(Exception, match=rf"node 'node0' \(MuGraph_0\): {message}"):
      run(session, vectors)
    assert launches(session) == {"node0": 0}
  assert not driver_log("launch")
  fits = Launch(0, "standin_add", (n.ceildiv(32), const(1), const(1)), 32, (out, a, b, count))
  plan = models.add_plan(workspace=n * 8, variants=(Variant((good, fits)),))
  session = host_session(models, driver, plan, workspace=True)
  np.testing.assert_array_equal(run(session, vectors), sum(vectors.values()))


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
    "cubin 0 has no kernel nowhere that says what it takes": replace_launch(models, kernel="nowhere"),
    "bundle: it has no cubin 1": replace_launch(models, cubin=1),
    "kernel standin_add does not take 3 arguments": replace_launch(models, args=args[:3]),
    "kernel standin_add does not take 5 arguments": replace_launch(models, args=(*args, args[0])),
    "argument 3 of kernel standin_add has 4 bytes, the plan passes 8": replace_launch(
      models, args=(*args[:3], Int64(dim(0, 0)))
    ),
    "plan line 1: expected 'plan 2'": "nonsense\n",
  }
  for message, plan in cases.items():
    with pytest.raises(Exception, match=rf"node 'node0' \(MuGraph_0\): .*{message}"):
      host_session(models, driver, plan)
  with pytest.raises(Exception, match="bundle: it has no plan 1"):
    host_session(models, driver, models.add_plan(), number=1)


def declared(model, name, **fields):
  """The model with another type of a value: ``elem_type``, or ``dims``."""
  (info,) = (v for v in (*model.graph.value_info, *model.graph.output, *model.graph.input) if v.name == name)
  tensor = info.type.tensor_type
  if "elem_type" in fields:
    tensor.elem_type = fields["elem_type"]
  if "dims" in fields:
    tensor.ClearField("shape")
    for size in fields["dims"]:
      tensor.shape.dim.add(dim_value=size)
  return model.SerializeToString()


def test_types_and_sizes_that_the_graph_declares(models, driver):
  f32, any_size = InputSpec("f32", (None,)), (dim(0, 0),)
  cases = {
    "input 2 is declared f32, the plan has f16": {"inputs": (f32, InputSpec("f16", (None,)))},
    "input 1 is declared with rank 1, the plan has rank 2": {"inputs": (InputSpec("f32", (None,) * 2), f32)},
    "output 0 is declared f32, the plan has f64": {"outputs": (OutputSpec("f64", any_size),)},
    "output 0 is declared f32, the plan has bool": {"outputs": (OutputSpec("bool", any_size),)},
    "output 0 is declared with rank 1, the plan has rank 2": {"outputs": (OutputSpec("f32", any_size * 2),)},
  }
  for message, fields in cases.items():
    with pytest.raises(Exception, match=rf"node 'node0' \(MuGraph_0\): {message}"):
      host_session(models, driver, models.add_plan(**fields))


def test_sizes_that_the_graph_declares(models, driver):
  n, plain = dim(0, 0), InputSpec("f32", (None,))

  def session(name, dims, **fields):
    bundle = models.bundle(models.add_plan(**fields))
    model = onnx.load_from_string(models.add(bundle, workspace="workspace" in fields))
    return hosted(declared(model, name, dims=dims), driver)

  with pytest.raises(Exception, match="dim 0 of input 1 is declared 100, the plan has 64"):
    session("a", [100], inputs=(InputSpec("f32", (64,)), plain))
  with pytest.raises(Exception, match="dim 0 of output 0 is declared 99, the plan has 100"):
    session("c", [99], inputs=(InputSpec("f32", (100,)), plain))
  with pytest.raises(Exception, match="dim 0 of the workspace, output 1 is declared 4, the plan has 200"):
    session("w0", [4], inputs=(InputSpec("f32", (100,)), plain), workspace=n * 2)
  session("w0", [200], inputs=(InputSpec("f32", (100,)), plain), workspace=n * 2)
  session("c", [99], inputs=(plain, plain))  # what cannot be told before the run is left to it


@pytest.mark.parametrize(
  ("elem_type", "said"), [(8, "type 8"), (21, "type 21"), (22, "type 22"), (1, "f32"), (3, "i8"), (9, "bool")]
)
def test_a_workspace_of_other_elements(models, driver, elem_type, said):
  bundle = models.bundle(models.add_plan(workspace=const(64)))
  model = onnx.load_from_string(models.add(bundle, workspace=True))
  message = f"the workspace, output 1 is declared {said}, the plan has u8"
  with pytest.raises(Exception, match=rf"node 'node0' \(MuGraph_0\): {message}"):
    hosted(declared(model, "w0", elem_type=elem_type), driver)


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

"""What ``--target local`` is: the present GPU with measured rates, or one line that says what is wrong.

A GPU with a measured row is that row, with the times of ONNX Runtime's operators that ``calibrate`` has
left, if it was run. Of every other one (a row from a data sheet, a part of a GPU, one
that has no row) the limits are its architecture's, which the driver confirms, and the rates are measured
on it, a minute once: they order what is tried, and what is chosen is timed.
"""

from __future__ import annotations

import os
from dataclasses import replace

from mirage_onnx.errors import MirageError
from mirage_onnx.nvrtc_choice import chosen
from mirage_onnx.target import Rated, Target
from mirage_onnx.tune.device import Gpu, PresentGpu, driver_api_version, present_gpu, present_gpus
from mirage_onnx.tune.machine import driver_version, gpu_alone, machine_of, present_machine
from mirage_onnx.tune.rates import Rates, keep_rates, kept_rates, measure_rates

#: Hides GPUs from every program that reads it: the driver does.
VISIBLE = "CUDA_VISIBLE_DEVICES"

#: Of what pure reads of L2 reach, the loads of our fastest kernel: 5.5 of 7.46 TB/s. Costs are fitted to
#: the former: with the latter those of 515 kernels on an H100 are further off (bench/results/notes.md).
L2_OF_KERNELS = 0.74


def local_target() -> Target:
  """The profile of the present GPU.

  Raises:
      MirageError: NO_GPU, DRIVER_TOO_OLD; SESSION_FAILED, onnxruntime does not run on it.
  """
  own = usable_profile()
  if own.rated is not Rated.MEASURED:
    return with_rates(own, rates_of(usable_gpu(), own))
  return with_kept_table(own)


def with_kept_table(target: Target) -> Target:
  """The present GPU's profile with the table that ``calibrate`` has left, if it was run."""
  machine = present_machine()
  kept = kept_rates(machine.text) if machine is not None else None
  return target if kept is None or kept.table is None else replace(target, table=kept.table.text())


def usable_profile() -> Target:
  """The same before anything is measured.

  Raises:
      MirageError: NO_GPU, DRIVER_TOO_OLD.
  """
  found = usable_gpu().target
  assert found is not None
  return found


def usable_gpu() -> PresentGpu:
  """Device 0, for which there are kernels, and a driver that takes them.

  Raises:
      MirageError: NO_GPU, DRIVER_TOO_OLD.
  """
  gpu = present_gpu()
  if gpu is None:
    raise MirageError("NO_GPU", no_gpu())
  if gpu.target is None:
    raise MirageError("NO_GPU", f"the GPU here is {gpu}, for which there are no kernels: {gpu.why_none}")
  serves, made_by = driver_api_version() // 1000, _nvrtc_major()
  if serves < made_by:
    why = f"the driver here serves CUDA {serves}, and NVRTC {made_by} compiles the kernels"
    raise MirageError(
      "DRIVER_TOO_OLD", f"{why}: pip install nvidia-cuda-nvrtc-cu{serves}" if serves == 12 else why
    )
  return gpu


def no_gpu() -> str:
  """Why there is none."""
  shown = os.environ.get(VISIBLE)
  hidden = f" ({VISIBLE} is {shown!r}, which may hide it)" if shown is not None else ""
  return f"there is no usable GPU here{hidden}"


def rates_of(gpu: PresentGpu, target: Target, *, again: bool = False) -> Rates:
  """The rates of the present GPU: what is kept of this GPU, driver and ONNX Runtime, or measured now."""
  machine = machine_of(gpu, driver_version(driver_api_version())).text
  rates = None if again else kept_rates(machine)
  if rates is None or rates.table is None:
    with gpu_alone():
      rates = measure_rates(Gpu(target))
    keep_rates(machine, rates)
  return rates


def with_rates(target: Target, rates: Rates) -> Target:
  """``target`` as it was measured; what an older file does not say is as in its row."""
  chip = rates.chip
  return replace(
    target,
    l2_tbps=round(L2_OF_KERNELS * chip.l2_tbps, 3) if chip is not None else target.l2_tbps,
    barrier_us=chip.barrier_us if chip is not None else target.barrier_us,
    table=rates.table.text() if rates.table is not None else "",
    launch_us=rates.launch_us,
    ramp_us=max(rates.ramp_us, 0.1),
    stream_tbps=rates.stream_tbps,
    mma_tflops=rates.mma_tflops,
    rated=Rated.MEASURED,
  )


def others_here() -> str:
  """What to know of a machine whose GPUs are of several kinds; empty where they are not."""
  gpus = present_gpus()
  kinds = {(g.name, g.capability, g.multiprocessors) for g in gpus}
  if len(kinds) < 2:
    return ""
  rest = "; ".join(f"{i} is {g}" for i, g in enumerate(gpus) if i)
  return f"kernels are chosen for GPU 0, {gpus[0]}, and {rest}: {VISIBLE} says which one is 0"


def unused_here() -> str:
  """Why a machine that has a GPU, or hides one, is not chosen for; empty where it has none."""
  gpu = present_gpu()
  if gpu is not None and gpu.target is None:
    return f"the GPU here is {gpu}, for which there are no kernels: {gpu.why_none}"
  return no_gpu() if gpu is None and VISIBLE in os.environ else ""


def _nvrtc_major() -> int:
  """Of the compiler that makes the kernels: an older driver loads nothing of a newer major version."""
  if (found := chosen()) is not None:
    return found.major
  from cuda.bindings import nvrtc

  return int(nvrtc.nvrtcVersion()[1])

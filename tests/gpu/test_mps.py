"""A part of a GPU that MPS gives a process: a GPU of that architecture and of fewer multiprocessors."""

import os
import shutil
import subprocess
import sys

import pytest

pytestmark = pytest.mark.gpu
CONTROL = "nvidia-cuda-mps-control"
SAYS = """
from mirage_onnx.tune.device import present_gpu
gpu = present_gpu()
print(gpu.multiprocessors, gpu.target.name)
"""


@pytest.fixture
def daemon(tmp_path):
  """The environment of a daemon of MPS of its own, ended again."""
  if shutil.which(CONTROL) is None:
    pytest.skip(f"{CONTROL} is not installed")
  env = {"CUDA_MPS_PIPE_DIRECTORY": str(tmp_path / "pipe"), "CUDA_MPS_LOG_DIRECTORY": str(tmp_path / "log")}
  for folder in env.values():
    os.mkdir(folder)
  first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
  env = {**os.environ, "CUDA_VISIBLE_DEVICES": first, **env}
  if subprocess.run([CONTROL, "-d"], env=env, check=False, timeout=30).returncode:
    pytest.skip("no daemon of MPS starts here")
  yield env | {"CUDA_VISIBLE_DEVICES": "0"}  # of those that the daemon has
  subprocess.run([CONTROL], input="quit\n", text=True, env=env, check=False, timeout=60)


def present(env, percent):
  """(multiprocessors, profile) of a process that has so much of the GPU."""
  own = {**env, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(percent)}
  ran = subprocess.run([sys.executable, "-c", SAYS], env=own, capture_output=True, text=True, timeout=120)
  assert ran.returncode == 0, ran.stderr
  count, name = ran.stdout.split()
  return int(count), name


def test_half_of_a_gpu_is_not_chosen_for_as_the_whole(daemon):
  whole, name = present(daemon, 100)
  half, part = present(daemon, 50)
  assert 0.4 * whole < half < 0.6 * whole
  assert part != name and part.endswith(f"x{half}")

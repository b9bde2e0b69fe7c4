"""A Ray cluster of two nodes on this machine, where Ray is installed."""

import os
from pathlib import Path

import pytest


@pytest.fixture
def cluster(monkeypatch):
  """Two nodes here, each of one core and what it takes for a GPU."""
  pytest.importorskip("ray")
  from ray.cluster_utils import Cluster

  here = Path(__file__).resolve()
  given = os.environ.get("PYTHONPATH", "")
  paths = os.pathsep.join((*given.split(os.pathsep), str(here.parents[2]), str(here.parent)))
  monkeypatch.setenv("PYTHONPATH", paths)
  monkeypatch.setenv("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
  made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "num_gpus": 1})
  made.second = made.add_node(num_cpus=1, num_gpus=1)
  monkeypatch.setenv("RAY_ADDRESS", made.address)
  yield made
  import ray

  ray.shutdown()
  made.shutdown()

"""Kernels that a Ray cluster compiles are those that are compiled here, also where nodes go away."""

import pickle
import time
from types import SimpleNamespace

import pytest
from ray_nodes import cluster  # noqa: F401  (a fixture)

from mirage_onnx import cluster_compiler, deadline
from mirage_onnx.cluster_compiler import ClusterCompiler, compiling_on
from mirage_onnx.compiler import compile as compiler
from mirage_onnx.errors import Rejection
from mirage_onnx.target import H200

TEXT = 'extern "C" __global__ void NAME(float* x) { x[threadIdx.x] *= 2.0f + SIZE; }'


def sources(count):
  texts = ((f"k{n}", TEXT.replace("NAME", f"k{n}").replace("SIZE", str(n))) for n in range(count))
  return [SimpleNamespace(name=name, text=text) for name, text in texts]


class Nodes:
  """Ray, as far as it is asked: tasks run when they are got; ``lost``, ``late``: numbers of some."""

  def __init__(self, lost=(), late=()):
    self.lost, self.late, self.tasks, self.cancelled = lost, late, [], []
    self.exceptions = SimpleNamespace(RayError=ConnectionError)

  def remote(self, **how):
    def made(function):
      def task(data):
        self.tasks.append((function, data))
        return len(self.tasks) - 1

      return SimpleNamespace(remote=task)

    return made

  def wait(self, asked, num_returns, timeout):
    assert num_returns == len(asked) and timeout >= 0
    return [a for a in asked if a not in self.late], [a for a in asked if a in self.late]

  def get(self, one):
    if one in self.lost:
      raise ConnectionError("the node is gone")
    function, data = self.tasks[one]
    return function(data)

  def cancel(self, one):
    self.cancelled.append(one)


@pytest.fixture(autouse=True)
def nothing_is_kept(monkeypatch):
  monkeypatch.setenv("MIRAGE_ONNX_CACHE", "off")


@pytest.fixture
def nodes(monkeypatch):
  def made(**how):
    found = Nodes(**how)
    monkeypatch.setattr(cluster_compiler, "connected", lambda workers: found)
    return found

  return made


def images(found):
  return [f if isinstance(f, Rejection) else f.image for f in found]


def test_what_nodes_compile_is_what_is_compiled_here(nodes):
  ray, some = nodes(lost=(1,), late=(3,)), [*sources(4), SimpleNamespace(name="bad", text="no kernel")]
  here = compiler.compile_many(some, H200, 2)
  assert isinstance(here[-1], Rejection) and here[-1].code == "COMPILE_FAILED"
  with compiling_on("auto"):
    there = compiler.compile_many(some, H200, 2)
  assert images(there) == images(here)
  assert len(ray.tasks) == 5 and ray.cancelled == [3]
  assert images(compiler.compile_many(some, H200, 2)) == images(here) and len(ray.tasks) == 5


def test_a_node_with_another_compiler_is_not_believed(nodes, monkeypatch):
  ray, jobs = nodes(), [(s.text, s.name) for s in sources(3)]
  assert all(ClusterCompiler("auto")(jobs, H200))
  asked = [pickle.loads(data) for _, data in ray.tasks]
  assert [a[:2] for a in asked] == jobs
  monkeypatch.setattr("mirage_onnx.compiler.compile.compiler_text", lambda: "another one")
  assert pickle.loads(cluster_compiler._there(ray.tasks[0][1])) is None


def test_few_are_compiled_here(nodes):
  ray, jobs = nodes(), [(s.text, s.name) for s in sources(2)]
  assert ClusterCompiler("auto")(jobs, H200) == [None, None] and not ray.tasks
  with compiling_on(8):  # a number names no cluster
    assert not compiler._elsewhere


def test_nobody_waits_longer_than_there_is_time(nodes):
  nodes(late=range(9))
  with deadline.until(time.monotonic() - 1), compiling_on("auto"):
    found = compiler.compile_many(sources(3), H200, 2)
  assert [f.code for f in found] == ["BUDGET"] * 3


@pytest.mark.slow
def test_two_nodes_of_which_one_is_killed(cluster):  # noqa: F811
  some = sources(12)
  here = compiler.compile_many(some, H200, 2)
  asked = ClusterCompiler("auto")
  with compiler.compiled_elsewhere(asked):
    first = compiler.compile_many(some[:4], H200, 2)
    cluster.remove_node(cluster.second, allow_graceful=False)
    rest = compiler.compile_many(some[4:], H200, 2)
  assert asked._ray is not None
  assert images([*first, *rest]) == images(here)
  again = asked([(s.text, s.name) for s in some], H200)
  assert sum(a is not None for a in again) == len(some), "the cluster has compiled them"

"""How many processor cores this process may use."""

import os


def available_cores() -> int:
  """At least 1.

  Those of the process's affinity where the system has one: ``taskset``, a batch system or a
  container's cpuset allow fewer than the machine has.
  """
  if hasattr(os, "sched_getaffinity"):
    return len(os.sched_getaffinity(0))
  return os.cpu_count() or 1

"""A stand-in for cuda.bindings.driver that shows GPUs that are not there."""

from types import SimpleNamespace

KB = 1024
#: name, compute capability, multiprocessors, the most shared memory of a block
H200 = ("NVIDIA H200", (9, 0), 132, 227 * KB)
H100 = ("NVIDIA H100 80GB HBM3", (9, 0), 132, 227 * KB)
PART = ("NVIDIA H100 80GB HBM3 MIG 3g.40gb", (9, 0), 60, 227 * KB)
RTX3060 = ("NVIDIA GeForce RTX 3060", (8, 6), 28, 99 * KB)
RTX4090 = ("NVIDIA GeForce RTX 4090", (8, 9), 128, 99 * KB)
T4 = ("Tesla T4", (7, 5), 40, 64 * KB)


def driver(*gpus, code=0, api=13000, more=None):
  """What the driver says of ``gpus``; ``code``: what it begins with, ``api``: the CUDA version it serves.

  ``more``: further attributes of all of them by name; others it does not know.
  """
  attributes = SimpleNamespace(
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR=0,
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR=1,
    CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT=2,
    CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN=3,
  )
  more = dict(enumerate((more or {}).items(), start=4))
  for number, (name, _) in more.items():
    setattr(attributes, f"CU_DEVICE_ATTRIBUTE_{name}", number)
  further = tuple(value for _, value in more.values())
  values = [(*capability, multiprocessors, smem, *further) for _, capability, multiprocessors, smem in gpus]
  names = [name.encode() for name, *_ in gpus]
  return SimpleNamespace(
    CUdevice_attribute=attributes,
    cuInit=lambda flags: (code,),
    cuDeviceGetCount=lambda: (0, len(gpus)),
    cuDeviceGet=lambda i: (0, i),
    cuDeviceGetAttribute=lambda a, d: (0, values[d][a]),
    cuDeviceGetName=lambda size, d: (0, names[d] + bytes(size - len(names[d]))),
    cuDriverGetVersion=lambda: (0, api),
  )

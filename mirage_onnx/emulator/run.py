"""Compiles generated kernels for the host and runs them on numpy arrays.

The text of a kernel is what NVRTC compiles; here g++ compiles it against the host twin of
``ptx.cuh`` (``host/ptx.cuh``), in which a CUDA thread is a fiber (``host/fiber.h``).

Modelled: every function of ``ptx.cuh`` with the device's results (conversions bit for bit; the
order of additions inside an mma is not the hardware's); warp collectives, block and cluster
barriers, DSMEM; shared memory that starts, and after the block's exit ends, as NaN; bounds,
alignment and constness of every global access through ``ptx``; deadlocks, lanes that meet in
different collectives, traps, stack overflow, endless loops; plain stores around a tensor or beyond
shared memory.

Not modelled: races (a missing barrier is noticed only where the order of threads matters: run with
both values of ``order``), bounds of plain C++ accesses inside the zones, the overlap of kernels
under programmatic dependent launch, memory ordering, bank conflicts, timing.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import re
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import numpy as np
import platformdirs

from mirage_onnx.codegen.source import KernelSource
from mirage_onnx.errors import MirageError

_PACKAGE = Path(__file__).resolve().parent
INCLUDE_DIRS: tuple[Path, ...] = (_PACKAGE / "host", _PACKAGE.parent / "codegen" / "device")
"""The twin of a device header has the same file name and comes first."""

_FLAGS = (
    "-O1",
    "-std=c++17",
    "-fPIC",
    "-shared",
    "-w",
    "-fno-strict-aliasing",  # generated text views shared memory as different types
    "-fno-delete-null-pointer-checks",  # so that a store to null is a fault, not nothing
    "-ffp-contract=off",  # one result on every host, with or without FMA
    "-fno-math-errno",
    "-fno-exceptions",
    "-fno-rtti",
    "-fno-stack-protector",
    "-fstack-clash-protection",  # a large frame must not step over the guard page
    "-fno-gnu-unique",  # modules must not share the runtime's state
    "-fvisibility=hidden",
    "-U_FORTIFY_SOURCE",  # its longjmp check does not know other stacks
    "-U__CUDA_ARCH__",
)

Order = Literal["ascending", "descending"]


class EmulationError(Exception):
    """The kernel did something that the device would not define, or its text does not compile."""


class _Range(ctypes.Structure):
    _fields_ = (
        ("lo", ctypes.c_void_p),
        ("hi", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("writable", ctypes.c_int),
    )


class _Launch(ctypes.Structure):
    _fields_ = (
        ("grid", ctypes.c_int * 3),
        ("block", ctypes.c_int * 3),
        ("cluster", ctypes.c_int * 3),
        ("smem_bytes", ctypes.c_int),
        ("timeout_s", ctypes.c_int),
        ("order", ctypes.c_int),
        ("ranges", ctypes.c_int),
        ("range", ctypes.POINTER(_Range)),
        ("args", ctypes.POINTER(ctypes.c_void_p)),
    )


#: Signal handlers and the interval timer belong to the process: one launch at a time.
_LOCK = threading.Lock()

_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"[ \t]*$', re.MULTILINE)
_KERNEL = re.compile(
    r"\bPTX_(?:KERNEL\s*\(\s*(\d+)|CLUSTER_KERNEL\s*\(\s*(\d+)\s*,\s*(\d+))\s*\)\s*(\w+)\s*\("
)


def _check_launch(kernel: KernelSource) -> None:
    """The launch configuration must be the one that the text is compiled for."""
    for threads, cluster_threads, cluster, name in _KERNEL.findall(kernel.text):
        if name != kernel.name:
            continue
        compiled = (int(threads or cluster_threads), int(cluster or 1))
        if compiled != (kernel.block, kernel.cluster):
            raise EmulationError(
                f"kernel {name}: launched with {kernel.block} threads in clusters of "
                f"{kernel.cluster}, compiled for {compiled[0]} in clusters of {compiled[1]}"
            )
        return
    raise EmulationError(f"kernel {kernel.name}: the text defines no PTX_KERNEL of this name")


def _unit(kernels: Sequence[KernelSource]) -> str:
    """One translation unit of several kernels.

    Each text gets a namespace, so that helper functions of the same name do not collide; the
    headers are included before, outside of them. Line numbers in messages are those of the text.
    """
    headers: dict[str, None] = {"ptx.cuh": None}
    bodies: list[str] = []
    for i, kernel in enumerate(kernels):
        headers.update(dict.fromkeys(_INCLUDE.findall(kernel.text)))
        body = _INCLUDE.sub("", kernel.text)  # leaves the line, so that numbers stay
        bodies.append(f'namespace kernel_{i} {{\n#line 1 "{kernel.name}.cu"\n{body}\n}}')
    entries = ", ".join(
        f'emu::entry<&kernel_{i}::{k.name}>("{k.name}")' for i, k in enumerate(kernels)
    )
    return "\n".join(
        [f'#include "{h}"' for h in headers] + bodies + ['#line 1 "entries"', _EXPORTS % entries]
    )


_EXPORTS = """
static const emu::Entry emu_entries[] = {%s};
#define EMU_EXPORT extern "C" __attribute__((visibility("default")))
EMU_EXPORT int emu_launch(int kernel, const emu::Launch* launch, char* message,
                          unsigned long size) {
  return emu::launch(emu_entries[kernel], *launch, message, size);
}
EMU_EXPORT int emu_arity(int kernel) { return emu_entries[kernel].arity; }
EMU_EXPORT unsigned long long emu_const_mask(int kernel) { return emu_entries[kernel].const_mask; }
EMU_EXPORT void* emu_map(unsigned long bytes) { return emu::tensor_map(bytes); }
EMU_EXPORT void emu_unmap(void* p, unsigned long bytes) {
  emu::tensor_unmap(static_cast<char*>(p), bytes);
}
EMU_EXPORT long emu_damage(const void* p, unsigned long bytes) {
  return emu::tensor_damage(static_cast<const char*>(p), bytes);
}
"""


@functools.cache
def _compiler() -> tuple[str, str]:
    """The compiler and what it says about itself (part of the cache key)."""
    command = os.environ.get("CXX", "g++")
    try:
        done = subprocess.run([command, "--version"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise MirageError(
            "HOST_COMPILER_MISSING", f"{command} could not be run, which emulation needs: {error}"
        ) from error
    return command, done.stdout.splitlines()[0]


def _header(name: str) -> bytes:
    for folder in INCLUDE_DIRS:
        path = folder / name
        if path.is_file():
            return path.read_bytes()
    raise EmulationError(f'#include "{name}": no such device header')


def _closure(unit: str) -> list[bytes]:
    """The contents of every header that the unit includes, directly or not."""
    seen: dict[str, bytes] = {}
    todo = _INCLUDE.findall(unit)
    while todo:
        name = todo.pop()
        if name not in seen:
            seen[name] = _header(name)
            todo += _INCLUDE.findall(seen[name].decode())
    return [seen[name] for name in sorted(seen)]


def _cache_dir() -> Path:
    return Path(platformdirs.user_cache_dir("mirage-onnx")) / "emulator"


def _build(unit: str) -> Path:
    """The shared library of a translation unit, from the cache if it was compiled before."""
    command, version = _compiler()
    digest = hashlib.sha256()
    for part in (unit, version, platform.machine(), *_FLAGS):
        digest.update(part.encode() + b"\0")
    for content in _closure(unit):
        digest.update(content + b"\0")
    library = _cache_dir() / f"{digest.hexdigest()}.so"
    if library.exists():
        return library
    library.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        built = Path(folder) / "kernel.so"
        include = [f"-I{folder}" for folder in INCLUDE_DIRS]
        done = subprocess.run(
            [command, *_FLAGS, *include, "-x", "c++", "-", "-o", str(built), "-lm"],
            input=unit,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            lines = done.stderr.splitlines()
            errors = [line for line in lines if "error" in line] or lines
            raise EmulationError("the text does not compile:\n" + "\n".join(errors[:12]))
        os.replace(built, library)  # atomic: another process sees all of it or nothing
    return library


class _Tensors:
    """Copies of the arrays between guard pages, in the memory of one library."""

    def __init__(self, library: ctypes.CDLL, arrays: Mapping[str, np.ndarray]) -> None:
        self._library = library
        self._arrays = arrays
        self._homes: dict[tuple[int, int], int] = {}  # two names of one array share one copy
        self.address: dict[str, int] = {}
        for name, array in arrays.items():
            if not array.flags.c_contiguous:
                raise EmulationError(f"tensor '{name}' is not contiguous")
            key = (array.ctypes.data, array.nbytes)
            if key not in self._homes:
                home = library.emu_map(array.nbytes)
                if not home:
                    raise MemoryError(f"no memory for tensor '{name}'")
                ctypes.memmove(home, array.ctypes.data, array.nbytes)
                self._homes[key] = home
            self.address[name] = self._homes[key]

    def ranges(self, writable: set[str]) -> list[_Range]:
        addresses = {self.address[name] for name in writable}
        return [
            _Range(at, at + self._arrays[n].nbytes, n.encode(), at in addresses)
            for n, at in self.address.items()
        ]

    def check(self, kernel: str) -> None:
        for name, at in self.address.items():
            size = self._arrays[name].nbytes
            byte = self._library.emu_damage(at, size)
            if byte:
                raise EmulationError(
                    f"kernel {kernel}: a plain store wrote outside tensor '{name}', "
                    f"at its byte {byte} of {size}"
                )

    def write_back(self) -> None:
        for name, array in self._arrays.items():
            home = self.address[name]
            if array.flags.writeable:
                ctypes.memmove(array.ctypes.data, home, array.nbytes)
            elif ctypes.string_at(home, array.nbytes) != array.tobytes():
                raise EmulationError(f"a plain store wrote to the read-only tensor '{name}'")

    def free(self) -> None:
        for (_, size), home in self._homes.items():
            self._library.emu_unmap(home, size)


class Module:
    """Kernels that were compiled together; ``run`` executes one or all of them."""

    def __init__(self, kernels: Sequence[KernelSource]) -> None:
        for kernel in kernels:
            _check_launch(kernel)
        self.kernels = tuple(kernels)
        self._library = ctypes.CDLL(str(_build(_unit(self.kernels))))
        self._library.emu_map.restype = ctypes.c_void_p
        self._library.emu_map.argtypes = (ctypes.c_ulong,)
        self._library.emu_unmap.argtypes = (ctypes.c_void_p, ctypes.c_ulong)
        self._library.emu_damage.restype = ctypes.c_long
        self._library.emu_damage.argtypes = (ctypes.c_void_p, ctypes.c_ulong)
        self._library.emu_const_mask.restype = ctypes.c_ulonglong
        self._library.emu_launch.argtypes = (
            ctypes.c_int,
            ctypes.POINTER(_Launch),
            ctypes.c_char_p,
            ctypes.c_ulong,
        )

    def run(
        self,
        tensors: Mapping[str, np.ndarray],
        kernels: Sequence[int] | None = None,
        *,
        order: Order = "ascending",
        timeout_s: int = 60,
    ) -> None:
        """Runs ``kernels`` (indices; default: all) one after the other on the same tensors.

        ``tensors`` holds an array for every name in the kernels' ``args``; what they wrote is in
        the arrays afterwards, also when an error is raised. Threads start in ``order``: a kernel
        without races gives the same result for both.
        """
        chosen = range(len(self.kernels)) if kernels is None else kernels
        names = dict.fromkeys(n for i in chosen for n in self.kernels[i].args)
        missing = [n for n in names if n not in tensors]
        if missing:
            raise EmulationError(f"no tensor for the kernel arguments {', '.join(missing)}")
        with _LOCK, self._placed({n: tensors[n] for n in names}) as placed:
            for i in chosen:
                self._launch(i, tensors, placed, order, timeout_s)
                placed.check(self.kernels[i].name)

    @contextmanager
    def _placed(self, arrays: Mapping[str, np.ndarray]) -> Iterator[_Tensors]:
        placed = _Tensors(self._library, arrays)
        try:
            try:
                yield placed
            finally:
                placed.write_back()
        finally:
            placed.free()

    def _launch(
        self,
        index: int,
        tensors: Mapping[str, np.ndarray],
        placed: _Tensors,
        order: Order,
        timeout_s: int,
    ) -> None:
        kernel = self.kernels[index]
        args = list(kernel.args)
        arity = self._library.emu_arity(index)
        if arity != len(args):
            raise EmulationError(
                f"kernel {kernel.name}: {len(args)} arguments for {arity} parameters"
            )
        const = self._library.emu_const_mask(index)
        writable = {
            n for i, n in enumerate(args) if not const >> i & 1 and tensors[n].flags.writeable
        }
        # Only what this kernel was given: a pointer to anything else is out of bounds.
        ranges = [r for r in placed.ranges(writable) if r.name.decode() in args]
        values = [ctypes.c_void_p(placed.address[n]) for n in args]
        pointers = (ctypes.c_void_p * len(args))(*(ctypes.addressof(v) for v in values))
        launch = _Launch(
            (ctypes.c_int * 3)(*kernel.grid),
            (ctypes.c_int * 3)(kernel.block, 1, 1),
            (ctypes.c_int * 3)(kernel.cluster, 1, 1),
            kernel.smem_bytes,
            timeout_s,
            int(order == "descending"),
            len(ranges),
            (_Range * len(ranges))(*ranges),
            pointers,
        )
        message = ctypes.create_string_buffer(4096)
        if self._library.emu_launch(index, ctypes.byref(launch), message, len(message)):
            raise EmulationError(message.value.decode(errors="replace"))


def compile_kernels(sources: Sequence[KernelSource]) -> Module:
    """Compiles several kernels as one translation unit, which costs little more than one."""
    return Module(sources)


def run_kernels(
    sources: Sequence[KernelSource],
    tensors: Mapping[str, np.ndarray],
    *,
    order: Order = "ascending",
) -> None:
    """Runs kernels one after the other on the same tensors; outputs are written in place."""
    compile_kernels(sources).run(tensors, order=order)


def run_kernel(
    source: KernelSource, tensors: Mapping[str, np.ndarray], *, order: Order = "ascending"
) -> None:
    """Compiles and runs one kernel; outputs are written in place."""
    run_kernels([source], tensors, order=order)

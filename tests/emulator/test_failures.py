"""Kernels that must fail, with what the message must say."""

from __future__ import annotations

import re

import numpy as np
import pytest

from mirage_onnx.emulator import EmulationError
from tests.emulator.kernels import FIRST_OF_TWO, Run, kernel, normal

KERNELS = [FIRST_OF_TWO]
FAILURES: dict[str, str] = {}


def failing(
    name: str,
    body: str,
    message: str,
    *,
    block: int = 64,
    cluster: int = 1,
    smem: int = 256,
    grid: tuple[int, int, int] = (2, 1, 1),
    x_type: str = "const float*",
) -> None:
    macro = f"PTX_CLUSTER_KERNEL({block}, {cluster})" if cluster > 1 else f"PTX_KERNEL({block})"
    KERNELS.append(
        kernel(
            name,
            f"{macro} {name}({x_type} x, float* y) {{ {body} }}",
            "x y",
            grid=grid,
            block=block,
            cluster=cluster,
            smem=smem,
        )
    )
    FAILURES[name] = message


failing(
    "deadlock_barrier",
    "if (ptx::warp() == 0) ptx::sync_block();",
    r"deadlock in kernel deadlock_barrier: block \(0,0,0\) threads 0-31 wait at sync_block "
    r"\(32 of 64 arrived\); block \(0,0,0\) threads 32-63 exited",
)
failing(
    "deadlock_shuffle",
    "if (ptx::lane() != 9) ptx::shfl_xor(1.0f, 1); else ptx::sync_block();",
    r"thread 9 waits at sync_block.*; .*threads 10-31 wait at shfl_xor \(31 of 32 lanes arrived\)",
)
failing(
    "diverged",
    "if (ptx::lane() == 3) ptx::sync_warp(); else ptx::shfl(1.0f, 1);",
    r"block \(0,0,0\), thread (3|35): diverged warp: this lane is at sync_warp .* waits at shfl",
)
failing(
    "deadlock_cluster",
    "if (ptx::cluster_rank() == 0 && ptx::warp()) ptx::sync_block(); else ptx::cluster_sync();",
    r"threads 32-63 wait at sync_block.*block \(1,0,0\) threads 0-63 wait at cluster_wait "
    r"\(32 threads missing\)",
    cluster=2,
)
failing("cluster_misuse", "ptx::cluster_wait();", "cluster_wait without cluster_arrive")
failing(
    "oob_read",
    "ptx::ld_nc_f32(x + 64 + (ptx::block_x() * 64 + ptx::thread() == 67 ? 0 : -1));",
    r"block \(1,0,0\), thread 3: out-of-bounds read of 4 bytes at 0x\w+: byte 256 of tensor 'x', "
    "which has 256",
)
failing(
    "oob_write",
    "if (ptx::thread() == 5) ptx::st_v4(y - 4, {1, 2, 3, 4});",
    "thread 5: out-of-bounds write of 16 bytes at .* byte -16 of tensor 'y'",
)
failing("oob_vector", "ptx::ld_v4(y + 126 - 2);  ptx::ld_v2(y + 128);", "byte 512 of tensor 'y'")
failing(
    "write_to_const",
    "ptx::st_f32(const_cast<float*>(x), 0.0f);",
    "write of 4 bytes .* read-only tensor 'x'",
)
failing("misaligned", "ptx::ld_v4(x + 1);", "misaligned global read of 16 bytes")
failing("misaligned_write", "ptx::st_v2(y + 1, {0, 0});", "misaligned global write of 8 bytes")
failing(
    "dsmem_rank",
    "ptx::cluster_sync(); ptx::dsmem_ld(ptx::smem<float>(), 2); ptx::cluster_sync();",
    "cluster rank 2 in a cluster of 2",
    cluster=2,
)
failing(
    "dsmem_bounds",
    "ptx::dsmem_ld(ptx::smem<float>() + 64, 0);",
    "out-of-bounds shared read of 4 bytes at byte 256 of 256",
    cluster=2,
)
failing(
    "dsmem_exited",
    "if (ptx::cluster_rank()) { ptx::sync_block(); ptx::dsmem_ld(ptx::smem<float>(), 0); }",
    "read of the shared memory of block 0, which has exited",
    cluster=2,
)
failing(
    "plain_store_after",
    "if (ptx::thread() == 0) y[130] = 1.0f;",
    "plain store wrote outside tensor 'y', at its byte 520 of 512",
)
failing("plain_store_far", "y[5000] = 1.0f;", "wild access .* byte 20000 of tensor 'y', which has")
failing("null", "float* volatile p = nullptr; *p = 1.0f;", r"thread (0|63): wild access at 0x0$")
failing(
    "misaligned_smem",
    "ptx::U4* s = ptx::smem<ptx::U4>(); ptx::smem<ptx::U4>()[1] = ptx::ld_v4(x);"
    " ptx::st_v4(y, *reinterpret_cast<ptx::U4*>(ptx::smem<float>() + 1));",
    "misaligned 16-byte access",
)
failing(
    "smem_far",
    "ptx::smem<float>()[1024] = 1.0f;",
    "wild access at .* byte 4096 of the 256 of shared memory",
)
failing(
    "smem_near", "ptx::smem<float>()[64] = 1.0f;", r"shared memory was written at byte 25\d of 256"
)
failing(
    "division",
    "volatile int zero = 0; y[0] = ptx::thread() / zero;",
    r"arithmetic fault \(integer division by zero\)",
)
failing("trap", "if (ptx::thread() == 7) __builtin_trap();", "thread 7: trap")
failing(
    "stack",
    "volatile char much[1 << 17]; for (int i = (1 << 17) - 1; i >= 0; i -= 64) much[i] = 0;"
    " y[0] = much[ptx::thread()];",
    "stack of 65536 bytes is full",
)
failing(
    "endless", 'while (true) { asm volatile(""); }', "thread (0|63): no end after 1 s of CPU time"
)


@pytest.mark.parametrize("name", list(FAILURES))
def test_errors_come_back_as_exceptions(run: Run, name: str) -> None:
    x, y = normal(64), np.zeros(128, np.float32)
    with pytest.raises(EmulationError) as caught:
        run(name, x=x, y=y)
    assert re.search(FAILURES[name], str(caught.value)), caught.value
    # The module still works after an error.
    t = np.zeros(32, np.float32)
    run("first_of_two", x=x[:32].copy(), t=t)
    np.testing.assert_array_equal(t, x[:32] * 2)

"""torch's normal numbers in numpy: weights that torch drew are made again without it.

``torch.randn(..., generator=torch.Generator().manual_seed(seed))`` on the CPU fills a float32
tensor of 16 numbers or more from a Mersenne twister: 24 random bits each make uniform numbers, and
Box-Muller turns each 16 of them into 16 normal ones.
"""

import numpy as np

#: torch draws smaller tensors, and the end of one that is no multiple of this, in another way.
BLOCK = 16
_HALF = BLOCK // 2


class Normal:
    """The normal numbers that a torch generator with this seed gives one after the other."""

    def __init__(self, seed):
        self._twister = np.random.RandomState(seed)

    def draw(self, count):
        """What ``torch.randn(count, generator=...)`` gives, float32[count].

        Raises:
            ValueError: ``count`` is no multiple of ``BLOCK``.
        """
        if count % BLOCK:
            raise ValueError(f"{count} numbers are no multiple of {BLOCK}")
        bits = np.frombuffer(self._twister.bytes(4 * count), "<u4") & 0xFFFFFF
        uniform = bits.astype(np.float32) * np.float32(2.0**-24)
        first, second = uniform.reshape(-1, 2, _HALF).transpose(1, 0, 2)
        # In float64 and rounded after each step: numpy's float32 functions differ between CPUs.
        radius = _rounded(np.sqrt(-2.0 * _rounded(np.log(1.0 - first.astype(np.float64)))))
        angle = (np.float32(2.0 * np.pi) * second).astype(np.float64)
        turned = np.stack([_rounded(np.cos(angle)), _rounded(np.sin(angle))], axis=1)
        return (radius[:, None] * turned).reshape(-1)


def _rounded(values):
    return values.astype(np.float32)

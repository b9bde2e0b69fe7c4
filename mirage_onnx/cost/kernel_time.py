"""What a kernel takes, from what its threads do: one formula for every thread graph.

    time    = start + (body^4 + begun^4)^1/4
    body    = (memory^p + l2^p + units^p + waiting^p)^1/p
    units   = of the fullest multiprocessor: instructions, shared memory, tensor cores: whichever is longest
    waiting = of a block, as often as blocks come one behind the other: its instructions, trips to memory that
              nothing hides, barriers, iterations
    begun   = what all blocks take to be started

The counts (``counts.py``) are of the steps that the text is written from; the rates are the target's. The
weights say what generated code makes of them, and are fitted: ``bench/fit_costs.py`` finds them to a
record of ``bench/kernel_times.py``, where kernels of all kinds were timed in a row of a CUDA graph, cold.
"""

#: Bytes that tensor cores take to no less than (operations of m16n8k16).
_OPERATIONS = 2 * 16 * 8 * 16

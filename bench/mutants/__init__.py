"""Faults planted in the stages of ``optimize``, and what becomes of them (``bench/pipeline_mutants.py``)."""

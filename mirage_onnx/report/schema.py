"""The JSON report of ``optimize``, as types: the object that ``--json`` prints.

Every field is always there, null where its value is unknown, except those with a default here.
A change that a reader of version 1 would trip over raises ``SCHEMA``.
"""

from __future__ import annotations

import inspect
from typing import Any, Literal

import msgspec

SCHEMA = 1


class _Struct(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Frozen, keyword-only, and an unknown field is an error."""


class Search(_Struct, frozen=True):
    """How the candidates of a region were found.

    ``verified``: candidates that passed the proof. ``stop``: EXHAUSTED, BUDGET, STATE_LIMIT or
    INTERRUPTED.
    """

    seconds: float | None
    states: int | None
    verified: int | None
    stop: str | None


class Proof(_Struct, frozen=True):
    """Random tests in finite fields: number of draws, bound of the false-accept probability."""

    draws: int | None
    bound: float | None


class RegionReport(_Struct, frozen=True):
    """One distinct region; ``count`` instances of the model are identical to it.

    ``ops``: names of the ONNX nodes of its first instance. ``reason``: a code of docs/errors.md,
    ``reason_text`` its sentence. Times are of one instance.
    """

    id: str
    ops: list[str]
    count: int
    status: Literal["replaced", "kept"]
    reason: str | None
    choice: Literal["measured", "predicted"] | None
    ugraph: str | None
    predicted_us: float | None
    measured_us: float | None
    baseline_us: float | None
    search: Search | None
    proof: Proof | None
    reason_text: str | None = None


class Report(_Struct, frozen=True):
    """One run of ``optimize``.

    ``barriers``: refusal code -> number of nodes that no region can hold. ``constants``: tensor
    name -> exact value that it was read as.
    """

    schema: Literal[1]
    input: str | None
    output: str | None
    target: str | None
    seconds: float | None
    regions: list[RegionReport]
    barriers: dict[str, int] = {}
    constants: dict[str, str] = {}


def check_report(report: dict[str, Any]) -> Report:
    """Read a report, strictly.

    Raises:
        msgspec.ValidationError: a field is missing, unknown or of another type.
    """
    return msgspec.convert(report, Report, strict=True)


def json_schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) of the report."""
    found = msgspec.json.schema(Report)
    for definition in found["$defs"].values():
        definition["description"] = inspect.cleandoc(definition["description"])
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **found}

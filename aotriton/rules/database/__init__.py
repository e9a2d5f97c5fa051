"""The tuning database: the decisions, which code generation reads, and the evidence beside them, which the tuner needs.

``tuning_database.sqlite3`` has the decisions: winners, cost models, certificates, and those timings and facts of images
that code generation asks for. ``tuning_database.evidence/`` has what was measured, a compressed file for each run.
``TuningDatabase`` unpacks them into a local file, which git ignores. Every line of SQL of the project is in this
folder, except those of ``rules/dump.py``, which git runs with any Python.
"""

from aotriton.rules.database.decisions import Decisions
from aotriton.rules.database.evidence import Evidence
from aotriton.rules.database.rows import (
    PHASES,
    PROVENANCES,
    STATUSES,
    Certificate,
    Measurement,
    Median,
    Model,
    Outcome,
    Product,
    Sample,
    Searched,
    SequenceTiming,
    Session,
    Winner,
    counting,
    latest_medians,
    timings_of,
)
from aotriton.rules.database.sqlite_file import TuningDatabaseError, foreign_tables
from aotriton.rules.database.tuning_database import TuningDatabase, decisions

__all__ = [
    "PHASES",
    "PROVENANCES",
    "STATUSES",
    "Certificate",
    "Decisions",
    "Evidence",
    "Measurement",
    "Median",
    "Model",
    "Outcome",
    "Product",
    "Sample",
    "Searched",
    "SequenceTiming",
    "Session",
    "TuningDatabase",
    "TuningDatabaseError",
    "Winner",
    "counting",
    "decisions",
    "foreign_tables",
    "latest_medians",
    "timings_of",
]

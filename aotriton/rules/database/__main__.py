"""Unpacks the evidence of a tuning database, and migrates an older one; says what is there.

python3 -m aotriton.rules.database rules/tuning_database.sqlite3
"""

import sys
from pathlib import Path

from aotriton.rules.database import TuningDatabase, TuningDatabaseError


def main(arguments: list[str]) -> int:
    if len(arguments) != 1 or not Path(arguments[0]).exists():
        print("usage: python3 -m aotriton.rules.database FILE", file=sys.stderr)
        return 2
    try:
        with TuningDatabase(arguments[0]) as database:
            measured, stale = database.measured(), database.stale()
            print(f"{database.path}: {len(database.winners())} winners, {len(database.models())} models")
            print(
                f"{database.evidence.path}: {len(database.evidence.sessions())} sessions, {measured} measurements,"
                f" {stale} of them stale: of images that the source of today no longer makes"
            )
    except TuningDatabaseError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

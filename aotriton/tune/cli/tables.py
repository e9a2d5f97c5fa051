"""The database for others and from others: exported and imported tables, AOTriton's winners, and the report."""

from __future__ import annotations

from pathlib import Path

from aotriton.codegen.compile import ImageStore
from aotriton.rules.arch import ARCHS
from aotriton.rules.database import TuningDatabase
from aotriton.rules.family import families
from aotriton.tune.cli.decisions import UNTRUSTED
from aotriton.tune.cli.invocation import Invocation, make_folder, require_triton
from aotriton.tune.cli.origin import origin
from aotriton.tune.dataset.signature import sign
from aotriton.tune.dataset.tables import export, take_in
from aotriton.tune.problem.tuning_error import TuningError
from aotriton.tune.winners.audit import MENDED_BY, audit


def write_report(call: Invocation) -> int:
    """Writes the report about all families that share the database."""
    from aotriton.tune.dataset.report import report

    options = call.options
    sharing = [one for one in families() if one.in_tree] if call.family.in_tree else [call.family]
    operators = [operator for one in sharing for operator in one.operators]
    try:
        report(options.database, operators, options.report, options.since)
    except OSError as error:
        raise TuningError(f"{options.report}: {error.strerror or error}") from error
    print(f"{options.report} is written: open it in a browser")
    return 0


def audit_database(call: Invocation) -> int:
    """Prints what is wrong with the database, a line for each winner or model. Returns 1 where there is anything."""
    with TuningDatabase(call.options.database, readonly=True) as database:
        found = audit(database)
        rows = len(database.winners()) + len(database.models())
    for one in found:
        print(one)
    for kind, mended in MENDED_BY.items():
        if count := sum(one.kind == kind for one in found):
            print(f"{count} {kind}: {mended}")
    print(f"{call.options.database}: {len(found)} of {rows} winners and models are not as they should be")
    return 1 if found else 0


def export_tables(call: Invocation) -> int:
    out = call.options.export
    try:
        written = export(call.options.database, out)
    except OSError as error:
        raise TuningError(f"{out}: {error.strerror or error}") from error
    print(f"{out}: {', '.join(f'{rows} rows of {table}' for table, rows in written.items())}")
    if call.options.sign:
        print(f"{sign(out, call.options.sign)} is its signature")
    return 0


def sign_database(call: Invocation) -> int:
    """Signs the database with its archive, so that others may merge it and know whose it is."""
    TuningDatabase(call.options.database).close()  # what was measured is packed
    print(f"{sign(call.options.database, call.options.key)} is its signature: hand it out with the other files")
    return 0


def import_tables(call: Invocation) -> int:
    """Imports what ``export`` wrote, or winners where the path is a database that AOTriton publishes."""
    make_folder(call.options.database)
    if _is_sqlite(call.options.take_in):
        return _import_published(call)
    with TuningDatabase(call.options.database) as database, origin(call, call.options.take_in) as of:
        taken = take_in(of.path, database, of.own, of.signer, call.options.take_in)
    then = "--decide chooses winners anew with them, --fit fits cost models anew" if of.trusted else UNTRUSTED
    print(f"{taken} timings were new. {then}")
    return 0


def _is_sqlite(path: Path) -> bool:
    return path.is_file() and path.open("rb").read(16) == b"SQLite format 3\0"


def _import_published(call: Invocation) -> int:
    """Imports the winners of the functionals that were asked for, on all archs."""
    from aotriton.tune.dataset import published

    require_triton()
    options = call.options
    archs = [options.arch] if options.arch else [row.arch for row in ARCHS]
    found = published.read(options.take_in, call.family, [one for arch in archs for one in call.functionals(arch)])
    over = ("predicted",) if options.over_predicted else ()
    with TuningDatabase(options.database) as database:
        written = published.put(database, found, ImageStore(), options.jobs, over)
    for what, counts in (("rows", found.left), ("winners", found.dropped)):
        for reason, count in counts.most_common():
            print(f"left {count} {what}: {reason}")
    print(f"{found.rows} rows can be said in our words: {len(found.winners)} winners, of which {written} were written")
    return 0


def repack(call: Invocation) -> int:
    """Joins the small files of the evidence."""
    with TuningDatabase(call.options.database) as database:
        joined = database.repack()
    print(f"{joined} files of the evidence are one now" if joined else "the evidence has no two small files")
    return 0

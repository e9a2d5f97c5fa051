"""The commands of the tuner, and the options that stand for them."""

from __future__ import annotations

from pathlib import Path

import pytest

from aotriton.rules.family import family
from aotriton.tune.cli.main import COMMANDS, parsers, with_command

VALUES = {
    "retract": "0a1b",
    "sign": "key",
    "merge": "other.sqlite3",
    "export": "tables",
    "import": "tables",
    "sample": "150",
    "report": "page.html",
}


@pytest.mark.parametrize("name", [name for name, command in COMMANDS.items() if command.option])
def test_an_option_stands_for_each_command(name: str) -> None:
    """Wherever the option of a command is, it is that command with the option's value and all other arguments."""
    option, value = COMMANDS[name].option, [VALUES[name]] if COMMANDS[name].value else []
    others = ["--family", "gemm", "--arch", "sm_90"]
    for arguments in ([option, *value, *others], [*others, option, *value], [*others[:2], option, *value, *others[2:]]):
        assert with_command(arguments, "tune.py") == [name, *value, *others]
    if value:
        assert with_command([f"{option}={value[0]}"], "tune.py") == [name, *value]


def test_without_a_command_it_is_a_run() -> None:
    """Nothing but options is a run with them, also where one begins as the option of a command does; a command is
    left alone.
    """
    assert with_command([], "tune.py") == ["run"]
    assert with_command(["--m", "64", "--budget", "4"], "tune.py") == ["run", "--m", "64", "--budget", "4"]
    assert with_command(["fit", "--arch", "sm_90"], "tune.py") == ["fit", "--arch", "sm_90"]


def test_an_empty_value_is_not_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    """An option of a command whose value is empty stands for the command; without a value it is refused."""
    assert with_command(["--report", ""], "tune.py") == ["report", ""]
    with pytest.raises(SystemExit):
        with_command(["--report"], "tune.py")
    assert "--report: expected one argument" in capsys.readouterr().err


@pytest.mark.parametrize("name", COMMANDS)
def test_all_commands_take_the_options_of_a_run(name: str) -> None:
    """The command line of a run, with a command in front, says what the command is about."""
    parser, _ = parsers(family("gemm"), "tune.py")
    value = [VALUES[name]] if COMMANDS[name].value else []
    about = ["--arch", "sm_90", "--m", "64", "--gpus", "0", "--budget", "64", "--launcher", "module:Class"]
    options = parser.parse_args([name, *value, *about])
    assert (options.command, options.arch, options.gpus, options.budget) == (name, "sm_90", ["0"], "64")


def test_values_of_commands_have_their_types() -> None:
    """The value of a command is a path, or a number of shapes."""
    parser, _ = parsers(family("gemm"), "tune.py")
    assert parser.parse_args(with_command(["--sample", "3"], "tune.py")).sample == 3
    assert parser.parse_args(with_command(["--import", "tables"], "tune.py")).take_in == Path("tables")
    assert parser.parse_args(["report", "page.html", "--since", "old"]).since == Path("old")

"""The application made of all commands: what they are called, and what becomes of their errors."""

from __future__ import annotations

import errno
import logging
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated, Any, Final, NoReturn

import typer
from typer.core import TyperGroup

from poise import __version__
from poise.cli import INTERRUPTED, data, models, runs
from poise.cli.words import is_launched
from poise.errors import Interrupted, PoiseError, RankLost, UserError, explain_refusal, shown
from poise.settings import KEYS
from poise.words import printable

#: What Typer raises for a wrong command line; newer versions bundle their own click.
UsageError: Any = typer.BadParameter.__mro__[1]

_OUT_OF_MEMORY: Final = "out of memory; use smaller images or a smaller batch; nothing that was saved is lost"
_LONGEST_LINE: Final = 2000  # characters of an error line; a user's words may be longer
_WITH_RANKS: Final = ("run", "resume")  # the commands that run under torchrun

_GROUPS: Final = {
    "Start here": (models.learn, models.predict, models.score, models.info, models.export, models.remove),
    "Compare methods": (runs.run, runs.resume, runs.sweep, runs.report, runs.recipes),
    "Look closer": (runs.cam, runs.crossval, runs.audit),
    "Data sets": (),
}
_FIRST_STEPS: Final = """\
poise learns new classes of images one after the other, without keeping all old ones. What do I do first?

  poise learn pets.safetensors photos/        learn the classes in a folder that has a folder for each class
  poise predict pets.safetensors image.jpg    ask what is in an image
  poise learn pets.safetensors more-photos/   next month: learn new classes with the same file
  poise run digits/lucir                      compare methods: a small example, a minute on a CPU
  poise report runs/                          a page about your runs
  poise --help                                all commands
"""


class _Grouped(TyperGroup):
    """Lists the commands in groups."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ANN401 - click's, which Typer may bundle
        """Write a section for each group."""
        for title, commands in _GROUPS.items():
            names = [command.__name__ for command in commands] or ["data"]
            found = {name: self.get_command(ctx, name) for name in names}
            with formatter.section(title):
                formatter.write_dl([(name, each.get_short_help_str(150)) for name, each in found.items() if each])


_HELP = {"help_option_names": ["-h", "--help"]}  # of all commands: they inherit it

app = typer.Typer(cls=_Grouped, rich_markup_mode=None, context_settings=_HELP)


@app.callback(invoke_without_command=True)
def start(
    context: typer.Context, version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False
) -> None:
    """Class-incremental learning that finds its own balance between stability and plasticity."""
    if version:
        typer.echo(f"poise {__version__}")
        raise typer.Exit
    name = context.invoked_subcommand
    if name is None:
        typer.echo(_FIRST_STEPS, nl=False)
        raise typer.Exit(2)
    if is_launched() and name not in _WITH_RANKS:
        raise UserError(f"'poise {name}' does not run under torchrun; start it without (run and resume do)")


for _commands in _GROUPS.values():
    for _command in _commands:
        app.command()(_command)
app.add_typer(data.app, name="data")


class _Lines(logging.Handler):
    """Writes to what stderr is at the moment: a progress bar takes its place, and shows lines above itself."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line; that nobody reads it any more stops no job."""
        with suppress(BrokenPipeError):
            print(printable(self.format(record)), file=sys.stderr, flush=True)  # noqa: T201 - for the user


def run_command() -> NoReturn:
    """Run the command that was typed; a user's mistake is one line on stderr."""
    level = logging.WARNING if os.environ.get("RANK", "0") == "0" else logging.CRITICAL
    logging.basicConfig(level=level, format="poise: %(message)s", handlers=[_Lines()])
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr] # what an encoding lacks is no error
    try:
        _refuse_empty_words(sys.argv[1:])
        code = app(standalone_mode=False) or 0
        if code == INTERRUPTED:  # what newer versions of Typer make of Ctrl-C
            raise KeyboardInterrupt
        _end(code)
    except PoiseError as error:
        _fail(str(error), error.exit_code, everybodys=isinstance(error, UserError | RankLost | Interrupted))
    except UsageError as error:
        _fail(_usage_line(error), 2)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            _fail(explain_refusal(error, "give the same command again"), 1, everybodys=False)
        place = error.filename or "the system"
        _fail(f"{place}: {error.strerror}; check its permissions, or choose another place", 2, everybodys=False)
    except MemoryError:
        _fail(_OUT_OF_MEMORY, 1, everybodys=False)
    except RuntimeError as error:
        if "can't allocate memory" not in str(error):  # as torch says it
            raise
        _fail(_OUT_OF_MEMORY, 1, everybodys=False)
    except typer.Abort as error:
        raise KeyboardInterrupt from error


def _usage_line(error: Any) -> str:  # noqa: ANN401 - a UsageError
    """What is wrong with the command line, and whose help to read."""
    words, context = list[str](), error.ctx
    while context is not None and context.parent is not None:
        words.insert(0, context.info_name)
        context = context.parent
    see, message = f"see '{' '.join(['poise', *words, '--help'])}'", error.format_message().rstrip(".")
    key = str(getattr(error, "option_name", "")).lstrip("-").replace("-", "_")
    if words[:1] in (["run"], ["crossval"], ["audit"]) and key in {each.name for each in KEYS}:
        return f"{message}; keys of a recipe are given without dashes: {key}=VALUE"
    return f"{message} {see.capitalize()}" if message.endswith("?") else f"{message}; {see}"


def _refuse_empty_words(words: Sequence[str]) -> None:
    """Refuse a word without a character to be seen, which a shell makes of a variable that is not set."""
    for before, word in zip(("", *words), words, strict=False):
        option, found, value = word.partition("=") if word.startswith("--") else (before, "=", word)
        if found and not value.strip():
            what = f"the value of {option}" if option.startswith("--") else "a word of the command"
            raise UserError(f"{what} is empty ({shown(word)}, perhaps a variable that is not set); give it")


def _fail(message: str, code: int, *, everybodys: bool = True) -> NoReturn:
    """Say what is wrong, and end. What all ranks of a world find out is said by rank 0 alone."""
    line, rank = printable(" ".join(message.split())), os.environ.get("RANK", "0") if is_launched() else "0"
    if len(line) > _LONGEST_LINE:
        line = f"{line[: _LONGEST_LINE // 2]} … {line[-_LONGEST_LINE // 2 :]}"
    if rank == "0" or not everybodys:
        print(f"poise: {line if rank == '0' else f'rank {rank}: {line}'}", file=sys.stderr)  # noqa: T201
    _end(code)


def _end(code: int) -> NoReturn:
    if is_launched():  # torch's threads may not like to end
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)

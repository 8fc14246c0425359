"""The application made of all commands: every mistake is one line and the right exit code."""

from __future__ import annotations

import codecs
import errno
import io
import json
import logging
import os
import sys
from collections.abc import Sequence
from contextlib import redirect_stderr, suppress
from pathlib import Path
from typing import Annotated, Any, NoReturn, TextIO, cast

import typer

from poise import __version__
from poise.cli import INTERRUPTED, lists, models, packs, ranks, reports, runs, studies
from poise.errors import PoiseError, RankLost, UserError, explain_refusal, shown
from poise.settings import KEYS
from poise.words import printable

#: What Typer raises for a wrong command line; newer versions bundle their own click.
UsageError: Any = typer.BadParameter.__mro__[1]

_OUT_OF_MEMORY = "out of memory; use smaller images or a smaller batch; nothing that was saved is lost"
_STDERR = 2  # the number of that stream
_LONGEST_LINE = 2000  # characters of an error line; a user's words may be longer
_ASCII = {"─": "-", "–": "-", "−": "-", "…": "...", "×": "x"}  # in place of what an encoding lacks

_HELP = {"help_option_names": ["-h", "--help"]}  # of all commands: they inherit it

app = typer.Typer(add_completion=False, rich_markup_mode=None, context_settings=_HELP)


@app.callback(invoke_without_command=True)
def start(
    context: typer.Context, version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False
) -> None:
    """Class-incremental learning that finds its own balance between stability and plasticity."""
    if version:
        typer.echo(f"poise {__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(2)
    ranks.refuse_other_commands(context.invoked_subcommand)


for _command in (
    runs.run,
    runs.resume,
    runs.sweep,
    studies.crossval,
    studies.audit,
    reports.report,
    reports.cam,
    models.learn,
    models.predict,
    models.score,
    models.info,
    lists.recipes,
):
    app.command()(_command)
data_app = typer.Typer(invoke_without_command=True, help="List data sets, add or remove one, or pack one.")
data_app.callback()(lists.data)
data_app.command("add")(lists.data_add)
data_app.command("remove")(lists.data_remove)
data_app.command("pack")(packs.data_pack)
app.add_typer(data_app, name="data")


class _Forgiving:
    """Stderr; that nobody reads it any more, a terminal that was closed or a pipe, stops no job."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - everything else is the stream's own
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write it if that is possible."""
        with suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Flush it if that is possible."""
        with suppress(OSError):
            self._stream.flush()


class _Lines(logging.Handler):
    """Writes to what stderr is at the moment: a progress bar takes its place, and shows lines above itself."""

    def emit(self, record: logging.LogRecord) -> None:
        """One line."""
        print(printable(self.format(record)), file=sys.stderr, flush=True)  # noqa: T201 - for the user


def run_command() -> NoReturn:
    """Run the command that was typed; a user's mistake is one line on stderr."""
    level = logging.CRITICAL if ranks.is_silent() else logging.WARNING
    logging.basicConfig(level=level, format="poise: %(message)s", handlers=[_Lines()])
    sys.unraisablehook = _tell_unraisable
    _replace_closed_streams()
    _write_in_any_encoding()
    with redirect_stderr(cast("TextIO", _Forgiving(sys.stderr))):
        _run_app()


def _replace_closed_streams() -> None:
    """What was closed before the command began (`2>&-`) leads to nowhere, and no file gets its number."""
    if sys.stdin is not None and sys.stdout is not None and sys.stderr is not None:
        return
    while (handle := os.open(os.devnull, os.O_RDWR)) <= _STDERR:
        pass
    os.close(handle)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 - as long as we run


def _write_in_any_encoding() -> None:
    """Let characters that the terminal's encoding lacks (Latin-1, say) be written in another way, not be an error."""
    codecs.register_error("poise", _spell_out)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors in ("strict", "backslashreplace"):
            stream.reconfigure(errors="poise")


def _spell_out(error: UnicodeError) -> tuple[str, int]:
    """Lines and dashes as ASCII has them, all else by its number; in JSON that means the same."""
    assert isinstance(error, UnicodeEncodeError)
    lacking = error.object[error.start : error.end]
    return "".join(_ASCII.get(each) or json.dumps(each)[1:-1] for each in lacking), error.end


def _refuse_lost_folder() -> None:
    """Refuse to work in a folder that was deleted meanwhile, where libraries fail without saying why."""
    try:
        Path.cwd()
    except FileNotFoundError as error:
        raise UserError("the current folder does not exist any more; change to one that does ('cd')") from error


def _tell_unraisable(found: Any) -> None:  # noqa: ANN401 - a type that only exists for type checkers
    """As Python does, but for another Ctrl-C while something is closed: that is no error."""
    if not issubclass(found.exc_type, KeyboardInterrupt):
        sys.__unraisablehook__(found)


def _run_app() -> NoReturn:
    try:
        _refuse_empty_words(sys.argv[1:])
        _refuse_lost_folder()
        code = app(standalone_mode=False) or 0
        if code == INTERRUPTED:  # what newer versions of Typer make of Ctrl-C
            raise KeyboardInterrupt
        ranks.end(code)
    except PoiseError as error:
        _fail(str(error), error.exit_code, lost=isinstance(error, RankLost))
    except UsageError as error:
        _fail(_usage_line(error), 2)
    except OSError as error:
        _fail(*_explain_system(error))
    except MemoryError:
        _fail(_OUT_OF_MEMORY, 1)
    except ModuleNotFoundError as error:
        package = (error.name or "poise").partition(".")[0]
        if package == "poise":
            raise
        advice = "install it, or all that poise needs (in a clone of poise: pip install .)"
        _fail(f"{package} is not installed for {sys.executable}; {advice}", 2)
    except RuntimeError as error:
        if "can't allocate memory" in str(error):  # as torch says it
            _fail(_OUT_OF_MEMORY, 1)
        if "Symlink loop" in str(error):  # as pathlib says it
            _fail(f"{error}: a link that leads to itself; remove it", 2)
        raise
    except (KeyboardInterrupt, typer.Abort):
        _fail("interrupted without a checkpoint; what was saved before is still there", INTERRUPTED)
    except Exception as error:
        ranks.leave_note(f"{type(error).__name__}: {error}")
        raise


def _explain_system(error: OSError) -> tuple[str, int]:
    """The line about what the system refused, and the exit code."""
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        where = error.filename or "the system"
        return f"{where}: {error.strerror}; check its permissions, or choose another place", 2
    return explain_refusal(error, "give the same command again"), 1


def _usage_line(error: Any) -> str:  # noqa: ANN401 - a UsageError
    """What is wrong with the command line, and whose help to read."""
    words, context = list[str](), error.ctx
    while context is not None and context.parent is not None:
        words.insert(0, context.info_name)
        context = context.parent
    see, message = f"see '{' '.join(['poise', *words, '--help'])}'", error.format_message().rstrip(".")
    key = str(getattr(error, "option_name", "")).lstrip("-").replace("-", "_")
    if words[:1] in (["run"], ["crossval"], ["audit"], ["probe"]) and key in {each.name for each in KEYS}:
        return f"{message}; keys of a recipe are given without dashes: {key}=VALUE"
    return f"{message} {see.capitalize()}" if message.endswith("?") else f"{message}; {see}"


def _refuse_empty_words(words: Sequence[str]) -> None:
    """Refuse a word without a character to be seen, which a shell makes of a variable that is not set."""
    for before, word in zip(("", *words), words, strict=False):
        option, equals, value = word.partition("=")
        if not word.strip():
            what = f"the value of {before}" if before.startswith("--") else "a word of the command"
            why = f"{shown(word)}, perhaps a variable that is not set"
            raise UserError(f"{what} is empty ({why}); give it or leave it out")
        if option.startswith("--") and equals and not value.strip():
            raise UserError(f"the value of {option} is empty (perhaps a variable that is not set); give it")


def _fail(message: str, code: int, *, lost: bool = False) -> NoReturn:
    line = printable(" ".join(message.split()))
    if len(line) > _LONGEST_LINE:
        line = f"{line[: _LONGEST_LINE // 2]} … {line[-_LONGEST_LINE // 2 :]}"
    ranks.fail(line, code, _say, lost=lost)


def _say(line: str) -> None:
    print(f"poise: {line}", file=sys.stderr)  # noqa: T201 - the one line a user gets

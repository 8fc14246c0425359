"""The application made of all commands: every mistake is one line and the right exit code."""

from __future__ import annotations

import logging
import sys
from typing import Annotated, Any, NoReturn

import typer

from poise import __version__
from poise.cli import lists, models, reports, runs, studies
from poise.errors import PoiseError

#: What Typer raises for a wrong command line; newer versions bundle their own click.
UsageError: Any = typer.BadParameter.__mro__[1]

app = typer.Typer(add_completion=False, rich_markup_mode=None)


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


for _command in (
    runs.run,
    runs.resume,
    runs.sweep,
    studies.crossval,
    studies.audit,
    studies.probe,
    studies.simulate,
    reports.report,
    reports.digest,
    reports.cam,
    reports.track,
    models.learn,
    models.predict,
    models.score,
    lists.recipes,
):
    app.command()(_command)
data_app = typer.Typer(invoke_without_command=True, help="List data sets, or add one.")
data_app.callback()(lists.data)
data_app.command("add")(lists.data_add)
app.add_typer(data_app, name="data")


class _Lines(logging.Handler):
    """Writes to what stderr is at the moment: a progress bar takes its place, and shows lines above itself."""

    def emit(self, record: logging.LogRecord) -> None:
        """One line."""
        print(self.format(record), file=sys.stderr, flush=True)  # noqa: T201 - for the user


def main() -> NoReturn:
    """Run a command; a user's mistake is one line on stderr."""
    logging.basicConfig(level=logging.WARNING, format="poise: %(message)s", handlers=[_Lines()])
    try:
        sys.exit(app(standalone_mode=False) or 0)
    except PoiseError as error:
        _fail(str(error), error.exit_code)
    except UsageError as error:
        _fail(f"{error.format_message().rstrip('.')}; see 'poise --help'", 2)
    except OSError as error:
        _fail(f"{error.filename or 'the system'}: {error.strerror or error}; nothing that was saved is lost", 1)
    except (KeyboardInterrupt, typer.Abort):
        _fail("interrupted without a checkpoint; what was saved before is still there", 130)


def _fail(message: str, code: int) -> NoReturn:
    print(f"poise: {' '.join(message.split())}", file=sys.stderr)  # noqa: T201 - the one line a user gets
    sys.exit(code)

"""The command line: parses, calls, prints. All that it does can be had from Python, too."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from wildtta.bench import Config, Listener, preflight, run
from wildtta.bench.config import ConfigError, read_toml
from wildtta.bench.engine import check_device

app = typer.Typer(
    name="wildtta",
    help="Image classifiers that go on learning from the unlabelled images they meet.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)
console = Console()
errors = Console(stderr=True)

WRONG, FAILED, STOPPED = 2, 1, 130
"""Exit codes: what was asked for cannot be done; some cells failed; Ctrl-C."""


def main() -> None:
    app()


@contextmanager
def _clear_errors() -> Iterator[None]:
    """What a user can mend ends in a sentence; the rest in a traceback."""
    from wildtta.bench.store import RunError as StoreError
    from wildtta.data import DataError
    from wildtta.models import ModelError
    from wildtta.report import RunError

    try:
        yield
    except (ConfigError, DataError, ModelError, RunError, StoreError, OSError) as error:
        _fail(str(error))


@contextmanager
def _stoppable(out: Path) -> Iterator[None]:
    """Ctrl-C ends in a sentence, too."""
    try:
        yield
    except KeyboardInterrupt:
        text = f"\nstopped; what is done is kept in {out}, and the same command goes on from there"
        errors.print(text, soft_wrap=True, highlight=False, markup=False)
        raise typer.Exit(STOPPED) from None


def _fail(text: str) -> NoReturn:
    for line in text.splitlines():
        errors.print(f"[bold red]error:[/] {escape(line)}", soft_wrap=True, highlight=False)
    raise typer.Exit(WRONG)


# -- flags that several commands have ----------------------------------------------------------------------------------

ConfigFile = Annotated[
    Path | None, typer.Option("--config", help="A TOML file with the same names; flags go before it.")
]
Models = Annotated[
    str | None, typer.Option(help="glyph-resnet, glyph-vit, timm:NAME, torchvision:NAME, file.py:function.")
]
DataSets = Annotated[str | None, typer.Option("--data", help="glyphs, LAYOUT:PATH, or a PATH whose layout is plain.")]
Kinds = Annotated[str | None, typer.Option(help="Corruptions; all fifteen, or what the data have, if left out.")]
Severities = Annotated[str | None, typer.Option(help="1 to 5.")]
Weights = Annotated[str | None, typer.Option(help="Weights for the models: safetensors, or a saved state_dict.")]
Statistics = Annotated[str | None, typer.Option(help="own, or imagenet / half for the published wrong ones.")]
Source = Annotated[str | None, typer.Option(help="Where uncorrupted source images lie, if not among the data.")]
Out = Annotated[Path, typer.Option(help="The folder for results; an unfinished run in it goes on.")]
Jobs = Annotated[int | None, typer.Option(help="Cells side by side, in processes.")]


def _config(file: Path | None, flags: dict[str, Any]) -> tuple[Config, dict[str, Any]]:
    """A config from a file and the flags that were given, and the keys of the file that are none of its own."""
    content = read_toml(file) if file is not None else {}
    others = {key: content.pop(key) for key in ("out",) if key in content}
    kinds = {entry.name: str(entry.type) for entry in fields(Config)}
    for name, value in flags.items():
        if value is None:
            continue
        if kinds[name].startswith("dict"):
            content[name] = content.get(name, {}) | _pairs(name, value)
        elif kinds[name].startswith("list"):
            items = _list(value)
            content[name] = [_whole(name, item) for item in items] if "int" in kinds[name] else items
        else:
            content[name] = value
    return Config(**content), others


def _list(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]


def _whole(name: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ConfigError(f"--{name} takes whole numbers with commas between them, but {text!r} was given") from None


def _pairs(name: str, given: list[str]) -> dict[str, Any]:
    flag = {"options": "--option", "settings": "--set"}[name]
    pairs = {}
    for text in given:
        key, sign, value = text.partition("=")
        if not sign or not key.strip():
            raise ConfigError(f"{flag} takes NAME=VALUE, but {text!r} was given")
        pairs[key.strip()] = _value(value.strip())
    return pairs


def _value(text: str) -> Any:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


# -- commands ----------------------------------------------------------------------------------------------------------


@app.command()
def methods(name: Annotated[str | None, typer.Argument(help="One method, in full.")] = None) -> None:
    """List the methods, or tell all about one.

    Examples: `wildtta methods` · `wildtta methods recap`
    """
    import inspect

    from wildtta import methods as registered
    from wildtta.recipes import recipe

    if name is not None:
        try:
            found = recipe(name)
        except ValueError as error:
            _fail(str(error))
        console.print(f"[bold]{name}[/]\n\n{escape(inspect.getdoc(found.compose) or '')}\n", highlight=False)
        table = Table("hyper-parameter", "default", box=None, header_style="bold")
        for key, value in found.hyperparameters.items():
            default = (
                "to be given" if value is Parameter.empty else "by the network's kind" if value is None else str(value)
            )
            table.add_row(key, default)
        console.print(table)
        return
    table = Table("method", "what it does", "needs", box=None, header_style="bold")
    for key, found in registered().items():
        table.add_row(key, found.summary, ", ".join(found.required))
    console.print(table)


@app.command()
def bench(
    out: Annotated[Path | None, typer.Option(help="The folder for results; an unfinished run in it goes on.")] = None,
    config: ConfigFile = None,
    models: Models = None,
    data: DataSets = None,
    kinds: Kinds = None,
    severities: Severities = None,
    scenarios: Annotated[
        str | None, typer.Option(help="mild, limited, mixed, shift, continual, gradual, correlated.")
    ] = None,
    reset: Annotated[bool | None, typer.Option(help="A fresh adapter for each corruption, or one for all.")] = None,
    methods: Annotated[str | None, typer.Option(help="All of them if left out.")] = None,
    guards: Annotated[str | None, typer.Option(help="none, collapse.")] = None,
    seeds: Annotated[str | None, typer.Option(help="Of the streams' order and the methods' random numbers.")] = None,
    images: Annotated[int | None, typer.Option(help="At most so many images of each corruption.")] = None,
    batch: Annotated[int | None, typer.Option(help="Instead of the scenario's own.")] = None,
    option: Annotated[list[str] | None, typer.Option(help="Of a scenario: shift.ratio=1000.")] = None,
    setting: Annotated[
        list[str] | None, typer.Option("--set", help="A hyper-parameter: lr=1e-4, recap.tau=1.0.")
    ] = None,
    calibration: Annotated[int | None, typer.Option(help="How many source images Σ is estimated on.")] = None,
    weights: Weights = None,
    statistics: Statistics = None,
    source: Source = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda.")] = None,
    precision: Annotated[str | None, typer.Option(help="float32, tf32, bf16.")] = None,
    threads: Annotated[int | None, typer.Option(help="Of each cell, on a CPU.")] = None,
    jobs: Jobs = None,
) -> None:
    """Run a benchmark: models × data × scenarios × corruptions × methods × seeds.

    Lists are written with commas. Stop it whenever you like; the same command goes on where it stopped.

    - `wildtta bench --out runs/try --methods source,tent,recap --images 200`
    - `wildtta bench --out runs/mine --models timm:resnet50_gn --data imagenet-c:/data/imagenet-c --device cuda`
    - `wildtta bench --config bench.toml`
    """
    given = locals()
    flags = {entry.name: given.get(entry.name) for entry in fields(Config)}
    flags |= {"options": option or None, "settings": setting or None}
    with _clear_errors():
        found, others = _config(config, flags)
        folder = out or (Path(others["out"]) if "out" in others else None)
        if folder is None:
            raise ConfigError('say where the results go: --out FOLDER, or out = "FOLDER" in the config file')
        _run(found, folder)


@app.command()
def demo(
    out: Out = Path("runs/demo"),
    methods: Annotated[str | None, typer.Option(help="Instead of all of them.")] = None,
    images: Annotated[int, typer.Option(help="Of each corruption.")] = 96,
    jobs: Jobs = None,
) -> None:
    """The embedded benchmark: rendered glyphs, two small models, the three wild scenarios, every method.

    A stand-in for trying the tool: it needs no download, and its numbers say nothing about photographs. It takes a few
    minutes, and ends in a table and a page. Its streams are short, so all methods learn at 30 times their published rates.
    """
    with _clear_errors():
        jobs = min(os.cpu_count() or 1, 8) if jobs is None else jobs
        found, _ = _config(None, {"methods": methods, "images": images, "calibration": 256, "jobs": jobs})
        found.settings, found.options = {"lr": "x30"}, {"shift.repeats": False}
        _run(found, out, tables=False)


@app.command()
def corrupt(
    source: Annotated[Path, typer.Argument(help="A folder (or tar) with a folder of images for each class.")],
    target: Annotated[Path, typer.Argument(help="A folder for the copies: CORRUPTION/SEVERITY/CLASS/IMAGE.")],
    kinds: Annotated[str | None, typer.Option(help="Corruptions; the benchmark's fifteen if left out.")] = None,
    severities: Annotated[str, typer.Option(help="1 to 5.")] = "1,2,3,4,5",
    size: Annotated[int, typer.Option(help="Pixels a side.")] = 224,
    resize: Annotated[int | None, typer.Option(help="The shorter side before the crop; 256 for 224.")] = None,
    quality: Annotated[int, typer.Option(help="Of the JPEGs; 0 for PNG.")] = 85,
    device: Annotated[str, typer.Option(help="cpu, cuda.")] = "cpu",
    workers: Annotated[int | None, typer.Option(help="Threads that read and write.")] = None,
) -> None:
    """Write corrupted copies of a folder of images, in ImageNet-C's layout.

    Stop it whenever you like; the same command goes on where it stopped. The same images give the same copies.

    Example: `wildtta corrupt imagenet/val imagenet-c --kinds fog,snow --severities 5`
    """
    from wildtta.corruptions import CORRUPTIONS
    from wildtta.data.copy import corrupted_copy

    with _clear_errors(), _stoppable(target), _progress() as bars:
        check_device(device)
        task = bars.add_task("images", total=None, note="")
        done = corrupted_copy(
            source,
            target,
            kinds=_list(kinds) if kinds else CORRUPTIONS,
            severities=[_whole("severities", item) for item in _list(severities)],
            size=size,
            resize=resize,
            quality=quality or None,
            device=device,
            workers=workers,
            progress=lambda seen, total: bars.update(task, completed=seen, total=total),
        )
    for text in done.unreadable[:5]:
        errors.print(f"[yellow]![/] could not be read: {escape(text)}", soft_wrap=True, highlight=False)
    rest = f", {len(done.unreadable)} images could not be read" if done.unreadable else ""
    console.print(
        f"{done.written:,} files written, {done.kept:,} were there already{rest}: {escape(str(target))}", soft_wrap=True
    )


@app.command()
def report(
    run: Annotated[Path, typer.Argument(help="A folder that `wildtta bench` wrote.")],
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only write the files.")] = False,
) -> None:
    """Tables in the terminal, and a page, Markdown, LaTeX and CSV in RUN/report.

    Example: `wildtta report runs/demo`
    """
    with _clear_errors():
        _report(run, tables=not quiet)


@app.command()
def check(
    config: ConfigFile = None,
    models: Models = None,
    data: DataSets = None,
    kinds: Kinds = None,
    severities: Severities = None,
    weights: Weights = None,
    statistics: Statistics = None,
    source: Source = None,
    deep: Annotated[bool, typer.Option(help="Read every image, instead of a sample.")] = False,
) -> None:
    """Would a benchmark run on these data with these models? Nothing is run.

    Example: `wildtta check --models timm:resnet50_gn --data imagenet-c:/data/imagenet-c --deep`
    """
    given = locals()
    names = ("models", "data", "kinds", "severities", "weights", "statistics", "source")
    flags = {name: given[name] for name in names}
    with _clear_errors():
        found, _ = _config(config, flags)
        _, findings = preflight(found, deep=deep)
    signs = {"ok": "[green]✓[/]", "warning": "[yellow]![/]", "error": "[bold red]✗[/]"}
    for finding in findings:
        console.print(f"{signs[finding.level]} {escape(finding.text)}", soft_wrap=True, highlight=False)
    if bad := sum(finding.level == "error" for finding in findings):
        console.print(f"\n{bad} {'fault' if bad == 1 else 'faults'} to mend before a run")
        raise typer.Exit(WRONG)
    console.print("\nready to run")


@app.command()
def speed(
    models: Annotated[
        str, typer.Option(help="As for bench; timm's and torchvision's are made with random weights.")
    ] = "glyph-resnet",
    batch: Annotated[str, typer.Option(help="Images a step.")] = "1,64",
    size: Annotated[int | None, typer.Option(help="Pixels a side, instead of the model's own.")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda.")] = "cpu",
    precision: Annotated[str, typer.Option(help="float32, tf32, bf16.")] = "float32",
    methods: Annotated[str | None, typer.Option(help="All of them if left out.")] = None,
    runners: Annotated[str | None, typer.Option(help="eager, sparing, captured, compiled, auto.")] = None,
    rounds: Annotated[int, typer.Option(help="How often each takes its turn.")] = 9,
    threads: Annotated[int | None, typer.Option(help="On a CPU.")] = None,
    share: Annotated[str, typer.Option(help="Of the images that teach; `own`: what each method selects.")] = "1.0",
    reference: Annotated[bool, typer.Option(help="Plain loops in the style of research code, too.")] = False,
    grow: Annotated[str | None, typer.Option(help="How cost grows with classes, batch or streams, instead.")] = None,
    values: Annotated[str | None, typer.Option(help="At which numbers of them.")] = None,
    memory: Annotated[bool, typer.Option(help="Measure peak memory.")] = True,
    channels_last: Annotated[bool, typer.Option(help="Images and networks in channels-last layout.")] = False,
    small_stem: Annotated[bool, typer.Option(help="Leave out the first pooling, as for images of 64 pixels.")] = False,
    until: Annotated[float, typer.Option(help="Begin no round of a table after so many seconds.")] = 0.0,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the figures to this file.")] = None,
    markdown_file: Annotated[Path | None, typer.Option("--markdown", help="Write the table to this file.")] = None,
) -> None:
    """What a step costs: passes through the network, what else is computed, time and memory of methods × runners.

    All take turns within one run, next to the plain Tent loop; a ratio is the median of the ratios within rounds.

    - `wildtta speed --models timm:resnet50_gn --batch 1,64 --device cuda --precision float32,bf16 --reference`
    - `wildtta speed --models timm:resnet50_gn --grow batch --device cuda --json batch.json`
    """
    import json

    from wildtta.bench import growth, speed_table
    from wildtta.bench import speed as measuring

    with _clear_errors():
        try:
            part = None if share == "own" else float(share)
        except ValueError:
            raise ConfigError(f"--share takes a number from 0 to 1, or own, but {share!r} was given") from None
        with _asked_for():
            options = measuring.Speed(
                models=_list(models),
                batches=[_whole("batch", item) for item in _list(batch)],
                size=size,
                device=device,
                precisions=_list(precision),
                methods=_list(methods) if methods else None,
                runners=_list(runners) if runners else None,
                rounds=rounds,
                threads=threads,
                share=part,
                reference=reference,
                memory=memory,
                channels_last=channels_last,
                small_stem=small_stem,
                until=until,
            )
            numbers = [_whole("values", item) for item in _list(values)] if values else None
            with console.status("") as status:
                say = lambda text: status.update(escape(text))  # noqa: E731
                result = growth.grow(options, grow, numbers, say) if grow else measuring.measure(options, say)
    for title, (header, rows) in speed_table.groups(result).items():
        table = Table(*header, box=None, header_style="bold", title=title, title_justify="left")
        for cells in rows:
            table.add_row(*map(escape, cells))
        console.print(table)
    for line in speed_table.bends(result) if grow else []:
        console.print(line, highlight=False)
    busy = f"; {result['load'][0]} processes were running before" if result["load"][0] else ""
    console.print(f"\n{result['machine']}, {result['threads']} threads, torch {result['torch']}{busy}", highlight=False)
    for path, text in ((json_file, json.dumps(result, indent=1)), (markdown_file, speed_table.markdown(result))):
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text + "\n")


@contextmanager
def _asked_for() -> Iterator[None]:
    from wildtta.bench.speed import SpeedError

    try:
        yield
    except SpeedError as error:
        _fail(str(error))


# -- running and reporting ---------------------------------------------------------------------------------------------


def _run(config: Config, out: Path, *, tables: bool = True) -> None:
    with _stoppable(out), _Bars() as bars:
        summary = run(config, out, bars)
    _report(out, tables=tables)
    if summary.failed:
        reasons: dict[str, list[str]] = {}
        for name, reason in summary.failed.items():
            reasons.setdefault(reason, []).append(name)
        for reason, names in reasons.items():
            which = f"{len(names)} cells, {names[0]} …" if len(names) > 1 else names[0]
            errors.print(f"[bold red]failed:[/] {escape(reason)} ({escape(which)})", soft_wrap=True, highlight=False)
        if os.environ.get("WILDTTA_TRACEBACKS"):
            errors.print(next(iter(summary.tracebacks.values())), markup=False)
        else:
            errors.print("set WILDTTA_TRACEBACKS=1 to see where; the same command tries them again", highlight=False)
        raise typer.Exit(FAILED)


def _report(run: Path, *, tables: bool) -> None:
    from wildtta.report import headline, load_run, write_report
    from wildtta.report import tables as tables_of

    found = load_run(run)
    for table in tables_of(found):
        if tables or table.kind == "overview":
            console.print(table)
    page = write_report(run)
    console.print(f"\n{escape(headline(found))}", soft_wrap=True, highlight=False)
    console.print(f"\nThe page with everything: [bold]{escape(str(page))}[/]", soft_wrap=True, highlight=False)


def _progress() -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(compact=True),
        console=errors,
        transient=True,
    )


class _Bars(Listener):
    """Nested progress: cells done of all, and for each that runs its images and its accuracy so far."""

    def __init__(self) -> None:
        self.bars = _progress()
        self.running: dict[str, Any] = {}

    def __enter__(self) -> _Bars:
        self.bars.start()
        return self

    def __exit__(self, *problem: object) -> None:
        self.bars.stop()

    def note(self, text: str) -> None:
        self.bars.console.print(f"[yellow]![/] {escape(text)}", soft_wrap=True, highlight=False)

    def begin(self, cells: int, kept: int) -> None:
        if kept:
            self.bars.console.print(f"{kept} of {cells} cells are done already", highlight=False)
        self.all = self.bars.add_task("[bold]cells[/]", total=cells, completed=kept, note="")

    def progress(self, family: Any, seen: int, images: int, accuracy: float) -> None:
        cell = family[0]
        if cell.name not in self.running:
            kind = f"{len(family)} streams" if len(family) > 1 else cell.kind
            self.running[cell.name] = self.bars.add_task(
                f"  {cell.model} {cell.scenario} {kind} {cell.method}", total=images, note=""
            )
        self.bars.update(self.running[cell.name], completed=seen, total=images, note=f"{accuracy:.1f} %")

    def finished(self, family: Any) -> None:
        self._end(family)

    def failed(self, family: Any, reason: str) -> None:
        self.bars.console.print(
            f"[bold red]failed:[/] {escape(family[0].name)}: {escape(reason)}", soft_wrap=True, highlight=False
        )
        self._end(family)

    def _end(self, family: Any) -> None:
        if (task := self.running.pop(family[0].name, None)) is not None:
            self.bars.remove_task(task)
        self.bars.advance(self.all, len(family))


if __name__ == "__main__":
    main()

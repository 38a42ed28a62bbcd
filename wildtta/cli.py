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
from wildtta.bench.checks import check_device
from wildtta.bench.config import ConfigError, _known, read_toml
from wildtta.bench.crew import muster
from wildtta.studies.base import Teller

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

WRONG, FAILED, UNFINISHED, STOPPED = 2, 1, 3, 130
"""Exit codes: what was asked for cannot be done; some cells failed; the time given is over; Ctrl-C."""


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
Kinds = Annotated[
    str | None, typer.Option(help="Corruptions, or clean; all fifteen, or what the data have, if left out.")
]
Severities = Annotated[str | None, typer.Option(help="1 to 5; 5 if left out.")]
Scenarios = Annotated[
    str | None,
    typer.Option(help="limited, mixed, shift (these three if left out), mild, continual, gradual, correlated."),
]
Reset = Annotated[bool | None, typer.Option(help="A fresh adapter for each corruption, or one for all.")]
Methods = Annotated[str | None, typer.Option(help="All but the costly ones if left out; all: those, too.")]
Guards = Annotated[str | None, typer.Option(help="none (if left out), collapse, recover.")]
Images = Annotated[int | None, typer.Option(help="At most so many images of each corruption.")]
Options = Annotated[list[str] | None, typer.Option("--option", help="Of a scenario: shift.ratio=1000.")]
Hyperparameters = Annotated[list[str] | None, typer.Option("--set", help="A hyper-parameter: lr=1e-4, recap.tau=1.0.")]
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


def _version(wanted: bool) -> None:
    if wanted:
        import wildtta

        console.print(f"wildtta {wildtta.__version__}", highlight=False)
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Image classifiers that go on learning from the unlabelled images they meet."""


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
            default = "to be given" if value is Parameter.empty else "by the networks" if value is None else str(value)
            table.add_row(key, default)
        console.print(table)
        return
    table = Table("method", "what it does", "needs", box=None, header_style="bold")
    for key, found in registered().items():
        table.add_row(
            key,
            found.summary,
            ", ".join([*found.required, *(["time: tens of passes an image"] if found.costly else [])]),
        )
    console.print(table)


@app.command()
def bench(
    out: Annotated[Path | None, typer.Option(help="The folder for results; an unfinished run in it goes on.")] = None,
    config: ConfigFile = None,
    models: Models = None,
    data: DataSets = None,
    kinds: Kinds = None,
    severities: Severities = None,
    scenarios: Scenarios = None,
    reset: Reset = None,
    methods: Methods = None,
    guards: Guards = None,
    seeds: Annotated[
        str | None, typer.Option(help="Of the streams' order and the methods' random numbers; 2023 if left out.")
    ] = None,
    images: Images = None,
    sample: Annotated[int | None, typer.Option(help="At most so many for the costly methods.")] = None,
    batch: Annotated[int | None, typer.Option(help="Instead of the scenario's own.")] = None,
    option: Options = None,
    setting: Hyperparameters = None,
    calibration: Annotated[int | None, typer.Option(help="How many source images Σ is estimated on.")] = None,
    weights: Weights = None,
    statistics: Statistics = None,
    source: Source = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda.")] = None,
    precision: Annotated[str | None, typer.Option(help="float32, tf32, bf16.")] = None,
    threads: Annotated[int | None, typer.Option(help="Of each cell, on a CPU.")] = None,
    jobs: Jobs = None,
    engine: Annotated[str | None, typer.Option(help="local, or ray: cells as tasks of Ray.")] = None,
    address: Annotated[str | None, typer.Option(help="Of a Ray cluster; without it, Ray is started here.")] = None,
    gpus: Annotated[float | None, typer.Option(help="The share of a GPU that a cell takes on Ray.")] = None,
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
    methods: Annotated[str | None, typer.Option(help="Instead of all but the costly ones; all: those, too.")] = None,
    images: Annotated[int, typer.Option(help="Of each corruption.")] = 96,
    jobs: Jobs = None,
) -> None:
    """The embedded benchmark: rendered glyphs, two small models, the three wild scenarios, every method that is not costly.

    A stand-in for trying the tool: it needs no download, and its numbers say nothing about photographs. It takes a few
    minutes, and ends in a table and a page. Its streams are short, so methods learn at 30 times their published rates; but not
    MEMO, which forgets each image, and whose views are neither cut out nor mirrored: that makes other characters. Costly methods
    get 16 images of each corruption, and stand in tables of their own.
    """
    from wildtta.recipes import recipe

    with _clear_errors():
        jobs = min(os.cpu_count() or 1, 8) if jobs is None else jobs
        chosen = Config(methods=_list(methods or "")).methods
        own = ["memo.lr=x1", "memo.crop=false", "memo.flip=false"] if "memo" in chosen else []
        learns = any("lr" in recipe(name).hyperparameters for name in chosen if name != "memo")
        given = {"methods": methods, "images": images, "sample": 16, "calibration": 256, "jobs": jobs}
        settings = [*(["lr=x30"] if learns else []), *own]
        found, _ = _config(None, given | {"settings": settings, "options": ["shift.repeats=false"]})
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
def study(
    name: Annotated[str, typer.Argument(help="One study, several with commas, or all; `list` tells what there is.")],
    out: Out = Path("runs/studies"),
    models: Models = None,
    data: Annotated[str | None, typer.Option(help="glyphs, or LAYOUT:PATH.")] = None,
    kinds: Kinds = None,
    severity: Annotated[int | None, typer.Option(help="1 to 5.")] = None,
    images: Annotated[int | None, typer.Option(help="At most so many of each corruption.")] = None,
    seeds: Annotated[str | None, typer.Option(help="Of the order of images and the methods' random numbers.")] = None,
    lr: Annotated[str | None, typer.Option(help="Of all methods, × the published one: x3.")] = None,
    rates: Annotated[str | None, typer.Option(help="OUT/tune/rates.json: each method's own learning rate.")] = None,
    scale: Annotated[str | None, typer.Option(help="small (as on the glyphs) or full.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="The same as --scale small.")] = False,
    scenarios: Scenarios = None,
    costly: Annotated[bool, typer.Option("--costly", help="cost: time memo and dda, too, as at full scale.")] = False,
    calibration: Annotated[int | None, typer.Option(help="How many source images Σ is estimated on.")] = None,
    weights: Weights = None,
    statistics: Statistics = None,
    source: Source = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda.")] = None,
    precision: Annotated[str | None, typer.Option(help="float32, tf32, bf16.")] = None,
    threads: Annotated[int | None, typer.Option(help="On a CPU.")] = None,
    together: Annotated[int | None, typer.Option(help="Streams side by side in a batch, on a GPU.")] = None,
    until: Annotated[
        float | None, typer.Option(help="Begin nothing more after so many seconds; then exit code 3.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Only write the files.")] = False,
) -> None:
    """Run one of the paper's studies: figures, a table, and a section of a page.

    On the embedded glyphs if nothing else is said, in a minute or two each. Stop it whenever you like; the same command goes on
    where it stopped. With `--out RUN/studies`, `wildtta report RUN` shows the studies, too.

    Exit codes: 0 done, 1 some streams failed, 2 it cannot be done, 3 not finished within `--until`, 130 Ctrl-C.

    - `wildtta study list` · `wildtta study bounds` · `wildtta study all --out runs/studies`
    - `wildtta study tune --models timm:resnet50_gn --data imagenet-c:/data/imagenet-c --device cuda`
    """
    given = locals()
    names = ("data", "severity", "images", "lr", "rates", "scale", "calibration", "weights", "statistics", "source", "device",
             "precision", "threads", "together", "costly")  # fmt: skip
    lists = {"models": models, "kinds": kinds, "scenarios": scenarios}
    with _clear_errors():
        _study(name, out, {key: given[key] for key in names}, lists, seeds, quick, until, quiet)


@app.command()
def check(
    config: ConfigFile = None,
    models: Models = None,
    data: DataSets = None,
    kinds: Kinds = None,
    severities: Severities = None,
    scenarios: Scenarios = None,
    reset: Reset = None,
    methods: Methods = None,
    guards: Guards = None,
    images: Images = None,
    option: Options = None,
    setting: Hyperparameters = None,
    weights: Weights = None,
    statistics: Statistics = None,
    source: Source = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda.")] = None,
    deep: Annotated[bool, typer.Option(help="Read every image, instead of a sample.")] = False,
) -> None:
    """Would a benchmark with these flags run? Nothing is run.

    Example: `wildtta check --models timm:resnet50_gn --data imagenet-c:/data/imagenet-c --source imagenet/val --deep`
    """
    given = locals()
    flags = {entry.name: given.get(entry.name) for entry in fields(Config)}
    flags |= {"options": option or None, "settings": setting or None}
    with _clear_errors():
        found, _ = _config(config, flags)
        findings = preflight(found, deep=deep).findings
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


@app.command()
def serve(
    host: Annotated[str, typer.Option(help="127.0.0.1 is this machine alone; 0.0.0.0 is everybody.")] = "127.0.0.1",
    port: int = 8000,
    model: Annotated[
        str, typer.Option(help="glyph-resnet, glyph-vit, timm:NAME, torchvision:NAME, file.py:function.")
    ] = ("glyph-resnet"),
    weights: Weights = None,
    statistics: Annotated[str, typer.Option(help="own, imagenet, half.")] = "own",
    region: Annotated[Path | None, typer.Option(help="Σ of the source domain: what `Region.save` wrote.")] = None,
    fisher: Annotated[Path | None, typer.Option(help="For EATA: what `Fisher.save` wrote.")] = None,
    source: Annotated[str | None, typer.Option(help="Source images to estimate both on, instead.")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda.")] = "cpu",
    precision: Annotated[str, typer.Option(help="float32, tf32, bf16.")] = "float32",
    threads: Annotated[int, typer.Option(help="Of the model, on a CPU.")] = 1,
    max_batch: Annotated[int, typer.Option(help="Images in one step over all streams; 1 for none together.")] = 64,
    max_wait_ms: Annotated[float, typer.Option(help="How long a step waits for other streams.")] = 5.0,
    state: Annotated[
        Path | None, typer.Option(help="The folder for snapshots; without one they end with the process.")
    ] = None,
    snapshot_images: Annotated[int, typer.Option(help="At most so many images of learning are lost by a crash.")] = 256,
    idle_minutes: Annotated[float, typer.Option(help="A stream that rests so long is put on disk.")] = 30.0,
    operator_key_file: Annotated[
        Path | None, typer.Option(help="A file with the key; or WILDTTA_OPERATOR_KEY.")
    ] = None,
    open_: Annotated[bool, typer.Option("--open", help="Anybody on this machine may create streams.")] = False,
    max_body_mb: Annotated[float, typer.Option(help="Of one request.")] = 16.0,
    max_pixels: Annotated[int, typer.Option(help="Of one picture.")] = 25_000_000,
    max_images: Annotated[int, typer.Option(help="Of one request.")] = 64,
    max_streams: Annotated[int, typer.Option(help="In all.")] = 256,
    max_waiting: Annotated[int, typer.Option(help="Requests at a time.")] = 256,
    max_stream_waiting: Annotated[int, typer.Option(help="Requests at a time for one stream.")] = 16,
    max_memory_mb: Annotated[float, typer.Option(help="Of all bodies and decoded images together.")] = 512.0,
    timeout_s: Annotated[float, typer.Option(help="For receiving a body, and for waiting.")] = 30.0,
) -> None:
    """Serve a model over HTTP that goes on learning, for each stream of images on its own.

    - `wildtta serve --state streams` and open http://127.0.0.1:8000
    - `wildtta serve --model timm:resnet50_gn --region region.safetensors --device cuda --state streams`
    """
    given = {name: value for name, value in locals().items() if name not in ("open_", "operator_key_file")}
    with _clear_errors():
        try:
            from wildtta.serve import Settings
            from wildtta.serve import serve as run_service
        except ImportError as error:
            raise ConfigError(f"this needs more packages ({error}): pip install 'wildtta[serve]'") from error
        key = operator_key_file.read_text().strip() if operator_key_file else os.environ.get("WILDTTA_OPERATOR_KEY")
        run_service(Settings(**given, open=open_, operator_key=key or None))


# -- running and reporting ---------------------------------------------------------------------------------------------


def _run(config: Config, out: Path, *, tables: bool = True) -> None:
    if not muster(config.device).leads:  # of the processes of torchrun the first one speaks
        run(config, out)
        return
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


def _study(
    name: str,
    out: Path,
    flags: dict[str, Any],
    lists: dict[str, str | None],
    seeds: str | None,
    quick: bool,
    until: float | None,
    quiet: bool,
) -> None:
    import time

    from wildtta.studies import STUDIES, Bench, Choice, TimeOverError, read_summary, run_studies

    if name == "list":
        table = Table("study", "what it asks", box=None, header_style="bold")
        for key, found in STUDIES.items():
            table.add_row(key, found.asks)
        console.print(table)
        return
    names = list(STUDIES) if name == "all" else _list(name)
    for each in names:
        _known(each, [*STUDIES, "all", "list"], "study")
    given = {key: value for key, value in flags.items() if value is not None}
    given |= {key: _list(value) for key, value in lists.items() if value is not None}
    if seeds is not None:
        given["seeds"] = [_whole("seeds", item) for item in _list(seeds)]
    if quick:
        given["scale"] = "small"
    bars = _StudyBars()
    deadline = float("inf") if until is None else time.monotonic() + until
    bench = Bench(Choice(**given), out, bars, deadline)
    with _stoppable(out), bars:
        try:
            page = run_studies(names, bench)
        except TimeOverError:
            text = f"not finished: the time is over; what is done is kept in {out}, and the same command goes on from there"
            errors.print(text, soft_wrap=True, highlight=False, markup=False)
            raise typer.Exit(UNFINISHED) from None
    for each in names:
        summary = read_summary(out / each)
        assert summary is not None
        console.print(f"\n[bold]{escape(STUDIES[each].title)}[/]", highlight=False)
        for point in STUDIES[each].findings(summary):
            console.print(f"- {escape(point)}", soft_wrap=True, highlight=False)
        if not quiet:
            for grid in STUDIES[each].tables(summary):
                console.print(grid)
    console.print(f"\nThe page with all studies: [bold]{escape(str(page))}[/]", soft_wrap=True, highlight=False)
    if bench.failures:
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
        self.all: Any = None

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
        if self.all is not None:
            self.bars.remove_task(self.all)
        self.all = self.bars.add_task("[bold]cells[/]", total=cells, completed=kept, note="")

    def progress(self, family: Any, seen: int, images: int, accuracy: float) -> None:
        cell = family[0]
        if cell.name not in self.running:
            kind = f"{len(family)} streams" if len(family) > 1 else cell.kind
            self.running[cell.name] = self.bars.add_task(
                f"  {cell.model} {cell.scenario} {kind} {cell.method}", total=images, note=""
            )
        note = "adapting images" if accuracy != accuracy else f"{accuracy:.1f} %"
        self.bars.update(self.running[cell.name], completed=seen, total=images, note=note)

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


class _StudyBars(_Bars, Teller):
    """The same for a study, which asks for streams again and again, and has parts of its own between them."""

    def begin(self, cells: int, kept: int) -> None:
        super().begin(cells - kept, 0)

    def part(self, name: str) -> None:
        self.begin(1, 0)
        self.bars.update(self.all, note=name)


if __name__ == "__main__":
    main()

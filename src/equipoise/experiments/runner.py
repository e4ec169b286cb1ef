"""Run the jobs of entries on all cores, keep what is finished, write the pages."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from multiprocessing import get_context, parent_process
from pathlib import Path

from equipoise.errors import EquipoiseError, InvalidInput
from equipoise.experiments.designs import MissingData
from equipoise.experiments.entry import Entry, Job, Result, Scale
from equipoise.files import write_atomic

__all__ = ["Outcome", "run"]

# Modules that no result depends on.
_PRESENTATION = {"page.py", "plots.py", "cli.py", "runner.py", "numbers.py"}
# One thread for every library that has threads of its own, which read this when they are imported.
_ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "NUMEXPR_NUM_THREADS": "1",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
    "JAX_PLATFORMS": "cpu",
    "JAX_ENABLE_X64": "1",
}


@dataclass
class Outcome:
    """What became of one entry: the results of its jobs, why some are missing, and the time they took."""

    entry: Entry
    jobs: list[Job]
    results: list[Result] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)
    failed: str = ""
    seconds: float = 0.0


def run(entries: list[Entry], scale: Scale, out: Path, progress: bool, workers: int | None) -> Path:
    """Do all jobs that are not done yet; write every entry's files as soon as it is complete, then the index."""
    from equipoise.experiments.page import write_entry, write_index

    try:
        (out / "parts").mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInput(
            "out", "a folder that can be written", f"{out}: {error.strerror}", "choose another"
        ) from error
    outcomes = {e.name: Outcome(e, e.jobs(scale)) for e in entries}
    with _lines(outcomes, progress) as show, _pool(workers) as pool:
        # entries that measure time go first, one job after the other, on a machine that does nothing else
        for outcome in sorted(outcomes.values(), key=lambda o: not o.entry.alone):
            if not outcome.entry.alone:
                break
            for job in outcome.jobs:
                _keep(outcome, job, pool.submit(_work, outcome.entry.name, job, scale, out))
                show(outcome)
        todo: dict[Future[Result], tuple[Outcome, Job]] = {}
        for outcome in outcomes.values():
            if not outcome.entry.alone:
                todo |= {
                    pool.submit(_work, outcome.entry.name, job, scale, out): (outcome, job) for job in outcome.jobs
                }
        try:
            for future in as_completed(todo):
                outcome, job = todo[future]
                _keep(outcome, job, future)
                show(outcome)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    for outcome in outcomes.values():
        # as they were asked for, whatever the order in which they ended
        outcome.results.sort(key=lambda found: found["index"])
        write_entry(outcome, scale, out)
    return write_index(list(outcomes.values()), scale, out)


def _keep(outcome: Outcome, job: Job, future: Future[Result]) -> None:
    try:
        found = future.result()
    except BrokenExecutor as error:
        raise EquipoiseError(
            "a process was killed from outside, perhaps for want of memory. What is finished is kept: run it again to go on."
        ) from error
    if "failed" in found:
        outcome.failed = found["failed"]
        return
    if "missing" in found:
        outcome.missing[str(job.get("dataset", outcome.entry.name))] = found["missing"]
        return
    outcome.seconds += found["seconds"]
    outcome.results.append({**found, "index": outcome.jobs.index(job)})


def _work(name: str, job: Job, scale: Scale, out: Path) -> Result:
    """One job in a process of its own, or its result from an earlier run."""
    from equipoise.experiments import find

    path = out / "parts" / f"{name}-{_fingerprint(name, job, scale)}.json"
    if path.exists():
        return json.loads(path.read_text(encoding="utf-8"))
    began = time.perf_counter()
    try:
        found = find(name).run(job, scale)
    except MissingData as error:
        return {"missing": str(error)}
    except Exception as error:  # one job's failure must not cost the others their work
        return {"failed": f"{type(error).__name__}: {error}"}
    found = {**found, "seconds": time.perf_counter() - began}
    write_atomic(path, json.dumps(found).encode(), "out")
    return found


def _fingerprint(name: str, job: Job, scale: Scale) -> str:
    """Of all that a job's result depends on, the code included."""
    german = "" if scale.german is None else str(scale.german.resolve())
    text = json.dumps([name, job, scale.smoke, scale.seed, german, _sources()], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@cache
def _sources() -> str:
    digest = hashlib.sha256()
    for file in _computing(Path(__file__).parents[1]):
        digest.update(_essence(file).encode())
    return digest.hexdigest()


def _computing(root: Path) -> list[Path]:
    """The modules of the library at `root` that a result may depend on, wherever that is."""
    return [
        file
        for file in sorted(root.rglob("*.py"))
        if not {"report", "interop"} & set(file.relative_to(root).parts) and file.name not in _PRESENTATION
    ]


def _essence(file: Path) -> str:
    """A module without its comments, and without what only tells or draws results: changing those costs no rerun."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    if file.parent == Path(__file__).parent:
        tree.body = [node for node in tree.body if not _tells(node)]
    return ast.dump(tree)


def _tells(node: ast.stmt) -> bool:
    if isinstance(node, ast.FunctionDef):
        return node.name == "draw" or node.name.startswith("claim")
    return isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and ast.unparse(node.value.func) == "Entry"


@contextmanager
def _pool(workers: int | None) -> Iterator[ProcessPoolExecutor]:
    """Processes that use one thread each: linear algebra and compilers read these settings when they are imported."""
    before = {k: os.environ.get(k) for k in _ONE_THREAD}
    os.environ.update(_ONE_THREAD)
    try:
        # processes are started when work arrives, so the settings must stay until the end
        with ProcessPoolExecutor(workers or os.cpu_count(), get_context("spawn"), _end_with_parent) as pool:
            yield pool
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _end_with_parent() -> None:
    """End this process when the one that started it is gone: a pool's workers would wait for work for ever."""
    parent = parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@contextmanager
def _lines(outcomes: dict[str, Outcome], progress: bool) -> Iterator[Callable[[Outcome], None]]:
    """One progress line per entry."""
    if not progress:
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description:22}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        tasks = {name: bar.add_task(name, total=len(o.jobs)) for name, o in outcomes.items()}

        def show(outcome: Outcome) -> None:
            bar.advance(tasks[outcome.entry.name])
            if outcome.failed or outcome.missing:
                word = "failed" if outcome.failed else "data missing"
                bar.update(tasks[outcome.entry.name], description=f"{outcome.entry.name} ({word})")

        yield show

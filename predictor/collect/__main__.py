"""`python -m predictor.collect --out FILE --minutes 10`: measure what is there, go on next time."""

from __future__ import annotations

import argparse
import re
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from predictor.collect.catalog import Model
from predictor.collect.plan import VARIANTS, available, solo
from predictor.collect.processes import Failed
from predictor.collect.records import Records
from predictor.collect.runner import Runner, Settings

_BAR = 24


def parser() -> argparse.ArgumentParser:
    """Return the command line."""
    made = argparse.ArgumentParser(prog="predictor.collect", description=__doc__)
    made.add_argument("--out", type=Path, required=True, help="file to append to")
    made.add_argument("--minutes", type=float, default=10.0, help="time budget, start-up included")
    made.add_argument("--device", default="cuda", help="cuda, or cpu for a dry run")
    made.add_argument("--only", choices=("solo", "pairs"), help="one half of the work")
    made.add_argument(
        "--pair-share", type=float, default=0.35, help="share of the time kept for pairs"
    )
    made.add_argument("--seconds", type=float, default=Settings.seconds, help="of each measurement")
    made.add_argument("--variants", type=int, default=VARIANTS, help="configurations of each model")
    made.add_argument("--models", default="", help="regular expression on names of models")
    made.add_argument("--pairs", type=int, default=Settings.max_pairs, help="pairs at most, in all")
    made.add_argument("--group", type=int, default=Settings.group, help="jobs held on the GPU")
    made.add_argument("--warm", type=int, default=Settings.warm, help="processes kept warm")
    made.add_argument("--no-graphs", action="store_true", help="measure only, export nothing")
    made.add_argument("--backend", default=Settings.backend, help=argparse.SUPPRESS)
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure; exit codes: 0, 1 (failed), 2 (usage)."""
    command = parser()
    options = command.parse_args(arguments)
    try:
        re.compile(options.models)
    except re.error as error:
        command.error(f"--models: {error}")
    started = time.monotonic()
    deadline = started + 60 * options.minutes
    wants_pairs, wants_solo = options.only != "solo", options.only != "pairs"
    share = options.pair_share if wants_pairs else 0.0
    settings = Settings(
        device=options.device, backend=options.backend, seconds=options.seconds,
        pair_seconds=options.seconds, warm=options.warm, group=options.group,
        max_pairs=options.pairs, graphs=not options.no_graphs,
        deadline=deadline - 60 * options.minutes * share if wants_solo else deadline,
    )  # fmt: skip
    # A kill is to end our processes as an interrupt does.
    stop = _Stop()
    signal.signal(signal.SIGTERM, stop.interrupt)
    records = Records(options.out)
    bar = _Progress(deadline)

    def say(words: str) -> None:
        bar.show(words)
        stop.check()

    runner = Runner(settings, records, say)
    try:
        libraries = runner.start({"startedAt": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())})
        models = available(libraries, options.models)
        by_name: dict[str, Model] = {model.name: model for model in models}
        if wants_solo:
            runner.solo(list(solo(models, options.variants)), by_name)
        if wants_pairs:
            runner.until(deadline)
            runner.pairs()
    except (Failed, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        if "No module named 'torch'" in str(error):
            print("  PyTorch is missing: pip install 'tandem-gpu[profile]'", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nstopped; the same command goes on from here", file=sys.stderr)
        return 1
    finally:
        runner.close()
        records.close()
    alone = records.of_kind("solo")
    good = [record for record in alone if record["status"] == "ok"]
    print(
        f"\n{len(good)} configurations of {len({r['model'] for r in good})} models "
        f"({len(alone) - len(good)} did not run), {len(records.of_kind('pair'))} pairs, "
        f"{(time.monotonic() - started) / 60:.1f} minutes: {options.out}",
        file=sys.stderr,
    )
    return 0 if good else 1


class _Progress:
    """A bar of the time that is used up, and the last configuration; lines where no terminal."""

    def __init__(self, deadline: float) -> None:
        self._started = time.monotonic()
        self._deadline = deadline

    def show(self, words: str) -> None:
        """Show what was just measured."""
        now = time.monotonic()
        share = min((now - self._started) / max(self._deadline - self._started, 1e-9), 1.0)
        left = max(self._deadline - now, 0.0)
        filled = int(share * _BAR)
        bar = f"[{'#' * filled}{'.' * (_BAR - filled)}] {left / 60:4.1f} min left  {words}"
        if sys.stderr.isatty():
            print(f"\r\x1b[K{bar[:110]}", end="", file=sys.stderr, flush=True)
        else:
            print(bar, file=sys.stderr, flush=True)


class _Stop:
    """Ends a run at SIGTERM, at once where Python lets an exception through.

    Python drops what a signal handler raises inside a finaliser or a weak reference's callback.
    Asking again after each measurement ends the run then.
    """

    def __init__(self) -> None:
        self._asked = False

    def interrupt(self, _: int, __: FrameType | None) -> None:
        """Handle the signal; raises KeyboardInterrupt."""
        self._asked = True
        raise KeyboardInterrupt

    def check(self) -> None:
        """Raise KeyboardInterrupt if there was a signal."""
        if self._asked:
            raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())

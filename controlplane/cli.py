"""`tandem controlplane`: a real control plane on this machine."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from tandem.cli.output import err, out, print_json, print_table

if TYPE_CHECKING:
    from controlplane.binaries import Program
    from controlplane.build import Report, Step

app = typer.Typer(
    help="A real Kubernetes control plane as processes on loopback.", no_args_is_help=True
)


_JSON = typer.Option(False, "--json", help="Print JSON on stdout.")


def _choose(version: str | None) -> None:
    """Have this process, and those that it starts, use a minor version of Kubernetes."""
    from controlplane import binaries

    if version:
        os.environ[binaries.VERSION_VARIABLE] = version


def _other_versions() -> list[str]:
    from controlplane import binaries

    return binaries.other_versions()


_KUBERNETES = typer.Option(
    None,
    "--kubernetes",
    metavar="MINOR",
    help="Another pinned version of Kubernetes, such as 1.34.",
    autocompletion=_other_versions,
)


def _operators() -> list[str]:
    from controlplane import operators

    return [operator.name for operator in operators.OPERATORS]


_OPERATORS = typer.Option(
    "",
    "--operators",
    metavar="NAMES",
    help="Also other projects' operators, such as jobset; several with commas between them.",
    autocompletion=_operators,
)


@app.command("build")
def build_command(
    real_nodes: bool = typer.Option(
        False, "--real-nodes", help="Also what a node needs: kubelet, containerd and the like."
    ),
    operators: str = _OPERATORS,
    kubernetes: str | None = _KUBERNETES,
) -> None:
    """Build the control plane's programs once, into a cache outside the tree.

    Without Go it says what is skipped and ends well: tests that need the programs skip, too.
    """
    from controlplane import binaries, build

    _choose(kubernetes)
    if not build.outstanding() or build.go():
        _build_with_progress()
        _say(f"Control plane: {binaries.build_folder()}")
    elif absent := binaries.missing():
        _say(f"Control-plane tests are skipped: no {', '.join(absent)}. {binaries.how_to_get()}")
    else:
        _say("Control plane: no Go, so the programs in KUBEBUILDER_ASSETS and PATH are used.")
    if build.fetch_promtool() is None:
        _say("promtool's checks of metrics are skipped: it is not here, nor is apt to fetch it.")
    if real_nodes:
        _build_real_nodes()
    _build_operators(operators)


def _build_operators(listed: str) -> list[str]:
    """Build the operators of a list that are not built yet; return the names in it."""
    from controlplane import build, operators

    names = [name.strip() for name in listed.split(",") if name.strip()]
    chosen = operators.chosen(names)
    if operators.missing(chosen) and build.go() is None:
        absent = ", ".join(each.name for each in operators.missing(chosen))
        _say(f"Without Go there is no {absent}: tests with it are skipped.")
        return names
    for operator in operators.missing(chosen):
        _say(f"Building {operator.name} (some minutes the first time).")
        _with_progress(partial(operators.build_one, operator))
    for operator in chosen:
        _say(f"{operator.name}: {operators.folder(operator)}")
    return names


def _build_real_nodes() -> None:
    """Build and install what a real node needs; say why where it cannot run anyway."""
    from controlplane import binaries
    from controlplane.realnode import machine

    if reasons := machine.unsuitable():
        _say(f"Real nodes: not on this machine: {'; '.join(reasons)}.")
        return
    if packages := machine.missing_packages():
        _say(f"Real nodes: installing Debian's {' '.join(packages)}.")
        machine.install(packages)
    _build_with_progress(binaries.NODE_PROGRAMS, "real nodes", "10 minutes")
    _say(f"Real nodes: {binaries.node_build_folder()}")


@app.command()
def up(
    nodes: int = typer.Option(2, min=0, help="How many nodes kwok plays (64 CPUs, 256 GiB each)."),
    real_nodes: int = typer.Option(
        0, min=0, help="How many nodes run kubelet and containerd (needs root)."
    ),
    scheduler: bool = typer.Option(True, help="Run kube-scheduler with its default configuration."),
    operators: str = _OPERATORS,
    foreground: bool = typer.Option(False, help="Stay here until Ctrl+C, and stop it then."),
    kubernetes: str | None = _KUBERNETES,
    as_json: bool = _JSON,
) -> None:
    """Start a control plane, in the background unless an option says otherwise."""
    from controlplane import background, binaries, build

    _choose(kubernetes)
    if build.outstanding() and build.go():
        _build_with_progress()
    if real_nodes:
        _build_real_nodes()
    started = _build_operators(operators)

    def show(state: dict[str, Any]) -> None:
        if as_json:
            print_json(state)
            return
        _say(f"Control plane on {state['url']}. Use it with:")
        out.print(f"export KUBECONFIG={state['kubeconfig']}", highlight=False, soft_wrap=True)
        out.print(f"export PATH={binaries.build_folder()}:$PATH", highlight=False, soft_wrap=True)

    if foreground:
        background.keep(nodes, scheduler, real_nodes, show, started)
        return
    with err.status("Starting the control plane"):
        state, new = background.up(nodes, scheduler, real_nodes, started)
    if not new:
        _say("It runs already; its nodes are left as they are.")
    show(state)


@app.command()
def load(archives: list[Path]) -> None:
    """Make the images in archives known to the real nodes of the plane in the background."""
    from controlplane import background

    for archive in archives:
        nodes = background.load(archive.resolve())
        _say(f"{archive.name}: on {', '.join(nodes)}")


@app.command()
def down() -> None:
    """Stop the control plane in the background; its data are gone with it."""
    from controlplane import background

    _say("Stopped." if background.down() else "No control plane runs in the background.")


@app.command()
def status(as_json: bool = _JSON) -> None:
    """Show the control plane in the background; exit code 1 when there is none."""
    from controlplane import background

    state = background.status()
    if as_json:
        print_json(state or {})
    elif state is None:
        _say("No control plane runs in the background; start one with `tandem controlplane up`.")
    else:
        rows = [
            (name, process["pid"], "running" if process["running"] else "ended")
            for name, process in state["processes"].items()
        ]
        print_table(f"Control plane on {state['url']}", ["program", "pid", "state"], rows)
        out.print(f"logs: {state['folder']}/logs", highlight=False, soft_wrap=True)
        out.print(f"export KUBECONFIG={state['kubeconfig']}", highlight=False, soft_wrap=True)
    raise typer.Exit(0 if state else 1)


def _say(line: str) -> None:
    err.print(line, highlight=False, markup=False, soft_wrap=True)


def _build_with_progress(
    programs: tuple[Program, ...] = (),
    what: str = "the control plane",
    minutes: str = "10 to 20 minutes",
) -> None:
    """Build; show one live line on a terminal, else a line at each start, minute and end."""
    from controlplane import binaries, build

    programs = programs or binaries.PROGRAMS
    if build.outstanding(programs):
        _say(f"Building {what}; the first time takes {minutes} on two cores.")
    _with_progress(partial(build.build, programs=programs))


def _with_progress(work: Callable[[Report], object]) -> None:
    """Do what reports its steps; show them as they come."""
    if err.is_terminal:
        with err.status("") as live:

            def show_live(step: Step) -> None:
                if step.state == "built":
                    _say(f"  {_line(step)}")
                else:
                    live.update(_line(step))

            work(show_live)
        return

    last = ("", "", -1)

    def show_lines(step: Step) -> None:
        nonlocal last
        mark = (step.name, step.state, int(step.elapsed_s // 60))
        if mark != last:
            _say(f"  {_line(step)}")
            last = mark

    work(show_lines)


def _line(step: Step) -> str:
    if step.state == "waiting":
        return f"waiting for another build to end, {step.elapsed_s:.0f} s"
    return f"({step.index}/{step.total}) {step.state} {step.name}, {step.elapsed_s:.0f} s"

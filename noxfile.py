"""Every check of the project: `nox -l` lists them, `nox -s NAME` runs one.

All sessions install under constraints/cpu.txt, so that two machines test the same thing.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import nox

nox.options.sessions = ["tests"]
nox.options.reuse_venv = "yes"
nox.needs_version = ">=2025.2"

CONSTRAINTS = "constraints/cpu.txt"

#: Each package and the siblings its wheel declares, in the order to install them.
NEEDS = {
    "omni-core": (),
    "omni-qwen3": ("omni-core",),
    "omni-server": ("omni-core",),
}
#: What the tests of a package need beyond the package: its own optional parts.
EXTRAS = {"omni-core": "[media,testing,torch]"}
TEST_TOOLS = ("pytest", "pytest-asyncio")
ONE_THREAD = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}


def install(session: nox.Session, *packages: str, tools: tuple[str, ...] = ()) -> None:
    """Install our packages from this tree, and tools, under the constraints.

    A session's environment is kept, and so is the install while nothing it depends on has changed:
    asking pip again costs half a minute.
    """
    editable = [f"--editable=packages/{name}{EXTRAS.get(name, '')}" for name in packages]
    wanted = ["-q", "-c", CONSTRAINTS, *editable, *tools]
    read = [CONSTRAINTS, *(f"packages/{name}/pyproject.toml" for name in packages)]
    content = "".join([*wanted, *(Path(file).read_text() for file in read)])
    digest = hashlib.sha256(content.encode()).hexdigest()
    stamp = Path(session.virtualenv.location) / "omni-install"
    if not (stamp.exists() and stamp.read_text() == digest):
        session.install(*wanted)
        stamp.write_text(digest)


@nox.session
def demo(session: nox.Session) -> None:
    """Speak to a tiny model: a spoken question and an image in, text and ./reply.wav out."""
    install(session, *NEEDS)
    session.run("omni", "demo", *session.posargs)


@nox.session
def tests(session: nox.Session) -> None:
    """Run every test: the packages' own and those across packages."""
    install(session, *NEEDS, tools=(*TEST_TOOLS, "openai"))
    session.run("pytest", *session.posargs, env=ONE_THREAD)


@nox.session
@nox.parametrize("package", [nox.param(name, id=name) for name in NEEDS])
def tests_package(session: nox.Session, package: str) -> None:
    """Run the tests of one package with only its declared siblings installed."""
    tools = (*TEST_TOOLS, "openai") if package == "omni-server" else TEST_TOOLS
    install(session, *NEEDS[package], package, tools=tools)
    session.run("pytest", f"packages/{package}/tests", *session.posargs, env=ONE_THREAD)


@nox.session
def parity(session: nox.Session) -> None:
    """Regenerate the stored references with transformers and compare them with the tree's."""
    install(session, "omni-core", "omni-qwen3")
    # The video processor of transformers wants torchvision, whose wheel names a CUDA torch.
    session.install("-q", "-c", CONSTRAINTS, "--no-deps", "torchvision")
    tiny = str(Path(session.create_tmp()) / "tiny")
    session.run("python", "-c", f"from omni_qwen3.tiny import build; build({tiny!r}, seed=0)")
    session.run(
        "python", "tests/parity/reference.py", "--checkpoint", tiny, "--check", env=ONE_THREAD
    )


@nox.session
def lint(session: nox.Session) -> None:
    """Check style, formatting and file sizes."""
    session.install("-q", "-c", CONSTRAINTS, "ruff")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("python", "tests/check_sizes.py")


@nox.session
def types(session: nox.Session) -> None:
    """Type-check every package, strictly."""
    install(session, *NEEDS, tools=("mypy",))
    for name in NEEDS:
        session.run("mypy", f"packages/{name}/src")


@nox.session
def layers(session: nox.Session) -> None:
    """Check who imports whom, and that core and server name no model."""
    session.install("-q", "-c", CONSTRAINTS, "pytest")
    session.run("pytest", "-q", "tests/test_layers.py", *session.posargs)

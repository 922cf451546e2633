"""Checkpoints by hub id: "organisation/name" or "organisation/name@revision".

Knows which files a checkpoint consists of, and what to tell an operator when they do not come.
Downloading, caching, tokens and offline mode are huggingface_hub's, which model packages bring.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from omni_core.errors import ConfigError

DESCRIPTION: Final = ("*.json", "*.jinja", "merges.txt")
FILES: Final = (*DESCRIPTION, "*.safetensors")
"""What a repository's other files (pictures, other weight formats) are left out by."""
_HUB_ID: Final = re.compile(r"(?P<repo>\w[\w.-]*/\w[\w.-]*)(@(?P<revision>[^@\s]+))?")


def checkpoint_directory(model: str, *, weights: bool = True) -> str:
    """The directory of a checkpoint: `model` itself if that exists here, else the snapshot of the
    hub id, from the local cache or downloaded into it, without the weights if they are not
    wanted. ConfigError says why there is none."""
    if Path(model).exists():
        return model
    named = _HUB_ID.fullmatch(model)
    if named is None:
        raise ConfigError(
            f"{model!r} is neither a directory here nor a hub id; give the directory of a "
            "checkpoint, or organisation/name[@revision]"
        )
    return _snapshot(named["repo"], named["revision"], FILES if weights else DESCRIPTION)


def model_name(model: str) -> str:
    """What clients call the model by default: the directory's name, or the hub id without its
    revision."""
    if Path(model).exists():
        return Path(model).resolve().name
    return model.partition("@")[0]


def _snapshot(repo: str, revision: str | None, files: tuple[str, ...]) -> str:
    try:
        from huggingface_hub import errors, snapshot_download
    except ImportError as exc:
        raise ConfigError(
            f"there is no directory {repo!r} here, and hub ids need huggingface_hub: "
            "pip install 'omni-core[hub]'"
        ) from exc
    wanted = repo if revision is None else f"{repo}@{revision}"
    try:
        return snapshot_download(repo, revision=revision, allow_patterns=list(files))
    except errors.GatedRepoError as exc:
        why = "its owner wants its terms accepted first: do so on its page, then set HF_TOKEN"
        raise _failed(wanted, why) from exc
    except errors.RevisionNotFoundError as exc:
        why = "the repository has no such revision; give a branch, tag or commit of it"
        raise _failed(wanted, why) from exc
    except errors.RepositoryNotFoundError as exc:
        why = "the hub has no such repository, or a private one; check its name, or set HF_TOKEN"
        raise _failed(wanted, why) from exc
    except errors.LocalEntryNotFoundError as exc:
        why = (
            "it is not in the local cache and the hub cannot be reached, or HF_HUB_OFFLINE is set; "
            f"run `hf download {repo}` where there is a network, and give the directory or HF_HOME"
        )
        raise _failed(wanted, why) from exc
    except (OSError, errors.HFValidationError) as exc:
        raise _failed(wanted, f"{exc}; try again, or download it by other means") from exc


def _failed(wanted: str, why: str) -> ConfigError:
    return ConfigError(f"no directory {wanted!r} here, and no such checkpoint from the hub: {why}")

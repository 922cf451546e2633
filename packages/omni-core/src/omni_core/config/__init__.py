"""From a plugin's pipeline and what an operator asks for to checked, resolved stages."""

from omni_core.config.checkpoint import architectures
from omni_core.config.file import ConfigFile
from omni_core.config.layers import Asked, Layout, Resolved, Setting, checkpoint_path, resolve
from omni_core.config.wire import to_doc

__all__ = [
    "Asked",
    "ConfigFile",
    "Layout",
    "Resolved",
    "Setting",
    "architectures",
    "checkpoint_path",
    "resolve",
    "to_doc",
]

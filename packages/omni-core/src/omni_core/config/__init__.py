"""From a plugin's pipeline and what an operator asks for to checked, resolved stages."""

from omni_core.config.checkpoint import architectures
from omni_core.config.layers import Layout, resolve_stages
from omni_core.config.wire import to_doc

__all__ = ["Layout", "architectures", "resolve_stages", "to_doc"]
